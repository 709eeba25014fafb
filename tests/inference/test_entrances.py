"""Every field of both policies at every entrance: it holds, or it is an error that names it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cpp import cpu_target
from xpuruntime.ir import Graph
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, Policy, Rule
from xpuruntime.policies.entrances import ENTRANCES, SESSION
from xpuruntime.policies.vocabulary import ENGINES, KERNELS, PRECISIONS

WEIGHTS = {
    "w": np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8),
    "v": np.linspace(1, -1, 64, dtype=np.float32).reshape(4, 16),
}
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


def graph(*, batch: str | int = 2) -> Graph:
    """Two linear layers and a softmax."""
    b = ir.GraphBuilder("net")
    w, v = b.weight("w", "float32[16, 8]"), b.weight("v", "float32[4, 16]")
    x = b.input("x", f"float32[{batch}, 8]")
    b.output("y", b.softmax(b.linear(b.relu(b.linear(x, w)), v), dim=-1))
    return b.build()


@dataclass(frozen=True)
class Seen:
    """What an entrance made of a policy: devices, engines, element types between the borders, kernels by family, open dims, calls."""

    devices: frozenset[str]
    engines: frozenset[str]
    types: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    open_dims: bool = False
    options: str = ""


# ── entrances: a policy in, what it became out ──


def program_of(program: xrt.CompiledProgram) -> Seen:
    plan = program.entries[0].plans[0]
    inner = {b.spec.dtype.value for b in plan.buffers if b.kind.value == "scratch"}
    return Seen(
        frozenset({plan.target.partition(":")[0]}),
        frozenset({"native"}),
        frozenset(inner),
        frozenset(c.kernel for c in plan.calls),
    )


def by_compile(policy: Any, batch: str | int = 2) -> Seen:
    return program_of(xrt.compile(graph(batch=batch), policy=policy))


def by_ops(policy: Any, batch: str | int = 2) -> Seen:
    found = xrt.ops.explain("matmul", X, WEIGHTS["w"].T.copy(), policy=policy)
    kernels = frozenset(k.partition(":")[0] for k in found.kernels)
    return Seen(
        frozenset({found.target.partition(":")[0]}), frozenset({"native"}), frozenset({"float32"}), kernels
    )


def by_partition(policy: Any, batch: str | int = 2) -> Seen:
    plan = xrt.partition(graph(batch=batch), policy)
    with xrt.DAGExecutor(plan) as dag:
        dag.load_weights(WEIGHTS)
        dag.execute({"x": X})
        rows = [r for e in dag.evidence().values() for r in e.rows]
        regions = dag.plan.regions
        kernels = {r.kernel.partition(":")[0] for r in rows}
        options = " ".join(f"{k}={v}" for e in dag.evidence().values() for k, v in e.options.items())
    return Seen(
        frozenset(DeviceKind(r.device) for r in regions),
        frozenset(r.engine for r in regions),
        frozenset(r.precision for r in regions),
        frozenset(kernels),
        bool(plan.graph.symbols),
        options,
    )


def DeviceKind(text: str) -> str:
    return xrt.DeviceId.parse(text).kind


def by_session(policy: Any, batch: str | int = 2) -> Seen:
    from xpuruntime.frontends.onnx_writer import to_onnx

    with xrt.InferenceSession(to_onnx(graph(batch=batch), WEIGHTS), policy=policy) as session:
        session.run({"x": X})
        receipt = session.receipt(times=False)
        regions = session.plan.regions
        rows = [r for e in receipt.evidence.values() for r in e.rows]
        options = " ".join(f"{k}={v}" for e in receipt.evidence.values() for k, v in e.options.items())
        return Seen(
            frozenset(DeviceKind(r.device) for r in regions),
            frozenset(r.engine for r in regions),
            frozenset(r.precision for r in regions),
            frozenset(r.kernel.partition(":")[0] for r in rows),
            any(not isinstance(d, int) for s in session.input_info for d in s.shape),
            options,
        )


ENTER: Mapping[str, Callable[..., Seen]] = {
    "compile": by_compile,
    "ops": by_ops,
    "partition": by_partition,
    "session": by_session,
}


# ── how a field shows that it was honored ──


def shows(field: str, value: Any, seen: Seen, policy: ExecutionPolicy) -> bool:
    """Whether what was made is what the field says; fields that limit or permit something show nothing here."""
    fell = bool(policy.allow_fallback)
    if field == "target":
        return value == "auto" or seen.devices == {DeviceKind(value)} or (fell and seen.devices == {"cpu"})
    if field == "engine":
        return value == "auto" or value in seen.engines or fell
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
    "engine_options": ({"openvino": {"NUM_STREAMS": "2"}}, {"native": {"shape_buckets": "2"}}),
    "engine_order": ({"cpu": ["openvino"]}, {"cpu": ["native", "openvino"]}),
    "place": ({"softmax": "onnxruntime"}, {"linear": "native"}),
    "strict": (True, False),
    "self_check": ("off", "always"),
}
OPEN = {"static_shape", "fixed_shapes"}


def test_every_field_has_a_row_at_every_entrance_and_a_value_here() -> None:
    names = {f.name for f in fields(ExecutionPolicy)}
    assert set(SESSION) == names
    assert {e: set(rows) for e, rows in ENTRANCES.items()} == dict.fromkeys(ENTRANCES, names)
    assert set(VALUES) == names


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("entrance", ENTER)
def test_a_field_holds_or_is_an_error_that_names_it(entrance: str, field: str) -> None:
    for value in VALUES[field]:
        policy = ExecutionPolicy(**{field: value})
        seen = entered(entrance, policy, "n" if field in OPEN and entrance != "ops" else 2)
        if isinstance(seen, xrt.XpuError):
            # A program needs sizes, whatever the policy says.
            needs_sizes = entrance == "compile" and field == "static_shape" and "shapes=" in seen.do
            assert named_in(seen, policy) or needs_sizes, (value, str(seen))
            assert seen.do, (value, str(seen))
        else:
            assert shows(field, getattr(policy, field), seen, policy), (value, seen)
            refused = entrance in ENTRANCES and (takes := ENTRANCES[entrance][field].takes)
            assert not refused or takes(getattr(policy, field)), (value, "is said to be an error")


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
    "compile_timeout_s": st.just(60.0),
    "place": st.sampled_from(list(VALUES["place"])),
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
