"""Sessions of the native engine on other libraries' tensors: read in place and answered in kind, by one call into the core where the layout allows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError, RunError
from xpuruntime.ir import Graph
from xpuruntime.ir.build import GraphBuilder

torch = pytest.importorskip("torch")


def graph() -> Graph:
    b: Any = GraphBuilder("two")
    x, y = b.input("x", "float32[3, 4]"), b.input("y", "float32[4, 3]")
    b.output("product", b.matmul(x, y))
    b.output("rectified", b.relu(x))
    made: Graph = b.build()
    return made


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[xrt.InferenceSession]:
    program = xrt.compile(graph())
    with xrt.InferenceSession(program, engine="native", device="cpu", threads=1) as made:
        yield made


X, Y = torch.randn(3, 4), torch.randn(4, 3)


def right(found: dict[str, Any], x: Any = X, y: Any = Y) -> None:
    assert list(found) == ["product", "rectified"]
    assert all(type(v) is type(x) for v in found.values())
    np.testing.assert_allclose(
        np.asarray(found["product"]), np.asarray(x) @ np.asarray(y), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(np.asarray(found["rectified"]), np.maximum(np.asarray(x), 0))


def test_tensors_and_arrays(session: xrt.InferenceSession) -> None:
    right(session.run({"x": X, "y": Y}))
    right(session.run({"x": X.numpy(), "y": Y.numpy()}), X.numpy(), Y.numpy())
    right(session.run([X, Y]))
    right(session.run(x=X, y=Y))
    right(session.run_async({"x": X, "y": Y}).result())


def test_views_with_the_negative_bit(session: xrt.InferenceSession) -> None:
    """Their memory has the other signs, also where it is dense."""
    dense = torch.complex(torch.randn(3, 4), X).conj().imag.as_strided((3, 4), (4, 1))
    assert dense.is_neg()
    assert dense.is_contiguous()
    for given in (torch._neg_view(X), dense):
        right(session.run({"x": given, "y": Y}), given.resolve_neg(), Y)


def test_results_are_fresh_each_time(session: xrt.InferenceSession) -> None:
    first, second = session.run({"x": X, "y": Y}), session.run({"x": X, "y": Y})
    assert first["product"].data_ptr() != second["product"].data_ptr()
    first["product"].zero_()
    right(second)


@pytest.mark.parametrize(
    "x",
    [
        X.T.contiguous().T,
        torch.randn(3, 9)[:, 2:6],
        torch.randn(1, 4).expand(3, 4),
        torch.nn.Parameter(X).detach(),
    ],
    ids=["turned", "gaps", "broadcast", "detached"],
)
def test_however_a_tensor_lies(session: xrt.InferenceSession, x: Any) -> None:
    right(session.run({"x": x, "y": Y}), x)


def test_a_parameter_is_read_as_its_values(session: xrt.InferenceSession) -> None:
    found = session.run({"x": torch.nn.Parameter(X), "y": Y})
    right(found)
    assert not found["product"].requires_grad


def test_two_libraries_at_once(session: xrt.InferenceSession) -> None:
    found = session.run({"x": X, "y": Y.numpy()})
    np.testing.assert_allclose(np.asarray(found["product"]), X.numpy() @ Y.numpy(), rtol=1e-5, atol=1e-5)


def test_what_is_wrong_is_said_as_ever(session: xrt.InferenceSession) -> None:
    for wrong, text in (
        ({"x": X.double(), "y": Y}, "input 'x'] must be float32"),
        ({"x": X[:2], "y": Y}, "axis 0 must be 3"),
        ({"x": X}, "input 'y' is missing"),
        ({"x": X, "y": Y, "z": Y}, "no input of that name"),
        ({"x": X.to("meta"), "y": Y}, "cannot be read through DLPack"),
    ):
        with pytest.raises(InputError) as error:
            session.run(wrong)
        assert text in str(error.value)


def test_receipts_after_runs_on_tensors(session: xrt.InferenceSession) -> None:
    before = session.receipt().runs
    for _ in range(3):
        session.run({"x": X, "y": Y})
    receipt = session.receipt()
    assert receipt.runs == before + 3
    assert receipt.confirmed
    (evidence,) = receipt.evidence.values()
    assert all(row.time_us is not None for row in evidence.rows)


def test_runs_end_and_sessions_close() -> None:
    with xrt.InferenceSession(xrt.compile(graph()), engine="native", device="cpu") as made:
        right(made.run({"x": X, "y": Y}))
    with pytest.raises(RunError, match="closed"):
        made.run({"x": X, "y": Y})


def test_the_executor_takes_tensors_of_one_library_alone() -> None:
    program = xrt.compile(graph())
    with xrt.Executor(program) as executor:
        found = executor.run_tensors({"x": X, "y": Y})
        assert found is not None
        right(found)
        assert executor.takes({"x": X, "y": Y})
        for other in (
            {"x": X, "y": Y.numpy()},
            {"x": X.T, "y": Y},
            {"x": X},
            {"x": X, "z": Y},
            {"x": [1.0], "y": Y},
        ):
            assert not executor.takes(other)
            assert executor.run_tensors(other) is None


def test_drivers_that_know_memory_by_handles_get_no_addresses() -> None:
    from examples.porting.edge_backend import EdgeBackend
    from examples.porting.edge_target import EdgeTarget

    b: Any = GraphBuilder("edge")
    b.output("y", b.relu(b.input("x", "float32[4, 16]")))
    executor = EdgeBackend().create_executor(xrt.compile(b.build(), target=EdgeTarget()))
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    assert not executor.takes({"x": x})
    assert executor.run_tensors({"x": x}) is None
    np.testing.assert_array_equal(executor.run({"x": x})["y"].to_numpy(), np.maximum(x, 0))


def test_bfloat16_is_read_in_place() -> None:
    b: Any = GraphBuilder("narrow")
    b.output("y", b.relu(b.input("x", "bfloat16[2, 4]")))
    x = torch.randn(2, 4).bfloat16()
    with xrt.InferenceSession(xrt.compile(b.build()), engine="native", device="cpu") as made:
        assert torch.equal(made.run({"x": x})["y"], torch.relu(x))


def test_a_dictionary_that_changes_during_runs() -> None:
    """Another thread puts other tensors into it: those that a run began with live until it is over."""
    b: Any = GraphBuilder("square")
    b.output("y", b.matmul(b.input("x", "float32[128, 128]"), b.input("w", "float32[128, 128]")))
    with xrt.Executor(xrt.compile(b.build()), threads=1) as executor:
        given = {"x": torch.ones(128, 128), "w": torch.ones(128, 128)}
        over = threading.Event()

        def change() -> None:
            while not over.is_set():
                given["x"], given["w"] = torch.ones(128, 128), torch.ones(128, 128)

        other = threading.Thread(target=change)
        other.start()
        try:
            for _ in range(200):
                found = executor.run_tensors(given)
                assert found is not None
                assert bool((found["y"] == 128).all())
        finally:
            over.set()
            other.join()


@pytest.mark.usefixtures("no_garbage")
def test_memory_is_flat_over_ten_thousand_runs(session: xrt.InferenceSession) -> None:
    from xpuruntime.runtime import CpuBackend

    session.run({"x": X, "y": Y})
    before = CpuBackend().memory()
    for _ in range(10_000):
        session.run({"x": X, "y": Y})
    after = CpuBackend().memory()
    assert after["live_bytes"] <= before["live_bytes"]
    assert after["allocations"] == before["allocations"]
