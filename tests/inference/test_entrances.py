"""Every field of both policies at every entrance: it holds, or it is an error that names it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.engines import lookup
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, Policy, Rule
from xpuruntime.policies.entrances import ENTRANCES, SESSION
from xpuruntime.policies.vocabulary import ENGINES, KERNELS, PRECISIONS

sys.path.insert(0, str(Path(__file__).parent))
from entrances import (
    ENTER,
    TABLE,
    WEIGHTS,
    Seen,
    by_compile,
    by_dag_executor,
    by_executor,
    by_partition,
    by_session,
    graph,
    kind_of,
    onnx_bytes,
    program_of,
)

sys.path.pop(0)

# ── how a field shows that it was honored ──


def shows(field: str, value: Any, seen: Seen, policy: ExecutionPolicy) -> bool:
    """Whether what was made is what the field says; fields that limit or permit something show nothing here."""
    fell = bool(policy.allow_fallback)
    if field == "target":
        return value == "auto" or seen.devices == {kind_of(value)} or (fell and seen.devices == {"cpu"})
    if field == "engine":
        everything_placed = bool(policy.place) and "*" in policy.place
        return value == "auto" or value in seen.engines or fell or everything_placed
    if field == "precision":
        own = seen.types <= {"float32"}
        # Without fusions elementwise values are wider than a narrow precision, never narrower.
        wide = seen.types == {"float64"} if value == "float64" else value in seen.types
        return (own and (value in ("model", "float32") or fell)) or wide
    if field in ("static_shape", "fixed_shapes"):
        return not value or not seen.open_dims
    if field == "place":
        return set(value.values()) <= seen.engines
    if field == "engine_options" and "openvino" in value and "openvino" in seen.engines:
        return all(f"{k}={v}" in seen.options for k, v in value["openvino"].items())
    return True


def entered(entrance: str, policy: Any, batch: str | int = 2) -> Seen | xrt.XpuError:
    """What the entrance makes of the policy, or its error."""
    try:
        return ENTER[entrance](policy, batch)
    except xrt.XpuError as error:
        return error


def named_in(error: xrt.XpuError, policy: ExecutionPolicy | Mapping[str, Any]) -> bool:
    """Whether the error names one of the fields that are set, or its value."""
    text = str(error).lower()
    fields = policy.set_fields() if isinstance(policy, ExecutionPolicy) else policy
    return any(field in text or word in text for field, word in words(fields))


def words(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field, value in fields.items():
        if isinstance(value, Mapping):
            yield from ((field, str(k).lower()) for k in value)
            yield from ((field, str(v).lower()) for v in value.values() if isinstance(v, str))
        elif not isinstance(value, tuple):
            yield field, str(value).lower()
        yield field, field


# ── the table ──

VALUES: Mapping[str, tuple[Any, ...]] = {
    "target": ("cpu", "auto", "npu", "cuda:7", "metal"),
    "engine": ("native", "onnxruntime", "tensorrt", "auto"),
    "precision": ("model", "float32", "bfloat16", "int8", "float64"),
    "static_shape": (True, False),
    "fixed_shapes": ({"n": 2}, {"x": [2, 8]}, {"m": 2}),
    "allow_fallback": ("cpu", []),
    "optimization_level": (0, 3),
    "caching": (True, False),
    "compile_timeout_s": (60.0,),
    "run_timeout_s": (60.0,),
    "memory_bytes": (1 << 40,),
    "engine_options": ({"openvino": {"NUM_STREAMS": "2"}}, {"native": {"shape_buckets": "2"}}),
    "engine_order": ({"cpu": ["openvino"]}, {"cpu": ["native", "openvino"]}),
    "place": ({"softmax": "onnxruntime"}, {"linear": "native"}),
    "strict": (True, False),
    "self_check": ("off", "always"),
    "autocast": ({"norm": "low"},),
    "parallel": ({"tensor": 2}, {"tensor": 1}),
    "kv_cache": ("model", "fp8"),
    "tune": ({"on_build": 0.001}, {"on_build": 0}),
    "transfers": ({"h2d": "io_only", "d2h": "io_only", "sync": "none"}, {"sync": "any"}),
}
OPEN = {"static_shape", "fixed_shapes"}


def test_every_field_has_a_row_at_every_entrance_and_a_value_here() -> None:
    names = {f.name for f in fields(ExecutionPolicy)}
    assert set(SESSION) == names
    assert {e: set(rows) for e, rows in ENTRANCES.items()} == dict.fromkeys(ENTRANCES, names)
    assert set(VALUES) == names


@pytest.mark.sampled(12)
@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("entrance", ENTER)
def test_a_field_holds_or_is_an_error_that_names_it(entrance: str, field: str) -> None:
    rows = TABLE.get(entrance, entrance)
    for value in VALUES[field]:
        policy = ExecutionPolicy(**{field: value})
        seen = entered(entrance, policy, sizes_for(entrance, field))
        if isinstance(seen, xrt.XpuError):
            assert named_in(seen, policy) or needs_sizes(seen), (value, str(seen))
            assert seen.do, (value, str(seen))
        else:
            assert shows(field, getattr(policy, field), seen, policy), (value, seen)
            refused = rows in ENTRANCES and (takes := ENTRANCES[rows][field].takes)
            assert not refused or takes(getattr(policy, field)), (value, "is said to be an error")


def needs_sizes(error: xrt.XpuError) -> bool:
    """Whether a program cannot be made without sizes, whatever the policy says."""
    return "symbolic dims without a value" in error.what and "shapes=" in error.do


def sizes_for(entrance: str, field: str) -> str | int:
    return "n" if field in OPEN and entrance != "ops" else 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", ["with_policy", "XPU_POLICY"])
@pytest.mark.parametrize("entrance", ENTER)
def test_what_is_set_around_an_entrance_does_what_its_argument_does(
    entrance: str, layer: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (entrance, layer) == ("ops", "XPU_POLICY"):
        pytest.skip("ops reads the environment once; the test below has one of its own")
    for field, values in VALUES.items():
        policy = ExecutionPolicy(**{field: values[-1]})
        batch = sizes_for(entrance, field)
        want = entered(entrance, policy, batch)
        if layer == "with_policy":
            with xrt.with_policy(policy):
                seen = entered(entrance, None, batch)
        else:
            Policy(execution=policy).save(tmp_path / "p.yaml")
            monkeypatch.setenv("XPU_POLICY", str(tmp_path / "p.yaml"))
            seen = entered(entrance, None, batch)
            monkeypatch.delenv("XPU_POLICY")
        if isinstance(want, Seen):
            assert seen == want, field
        else:
            assert type(seen) is type(want), (field, seen)
            assert named_in(seen, policy) or needs_sizes(seen), str(seen)
            if "cannot honor" in str(seen) and entrance != "ops":
                assert layer in str(seen), str(seen)


@pytest.mark.parametrize("layer", ["with_policy", "XPU_POLICY"])
@pytest.mark.parametrize("entrance", ["compile", "partition", "ops"])
def test_the_context_and_the_environment_count_as_the_argument(
    entrance: str, layer: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(execution=ExecutionPolicy(run_timeout_s=5), kernel=KernelPolicy())
    if layer == "XPU_POLICY":
        policy.save(tmp_path / "p.yaml")
        monkeypatch.setenv("XPU_POLICY", str(tmp_path / "p.yaml"))
        with pytest.raises(xrt.PolicyError, match=r"run_timeout_s.*environment XPU_POLICY"):
            # Another policy than of earlier calls: ops reads the environment when it first sees one.
            ENTER[entrance](KernelPolicy(rules=[Rule(op="pool", forbid=["ported"], reason=layer)]))
    else:
        with (
            xrt.with_policy(policy),
            pytest.raises(xrt.PolicyError, match=r"run_timeout_s.*with_policy|run_timeout_s"),
        ):
            ENTER[entrance](None)


@pytest.mark.parametrize("entrance", ["compile", "partition", "ops"])
def test_variables_of_engine_and_device_count(entrance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_DEVICE", "npu")
    with pytest.raises(xrt.DeviceUnavailable, match="target"):
        ENTER[entrance](KernelPolicy(rules=[Rule(op="pool", forbid=["ported"], reason="device")]))


def test_an_argument_is_above_the_policy() -> None:
    assert program_of(
        xrt.compile(graph(), target="cpu", policy=ExecutionPolicy(target="cuda:7"))
    ).devices == {"cpu"}


def test_the_npu_policy_of_the_specification_falls_back_at_every_entrance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = ExecutionPolicy(target="npu", precision="int8", allow_fallback="cpu")
    for entrance, enter in ENTER.items():
        caplog.clear()
        with caplog.at_level(logging.WARNING, "xpuruntime"):
            seen = enter(policy)
        assert seen.devices == {"cpu"}, entrance
        assert seen.types <= {"float32"}, entrance
        if entrance.startswith("xpu "):
            continue  # its warnings go to stderr
        said = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert said, entrance


def test_precision_holds_at_every_level_of_optimization() -> None:
    for level in (0, 1, 2, 3):
        seen = by_compile(ExecutionPolicy(precision="bfloat16", optimization_level=level))
        assert "bfloat16" in seen.types, level


def test_a_rule_that_partition_was_given_reaches_the_regions() -> None:
    seen = by_partition(KernelPolicy(rules=[Rule(op="matmul", use="generated")]))
    assert "matmul/generated" in seen.kernels
    assert not any(k.startswith("matmul/") and k != "matmul/generated" for k in seen.kernels)


def test_what_partition_settled_is_said_to_partition() -> None:
    plan = xrt.partition(graph())
    with pytest.raises(xrt.EngineUnavailable, match="partition settled it"):
        xrt.DAGExecutor(plan, policy=ExecutionPolicy(engine="onnxruntime"))
    with pytest.raises(xrt.PolicyError, match="a rule forces a kernel"):
        xrt.DAGExecutor(plan, policy=KernelPolicy(rules=[Rule(op="matmul", use="generated")]))
    with pytest.raises(xrt.PolicyError, match="partition places the nodes with such weights"):
        xrt.DAGExecutor(plan, policy=KernelPolicy(weights="int8"))


def test_a_dag_executor_names_the_words_that_differ_from_its_plan() -> None:
    plan = xrt.partition(graph(), KernelPolicy(weights="int4"), place={"softmax": "onnxruntime"})
    assert {r.engine for r in plan.regions} == {"native", "onnxruntime"}
    for equal in (KernelPolicy(weights="int4"), KernelPolicy(weights="int4", activations="model")):
        xrt.DAGExecutor(plan, policy=equal).close()
    told = "such weights; got weights: int4, activations: int8, where partition was given weights: int4"
    with pytest.raises(xrt.PolicyError, match=told):
        xrt.DAGExecutor(plan, policy=KernelPolicy(weights="int4", activations="int8"))


def test_a_dag_executor_takes_what_its_plan_satisfies() -> None:
    for policy in (
        ExecutionPolicy(target="cpu", engine="native", precision="float32", static_shape=True),
        KernelPolicy(rules=[Rule(op="matmul", forbid=["onednn"])]),
    ):
        plan = xrt.partition(graph(), engine="native", others=())
        with xrt.with_policy(policy), xrt.DAGExecutor(plan):
            pass


RULES = (
    Rule(op="matmul", forbid=["gemv", "generated"]),
    Rule(op="matmul", use="generated"),
    Rule(op="matmul", workspace_bytes=1 << 20),
    Rule(op="softmax", deterministic=True),
)


@pytest.mark.parametrize("rule", RULES, ids=["forbid", "use", "workspace_bytes", "deterministic"])
def test_an_executor_runs_only_what_was_compiled_under_its_rules(rule: Rule) -> None:
    """A rule that the program was not compiled under is an error where its calls break it or do not tell."""
    policy = KernelPolicy(rules=[rule])
    told = r"\[Executor\] cannot honor the kernel policy.*with_policy.*drop the demand"
    with xrt.with_policy(policy), pytest.raises(xrt.KernelUnavailable, match=told):
        by_executor(None)
    allowed = KernelPolicy(rules=[Rule(op="matmul", forbid=["naive"]), Rule(op="pool", use="ported")])
    assert by_executor(allowed).engines == {"native"}
    if not rule.forbid:  # that nothing is left for matmul is an error of compile
        with xrt.with_policy(policy), xrt.Executor(xrt.compile(graph())) as executor:
            assert executor.device.kind == "cpu"


@pytest.mark.parametrize(
    "execution",
    [
        {"precision": "bfloat16"},
        {"optimization_level": 1},
        {"fixed_shapes": {"n": 2}},
        {"fixed_shapes": {"x": [2, 8]}},
        {"target": "npu", "precision": "int8", "allow_fallback": "cpu"},
    ],
)
def test_an_executor_takes_what_its_program_was_compiled_for(execution: Mapping[str, Any]) -> None:
    with xrt.with_policy(ExecutionPolicy(**execution)):
        program = xrt.CompiledProgram.from_bytes(xrt.compile(graph(batch="n"), shapes={"n": 2}).to_bytes())
        with xrt.Executor(program) as executor:
            assert executor.device.kind == "cpu"


def test_an_executor_s_argument_is_above_the_policy() -> None:
    program = xrt.compile(graph())
    with xrt.with_policy(ExecutionPolicy(target="cuda:7")):
        with pytest.raises(xrt.DeviceUnavailable, match=r"target.*cuda:7.*with_policy"):
            xrt.Executor(program)
        with xrt.Executor(program, "cpu") as executor:
            assert executor.device.kind == "cpu"


def test_a_precision_that_a_program_has_is_taken_by_a_session() -> None:
    from xpuruntime.program.file import embed

    policy = ExecutionPolicy(precision="bfloat16")
    program = embed(xrt.compile(graph(), policy=policy), WEIGHTS)
    with xrt.InferenceSession(program, policy=policy) as session:
        assert session.plan.regions[0].precision == "bfloat16"


def test_a_session_on_a_program_refuses_a_kernel_that_a_rule_forbids() -> None:
    from xpuruntime.program.file import embed

    program = embed(xrt.compile(graph()), WEIGHTS)
    kernel = next(c.kernel.partition("/")[2] for c in program.entries[0].plans[0].calls)
    with pytest.raises(xrt.XpuError, match=f"a rule forbids '{kernel}'"):
        xrt.InferenceSession(program, kernel_policy=KernelPolicy(rules=[Rule(op="matmul", forbid=[kernel])]))


def linear() -> Graph:
    b = GraphBuilder("net")
    b.output("y", b.linear(b.input("x", "float32[3, 64]"), b.weight("w", "float32[32, 64]")))
    return b.build()


INTEGERS = KernelPolicy(weights="int4", activations="int8")


@pytest.mark.parametrize("policy", [KernelPolicy(weights="int4"), INTEGERS, KernelPolicy(weights="model")])
def test_a_program_keeps_the_weights_that_it_was_compiled_for(policy: KernelPolicy) -> None:
    from xpuruntime.program.file import embed

    weights = {"w": np.ones((32, 64), np.float32)}
    program = embed(xrt.compile(linear(), weights=weights, target="cpu", policy=policy), weights)
    program = xrt.CompiledProgram.from_bytes(program.to_bytes())
    others = [
        KernelPolicy(weights="int4"),
        INTEGERS,
        KernelPolicy(weights="int8"),
        KernelPolicy(weights="int8", activations="int8"),
        KernelPolicy(weights="model"),
    ]
    for other in others:
        told = (
            f"the policy demands {other.weight_words}, and the program was compiled for {policy.weight_words}"
        )
        rule = KernelPolicy(rules=[Rule(weights=other.weights, activations=other.activations)])
        if other == policy:
            for same in (other, rule):  # the calls show what the rule demands
                xrt.Executor(program, policy=same).close()
                xrt.InferenceSession(program, kernel_policy=same).close()
            continue
        with pytest.raises(xrt.KernelUnavailable, match=told):
            xrt.Executor(program, policy=other)
        with pytest.raises(xrt.XpuError, match=told):
            xrt.InferenceSession(program, kernel_policy=other)
        with pytest.raises(
            xrt.KernelUnavailable, match=rf"a rule demands {other.weight_words} \(every op\), but"
        ):
            xrt.Executor(program, policy=rule)


def test_a_rule_that_a_program_was_compiled_under_is_satisfied() -> None:
    policy = KernelPolicy(weights="int4", rules=[Rule(node="*", weights="int8")])
    weights = {"w": np.ones((32, 64), np.float32)}
    program = xrt.compile(linear(), weights=weights, target="cpu", policy=policy)
    xrt.Executor(program, policy=policy).close()


LIMITS = (
    Rule(op="matmul", workspace_bytes=1 << 20),
    Rule(op="softmax", deterministic=True),
    Rule(op="matmul", forbid=["onednn"]),
)


@pytest.mark.parametrize("rule", LIMITS, ids=["workspace_bytes", "deterministic", "forbid"])
@pytest.mark.parametrize(
    "execution",
    [
        {},
        {"engine": "auto"},
        {"place": {"*": "auto"}},
        {"engine_order": {"cpu": ["openvino", "native"]}},
        {"place": {"relu": "native"}},
    ],
    ids=["order", "auto", "place auto", "engine_order", "place"],
)
def test_selection_passes_over_engines_that_cannot_be_held_to_a_rule(
    rule: Rule, execution: Mapping[str, Any]
) -> None:
    policy = Policy(execution=ExecutionPolicy(**execution), kernel=KernelPolicy(rules=[rule]))
    seen = by_session(policy)
    mine = [k for k in seen.kernels if k.startswith(f"{rule.op[0]}/")]
    assert mine, seen
    assert not any(k.partition("/")[2] in rule.forbid for k in mine)


@pytest.mark.parametrize("rule", LIMITS, ids=["workspace_bytes", "deterministic", "forbid"])
def test_a_placement_on_an_engine_that_cannot_be_held_to_a_rule_is_an_error(rule: Rule) -> None:
    place = {"linear" if rule.op == ("matmul",) else "softmax": "onnxruntime"}
    policy = Policy(execution=ExecutionPolicy(place=place), kernel=KernelPolicy(rules=[rule]))
    for enter in (by_session, by_partition):
        with pytest.raises(xrt.EngineUnavailable, match=r"onnxruntime.*rules\[0\]"):
            enter(policy)


def test_rules_that_nobody_can_keep_are_an_error_that_names_them() -> None:
    rule = Rule(op="matmul", workspace_bytes=0, reason="no room")
    for execution in ({}, {"engine": "auto"}, {"place": {"*": "auto"}}):
        policy = Policy(execution=ExecutionPolicy(**execution), kernel=KernelPolicy(rules=[rule]))
        with pytest.raises(xrt.KernelUnavailable, match="no room"):
            by_session(policy)
    with pytest.raises(xrt.PolicyError, match=r"kernel\.rules"):
        by_dag_executor(KernelPolicy(rules=[rule]))


def test_a_check_of_one_mix_says_nothing_of_another(tmp_path: Any) -> None:
    """Weights that a rule rounds differ from every reference; a verdict on them is not one on other kernels."""
    for kernel in ("int4_weights_128", "generated"):
        policy = KernelPolicy(rules=[Rule(op="matmul", use=kernel)])
        with xrt.InferenceSession(onnx_bytes(), kernel_policy=policy, cache_dir=tmp_path) as session:
            assert {r.engine for r in session.plan.regions} > {"native"}
            found = session.plan.decision("self_check")
            assert found is not None
            assert ("rounds the weights" in str(found)) == (kernel != "generated"), found


def test_a_placed_session_refuses_what_it_cannot_do() -> None:
    place = {"softmax": "onnxruntime", "linear": "native"}
    with pytest.raises(xrt.BuildError, match="compile_timeout_s"):
        by_session(ExecutionPolicy(place=place, compile_timeout_s=60))
    with pytest.raises(xrt.BuildError, match="runs on the cpu"):
        by_session(ExecutionPolicy(place=place, target="npu"))


@pytest.mark.parametrize(
    "rule",
    [
        Rule(op="matmul", deterministic=True),
        Rule(op="matmul", workspace_bytes=0),
        Rule(op="matmul", forbid=["onednn"]),
    ],
)
def test_a_vendor_that_cannot_be_held_to_a_rule_is_an_error(rule: Rule) -> None:
    policy = Policy(execution=ExecutionPolicy(engine="onnxruntime"), kernel=KernelPolicy(rules=[rule]))
    with pytest.raises(xrt.KernelUnavailable):
        by_session(policy)


# ── random policies ──

FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "target": st.sampled_from(["cpu", "auto", "npu", "cuda:7", "gpu", "webgpu"]),
    "engine": st.sampled_from([*ENGINES, "auto"]),
    "precision": st.sampled_from([*PRECISIONS]),
    "static_shape": st.booleans(),
    "allow_fallback": st.sampled_from([[], "cpu", ["cuda:7", "cpu"]]),
    "optimization_level": st.integers(0, 3),
    "caching": st.booleans(),
    "run_timeout_s": st.just(60.0),
    "memory_bytes": st.just(1 << 40),
    "compile_timeout_s": st.just(60.0),
    "place": st.sampled_from(list(VALUES["place"])),
    "tune": st.sampled_from(list(VALUES["tune"])),
    "strict": st.booleans(),
}
# Few fields at a time: most policies with many are errors.
EXECUTION = st.sets(st.sampled_from([*FIELDS]), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({n: FIELDS[n] for n in sorted(names)})
)
KERNEL = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["use", "forbid"]), st.sampled_from(["matmul", "softmax"])).flatmap(
        lambda pair: st.sampled_from(KERNELS[pair[1]]).map(lambda k: (*pair, k))
    ),
)


def policy_of(execution: Mapping[str, Any], kernel: tuple[str, str, str] | None) -> Policy | xrt.XpuError:
    """The policy, or the error for a word that nothing is behind."""
    demand, op, name = kernel or ("", "", "")
    words: Any = {demand: name if demand == "use" else [name]}
    try:
        rules = [Rule(op=op, **words)] if kernel else []
        return Policy(execution=ExecutionPolicy(**execution), kernel=KernelPolicy(rules=rules))
    except xrt.XpuError as error:
        return error


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entrance", ENTER)
def test_random_policies_hold_or_are_errors_that_name_a_field(entrance: str) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(EXECUTION, KERNEL)
    def check(execution: Mapping[str, Any], kernel: tuple[str, str, str] | None) -> None:
        policy = policy_of(execution, kernel)
        seen = policy if isinstance(policy, xrt.XpuError) else entered(entrance, policy)
        if isinstance(seen, xrt.XpuError):
            rule = kernel is not None and (kernel[2] in str(seen) or "rule" in str(seen))
            assert rule or named_in(seen, execution), str(seen)
            return
        assert isinstance(policy, Policy)
        for field, value in policy.execution.set_fields().items():
            assert shows(field, value, seen, policy.execution), (field, value, seen)
        native = [k for k in seen.kernels if kernel and k.startswith(f"{kernel[1]}/")]
        if kernel and "native" in seen.engines:
            demand, op, name = kernel
            assert (demand == "forbid") == (f"{op}/{name}" not in native) or not native, (kernel, native)

    check()


def test_the_cpu_is_what_programs_are_made_for() -> None:
    assert by_compile(None).devices == {cpu_target().name.partition(":")[0]}


@pytest.mark.parametrize(("fallback", "runs"), [([], False), (["cpu"], True)])
def test_an_engine_that_is_not_here_is_not_replaced_because_the_policy_places_a_node(
    fallback: list[str], runs: bool
) -> None:
    """The other nodes were on the native engine without a word."""
    if lookup("tensorrt").installed():
        pytest.skip("TensorRT is installed")
    policy = ExecutionPolicy(
        target="cpu", engine="tensorrt", place={"softmax": "onnxruntime"}, allow_fallback=fallback
    )
    outcome = entered("session", Policy(execution=policy))
    if runs:
        assert isinstance(outcome, Seen), outcome
        assert "onnxruntime" in outcome.engines
    else:
        assert isinstance(outcome, xrt.BuildError), outcome
        assert all(word in str(outcome) for word in ("tensorrt", "not installed", "pip install"))
