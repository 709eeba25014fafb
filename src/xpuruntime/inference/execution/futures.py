"""Background runs: a ``concurrent.futures.Future`` that can be cancelled while its run is in progress.

A Future that is marked as running cannot be cancelled, so it is marked only after its run. ``cancel()`` therefore succeeds until then: a
waiting run never starts, and a run in progress is stopped by its context.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .contexts import Contexts

__all__ = ["AsyncRuns"]


class AsyncRuns:
    """Background threads, as many as there are contexts. They start with the first run."""

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts
        self._threads: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()
        self._process = os.getpid()
        self._pending: set[Future[Any]] = set()

    def start(self, run: Callable[[Future[Any]], Any]) -> Future[Any]:
        """Start ``run(future)`` in the background. The future is the token of its run."""
        if (
            self._process != os.getpid()
        ):  # after a fork the parent's threads are missing and its lock may be held
            self._process, self._starting = os.getpid(), threading.Lock()
            self._threads, self._pending = None, set()
        with self._starting:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._contexts.limit, thread_name_prefix="xpu-run")
        future: Future[Any] = Future()
        self._pending.add(future)
        future.add_done_callback(self._done)
        self._threads.submit(self._work, future, run)
        return future

    def _done(self, future: Future[Any]) -> None:
        self._pending.discard(future)
        if future.cancelled():
            self._contexts.stop(future)

    @staticmethod
    def _work(future: Future[Any], run: Callable[[Future[Any]], Any]) -> None:
        try:
            result = None if future.cancelled() else run(future)
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(result)

    def cancel(self) -> None:
        """Cancel every run that waits or is in progress."""
        for future in tuple(self._pending):
            future.cancel()

    def close(self) -> None:
        """Cancel every run and end the threads."""
        self.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
