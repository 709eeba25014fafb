"""Collectives: threads that run one graph each exchange arrays. A group of one rank needs no other thread.

group = Group(2)
with group.rank(0):                     # in one thread; group.rank(1) in another
    outputs = interp.run(graph, feeds)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np

from ...errors import RunError
from .numbers import Array, widen
from .rule import InterpRule, plain

__all__ = ["RULES", "Group"]

_TIMEOUT_S = 60.0


class Group:
    """Ranks that exchange arrays, one thread each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._arrays: list[Array] = [np.zeros(0)] * size

    @contextlib.contextmanager
    def rank(self, index: int) -> Iterator[None]:
        """Make this thread a rank of the group. If it fails, the others do not wait for it."""
        token = _RANK.set((self, index))
        try:
            yield
        except BaseException:
            self._barrier.abort()
            raise
        finally:
            _RANK.reset(token)

    def exchanged(self, index: int, array: Array) -> list[Array]:
        """Return the arrays of all ranks. Raises RunError if a rank does not come."""
        self._arrays[index] = array
        try:
            self._barrier.wait(_TIMEOUT_S)
            arrays = list(self._arrays)
            self._barrier.wait(_TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise RunError("interpreter", f"rank {index} waited for the others in vain") from None
        return arrays


_RANK: ContextVar[tuple[Group, int] | None] = ContextVar("xpuruntime_interp_rank", default=None)


def _all(x: Array, ranks: int) -> tuple[list[Array], int]:
    """Return the operands of all ranks, and the index of this one."""
    if ranks == 1:
        return [x], 0
    current = _RANK.get()
    if current is None or current[0].size != ranks:
        got = "no group" if current is None else f"a group of {current[0].size}"
        do = "Run the graph of each rank in a thread, in Group.rank."
        raise RunError("interpreter", f"a collective has {ranks} ranks", got=got, do=do)
    group, index = current
    return group.exchanged(index, x), index


def _sum(arrays: list[Array]) -> Array:
    """Return the sum, by rank, with 16-bit floats added in float32."""
    total = widen(arrays[0])
    for array in arrays[1:]:
        total = total + widen(array)
    return np.asarray(total)


def all_reduce(x: Array, *, ranks: int) -> Array:
    """Return the sum of all ranks' operands."""
    return _sum(_all(x, ranks)[0])


def peer_all_reduce(x: Array, table: Array, residual: Array | None, *, ranks: int) -> Array:
    """Return the sum of all ranks' operands, plus the residual. The addresses of the table are not used."""
    total = _sum(_all(x, ranks)[0])
    return total if residual is None else np.asarray(total + widen(residual))


def all_gather(x: Array, *, ranks: int) -> Array:
    """Return the operands of all ranks, by rank."""
    return np.concatenate(_all(x, ranks)[0], axis=0)


def reduce_scatter(x: Array, *, ranks: int) -> Array:
    """Return this rank's part of the sum."""
    arrays, index = _all(x, ranks)
    rows = x.shape[0] // ranks
    return _sum(arrays)[index * rows : (index + 1) * rows]


RULES: dict[str, InterpRule] = {
    "all_reduce": plain(all_reduce),
    "peer_all_reduce": plain(peer_all_reduce),
    "all_gather": plain(all_gather),
    "reduce_scatter": plain(reduce_scatter),
}
