"""Random graphs under random policies, and arguments of any kind: nothing but an XpuError leaves an entrance, and none of them is our fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import LAYERS, STEPS, SYMBOLS, graphs

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.errors import InternalError, XpuError
from xpuruntime.policies.vocabulary import KERNELS, PRECISIONS
from xpuruntime.testing.conformance.native_batch import batch_of

relaxed = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)


@pytest.fixture(autouse=True)
def store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))


WORDS = sorted({k for names in KERNELS.values() for k in names})
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.sampled_from([*WORDS[:6], "cpu", "native", "auto", "float16"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=5,
)
CONDITIONS = {
    "op": st.lists(st.sampled_from(sorted(KERNELS)), max_size=2),
    "node": st.sampled_from(["*", "re:.*", "re:(", "%", ""]),
    "dtype": st.sampled_from(["float32", "float16", "int64", "nonsense"]),
    "phase": st.sampled_from(["inference", "prefill", "decode", "train_forward"]),
    "shape": st.dictionaries(
        st.sampled_from(["M", "N", "K", "zz"]), st.sampled_from(["<= 4", "> 2", "%8", "x"])
    ),
    "use": st.sampled_from(WORDS),
    "prefer": st.sampled_from(WORDS) | st.lists(st.sampled_from(WORDS), max_size=2),
    "forbid": st.sampled_from(WORDS) | st.lists(st.sampled_from(WORDS), max_size=2),
    "workspace_bytes": st.integers(-1, 2**40),
    "deterministic": st.booleans(),
}


def rules() -> st.SearchStrategy[Any]:
    return st.lists(st.fixed_dictionaries({}, optional=CONDITIONS) | JUNK, max_size=3)


EXECUTION = {
    "precision": st.sampled_from([*PRECISIONS, "bf15"]),
    "optimization_level": st.integers(-1, 4),
    "strict": st.booleans(),
    "caching": st.booleans(),
    "static_shape": st.booleans(),
    "allow_fallback": st.sampled_from(["cpu", ["cpu"], ["cuda", "cpu"], [], "moon"]),
    "engine": st.sampled_from(["native", "auto", "onnxruntime", "nobody"]),
    "compile_timeout_s": st.sampled_from([0, -1, math.nan, math.inf, "soon"]),
}
POLICIES = (
    st.fixed_dictionaries(
        {"version": st.sampled_from([1, 1, 1, 2, "1"])},
        optional={
            "kernel": st.fixed_dictionaries({}, optional={"rules": rules(), "matmul": st.sampled_from(WORDS)})
            | JUNK,
            "execution": st.fixed_dictionaries({}, optional=EXECUTION) | JUNK,
        },
    )
    | JUNK
)


def only_ours(call: Any) -> None:
    """Run; a refusal is an XpuError, and no fault of the code."""
    try:
        call()
    except InternalError:
        raise
    except XpuError:
        return


def target(name: str) -> Any:
    """Code is written and gathered; nothing is assembled."""
    return batch_of(cpu_target(name) if name.startswith("cpu") else resolve_target(name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cuda:sm_90"])
def test_random_graphs_under_random_policies(name: str) -> None:
    @relaxed
    @given(
        graphs(max_nodes=14, states=True, sources=True, steps=[*STEPS, *LAYERS]),
        POLICIES,
        st.none()
        | st.sampled_from(["all", "basic", "-cse", "extended,fuse_gate", "nonsense", 7, ["cse"], []]),
    )
    def check(graph: ir.Graph, policy: Any, passes: Any) -> None:
        sizes = {k: int(str(v)) for k, v in SYMBOLS.items() if k in graph.symbols}
        only_ours(lambda: xrt.compile(graph, target=target(name), policy=policy, passes=passes, shapes=sizes))

    check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["cpu:x86-64-v3", "cuda:sm_90"])
def test_random_graphs_with_opaque_nodes_are_refused_by_name(name: str) -> None:
    @relaxed
    @given(graphs(max_nodes=8, opaque=True, symbolic=False))
    def check(graph: ir.Graph) -> None:
        only_ours(lambda: xrt.compile(graph, target=target(name)))
        only_ours(lambda: xrt.partition(graph))

    check()


GRAPH = ir.GraphBuilder("one")
GRAPH.output("y", GRAPH.softmax(GRAPH.input("x", "float32[2, n]"), dim=-1))
SMALL = GRAPH.build()


@pytest.mark.parametrize(
    "argument", ["model", "target", "policy", "shapes", "passes", "phase", "weights", "times"]
)
def test_arguments_of_any_kind_are_refused_by_name(argument: str) -> None:
    @relaxed
    @given(JUNK)
    def check(junk: Any) -> None:
        given_ = {"model": SMALL, "target": target("cpu:x86-64-v3"), "shapes": {"n": 3}, argument: junk}
        only_ours(lambda: xrt.compile(given_.pop("model"), **given_))

    check()


def onnx_model() -> bytes:
    onnx = pytest.importorskip("onnx")
    types = [onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Softmax", ["x"], ["y"])], "m", types[:1], types[1:]
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return bytes(made.SerializeToString())


SESSION_ARGUMENTS = (
    "model", "device", "engine", "policy", "kernel_policy", "exec_policy", "fp16", "strict", "threads", "contexts", "example_inputs",
    "dynamic_shapes", "providers", "provider_options", "sess_options",
)  # fmt: skip


@pytest.mark.parametrize("argument", SESSION_ARGUMENTS)
def test_a_session_refuses_arguments_of_any_kind_by_name(argument: str) -> None:
    model = onnx_model()

    @settings(relaxed, max_examples=25)
    @given(JUNK)
    def check(junk: Any) -> None:
        asked = {"model": model, "device": "cpu", "engine": "native", argument: junk}
        only_ours(lambda: xrt.InferenceSession(asked.pop("model"), **asked).close())

    check()


def test_a_session_refuses_policies_of_any_kind_by_name() -> None:
    model = onnx_model()

    @settings(relaxed, max_examples=25)
    @given(POLICIES)
    def check(policy: Any) -> None:
        only_ours(lambda: xrt.InferenceSession(model, device="cpu", policy=policy).close())

    check()


def test_a_run_refuses_inputs_of_any_kind_by_name() -> None:
    with xrt.InferenceSession(onnx_model(), device="cpu", engine="native") as session:

        @relaxed
        @given(JUNK | st.builds(lambda j: {"x": j}, JUNK))
        def check(junk: Any) -> None:
            only_ours(lambda: session.run(junk))

        check()
        session.run({"x": np.zeros((2, 3), np.float32)})
