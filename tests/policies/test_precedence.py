"""Call argument > policy handed in > with_policy > environment > built-in, for every field, and where each came from."""

from __future__ import annotations

import pytest

from xpuruntime.errors import PolicyError
from xpuruntime.inference.selection.request import demanded_fields
from xpuruntime.policies import (
    ExecutionPolicy,
    KernelPolicy,
    Policy,
    PolicyLayer,
    Rule,
    builtin_policy,
    effective_policy,
    lint,
    resolve,
    with_policy,
)
from xpuruntime.policies.vocabulary import ENGINES
from xpuruntime.targets import DEVICE_KINDS

VALUES = {
    "target": ("cpu", "npu", "gpu", "cuda:1", "metal:0"),
    "engine": ("native", "onnxruntime", "openvino", "qnn", "tensorrt"),
    "precision": ("model", "float32", "float16", "bfloat16", "int8"),
    "strict": (True, False, True, False, True),
    "self_check": ("always", "off", "always", "off", "first_open"),
    "run_timeout_s": (1.0, 2.0, 3.0, 4.0, 5.0),
    "allow_fallback": (("cpu",), ("npu",), (), ("gpu",), ("cuda:0",)),
}
ORIGINS = ("argument", "policy argument", "with_policy", "environment XPU_POLICY ({path})", "built-in")


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("present", range(16))
def test_every_field_at_every_level(tmp_path, field, present):
    """``present`` says in bits which of the four levels above the built-in one set the field."""
    on = [bool(present & (1 << level)) for level in range(4)]
    level_policy = [
        ExecutionPolicy(**{field: VALUES[field][i]}) if on[i] else ExecutionPolicy() for i in range(4)
    ]
    path = tmp_path / "env.yaml"
    level_policy[3].save(path)
    with with_policy(level_policy[2]):
        got = effective_policy(
            {field: VALUES[field][0] if on[0] else None}, level_policy[1], environ={"XPU_POLICY": str(path)}
        )
    builtin = getattr(builtin_policy().execution, field)
    winner = next((i for i in range(4) if on[i]), 4)
    assert getattr(got.policy.execution, field) == (VALUES[field][winner] if winner < 4 else builtin)
    expected = ORIGINS[winner].format(path=path) if winner < 4 or builtin is not None else "unset"
    assert got.origin_of(f"execution.{field}") == expected


def test_variables_stand_over_the_file_that_a_variable_names(tmp_path):
    ExecutionPolicy(engine="openvino", target="gpu", strict=True).save(tmp_path / "p.json")
    environ = {"XPU_POLICY": str(tmp_path / "p.json"), "XPU_ENGINE": "onnxrt", "XPU_DEVICE": " "}
    got = effective_policy(environ=environ)
    assert (got.policy.execution.engine, got.policy.execution.target, got.policy.execution.strict) == (
        "onnxruntime",
        "gpu",
        True,
    )
    assert got.origins["execution.engine"] == "environment XPU_ENGINE"
    assert got.origins["execution.target"] == f"environment XPU_POLICY ({tmp_path / 'p.json'})"
    assert effective_policy(environ={"XPU_POLICY": "auto"}).policy.execution == builtin_policy().execution


def test_the_process_s_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("XPU_ENGINE", "openvino")
    assert effective_policy().policy.execution.engine == "openvino"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (
            {"XPU_ENGINE": "openvno"},
            "[environment XPU_ENGINE] execution.engine: no such engine; got 'openvno'. Did you mean 'openvino'? Known: native, onnxruntime, "
            "tensorrt, openvino, qnn. Or unset it (default engine, if no argument and no policy names one).",
        ),
        ({"XPU_DEVICE": "tpu"}, "[environment XPU_DEVICE] target: no such device; got 'tpu'. "),
        (
            {"XPU_POLICY": "/nowhere.yaml"},
            "[policy /nowhere.yaml] cannot be read; got No such file or directory.",
        ),
    ],
)
def test_a_wrong_variable_is_named(environ, text):
    with pytest.raises(PolicyError) as caught:
        effective_policy(environ=environ)
    assert str(caught.value).startswith(text)


