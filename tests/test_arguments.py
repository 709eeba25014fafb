"""Arguments of other kinds to public functions: errors that name the argument, and neither raw Python errors nor faults of xpuruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.arguments import check_several
from xpuruntime.errors import InputError, InternalError, XpuError
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.inference.verify_kernel import verify_kernel
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.user.kernel import checked as registered

WEIGHTS = {"w": np.eye(8, dtype=np.float32)}
X = np.ones((4, 8), np.float32)


def graph() -> Graph:
    b = GraphBuilder("g")
    b.output("y", b.softmax(b.linear(b.input("x", "float32[4, 8]"), b.weight("w", "float32[8, 8]")), dim=-1))
    return b.build()


GRAPH = graph()
BAD: tuple[Any, ...] = (
    5,
    -1,
    2.5,
    True,
    b"x",
    [1, 2],
    object(),
    float("nan"),
    lambda *_: 1,
    np.int64(3),
    "a\0b",
)


@pytest.fixture(scope="module")
def program() -> xrt.CompiledProgram:
    return xrt.compile(GRAPH)


@pytest.fixture(scope="module")
def session() -> xrt.InferenceSession:
    return xrt.InferenceSession(to_onnx(GRAPH, WEIGHTS), engine="onnxruntime", device="cpu", threads=1)


@pytest.fixture(scope="module")
def dag() -> xrt.DAGExecutor:
    executor = xrt.DAGExecutor(xrt.partition(GRAPH), threads=1)
    executor.load_weights(WEIGHTS)
    return executor


def refused(call: Callable[[Any], Any], values: tuple[Any, ...] = BAD, least: int = 1) -> None:
    """Call with each value. Errors must be XpuErrors that are no faults, with advice, and at least ``least`` values must be refused."""
    errors: list[tuple[Any, XpuError]] = []
    for value in values:
        try:
            call(value)
        except XpuError as error:
            errors.append((value, error))
    assert [(v, e) for v, e in errors if isinstance(e, InternalError) or not e.do] == []
    assert len(errors) >= least


PARTITION = ("engine", "others", "place", "costs")


@pytest.mark.parametrize("name", PARTITION)
def test_partition(name: str) -> None:
    refused(lambda value: xrt.partition(GRAPH, **{name: value}), least=8)


@pytest.mark.parametrize("name", ["lock", "watch", "weights"])
def test_compile(name: str) -> None:
    values = tuple(v for v in BAD if not (name == "watch" and callable(v)))
    refused(lambda value: xrt.compile(GRAPH, passes=0, **{name: value}), values, least=len(values))


def test_executor_and_weights(program: xrt.CompiledProgram) -> None:
    refused(xrt.Executor, least=len(BAD))
    refused(lambda value: xrt.Executor(program, states=value), least=len(BAD))
    refused(lambda value: xrt.Executor(program, threads=value), (-1, 0, 2.5, "a", True), least=5)
    refused(lambda value: xrt.Executor(program, contexts=value), (-1, 2.5, "a"), least=3)
    refused(lambda value: xrt.load_weights(value, program), least=len(BAD))
    refused(lambda value: xrt.load_weights(WEIGHTS, value), least=len(BAD))
    refused(lambda value: xrt.load_weights(WEIGHTS, program, shared=value), (5, None, "abc", [1]), least=4)
    refused(lambda value: xrt.load_weights(WEIGHTS, program, on_progress=value), (5, "abc", [1]), least=3)


def test_integers_of_other_types_are_counts(program: xrt.CompiledProgram) -> None:
    executor = xrt.Executor(program, threads=np.int64(2), contexts=np.uint8(1))  # type: ignore[arg-type]
    assert (executor.threads, type(executor.threads)) == (2, int)
    model = to_onnx(GRAPH, WEIGHTS)
    one: Any = np.array(1)
    session = xrt.InferenceSession(model, engine="onnxruntime", device="cpu", threads=one, contexts=one)
    assert np.allclose(session.run(None, {"x": X})[0], 1 / 8)
    want = xrt.ops.layer_norm(X, normalized_shape=8)
    assert np.array_equal(xrt.ops.layer_norm(X, normalized_shape=[np.int32(8)]), want)


def test_a_file_of_a_program_is_not_a_program() -> None:
    with pytest.raises(InputError, match=r"CompiledProgram\.load\(path\)"):
        xrt.Executor("a.npubin")  # type: ignore[arg-type]


def test_any_iterable_but_text_holds_several(session: xrt.InferenceSession) -> None:
    for names in ({"y"}, {"y": 1}.keys(), np.array(["y"]), iter(("y",))):
        assert len(session.run(names, {"x": X})) == 1  # type: ignore[arg-type]
    for others in ({"onnxruntime"}, {"onnxruntime": 1}.keys(), iter(("onnxruntime",))):
        assert xrt.partition(GRAPH, others=others).regions  # type: ignore[arg-type]
    for several in ("y", b"y", np.array("y"), 5):
        with pytest.raises(InputError, match="must be several names"):
            check_several("run", "names", several, "several names", "Give a list.")
    assert registered("k", {"linear"}, "cpu") == ("matmul/k", ("linear",))  # type: ignore[arg-type]


def test_inputs_and_outputs_of_a_session(session: xrt.InferenceSession) -> None:
    refused(lambda value: session.run(value, {"x": X}), (5, 2.5, {"x": X}, np.ones(3)), least=4)
    refused(session.run_with_iobinding, (None, 5, "a"), least=3)
    assert (
        len(session.run(None, {"x": X}))
        == len(session.run([], {"x": X}))
        == len(session.run(("y",), {"x": X}))
    )


def test_a_store_is_a_folder() -> None:
    refused(xrt.Store, (5, 2.5, b"x", [1], "a\0b"), least=5)
    model = to_onnx(GRAPH, WEIGHTS)
    refused(lambda value: xrt.InferenceSession(model, cache_dir=value), (5, b"x", "a\0b"), least=3)


def test_the_error_of_a_nul_character_names_it() -> None:
    with pytest.raises(InputError, match="contains a NUL character"):
        xrt.Store("a\0b")


def test_dag_executor(dag: xrt.DAGExecutor) -> None:
    for call in (dag.execute, dag.run, lambda v: dag.region_times(v, lambda: 0)):
        refused(call, (None, 5, "", "nope", [1]), least=5)
    refused(dag.evidence, (5, "nope", [1]), least=3)
    refused(dag.load_weights, least=len(BAD))


def test_kernels_and_ops() -> None:
    refused(lambda value: xrt.register_kernel("k", op=value, function=abs), (None, 5, b"x", [1]), least=4)
    refused(verify_kernel, (None, 5, [1]), least=3)
    refused(lambda value: xrt.ops.call(value, (), (X,), None, None), (None, 5, "nope", [1]), least=4)
    refused(xrt.ops.explain, ([], None, "nope"), least=3)
    want = xrt.ops.layer_norm(X, normalized_shape=[8])
    assert np.array_equal(xrt.ops.layer_norm(X, normalized_shape=8), want)
    refused(lambda value: xrt.ops.layer_norm(X, normalized_shape=value), (0, -1, 2.5, "a", [True]), least=5)


def test_a_recording_that_cannot_begin_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpuruntime.profiler import nvtx

    for capacity in (None, 0, -1, "a", True, 1 << 62, 1 << 70):
        with pytest.raises(InputError, match="capacity must be"), xrt.profile(capacity=capacity):  # type: ignore[arg-type]
            pass
    monkeypatch.setattr(nvtx, "enable", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), xrt.profile(nvtx_ranges=True):
        pass
    with xrt.profile() as trace:
        pass
    assert trace.spans == ()
