"""Arrays, buffers and tensors at a program's border: read and written in place, copied, or refused."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import InputError
from xpuruntime.program.program import BufferKind, CompiledProgram, EntryPoint, ExecutionPlan
from xpuruntime.runtime import DeviceBuffer, Executor
from xpuruntime.types import DType, TensorSpec

sys.path.insert(0, str(Path(__file__).parent))
from handmade import WANT, W, X, buffer, call, chain, f32

sys.path.pop(0)


def test_arrays_are_read_and_written_in_place() -> None:
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    out = np.zeros(64, np.float32)
    (made,) = executor.run_arrays([X], out=[out])
    assert made is out
    assert out.tolist() == WANT.tolist()
    assert executor.counters["copies"] == 0


@pytest.mark.parametrize(
    ("given", "copies"),
    [
        (np.repeat(X, 2)[::2], 1),  # strides
        (X.astype(">f4"), 1),  # byte order
        (np.frombuffer(b"\0" + X.tobytes(), np.float32, 64, 1), 1),  # not aligned to its elements
        (X.tolist(), None),  # float64 once it is an array
        (np.frombuffer(X.tobytes(), np.float32), 0),  # read-only
        (np.pad(X, 1)[1:65], 0),  # aligned to its elements only
    ],
    ids=["strides", "byte order", "unaligned", "list", "read-only", "offset"],
)
def test_arrays_that_cannot_be_read_in_place_are_copied(given: Any, copies: int | None) -> None:
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    if copies is None:
        with pytest.raises(
            InputError, match=r"input 'input' must be float32\[64\], dense; got float64\[64\]"
        ):
            executor.run_arrays([given])
        return
    assert executor.run_arrays([given])[0].tolist() == WANT.tolist()
    assert executor.run({"input": given})["output"].to_numpy().tolist() == WANT.tolist()
    assert executor.counters["copies"] == 2 * copies


class Sub(np.ndarray[Any, Any]):
    pass


def test_a_subclass_of_an_array_is_read_in_place() -> None:
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    assert executor.run_arrays([X.view(Sub)])[0].tolist() == WANT.tolist()


REFUSED: dict[str, tuple[Any, str]] = {
    "dtype": (np.zeros(64), r"input 'input' must be float32\[64\], dense; got float64\[64\]"),
    "shape": (
        np.zeros((8, 8), np.float32),
        r"input 'input' must be float32\[64\], dense; got float32\[8, 8\]",
    ),
    "no dtype": (np.zeros(64, "M8[s]"), "has a dtype that no tensor has"),
    "padded": (
        DeviceBuffer.from_numpy(X[:60], spec=None, alloc_shape=(64,)),
        r"input 'input' must be float32\[64\], dense",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    given, text = REFUSED[name]
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    with pytest.raises(InputError, match=text):
        executor.run_arrays([given])
    with pytest.raises(InputError, match=text):
        executor.run({"input": given})
    assert executor.counters["runs"] == 0


def test_names_counts_and_outputs_are_checked() -> None:
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    with pytest.raises(InputError, match=r"has no input of that name; got 'x'\. Its inputs are: input\."):
        executor.run({"x": X})
    with pytest.raises(InputError, match="an input is missing; got 'input'"):
        executor.run({})
    with pytest.raises(InputError, match="takes 1 inputs and 1 outputs; got 2 and 1"):
        executor.run_arrays([X, X])
    frozen = np.zeros(64, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="out array 'output' must be C-contiguous, aligned and writeable"):
        executor.run_arrays([X], out=[frozen])
    with pytest.raises(
        InputError, match=r"out array 'output' must be float32\[64\], dense; got float32\[65\]"
    ):
        executor.run_arrays([X], out=[np.zeros(65, np.float32)])
    with pytest.raises(InputError, match="times must be a contiguous array of 2 int64"):
        executor.run_arrays([X], times=np.zeros(1, np.int64))


def test_outputs_of_the_caller() -> None:
    executor = Executor(chain(), threads=1)
    mine = DeviceBuffer.zeros(f32("", 64))
    made = executor.run({"input": X}, weights={"w": W}, out={"output": mine})
    assert made["output"] is mine
    assert mine.to_numpy().tolist() == WANT.tolist()


def test_outputs_that_are_inputs_weights_or_twice_the_same() -> None:
    n = 8
    buffers = (
        buffer("x", BufferKind.INPUT, f32("x", n)),
        buffer("w", BufferKind.WEIGHT, f32("w", n)),
        buffer("y", BufferKind.OUTPUT, f32("y", n)),
        buffer("tail", BufferKind.INPUT, f32("tail", 3), root="x", offset=20),
    )
    plan = ExecutionPlan("cpu:test", 0, (call("add", "x w", "y", n),), buffers, 0, 100)
    outs = (f32("a", n), f32("b", n), f32("c", n), f32("d", n), f32("e", 3))
    entry = EntryPoint("main", (f32("x", n),), outs, ("x",), ("x", "w", "y", "y", "tail"), (plan,))
    base = chain(n)
    program = dataclasses.replace(base, entries=(entry,))
    x, w = np.arange(n, dtype=np.float32), np.full(n, 5, np.float32)
    executor = Executor(program)
    executor.bind({"w": w})
    for got in (executor.run_arrays([x]), [b.to_numpy() for b in executor.run({"x": x}).values()]):
        assert [g.tolist() for g in got] == [
            x.tolist(),
            w.tolist(),
            (x + w).tolist(),
            (x + w).tolist(),
            x[5:].tolist(),
        ]


def test_scalars_empty_arrays_and_bfloat16_pass_the_border() -> None:
    specs = (
        TensorSpec((), DType.FLOAT32, "s"),
        TensorSpec((0, 3), DType.INT64, "e"),
        TensorSpec((2, 2), DType.BFLOAT16, "b"),
        TensorSpec((5,), DType.BOOL, "t"),
    )
    buffers = tuple(buffer(s.name, BufferKind.INPUT, s) for s in specs)
    names = tuple(s.name for s in specs)
    plan = ExecutionPlan("cpu:test", -1, (), buffers, 0, 100)
    program = CompiledProgram("border", (EntryPoint("main", specs, specs, names, names, (plan,)),))
    arrays = [np.full([int(d) for d in s.shape if isinstance(d, int)], 1, s.dtype.numpy) for s in specs]
    executor = Executor(program)
    for got, want in zip(executor.run_arrays(arrays), arrays, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert (got == want).all()
    assert executor.counters["copies"] == 4  # handed through by the core; none converted on the way in


def test_tensors_of_another_library_are_read_in_place() -> None:
    torch = pytest.importorskip("torch")
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    assert executor.run_arrays([torch.from_numpy(X)])[0].tolist() == WANT.tolist()
    assert executor.run({"input": torch.from_numpy(X)})["output"].to_numpy().tolist() == WANT.tolist()
    assert executor.counters["copies"] == 0
    with pytest.raises(InputError, match="detach it from gradients"):
        executor.run_arrays([torch.zeros(64, requires_grad=True)])
