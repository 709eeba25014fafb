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
from xpuruntime.errors import InputError, RunError
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
from xpuruntime.runtime.execution.states import States

sys.path.insert(0, str(Path(__file__).parent))
from handmade import WANT, W, X, binary, buffer, call, chain, f32

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


@pytest.mark.usefixtures("no_garbage")
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
    assert pool_after.allocations == pool.allocations
    assert pool_after.live_bytes <= pool.live_bytes  # objects of earlier tests may be freed
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
    executor = Executor(one_call("slow", 4, 300), threads=1)
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
    with pytest.raises(InputError, match="got no state of that name"):
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


@pytest.mark.usefixtures("no_garbage")
def test_a_closed_executor_gives_its_arenas_back() -> None:
    with Executor(chain(100_000), threads=1) as executor:
        executor.bind({"w": np.zeros(100_000, np.float32)})
        before = _core.host_memory().live_bytes
        executor.run_arrays([np.zeros(100_000, np.float32)])
        # A block that an earlier executor left is reused if it is a little larger.
        assert before + 400_000 <= _core.host_memory().live_bytes <= before + 500_000
    assert _core.host_memory().live_bytes == before


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
