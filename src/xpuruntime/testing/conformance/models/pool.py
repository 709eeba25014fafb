"""A process per network: a crash becomes a finding, and a case that takes too long is killed.

Processes are forked from a server that has imported the libraries and has not touched a device, so a network needs no imports.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ..finding import CaseFinding
from .cases import Options, Task

__all__ = ["run"]

_POLL = 0.5


@dataclass
class _Worker:
    """A process, its current stage, and the start time of that stage."""

    task: Task
    process: Any
    pipe: Connection
    stage: str = "start"
    since: float = 0.0

    def limit(self, options: Options) -> float:
        """Return the time limit of the current stage in seconds."""
        return options.each if self.stage.startswith(f"{self.task.title} ") else options.torch_seconds


def run(tasks: Sequence[Task], workers: int, options: Options) -> Iterator[CaseFinding]:
    """Yield findings as they arrive. A network whose process ended starts again with its remaining cases."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.preload"])
    todo, live, start = list(reversed(tasks)), list[_Worker](), time.monotonic()
    try:
        while todo or live:
            if options.seconds and time.monotonic() - start > options.seconds:
                todo.clear()
            while todo and len(live) < workers:
                live.append(_begin(context, todo.pop()))
            wait([w.pipe for w in live], _POLL)
            for worker in list(live):
                ended = yield from _receive(worker)
                finding: CaseFinding | None = None
                if not ended and time.monotonic() - worker.since > worker.limit(options):
                    worker.process.kill()
                    finding = _late(worker, options)
                elif ended:
                    worker.process.join()
                    if worker.process.exitcode:
                        finding = _died(worker)
                else:
                    continue
                live.remove(worker)
                worker.process.join()
                worker.pipe.close()
                if finding is None:
                    continue
                yield finding
                remaining = worker.task.without({finding.case})
                if remaining.cases and finding.outcome != "not run":
                    todo.append(remaining)
    finally:
        for worker in live:
            worker.process.kill()


def _begin(context: Any, task: Task) -> _Worker:
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_task, args=(task, writer), daemon=True)
    process.start()
    writer.close()
    return _Worker(task, process, reader, since=time.monotonic())


def _run_task(task: Task, pipe: Connection) -> None:
    """Check a task and send its findings. This is the main function of a worker process."""
    from .judge import check_network

    check_network(task, lambda kind, value: pipe.send((kind, value)))


def _receive(worker: _Worker) -> Generator[CaseFinding, None, bool]:
    """Yield findings that arrived and return True if the process has ended."""
    try:
        while worker.pipe.poll():
            kind, value = worker.pipe.recv()
            worker.since = time.monotonic()
            if kind == "stage":
                worker.stage = value
                continue
            worker.task = worker.task.without({value.case})
            yield value
    except (EOFError, OSError):
        return True
    return False


def _late(worker: _Worker, options: Options) -> CaseFinding:
    if worker.limit(options) == options.each:
        return CaseFinding(worker.stage, "slow", f"took over {options.each:g} s")
    return CaseFinding(
        worker.task.title, "not run", f"{worker.stage}: PyTorch takes over {options.torch_seconds:g} s"
    )


def _died(worker: _Worker) -> CaseFinding:
    why = f"the process ended with {worker.process.exitcode}"
    if worker.stage.startswith(f"{worker.task.title} "):
        return CaseFinding(worker.stage, "killed", why)
    return CaseFinding(worker.task.title, "not run", f"{worker.stage}: {why}")
