"""Location of the first wrong value of a program, by bisection over the plan's calls against the interpreter.

A probe runs the plan up to one call, with that call's result in separate memory, and compares it with the value of the same name that the
interpreter computes from the imported graph. Passes keep the names of the values that they keep, so both names mean one value.
Nothing is compiled for a probe: it is a prefix of the program itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...errors import XpuError
from ...ir import Graph, Node, interp
from ...ir.shapes.symbols import bind
from ...numerics import compare, tolerance_for
from ...program.program import ExecutionPlan, KernelCall
from ...protocols import Array
from ...runtime.execution.executor import Executor
from ...types import DType
from ..native.model import NativeModel
from ..native.prefix_run import is_readable, values_after
from .references import Interpreter, OutOfTime, interpreter_bytes
from .ties import choices_of, has_tie, is_tie, outputs_after
from .work import free_bytes, work_of

__all__ = ["Located", "first_tie", "first_wrong"]

_EQUAL = 0.1
"""Share of the tolerance within which scores count as equal on any engine."""
_SECONDS = 60.0
"""The time limit of the interpreter here: the user waits for an error message, not for a result."""


@dataclass(frozen=True, slots=True)
class Located:
    """text: a clause with the first node that differs, its kernel and its line, or the reason why none can be named. undecided: outputs that depend
    on a tie between scores and therefore cannot be compared. right: outputs that are those of the interpreter, as is every value before them.
    """

    text: str
    undecided: frozenset[str] = frozenset()
    right: frozenset[str] = frozenset()


def first_wrong(source: NativeModel, executor: Executor, feeds: Mapping[str, Array]) -> Located:
    """Return the first node that differs. Never raises an XpuError."""
    try:
        probes = _Probes(source, executor, feeds)
        at = probes.first()
        tied = probes.tie_before(at) or (next(iter(probes.near_ties()), None) if at is None else None)
    except OutOfTime:
        return Located(f"no node is named: {Interpreter.name} took over {_SECONDS:.0f} s")
    except (XpuError, ValueError, MemoryError) as error:
        return Located(f"no node is named: {error}")
    if tied is not None:
        return _tie(source.graph, tied, {*probes.ties.values(), *probes.near_ties()})
    if at is None:
        text = "no node is named: every comparable value of the plan is correct on its own"
        return Located(text, right=probes.compared_outputs())
    return Located(probes.told(at))


def first_tie(
    source: NativeModel, feeds: Mapping[str, Array], precision: DType, seconds: float = _SECONDS
) -> Located:
    """Return the first node that chooses among equal scores, for a session whose values cannot be read. The text is empty if there is none. Never
    an XpuError.
    """
    graph = source.graph
    choices = choices_of(graph)
    read = {node.values[0] for node in choices.values()}
    scores = {n: a for n, a in feeds.items() if n in read}
    deadline = time.perf_counter() + seconds

    def watch(node: Node, results: tuple[Array, ...]) -> None:
        if time.perf_counter() > deadline:
            raise OutOfTime
        scores.update((v.name, a) for v, a in zip(node.outputs, results, strict=True) if v.name in read)

    try:
        sizes = bind(graph.input_specs, {n: a.shape for n, a in feeds.items()})
        if not choices or interpreter_bytes(work_of(graph, sizes)) > free_bytes() // 2:
            return Located("")
        interp.run(graph, feeds, weights=source.weights, states={}, watch=watch)
    except (OutOfTime, XpuError, ValueError, MemoryError):
        return Located("")
    tied = _near_ties(choices, scores, tolerance_for(precision) * _EQUAL)
    return _tie(graph, tied[0], tied) if tied else Located("")


def _near_ties(choices: Mapping[str, Node], scores: Mapping[str, Array], tolerance: float) -> list[str]:
    """Return the nodes with scores this close, where another engine may choose differently."""
    among = (n for n in choices.values() if n.values[0] in scores)
    return [n.name for n in among if has_tie(n, scores[n.values[0]], tolerance)]


def _tie(graph: Graph, node: str, tied: Collection[str]) -> Located:
    text = f"node {node!r} chooses among scores that are equal or closer than this precision resolves, and later values depend on the choice"
    return Located(text, outputs_after(graph, tied))


class _Probes:
    """A program's calls and the expected values of their results."""

    def __init__(self, source: NativeModel, executor: Executor, feeds: Mapping[str, Array]) -> None:
        self.graph, self.executor = source.graph, executor
        self.plan: ExecutionPlan = executor.plan
        self.buffers = {b.name: b for b in self.plan.buffers}
        self.arrays = [feeds[s.name] for s in executor.entry.inputs]
        self.distances: dict[int, str] = {}
        self.right: set[int] = set()
        self.names = self._names()
        self.choices = choices_of(self.graph)
        self.scores: dict[str, Array] = {}  # reference scores by the name of the chosen indices
        self.ties: dict[int, str] = {}
        used = {
            self.buffers[n].spec.dtype for call in self.plan.calls for n in call.outputs if n in self.buffers
        }
        self.loosest = max((tolerance_for(d, d) for d in used if d.is_float), default=0.0)
        self.values = self._values(source, feeds)
        self._follow_copies()
        self.last_writer = {n: i for i, call in enumerate(self.plan.calls) for n in call.outputs}
        self.known = [i for i in range(len(self.plan.calls)) if self._compared(i)]
        self.before = self._dependencies()

    # ── what values should be ──

    def _names(self) -> dict[str, str]:
        """Return the graph's value of each buffer that a call writes."""
        names = {n: n for call in self.plan.calls for n in call.outputs}
        outputs = zip(self.executor.entry.output_buffers, self.graph.outputs, strict=True)
        return names | {buffer: output.value for buffer, output in outputs}

    def _values(self, source: NativeModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return expected values by buffer. Raises OutOfTime, IrError, and ValueError if they do not fit into memory."""
        graph: Graph = source.graph
        sizes = bind(graph.input_specs, {n: a.shape for n, a in feeds.items()})
        work, free = work_of(graph, sizes), free_bytes()
        held = sum(self.buffers[n].size_bytes for n in self.names if n in self.buffers)
        if interpreter_bytes(work) + held > free // 2:
            raise ValueError(f"{Interpreter.name} needs more than the {free >> 20} MiB of free memory")
        wanted = set(self.names.values())
        scores = {node.values[0] for node in self.choices.values()}
        deadline = time.perf_counter() + _SECONDS
        values: dict[str, Array] = {}

        def watch(node: Node, results: tuple[Array, ...]) -> None:
            if time.perf_counter() > deadline:
                raise OutOfTime
            outputs = [(v.name, a) for v, a in zip(node.outputs, results, strict=True)]
            values.update((name, a) for name, a in outputs if name in wanted)
            self.scores.update((name, a) for name, a in outputs if name in scores)

        interp.run(graph, feeds, weights=source.weights, states={}, watch=watch)
        arrays = {buffer: values[name] for buffer, name in self.names.items() if name in values}
        borders = zip(self.executor.entry.input_buffers, self.arrays, strict=True)
        return arrays | dict(borders)

    def _follow_copies(self) -> None:
        """Name layout copies after the value that they copy, since the model has no name for them."""
        for call in self.plan.calls:
            read = [n for n in call.inputs if n in self.values]
            if set(call.ops) <= {"clone", "contiguous"} and len(read) == len(call.outputs) == 1:
                self.values.setdefault(call.outputs[0], self.values[read[0]])

    def _compared(self, at: int) -> list[str]:
        """Return results of a call that are complete after it. A value may be computed in parts, such as a transposed convolution's phases."""
        names = (n for n in self.plan.calls[at].outputs if self.last_writer[n] == at)
        return list(filter(self._comparable, names))

    def _comparable(self, name: str) -> bool:
        buffer, value = self.buffers.get(name), self.values.get(name)
        if buffer is None or value is None or not is_readable(buffer, self.buffers[buffer.root]):
            return False
        return value.shape == buffer.spec.shape

    # ── bisection ──

    def _dependencies(self) -> list[frozenset[int]]:
        """Return for each call the earlier calls whose results it uses or completes, directly or indirectly."""
        writers: dict[str, list[int]] = {}
        before: list[frozenset[int]] = []
        for i, call in enumerate(self.plan.calls):
            direct = [w for n in call.inputs for w in writers.get(self._root(n), ())]
            direct += [w for w in range(i) if set(call.outputs) & set(self.plan.calls[w].outputs)]
            before.append(frozenset(direct).union(*(before[w] for w in direct)))
            for n in call.outputs:
                writers.setdefault(self._root(n), []).append(i)
        return before

    def _root(self, name: str) -> str:
        return self.buffers[name].root if name in self.buffers else name

    def first(self) -> int | None:
        """Return the call whose result is wrong while all of its inputs are correct, or None."""
        wrong = next((i for i in reversed(self.known) if self.differs(i)), None)
        if wrong is None:
            return None
        while left := [i for i in self.known if i in self.before[wrong] and i not in self.right]:
            middle = min(left, key=lambda i: abs(2 * sum(j in self.before[i] for j in left) + 1 - len(left)))
            if self.differs(middle):
                wrong = middle
            else:
                self.right |= {middle, *self.before[middle]}
        return wrong

    def compared_outputs(self) -> frozenset[str]:
        """Return the outputs of the model that a probe can compare: a call writes the whole memory of each, perhaps as a value of another shape."""
        compared = {
            self._root(n)
            for i in self.known
            for n in self._compared(i)
            if self.buffers[n].size_bytes == self.buffers[self._root(n)].size_bytes
        }
        outputs = zip(self.executor.entry.output_buffers, self.graph.outputs, strict=True)
        return frozenset(output.name for buffer, output in outputs if self._root(buffer) in compared)

    def tie_before(self, at: int | None) -> str | None:
        """Return the first node, up to a wrong call or of all, that breaks a tie differently."""
        for i in range(len(self.plan.calls)) if at is None else sorted({at, *self.before[at]}):
            chosen = any(self.names.get(n, n) in self.choices for n in self._compared(i))
            if i in self.ties or (
                chosen and i not in self.distances and not self.differs(i) and i in self.ties
            ):
                return self.ties[i]
        return None

    def near_ties(self) -> list[str]:
        """Return the nodes with equal scores, by the interpreter's values."""
        return _near_ties(self.choices, self.scores, self.loosest * _EQUAL)

    def differs(self, at: int) -> bool:
        """Return True if a call's result is wrong."""
        for name in self._compared(at):
            got, want = self._result(at, name), self.values[name]
            limit = tolerance_for(DType.of(got.dtype), DType.of(want.dtype))
            if want.dtype.kind not in "biu":  # its inputs may be of the narrowest type of the program
                limit = max(limit, self.loosest)
            comparison = compare(name, got, want, limit)
            if not comparison.ok:
                node = self.choices.get(self.names.get(name, name))
                scores = None if node is None else self.scores.get(node.values[0])
                if node is not None and scores is not None and is_tie(node, scores, got, want, self.loosest):
                    self.ties[at] = node.name
                    continue
                self.distances[at] = comparison.reason
                return True
        return False

    def _result(self, at: int, name: str) -> Array:
        """Return a value as it is immediately after its call."""
        return values_after(self.executor, self.arrays, at, [name])[name]

    # ── words ──

    def told(self, at: int) -> str:
        """Return a description of the call in terms of the user's model."""
        call = self.plan.calls[at]
        names = self._nodes(call)
        node = names[-1] if names else None
        if node is None:  # a copy that belongs to no node of the model
            read = next((n for n in call.inputs if n in self.values), "")
            where = f"the copy of {self.names.get(read, read)!r} into another layout"
        else:
            where = f"node {node.name!r} ({'+'.join(call.ops)}"
            where += f"; the fused nodes {', '.join(n.name for n in names)})" if len(names) > 1 else ")"
        text = f"the first that differs is {where}, computed by kernel {call.kernel} ({call.symbol})"
        if unseen := [
            self.plan.calls[i] for i in sorted(self.before[at] - self.right) if i not in self.known
        ]:
            what = ", ".join(f"{c.kernel} for {', '.join(c.nodes)}" for c in unseen[:3])
            text += f", or one of its inputs, whose values cannot be compared ({what})"
        source = next((s for n in reversed(names) for s in n.sources if s.file), None)
        if source is not None:
            text += f", from {source.file}:{source.line}" + (f" in {source.module}" if source.module else "")
        return f"{text}: {self.distances[at]}"

    def _nodes(self, call: KernelCall) -> Sequence[Node]:
        by_source = {s.name: n for n in self.graph.nodes for s in n.sources if s.name}
        by_name = {v.name: n for n in self.graph.nodes for v in n.outputs}
        nodes = (by_name.get(n) or by_source.get(n) for n in call.nodes)
        return list(dict.fromkeys(n for n in nodes if n is not None))
