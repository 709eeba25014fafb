"""Values of a compiled program: the buffers that its kernel calls write. Reading some runs the plan up to the call that writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...inference.native.prefix_run import is_readable, values_after
from ...ir import Graph
from ...program.overlaps import share
from ...protocols import Array
from ...runtime.execution.executor import Executor
from ...types import DType
from .observer import ObservedNode

__all__ = ["ProgramValues"]


class ProgramValues:
    """The observer of a program on the native engine.

    Passes keep the names of the values that they keep, so a buffer and a value of the model that have one name hold the same value.

    graph: the model's graph as imported, which gives outputs the names of their values; None for a program without its model.
    named: the values to show: those of the model, not copies into another layout; None to show every buffer.
    close: called by ``close``.
    """

    def __init__(
        self, label: str, precision: DType, executor: Executor, feeds: Mapping[str, Array], close: Callable[[], None],
        graph: Graph | None = None, named: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        self.label, self.precision, self.runs = label, precision, 0
        self._executor, self._close = executor, close
        self._arrays = [feeds[s.name] for s in executor.entry.inputs]
        plan, entry = executor.plan, executor.entry
        self._buffers = {b.name: b for b in plan.buffers}
        self._writer = {n: i for i, call in enumerate(plan.calls) for n in call.outputs}
        self.outputs: Sequence[str] = tuple(s.name for s in entry.outputs)
        ends = [o.value for o in graph.outputs] if graph is not None else self.outputs
        self._value_of = {n: n for n in self._writer} | dict(zip(entry.output_buffers, ends, strict=True))
        self._buffer_of = {value: buffer for buffer, value in self._value_of.items()}
        edges = self._edges(ends)
        for name, value, buffer in zip(self.outputs, ends, entry.output_buffers, strict=True):
            if name != value:  # the model's name for an output, next to that of its value
                self._buffer_of[name], edges[name] = buffer, [value]
        self.reads: Mapping[str, Sequence[str]] = edges
        readable = [v for v, b in self._buffer_of.items() if self._readable(b)]
        readable.sort(key=lambda v: (self._writer[self._buffer_of[v]], v in self.outputs))
        # An output may be a view of another buffer, which no call writes under its name: a whole run returns it.
        self._by_run = [v for v in self.outputs if v not in readable]
        shown = [v for v in readable if named is None or v in named or v in self.outputs]
        self.order: Sequence[str] = (*shown, *self._by_run)

    def _readable(self, name: str) -> bool:
        buffer = self._buffers.get(name)
        return buffer is not None and name in self._writer and is_readable(buffer, self._buffers[buffer.root])

    def _edges(self, ends: Sequence[str]) -> dict[str, list[str]]:
        """Return the values that each value is computed from. A buffer depends on everything that is stored in its root."""
        edges: dict[str, list[str]] = {}
        stored: dict[str, list[str]] = {}  # buffers by root, without those that were overwritten
        for call in self._executor.plan.calls:
            read = [self._value_of.get(n, n) for i in call.inputs for n in stored.get(self._root(i), [i])]
            for n in call.outputs:
                value = self._value_of[n]
                edges[value] = [v for v in dict.fromkeys((*edges.get(value, ()), *read)) if v != value]
                mine = stored.setdefault(self._root(n), [])
                mine[:] = [o for o in mine if o != n and not self._covers(n, o)] + [n]
        for buffer, value in zip(self._executor.entry.output_buffers, ends, strict=True):
            if value not in edges:
                edges[value] = [self._value_of[n] for n in stored.get(self._root(buffer), ())]
        return edges

    def _covers(self, name: str, other: str) -> bool:
        """Return True if writing a buffer replaces all of another one in the same root."""
        a, b = self._buffers[name], self._buffers[other]
        inside = a.offset <= b.offset and b.offset + b.size_bytes <= a.offset + a.size_bytes
        return inside and share(a, b, self._buffers[a.root])

    def _root(self, name: str) -> str:
        return self._buffers[name].root if name in self._buffers else name

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        """Return values by name, from as few runs as their memory allows: one, unless a value is overwritten before the last is written."""
        arrays: dict[str, Array] = {}
        if set(names) <= set(self.outputs) or any(v in self._by_run for v in names):
            outputs = dict(zip(self.outputs, self._executor_run(), strict=True))
            arrays |= {v: outputs[v] for v in names if v in outputs}
        left = sorted((v for v in names if v not in arrays), key=lambda v: self._writer[self._buffer_of[v]])
        while left:
            end = self._writer[self._buffer_of[left[-1]]]
            group = [v for v in left if not self._overwritten(self._buffer_of[v], end)]
            buffers = [self._buffer_of[v] for v in group]
            memory = values_after(self._executor, self._arrays, end, buffers)
            arrays |= {v: memory[b] for v, b in zip(group, buffers, strict=True)}
            self.runs += 1
            left = [v for v in left if v not in arrays]
        return arrays

    def _executor_run(self) -> Sequence[Array]:
        """Run the whole program once, with new states."""
        self.runs += 1
        with self._executor.twin() as twin:
            return twin.run_arrays(self._arrays)

    def _overwritten(self, name: str, end: int) -> bool:
        """Return True if a call after the buffer's own, up to ``end``, writes to its memory."""
        buffer = self._buffers[name]
        root = self._buffers[buffer.root]
        later = self._executor.plan.calls[self._writer[name] + 1 : end + 1]
        written = (self._buffers[n] for call in later for n in call.outputs if n in self._buffers)
        return any(b.root == root.name and share(buffer, b, root) for b in written)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value; programs have static shapes."""
        return tuple(int(d) for d in self._buffers[self._buffer_of[name]].spec.shape if isinstance(d, int))

    def dtype_of(self, name: str) -> DType | None:
        """Return the element type of a value's buffer."""
        return self._buffers[self._buffer_of[name]].spec.dtype

    def bytes_of(self, name: str) -> int | None:
        """Return the size of a value's buffer."""
        return self._buffers[self._buffer_of[name]].size_bytes

    def node_of(self, name: str) -> ObservedNode:
        """Return the nodes and the kernel of the call that completes a value."""
        call = self._executor.plan.calls[self._writer[self._buffer_of[name]]]
        return ObservedNode(call.nodes, call.ops, call.kernel)

    def kernels(self) -> list[tuple[tuple[str, ...], str]]:
        """Return the model's nodes and the kernel of each call, in order."""
        return [(call.nodes, call.kernel) for call in self._executor.plan.calls if call.nodes]

    def close(self) -> None:
        """Close the session that owns the program."""
        self._close()
