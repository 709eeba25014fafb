"""Control flow of a plan: calls of the library ``control`` run other entry points of the program, branches and bodies of loops.

The core calls them like Python kernels. A call reads its condition or counts iterations, and runs an entry point on the memory of its own
buffers: iterations of a loop write a carried value alternately to the result and to a second buffer, and stacked results in place.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...errors import XpuError
from ...program.program import KernelCall

if TYPE_CHECKING:
    from ..weights.load import Weights
    from .executor import Executor

__all__ = ["RUN", "Bodies", "CurrentRun", "control_call", "registered"]


class CurrentRun(threading.local):
    """The weights and the stop flag of this thread's run, which its bodies share."""

    weights: Weights | None = None
    stop: _core.Stop | None = None

    @contextmanager
    def of(self, weights: Weights | None, stop: _core.Stop | None) -> Iterator[None]:
        """Set them for the duration of a run."""
        before = self.weights, self.stop
        self.weights, self.stop = weights, stop
        try:
            yield
        finally:
            self.weights, self.stop = before


RUN = CurrentRun()
"""The current run of each thread."""


class Bodies:
    """The executors of a program's bodies, each opened once. ``make`` opens one by its entry point's name."""

    def __init__(self, make: Callable[[str, Bodies], Executor]) -> None:
        self._make = make
        self.executors: dict[str, Executor] = {}

    def open(self, entry: str) -> None:
        """Open an entry point and the bodies that it runs. Raises as Executor does."""
        if entry not in self.executors:
            self.executors[entry] = self._make(entry, self)


class _Failed(Exception):
    """A body's run failed. Its arguments are the core's message and remedy."""


class _Control:
    """One call of a plan. Bodies are referenced weakly, because the core keeps calls alive that they own."""

    def __init__(self, call: KernelCall, bodies: Bodies, sizes: Sequence[int]) -> None:
        self._options: Mapping[str, Any] = call.options
        self._bodies = weakref.ref(bodies)
        self._entries: list[str] = list(call.options["entries"])
        self._inputs = len(call.inputs)
        self._sizes = sizes
        for entry in self._entries:
            bodies.open(entry)

    def __call__(self, addresses: list[int], stream: int) -> str | tuple[str, str]:
        """Run the call. Return an empty string, or the error message and the remedy."""
        if self._options["op"] == "fail":
            return str(self._options["reason"]), "Give inputs of other sizes or values."
        bodies = self._bodies()
        if bodies is None:
            return "the executor is closed"
        executors = [bodies.executors[e] for e in self._entries]
        try:
            if self._options["op"] == "cond":
                self._branch(executors, addresses)
            else:
                self._repeat(executors[0], addresses)
        except _Failed as error:
            return error.args[0], error.args[1]
        except XpuError as error:
            return str(error), ""
        return ""

    def _branch(self, executors: Sequence[Executor], addresses: list[int]) -> None:
        chosen = executors[0 if _flag(addresses[0]) else 1]
        _run(chosen, addresses[1 : self._inputs], addresses[self._inputs :])

    def _repeat(self, body: Executor, addresses: list[int]) -> None:
        options, carried = self._options, int(self._options["carried"])
        inputs = iter(addresses[: self._inputs])
        limit = ctypes.c_int64.from_address(next(inputs)).value if options["limited"] else options["trips"]
        going = _flag(next(inputs)) if options["conditional"] else True
        operands = list(inputs)
        unlimited = not options["limited"] and options["trips"] < 0
        state, captured = operands[:carried], operands[carried:]
        outputs = addresses[self._inputs :]
        count = len(outputs) - 2 * carried
        finals, stacked, spare = (
            outputs[:carried],
            outputs[carried : carried + count],
            outputs[carried + count :],
        )
        sizes = self._sizes[:carried]
        rows = (
            [s.size_bytes or 0 for s in body.entry.outputs[len(body.entry.outputs) - count :]]
            if count
            else []
        )
        number, flag = np.zeros(1, np.int64), np.zeros(1, np.bool_)
        here, there = finals, spare
        # With a known number of iterations, the last one writes the results themselves.
        if not options["checked"] and not unlimited and max(limit, 0) % 2 == 0:
            here, there = spare, finals
        at = 0
        while going and (unlimited or at < limit):
            number[0] = at
            results = [*here, *(s + at * size for s, size in zip(stacked, rows, strict=True))]
            if options["checked"]:
                results.insert(0, flag.ctypes.data)
            _run(body, [number.ctypes.data, *state, *captured], results)
            going = not options["checked"] or bool(flag[0])
            state = list(here)
            here, there = there, here
            at += 1
        for final, last, size in zip(finals, state, sizes, strict=True):
            if final != last and size:
                ctypes.memmove(final, last, size)


def _flag(address: int) -> bool:
    return ctypes.c_uint8.from_address(address).value != 0


def _run(executor: Executor, inputs: list[int], outputs: list[int]) -> None:
    status = executor.run_addresses(inputs, outputs, RUN.weights, RUN.stop)
    if status is not None:
        raise _Failed(status.message, status.advice)


_CALLS: weakref.WeakValueDictionary[int, _Control] = weakref.WeakValueDictionary()
_TOKENS = itertools.count(1)
_LOCK = threading.Lock()


def control_call(call: KernelCall, bodies: Bodies, sizes: Sequence[int]) -> tuple[int, object]:
    """Prepare a call, and return the number under which the core finds it, and an object to keep until then.

    sizes: bytes of the call's results. Raises as Executor does for a body.
    """
    prepared = _Control(call, bodies, sizes)
    with _LOCK:
        token = next(_TOKENS)
        _CALLS[token] = prepared
    return token, prepared


def registered(token: int) -> Callable[[list[int], int], str | tuple[str, str]] | str:
    """Return a prepared call by its number, or the reason why there is none."""
    return _CALLS.get(token) or "this process did not prepare the control flow"
