"""ExecutionPolicy as a value."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from xpuruntime.errors import PolicyError
from xpuruntime.policies import ExecutionPolicy
from xpuruntime.targets import DeviceId


def test_the_specification_s_examples():
    policy = ExecutionPolicy(target="npu", precision="int8", static_shape=True, allow_fallback="cpu")
    assert policy.to_dict() == {
        "version": 1,
        "execution": {"target": "npu", "precision": "int8", "static_shape": True, "allow_fallback": "cpu"},
    }
    assert policy.allow_fallback == ("cpu",)
    ExecutionPolicy(precision="int8", static_shape=True)
    ExecutionPolicy(precision="int8", static_shape=True, allow_fallback="cpu")


def test_normal_form():
    policy = ExecutionPolicy(
        target="cuda",
        engine="onnxrt",
        precision="fp16",
        allow_fallback=["cuda:0", "cpu"],
        compile_timeout_s=60,
        engine_options={"openvino": {"NUM_STREAMS": 2, "HINT": "YES", "RATIO": 0.5}},
        fixed_shapes={"x": [1, 3, 224, 224], "batch": 1},
    )
    assert policy == ExecutionPolicy(
        target=DeviceId("cuda", 0),
        engine="onnxruntime",
        precision="float16",
        allow_fallback=("cuda", "cpu"),
        compile_timeout_s=60.0,
        engine_options={"openvino": {"RATIO": "0.5", "HINT": "YES", "NUM_STREAMS": "2"}},
        fixed_shapes={"x": (1, 3, 224, 224), "batch": 1},
    )
    assert policy.options_for("openvino") == {"NUM_STREAMS": "2", "HINT": "YES", "RATIO": "0.5"}
    assert policy.options_for("tensorrt") == {}
    assert policy.fixed_shapes == {"x": (1, 3, 224, 224), "batch": 1}


def test_frozen_hashable_picklable():
    policy = ExecutionPolicy(
        engine_options={"openvino": {"A": "1"}}, fixed_shapes={"x": [1]}, engine_order={"cpu": "native"}
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.engine = "native"
    with pytest.raises(TypeError):
        policy.engine_options["openvino"]["A"] = "2"
    for same in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), eval(repr(policy))):
        assert same == policy
        assert hash(same) == hash(policy)
    assert policy.order_for("cpu") == ("native",)
    assert policy.order_for("npu") == ()


def test_merge_goes_field_by_field_and_option_by_option():
    low = ExecutionPolicy(
        target="cpu",
        strict=True,
        allow_fallback="cpu",
        engine_options={"openvino": {"A": 1, "B": 1}, "qnn": {"C": 1}},
    )
    high = ExecutionPolicy(
        target="npu", strict=False, allow_fallback=[], engine_options={"openvino": {"B": 2}}
    )
    assert low.merge(high) == ExecutionPolicy(
        target="npu",
        strict=False,
        allow_fallback=(),
        engine_options={"openvino": {"A": 1, "B": 2}, "qnn": {"C": 1}},
    )
    empty = ExecutionPolicy()
    assert low.merge(empty) == empty.merge(low) == low


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"device": "cpu"}, "[ExecutionPolicy] device: unknown key. Known keys: "),
        (
            {"target": "CPU"},
            "[ExecutionPolicy] target: no such device; got 'CPU'. Did you mean 'cpu'? Known: ",
        ),
        ({"target": "cpu:"}, "[ExecutionPolicy] target: no such device; got 'cpu:'. "),
        (
            {"engine": "open vino"},
            "[ExecutionPolicy] engine: must be an engine's name, such as onnxruntime; got 'open vino'.",
        ),
        (
            {"precision": "int9"},
            "[ExecutionPolicy] precision: no such precision; got 'int9'. Did you mean 'int8'? Known: model, ",
        ),
        ({"static_shape": 1}, "[ExecutionPolicy] static_shape: must be true or false; got 1."),
        (
            {"fixed_shapes": {"x": [1, -1]}},
            "[ExecutionPolicy] fixed_shapes.x[1]: must be an integer from 0 to 1099511627776; got -1.",
        ),
        (
            {"fixed_shapes": [1]},
            "[ExecutionPolicy] fixed_shapes: must be a mapping of symbolic dims to sizes, or input names to shapes, at most 64 entries; got [1].",
        ),
        (
            {"allow_fallback": ["cpu", "tpu"]},
            "[ExecutionPolicy] allow_fallback[1]: no such device; got 'tpu'. Did you mean ",
        ),
        (
            {"optimization_level": 4},
            "[ExecutionPolicy] optimization_level: must be an integer from 0 to 3; got 4.",
        ),
        (
            {"compile_timeout_s": 0},
            "[ExecutionPolicy] compile_timeout_s: must be a positive number of seconds, at most 1e6; got 0.",
        ),
        (
            {"run_timeout_s": float("nan")},
            "[ExecutionPolicy] run_timeout_s: must be a positive number of seconds, at most 1e6; got nan.",
        ),
        (
            {"tune": {"on_build": -1}},
            "[ExecutionPolicy] tune.on_build: must be a number of seconds from 0 to 1e6; got -1. Give 10, for example, or 0 to turn it off.",
        ),
        (
            {"engine_options": {"openvino": {"X": True}}},
            "[ExecutionPolicy] engine_options.openvino.X: must be a string or a number; got True. Quote it as the vendor spells it, ",
        ),
        (
            {"engine_options": {"onnxrt": {}, "onnxruntime": {}}},
            "[ExecutionPolicy] engine_options.onnxruntime: is another spelling of 'onnxruntime', which is already set.",
        ),
        (
            {"engine_order": {"tpu": "native"}},
            "[ExecutionPolicy] engine_order.tpu: no such device kind; got 'tpu'. ",
        ),
        *(
            ({"memory_bytes": none}, "[ExecutionPolicy] memory_bytes: must be at least one byte; got ")
            for none in (0, "0", "0 MiB")
        ),
        ({"strict": "yes"}, "[ExecutionPolicy] strict: must be true or false; got 'yes'."),
    ],
)
def test_refusals_say_what_and_where(fields, text):
    with pytest.raises(PolicyError) as caught:
        ExecutionPolicy(**fields)
    assert str(caught.value).startswith(text)
