"""Vendor libraries of this machine, queried at compile time about the calls that they support.

Only the library knows, on its device, whether it computes a call (an algorithm for these sizes, an engine with float32 sums). A target that
represents this machine (``cpu``, ``cuda``, ``cuda:1``) asks it, and the compiler chooses another kernel if it declines. A target with a level
(``cuda:sm_90``) is for other machines, so nothing is asked.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence

from .. import _core, env
from ..plugins.vendor_folders import vendor_folders
from ..program.program import KernelCall
from ..types import TensorSpec

__all__ = ["LocalLibraries", "library_search", "local_libraries"]


_NOT_ASKED = frozenset(["nccl"])
"""Libraries that accept a call only together with other devices, which the compiler does not have."""


class LocalLibraries:
    """The libraries for one device of this machine: ``cpu``, or a CUDA device by its index. The first query opens the device."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind, self.index = kind, index
        self._answers: dict[str, str] = {}
        self._lock = threading.Lock()

    def declines(self, call: KernelCall, specs: Sequence[TensorSpec]) -> str:
        """Return why a call's library does not support it, as the library reports it; empty if it does, or if the device cannot be opened.

        specs: those of the call's arguments, in order. Answers are cached.
        """
        if call.library not in _core.library_names():
            return ""  # a user's Python kernel
        if call.library in _NOT_ASKED:
            return ""
        key = json.dumps(
            [call.library, call.symbol, dict(call.options), [repr(s) for s in specs]], default=repr
        )
        with self._lock:
            if key not in self._answers:
                self._answers[key] = self._query(call, specs)
            return self._answers[key]

    def _query(self, call: KernelCall, specs: Sequence[TensorSpec]) -> str:
        backend = self._backend
        if backend is None:
            return ""
        _core.open_library(call.library, library_search(call.library))
        # Prepare a plan of this single call, then drop it. Each argument is a buffer.
        plan = _core.Plan("question", 0, 0, 0, len(specs), 1, None)
        plan.add_call(
            call.kernel,
            call.symbol,
            [(1 + i, 0) for i in range(len(specs))],
            len(call.inputs),
            [],
            call.tasks,
            call.grain,
            call.scratch_bytes,
            call.library,
            {k: list(v) if isinstance(v, tuple) else v for k, v in call.options.items()},
            [
                (s.dtype.value, [int(d) for d in s.shape if isinstance(d, int)], list(s.physical.strides))
                for s in specs
            ],
        )
        executor = _core.make_executor(backend, plan, [], 1)
        if isinstance(executor, _core.Status) and executor.refusals:
            return executor.refusals[0][1]
        return ""

    @functools.cached_property
    def _backend(self) -> _core.Backend | None:
        if self.kind == "cpu":
            return _core.cpu_backend(1)
        backend = _core.cuda_backend(self.index, library_search("cuda"))
        return None if isinstance(backend, _core.Status) else backend


@functools.cache
def local_libraries(kind: str, index: int = 0) -> LocalLibraries:
    """Return the libraries of a device: one object per process, which caches answers."""
    return LocalLibraries(kind, index)


def library_search(name: str) -> _core.Search:
    """Return where to search for a library: the file that its variable names, or the loader's search path and vendor folders."""
    override = env.get_path(_core.library_variable(name))
    return _core.Search(folders=vendor_folders()) if override is None else _core.Search(str(override))