def test_kernel_layers_remember_where_they_came_from(tmp_path):
    path = tmp_path / "p.yaml"
    KernelPolicy(matmul="gemv", rules=[Rule(op="conv", use="cudnn")]).save(path)
    with with_policy(KernelPolicy(matmul="cublas", attention="naive")):
        got = effective_policy(None, path, environ={})
    assert [layer.origin for layer in got.policy.kernel.layers] == ["p.yaml", "with_policy"]
    assert {k: v for k, v in got.origins.items() if k.startswith("kernel")} == {
        "kernel.matmul": f"policy {path}",
        "kernel.rules": f"policy {path}",
        "kernel.attention": "with_policy",
    }


def test_given_policies_in_order_and_options_merge():
    got = effective_policy(
        {"engine": "openvino"},
        KernelPolicy(matmul="gemv"),
        ExecutionPolicy(engine_options={"openvino": {"A": 1}}),
        "auto",
        None,
        {"version": 1, "execution": {"engine_options": {"openvino": {"A": 2, "B": 2}}}},
        environ={},
    )
    assert got.policy.execution.options_for("openvino") == {"A": "1", "B": "2"}
    assert got.origin_of("execution.engine_options.openvino.B") == "policy argument"


def test_the_origin_of_a_mapping_is_that_of_its_entries():
    got = effective_policy(
        {},
        ExecutionPolicy(place={"softmax": "native"}),
        {"version": 1, "execution": {"place": {"conv": "native"}}},
        environ={},
    )
    assert got.origin_of("execution.place") == "policy argument"
    above = Policy(execution=ExecutionPolicy(engine_options={"openvino": {"A": 1}}))
    below = Policy(execution=ExecutionPolicy(engine_options={"openvino": {"A": 2}, "native": {"B": 1}}))
    got = resolve([PolicyLayer("high", above), PolicyLayer("low", below)])
    assert got.origin_of("execution.engine_options") == "low and high"
    assert got.origin_of("execution.engine_options.openvino") == "high"
    assert got.origin_of("execution.place") == "unset"
    assert demanded_fields(got) == {
        "engine_options": "{'native': {'B': '1'}, 'openvino': {'A': '1'}} (low and high)"
    }


def test_resolve_is_the_fold_of_merge():
    layers = [Policy(execution=ExecutionPolicy(engine=e)) for e in ("native", "qnn")]
    got = resolve([PolicyLayer("high", layers[0]), PolicyLayer("low", layers[1])])
    assert got.policy == layers[1].merge(layers[0])
    assert got.origins == {"execution.engine": "high"}
    assert resolve([]).policy == Policy()


def test_unknown_arguments_and_third_party_engines():
    with pytest.raises(PolicyError, match="no such engine; got 'theirs'"):
        effective_policy({"engine": "theirs"}, environ={})
    with pytest.raises(PolicyError, match=r"Known: native, onnxruntime, tensorrt, openvino, qnn, own\.$"):
        effective_policy({"engine": "theirs"}, environ={}, engines=["openvino", "own", "own"])
    assert (
        effective_policy({"engine": "theirs"}, environ={}, engines=["theirs"]).policy.execution.engine
        == "theirs"
    )
    assert (
        effective_policy(environ={"XPU_ENGINE": "theirs"}, engines=["theirs"]).policy.execution.engine
        == "theirs"
    )


def test_the_built_in_default_is_whole_and_clean():
    policy = builtin_policy()
    assert lint(policy) == ()
    assert policy.kernel == KernelPolicy()
    assert policy.execution.precision == "model"
    assert policy.execution.allow_fallback == ()
    assert set(policy.execution.engine_order) == set(DEVICE_KINDS)
    assert {e for order in policy.execution.engine_order.values() for e in order} == set(ENGINES)
