"""Programs made by hand, run for real: values, bindings, states, counters, threads, refusals."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime import _core
from xpuruntime.errors import BuildError, FormatError, InputError, RunError, UnavailableError
from xpuruntime.program.program import (
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    StateRef,
    WeightRef,
    WeightTransformRecipe,
)
from xpuruntime.runtime import DeviceBuffer, Executor, NullBackend, load_weights
from xpuruntime.runtime.states import States
from xpuruntime.types import DType, TensorSpec

sys.path.insert(0, str(Path(__file__).parent))
from handmade import binary, buffer, call, chain, f32

sys.path.pop(0)


def one_call(symbol: str, n: int, tasks: int, **options: Any) -> CompiledProgram:
    """One kernel from x to y."""
    buffers = (buffer("x", BufferKind.INPUT, f32("x", n)), buffer("y", BufferKind.OUTPUT, f32("y", n)))
    plan = ExecutionPlan("cpu:test", 0, (call(symbol, "x", "y", tasks, **options),), buffers, 0, 100)
    entry = EntryPoint("main", (f32("x", n),), (f32("y", n),), ("x",), ("y",), (plan,))
    return CompiledProgram("one", (entry,), binaries=(binary(),))


def counting() -> CompiledProgram:
    """A state that grows by one a run; the output is the new state, handed through."""
    buffers = (buffer("s", BufferKind.STATE, f32("s", 4)),)
    plan = ExecutionPlan("cpu:test", 0, (call("bump", "s", "s", 4),), buffers, 0, 100)
    entries = tuple(EntryPoint(n, (), (f32("count", 4),), (), ("s",), (plan,)) for n in ("prefill", "decode"))
    states = (StateRef("s", f32("s", 4)),)
    return CompiledProgram("counting", entries, states=states, binaries=(binary(),))


X = np.linspace(-1, 1, 64, dtype=np.float32)
W = np.arange(64, dtype=np.float32)
WANT = (X + W) * np.float32(0.5) + np.float32(3)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_the_guides_example(threads: int, batch: int) -> None:
    program = chain(batch=batch)
    executor = Executor(program, threads=threads)
    weights = load_weights({"w": W}, program)
    given = DeviceBuffer.from_numpy(X, executor.backend, spec=program.input_specs[0])
    outputs = executor.run(inputs={"input": given}, weights=weights)
    assert outputs["output"].to_numpy(spec=program.output_specs[0]).tolist() == WANT.tolist()
    (again,) = executor.run_arrays([X])  # the weights are bound by now
    assert again.tolist() == WANT.tolist()


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
    with pytest.raises(InputError, match=r"takes no input of that name; got 'x'\. Its inputs are: input\."):
        executor.run({"x": X})
    with pytest.raises(InputError, match="lacks an input; got 'input'"):
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
    with pytest.raises(InputError, match="times must be 2 int64 in a row"):
        executor.run_arrays([X], times=np.zeros(1, np.int64))


def test_outputs_of_the_caller() -> None:
    executor = Executor(chain(), threads=1)
    mine = DeviceBuffer.zeros(f32("", 64))
    made = executor.run({"input": X}, weights={"w": W}, out={"output": mine})
    assert made["output"] is mine
    assert mine.to_numpy().tolist() == WANT.tolist()


def test_a_thousand_runs_allocate_nothing() -> None:
    executor = Executor(chain(), threads=2)
    executor.bind({"w": W})
    inputs, outputs = [X], [np.empty(64, np.float32)]
    times = np.zeros(2, np.int64)

    def many(count: int) -> None:
        for _ in range(count):
            executor.run_arrays(inputs, out=outputs, times=times)

    many(10)
    before, pool = executor.counters, _core.host_memory()
    gc.collect()
    tracemalloc.start()
    try:
        many(10)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        many(1000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    after, pool_after = executor.counters, _core.host_memory()
    assert after["runs"] - before["runs"] == 1010
    assert after["dispatches"] - before["dispatches"] == 2020
    assert {k: after[k] - before[k] for k in ("allocations", "prepared", "copies", "contexts")} == {
        "allocations": 0, "prepared": 0, "copies": 0, "contexts": 0
    }  # fmt: skip
    assert (pool_after.allocations, pool_after.live_bytes) == (pool.allocations, pool.live_bytes)
    assert grown < 1024
    assert outputs[0].tolist() == WANT.tolist()


def test_times_and_events_of_every_call() -> None:
    executor = Executor(chain(length=5), threads=1)
    executor.bind({"w": W})
    times = np.full(5, -1, np.int64)
    ring = _core.EventRing(16)
    start = time.perf_counter_ns()
    executor.run_arrays([X], times=times, ring=ring)
    took = time.perf_counter_ns() - start
    assert (times >= 0).all()
    assert times.sum() <= took
    assert ring.pending == 5
    assert set(ring.names()) >= {"test/add", "test/scale"}


def test_the_gil_is_free_while_kernels_run() -> None:
    executor = Executor(one_call("slow", 4, 60), threads=1)
    thread = threading.Thread(target=executor.run_arrays, args=([np.zeros(4, np.float32)],))
    ticks = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert executor.counters["runs"] == 1
    assert ticks > 5  # this thread went on meanwhile


def test_many_threads_one_program() -> None:
    executor = Executor(chain(1000), threads=2, contexts=3)
    weights = [load_weights({"w": np.full(1000, i, np.float32)}, executor.program) for i in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        x = np.full(1000, 10 * i, np.float32)
        want = np.float32(11 * i) * np.float32(0.5) + 3
        for _ in range(100):
            got = executor.run({"input": x}, weights=weights[i])["output"].to_numpy()
            if not (got == want).all():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert executor.counters["runs"] == 400
    assert 1 <= executor.counters["contexts"] <= 3


def test_states_live_from_run_to_run_and_are_shared() -> None:
    program = counting()
    prefill = Executor(program, entry="prefill")
    decode = Executor(program, entry="decode", states=prefill.states)
    assert prefill.run_arrays([])[0].tolist() == [1.0] * 4
    assert decode.run_arrays([])[0].tolist() == [2.0] * 4
    assert prefill.run({})["count"].to_numpy().tolist() == [3.0] * 4
    prefill.states.write("s", np.full(4, 10, np.float32))
    assert decode.run_arrays([])[0].tolist() == [11.0] * 4
    assert decode.states["s"].numpy().tolist() == [11.0] * 4
    prefill.states.reset({})
    assert decode.run_arrays([])[0].tolist() == [1.0] * 4
    assert Executor(program).run_arrays([])[0].tolist() == [1.0] * 4  # states of its own


def test_states_of_another_size_are_refused() -> None:
    program = counting()
    other = dataclasses.replace(program, states=(StateRef("s", f32("s", 2)),))
    with pytest.raises(InputError, match=r"state 's' must be .*4\].* got .*2\]"):
        Executor(program, states=States(other, Executor(program).backend))
    with pytest.raises(InputError, match="got none of that name"):
        Executor(program, states=States(dataclasses.replace(program, states=()), Executor(program).backend))


def test_a_state_starts_from_its_weight() -> None:
    program = counting()
    refs = (WeightRef("start", f32("start", 4), data=np.full(4, 7, np.float32).tobytes()),)
    recipes = (WeightTransformRecipe("start", f32("start", 4), "start"),)
    states = (StateRef("s", f32("s", 4), "start"),)
    program = dataclasses.replace(program, weights=refs, recipes=recipes, states=states)
    executor = Executor(program)
    assert executor.run_arrays([])[0].tolist() == [8.0] * 4
    assert executor.run_arrays([])[0].tolist() == [9.0] * 4


def test_runs_over_states_take_turns() -> None:
    program = counting()
    executors = [Executor(program, entry="prefill")]
    executors.append(Executor(program, entry="decode", states=executors[0].states))

    def work(i: int) -> None:
        for _ in range(100):
            executors[i % 2].run_arrays([])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert executors[0].states["s"].numpy().tolist() == [400.0] * 4


def test_each_thread_has_scratch_memory_of_its_own() -> None:
    executor = Executor(one_call("scratch", 4096, 4096, scratch_bytes=4096 * 4), threads=4)
    x = np.random.default_rng(0).standard_normal(4096, np.float32)
    for _ in range(20):
        assert (executor.run_arrays([x])[0] == 2 * x).all()


def test_cancel_and_close() -> None:
    executor = Executor(dataclasses.replace(slow_program(), name="slow"), threads=1)
    failures: list[RunError] = []

    def run() -> None:
        try:
            executor.run_arrays([np.zeros(4, np.float32)])
        except RunError as error:
            failures.append(error)

    for stop in (executor.cancel, executor.close):
        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            time.sleep(0.01)
            stop()
        thread.join()
    assert failures[0].got == "the run was cancelled"
    assert len(failures) == 2
    with pytest.raises(RunError, match="the executor of slow:main is closed"):
        executor.run_arrays([np.zeros(4, np.float32)])
    executor.close()


def slow_program() -> CompiledProgram:
    buffers = (buffer("x", BufferKind.INPUT, f32("x", 4)), buffer("y", BufferKind.OUTPUT, f32("y", 4)))
    calls = tuple(call("slow", "x", "y", 1) for _ in range(2000))
    plan = ExecutionPlan("cpu:test", 0, calls, buffers, 0, 100)
    return CompiledProgram(
        "slow",
        (EntryPoint("main", (f32("x", 4),), (f32("y", 4),), ("x",), ("y",), (plan,)),),
        binaries=(binary(),),
    )


# ── alternatives ──


def with_plans(*requires: tuple[str, ...]) -> CompiledProgram:
    program = chain()
    entry = program.entries[0]
    plans = tuple(
        dataclasses.replace(entry.plans[0], target=f"cpu:level{i}", binary=i) for i in range(len(requires))
    )
    return dataclasses.replace(
        program,
        entries=(dataclasses.replace(entry, plans=plans),),
        binaries=tuple(binary(*r) for r in requires),
    )


def test_the_first_alternative_that_this_machine_runs() -> None:
    executor = Executor(with_plans(("avx9999",), ("lib:nothing>=3",), (), ()))
    assert executor.plan.target == "cpu:level2"
    assert executor.decision.explain().splitlines() == [
        "alternative for chain:main: cpu:level2 (default: the first alternative that this machine runs)",
        "  not cpu:level0 (device_refused): this machine lacks avx9999",
        "  not cpu:level1 (device_refused): this machine lacks lib:nothing>=3",
        "  not cpu:level3 (lower_preference): this machine runs an earlier one",
    ]


def test_no_alternative_is_an_error_with_every_reason() -> None:
    with pytest.raises(UnavailableError, match="cpu:level0: this machine lacks avx9999, sse77") as caught:
        Executor(with_plans(("avx9999", "sse77")))
    assert caught.value.decision is not None
    program = chain()
    entry = program.entries[0]
    foreign = dataclasses.replace(entry.plans[0], target="cuda:sm_90")
    with pytest.raises(UnavailableError, match="cuda:sm_90: it is for cuda, the device is cpu"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(foreign,)),)))


def test_code_that_cannot_be_loaded() -> None:
    program = chain()
    bad = dataclasses.replace(program.binaries[0], data=b"no ELF at all")
    with pytest.raises(BuildError, match="object code is no 64-bit ELF shared object"):
        Executor(dataclasses.replace(program, binaries=(bad,)))
    entry = program.entries[0]
    plan = dataclasses.replace(entry.plans[0], calls=(call("absent", "x", "y", 1),))
    with pytest.raises(BuildError, match="the program's object code has no absent"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(plan,)),)))
    plan = dataclasses.replace(entry.plans[0], calls=(call("add", "x nowhere", "y", 1),))
    with pytest.raises(FormatError, match="names a buffer or a binary that it does not have; got 'nowhere'"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(plan,)),)))


# ── borders ──


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


def test_the_null_backend_counts_dispatches() -> None:
    null = NullBackend()
    executor = null.create_executor(chain(length=5))
    executor.bind({"w": W})
    executor.run_arrays([X])
    executor.run({"input": X})
    seen = null.dispatches
    assert [d.symbol for d in seen] == 2 * ["add", "scale", "scale", "scale", "scale"]
    assert seen[0].kernel == "test/add"
    assert (seen[0].tasks, seen[0].args, seen[4].params[0]) == (64, 3, 3)
    null.forget()
    assert null.dispatches == []


def test_a_closed_executor_gives_its_arenas_back() -> None:
    with Executor(chain(100_000), threads=1) as executor:
        executor.bind({"w": np.zeros(100_000, np.float32)})
        before = _core.host_memory().live_bytes
        executor.run_arrays([np.zeros(100_000, np.float32)])
        assert _core.host_memory().live_bytes == before + 400_000
    assert _core.host_memory().live_bytes == before


def test_tensors_of_another_library_are_read_in_place() -> None:
    torch = pytest.importorskip("torch")
    executor = Executor(chain(), threads=1)
    executor.bind({"w": W})
    assert executor.run_arrays([torch.from_numpy(X)])[0].tolist() == WANT.tolist()
    assert executor.run({"input": torch.from_numpy(X)})["output"].to_numpy().tolist() == WANT.tolist()
    assert executor.counters["copies"] == 0
    with pytest.raises(InputError, match="detach it from gradients"):
        executor.run_arrays([torch.zeros(64, requires_grad=True)])


FORKED = """
import os, sys, threading
sys.path.insert(0, {folder!r})
import numpy as np
from handmade import chain
from xpuruntime.runtime import Executor

executor = Executor(chain(4096), threads=2)
executor.bind({{"w": np.zeros(4096, np.float32)}})
x = np.ones(4096, np.float32)
stop = threading.Event()
busy = threading.Thread(target=lambda: [executor.run_arrays([x]) for _ in iter(stop.is_set, True)])
busy.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if (executor.run_arrays([x])[0] == 3.5).all() else 1)
    print(os.waitpid(child, 0)[1])
stop.set()
busy.join()
print((executor.run_arrays([x])[0] == 3.5).all())
"""


def test_a_forked_child_runs_while_the_parent_does() -> None:
    code = FORKED.format(folder=str(Path(__file__).parent))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0"] * 5 + ["True"], done.stderr
