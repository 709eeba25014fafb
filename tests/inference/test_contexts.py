"""The pool of contexts by itself: the bound, the wait, ends that hit the right run and no other, closing."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from xpuruntime.errors import InputError, RunCancelled, RunError, RunTimeout
from xpuruntime.inference.execution.contexts import DEADLINES, Contexts, contexts_limit


class Engine:
    """An executable whose run lasts ``feeds["s"]`` seconds, or until it is stopped."""

    inputs = outputs = ()

    def __init__(self) -> None:
        self.busy = self.most = self.contexts = 0
        self.lock = threading.Lock()

    def context(self) -> Context:
        self.contexts += 1
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.ended = engine, threading.Event()

    def run(self, feeds, watched=False):
        with self.engine.lock:
            self.engine.busy += 1
            self.engine.most = max(self.engine.most, self.engine.busy)
        try:
            if self.ended.wait(float(feeds["s"])):
                raise RunError("engine", "was stopped")
            return [feeds["s"]]
        finally:
            with self.engine.lock:
                self.engine.busy -= 1

    def stop(self) -> None:
        self.ended.set()


def feed(seconds: float) -> dict[str, np.ndarray]:
    return {"s": np.float64(seconds)}


def start(call, *arguments) -> tuple[threading.Thread, list[object]]:
    result: list[object] = []

    def work() -> None:
        try:
            result.append(call(*arguments))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, result


def test_no_more_than_the_limit_run_and_no_more_are_made() -> None:
    engine = Engine()
    pool = Contexts("pool", engine, 3)
    runs = [start(pool.run, feed(0.01)) for _ in range(20)]
    for thread, result in runs:
        thread.join()
        assert result == [[0.01]]
    assert engine.most == engine.contexts == pool.made == pool.peak == 3


def test_runs_one_after_another_use_one_context() -> None:
    engine = Engine()
    pool = Contexts("pool", engine, 8)
    for _ in range(50):
        pool.run(feed(0))
    assert engine.contexts == 1


def test_a_run_that_takes_too_long_is_ended_and_its_context_thrown_away() -> None:
    engine = Engine()
    pool = Contexts("pool", engine, 2, timeout_s=0.1)
    began = time.monotonic()
    with pytest.raises(RunTimeout, match=r"longer than run_timeout_s and was ended; got 0\.1 s"):
        pool.run(feed(30))
    assert time.monotonic() - began > 0.09
    assert pool.made == 0
    assert pool.run(feed(0)) == [0]


def test_the_wait_for_a_context_counts() -> None:
    pool = Contexts("pool", Engine(), 1)
    thread, _ = start(pool.run, feed(30))
    while pool.made == 0:
        time.sleep(0.001)
    pool.timeout_s = 0.1
    with pytest.raises(RunTimeout, match="none of 1 contexts became free"):
        pool.run(feed(0))
    pool.close()
    thread.join()


def test_stop_hits_the_run_with_the_token_and_no_other() -> None:
    pool = Contexts("pool", Engine(), 2)
    mine, other = Future(), Future()
    doomed = start(pool.run, feed(30), mine)
    spared = start(pool.run, feed(0.5), other)
    while pool.made < 2:
        time.sleep(0.001)
    time.sleep(0.05)
    pool.stop(mine)
    for thread, _ in (doomed, spared):
        thread.join()
    assert isinstance(doomed[1][0], RunCancelled)
    assert spared[1] == [[0.5]]
    pool.stop(mine)  # nobody's any more
    assert pool.run(feed(0)) == [0]
    other.cancel()
    with pytest.raises(RunCancelled, match="the run was cancelled"):
        pool.run(feed(30), other)  # it does not begin
    assert pool.run(feed(0), Future()) == [0]


def test_an_end_that_comes_too_late_ends_no_other_run() -> None:
    """Runs that last about as long as they may, one after another in one context: each is right or timed out by itself."""
    pool = Contexts("pool", Engine(), 1, timeout_s=0.004)
    outcomes = set()
    for i in range(200):
        seconds = 0.0 if i % 2 else 0.0039
        try:
            outcomes.add((seconds, pool.run(feed(seconds)) == [seconds]))
        except RunTimeout:
            assert seconds, "a run that takes no time was ended"
    assert (0.0, True) in outcomes


def test_close_ends_what_runs_and_what_waits_and_may_be_repeated() -> None:
    pool = Contexts("pool", Engine(), 1)
    runs = [start(pool.run, feed(30)) for _ in range(3)]
    while pool.made == 0:
        time.sleep(0.001)
    pool.close()
    pool.close()
    for thread, result in runs:
        thread.join(5)
        assert isinstance(result[0], RunError)
        assert "closed" in str(result[0])
    with pytest.raises(RunError, match="the session is closed"):
        pool.run(feed(0))


def test_an_engine_whose_runs_cannot_be_ended() -> None:
    class Plain:
        inputs = outputs = ()

        def run(self, feeds):
            return [1]

    pool = Contexts("pool", Plain(), 1)
    assert not pool.stoppable
    assert pool.run({}) == [1]
    pool.stop()
    pool.close()


def test_deadlines_of_runs_that_ended_in_time_are_swept() -> None:
    pool = Contexts("pool", Engine(), 1, timeout_s=3600)
    for _ in range(2000):
        pool.run(feed(0))
    assert len(DEADLINES._heap) <= 600
    gc.collect()


@pytest.mark.parametrize("wrong", [0, -1, True, "2"])
def test_the_limit_is_a_positive_integer(wrong) -> None:
    with pytest.raises(InputError, match=r"contexts must be (a whole number|at least 1)"):
        contexts_limit(wrong)


def test_more_contexts_than_threads_can_serve_are_refused() -> None:
    assert contexts_limit(1024) == 1024
    for number in (1025, 10**6, 2**70):
        with pytest.raises(InputError, match=r"contexts must be at most 1024.* Give 1 to 1024"):
            contexts_limit(number)
