"""ONNX models that nobody exports on purpose: native agrees with ONNX Runtime, or says why not; CUDA code is made without a raw error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.protocols import Array

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

Made = tuple[list[Any], Mapping[str, Array], Mapping[str, Array]]
"""Nodes, inputs and constants; outputs are what no node reads, and ``out*``."""
MODELS: dict[str, Callable[[], Made]] = {}


@pytest.fixture(autouse=True)
def store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))


def odd(make: Callable[[], Made]) -> Callable[[], Made]:
    MODELS[make.__name__] = make
    return make


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> Any:
    return onnx.helper.make_node(op, inputs, outputs, **attrs)


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@odd
def top_none() -> Made:
    return [node("TopK", ["x", "k"], ["out", "out_at"])], {"x": draw(4, 3)}, {"k": ints(0)}


@odd
def nothing_then_something() -> Made:
    nodes = [
        node("Slice", ["x", "three", "one", "zero"], ["none"]),
        node("Relu", ["none"], ["out_none"]),
        node("Concat", ["out_none", "x"], ["out"], axis=0),
    ]
    return nodes, {"x": draw(4, 5)}, {"three": ints(3), "one": ints(1), "zero": ints(0)}


@odd
def product_over_nothing() -> Made:
    return [node("Gemm", ["x", "y", "c"], ["out"])], {"x": draw(2, 0), "y": draw(0, 3), "c": draw(3)}, {}


@odd
def names_like_code() -> Made:
    nodes = [
        node("Relu", ["int"], ["return;}"], name="*/ #include"),
        node("Neg", ["return;}"], ['"q" ünï\n'], name="{}{0}%s"),
        node("Softmax", ['"q" ünï\n'], ["temp.counters"], name=""),
        node("Abs", ["temp.counters"], ["out"], name=""),
    ]
    return nodes, {"int": draw(3, 4)}, {}


@odd
def long_chain() -> Made:
    ops = ["Relu", "Neg", "Sigmoid", "Transpose"]
    nodes = [node(ops[k % 4], [f"v{k}"], [f"v{k + 1}"]) for k in range(1000)]
    nodes.append(node("Identity", ["v1000"], ["out"]))
    return nodes, {"v0": draw(3, 4)}, {}


@odd
def outputs_of_every_kind() -> Made:
    nodes = [
        node("Relu", ["x"], ["out_a"]),
        node("Identity", ["x"], ["out_b"]),
        node("Identity", ["w"], ["out_c"]),
        node("Reshape", ["out_a", "flat"], ["out_d"]),
        node("Identity", ["out_d"], ["out_e"]),
    ]
    return nodes, {"x": draw(2, 3), "nobody": draw(2)}, {"w": draw(5), "flat": ints(-1)}


def recurrent(op: str, direction: str, **attrs: Any) -> Made:
    d, gates = (2 if direction == "bidirectional" else 1), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    feeds = {"x": draw(4, 2, 3), "h": draw(d, 2, 5)} | ({"c": draw(d, 2, 6)[..., :5]} if op == "LSTM" else {})
    known = {
        "w": draw(d, gates * 5, 3),
        "r": draw(d, gates * 5, 5),
        "b": draw(d, 10 * gates),
        "lengths": np.array([2, 4], np.int32),
    }
    read = ["x", "w", "r", "b", "" if "clip" in attrs else "lengths", *list(feeds)[1:]]
    made = ["out", "out_h", "out_c"][: 3 if op == "LSTM" else 2]
    return [node(op, read, made, hidden_size=5, direction=direction, **attrs)], feeds, known


@odd
def lstm_of_lengths() -> Made:
    return recurrent("LSTM", "bidirectional")


@odd
def gru_of_lengths() -> Made:
    return recurrent("GRU", "reverse", linear_before_reset=1)


@odd
def rnn_of_lengths() -> Made:
    return recurrent("RNN", "bidirectional")


@odd
def lstm_with_clip() -> Made:
    return recurrent("LSTM", "bidirectional", clip=0.5)


def written(name: str) -> tuple[bytes, dict[str, Array], dict[str, Array]]:
    """The model's bytes, its inputs, and what ONNX Runtime gives for them."""
    nodes, feeds, known = MODELS[name]()
    helper = onnx.helper
    outputs = [o for n in nodes for o in n.output if o.startswith("out")]

    def model(infos: list[Any]) -> bytes:
        inputs = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in feeds.items()
        ]
        constants = [onnx.numpy_helper.from_array(v, k) for k, v in known.items()]
        graph = helper.make_graph(nodes, "odd", inputs, infos, constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return bytes(made.SerializeToString())

    free = model([helper.make_empty_tensor_value_info(o) for o in outputs])
    session = ort.InferenceSession(free, providers=["CPUExecutionProvider"])
    want = dict(zip(outputs, session.run(outputs, dict(feeds)), strict=True))
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in want.items()
    ]
    return model(infos), dict(feeds), want


@pytest.mark.parametrize("name", MODELS)
def test_native_agrees(name: str) -> None:
    model, feeds, want = written(name)
    with xrt.InferenceSession(model, device="cpu", engine="native") as session:
        found = session.run(feeds)
    for output, value in want.items():
        np.testing.assert_allclose(found[output], value, rtol=2e-4, atol=2e-5, err_msg=output)
        assert found[output].shape == value.shape


@pytest.mark.parametrize("name", [n for n in MODELS if n != "long_chain"])
def test_cuda_code_is_made(name: str) -> None:
    model, _, want = written(name)
    program = xrt.compile(xrt.load_onnx(model), target="cuda:sm_90")
    assert [s.name for s in program.output_specs] == list(want)
