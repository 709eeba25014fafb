"""A comparison of two sides node by node: every intermediate value that both sides can show, in bounded memory.

Values are made outputs in chunks that fit a budget of bytes, one run per side and chunk, and each is reduced to statistics at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...decisions import Candidate, Decision
from ...errors import BuildError, EngineUnavailable, InputError, StrictError, UnavailableError
from ...protocols import Array, ModelSource
from ..engine_sessions import rejection
from ..inputs import Inputs
from ..session_options import SessionOptions
from ..values.observer import Observer
from ..values.pairs import common_values, limits_of
from ..values.side import Side, open_source
from ..values.statistics import DifferenceStatistics, difference
from .report import Progress

__all__ = ["BUDGET", "NodeComparison", "NodesReport", "compare_engine_nodes", "compare_nodes"]

BUDGET = 256 << 20
"""Default for the bytes of intermediate values that are held at a time, both sides together."""


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One value on both sides, with the nodes and the kernel that compute it on the first."""

    value: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    kernel: str
    tolerance: float
    statistics: DifferenceStatistics

    @property
    def reason(self) -> str:
        """Why the value differs; empty if it agrees."""
        return self.statistics.reason(self.tolerance)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "value": self.value,
            "nodes": list(self.nodes),
            "ops": list(self.ops),
            "kernel": self.kernel,
            "tolerance": self.tolerance,
            "reason": self.reason,
            **self.statistics.to_json(),
        }


@dataclass(frozen=True, slots=True)
class NodesReport:
    """The comparison of two sides.

    held_bytes: the most bytes of intermediate values that were held at a time; above the budget only if one value alone is.
    unseen:     nodes of the model whose results one side cannot show, since it fuses or folds them.
    """

    actual: str
    reference: str
    nodes: tuple[NodeComparison, ...]
    runs: int
    held_bytes: int
    budget: int
    unseen: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every value agrees."""
        return all(not n.reason for n in self.nodes)

    @property
    def first_difference(self) -> NodeComparison | None:
        """First value that differs, in the order of execution."""
        return next((n for n in self.nodes if n.reason), None)

    @property
    def sentence(self) -> str:
        """Answer in words."""
        first = self.first_difference
        if first is None:
            return f"{self.actual} and {self.reference} agree at {len(self.nodes)} values"
        differing = sum(bool(n.reason) for n in self.nodes)
        return (
            f"{self.actual} differs from {self.reference} at {differing} of {len(self.nodes)} values, first at node "
            f"{(first.nodes or (first.value,))[-1]!r}: {first.reason}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        first = self.first_difference
        return {
            "ok": self.ok,
            "answer": self.sentence,
            "actual": self.actual,
            "reference": self.reference,
            "first_difference": None if first is None else first.value,
            "runs": self.runs,
            "held_bytes": self.held_bytes,
            "budget": self.budget,
            "unseen": list(self.unseen),
            "values": [n.to_json() for n in self.nodes],
        }


def compare_nodes(
    side: Side,
    other: Side,
    feeds: Mapping[str, Array],
    *,
    budget: int = BUDGET,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> NodesReport:
    """Compare every value that both sides can show, on one set of inputs.

    budget: bytes of intermediate values to hold at a time. A larger value has a chunk of its own.
    Raises the errors of opening and running the sides, and InputError for a budget below 1.
    """
    if budget < 1:
        raise InputError(
            "compare_nodes",
            "needs a budget of at least one byte",
            got=budget,
            do="Give a positive number of bytes.",
        )
    progress(f"opening {side.model.name}")
    actual = side.observe(feeds)
    try:
        reference = other.observe(feeds)
        try:
            return _compared(actual, reference, side, other, budget, tolerance, progress)
        finally:
            reference.close()
    finally:
        actual.close()


def compare_engine_nodes(
    model: Any,
    engines: Sequence[str],
    *,
    named: bool = True,
    options: SessionOptions | None = None,
    reference_model: Any = None,
    against: str | None = None,
    inputs: Inputs | None = None,
    budget: int = BUDGET,
    tolerance: float | None = None,
    progress: Progress = lambda _: None,
) -> tuple[list[NodesReport], list[Candidate]]:
    """Compare each engine node by node with one of them, or a model with another on each engine. Return reports and rejected engines.

    against: an engine's name, or ``reference``: the interpreter. Default: the first engine that is available.
    The other arguments and errors are those of ``compare_engines`` and ``compare_models``.
    """
    source, options, inputs = open_source(model), options or SessionOptions(device="cpu"), inputs or Inputs()
    other = source if reference_model is None else open_source(reference_model)
    feeds = inputs.samples(source.inputs)[0]
    reports: list[NodesReport] = []
    rejected: list[Candidate] = []
    head = against
    for engine in engines:
        if engine == head and reference_model is None:
            continue
        try:
            if head is None and reference_model is None:
                with _side(source, engine, options).open():
                    head = engine
                continue
            mate = engine if reference_model is not None else str(head)
            sides = _side(source, engine, options), _side(other, mate, options)
            reports.append(
                compare_nodes(*sides, feeds, budget=budget, tolerance=tolerance, progress=progress)
            )
        except (UnavailableError, BuildError, StrictError) as error:
            if named:
                raise
            rejected.append(rejection(engine, error))
    if not reports:
        decision = Decision("engine", source.name, None, tuple(rejected))
        do = "Name another engine, or use --against reference."
        raise EngineUnavailable(
            f"compare {source.name!r}", "there is nothing to compare with", got=head or "no engine", do=do, decision=decision
        )  # fmt: skip
    return reports, rejected


def _side(model: ModelSource, engine: str, options: SessionOptions) -> Side:
    return Side(
        model,
        engine,
        options.device,
        options.policy,
        options.precision,
        options.threads,
        options.cache_dir,
    )


def _compared(
    actual: Observer, reference: Observer, side: Side, other: Side, budget: int, tolerance: float | None, progress: Progress
) -> NodesReport:  # fmt: skip
    names = common_values(actual, reference)
    limit = limits_of(side, other, actual, reference, tolerance)
    rows: list[NodeComparison] = []
    held = 0
    chunks = _chunks(names, actual, reference, budget)
    for k, chunk in enumerate(chunks):
        progress(
            f"values {len(rows) + 1} to {len(rows) + len(chunk)} of {len(names)} (part {k + 1} of {len(chunks)})"
        )
        left, right = actual.values(chunk), reference.values(chunk)
        held = max(held, sum(v.nbytes for v in (*left.values(), *right.values())))
        for name in chunk:
            node = actual.node_of(name)
            a, b = left.pop(name), right.pop(name)
            rows.append(
                NodeComparison(name, node.nodes, node.ops, node.kernel, limit(name, a, b), difference(a, b))
            )
    known = {n for row in rows for n in row.nodes}
    unseen = tuple(
        n.name for n in side.model.nodes if n.name not in known and set(n.outputs).isdisjoint(names)
    )
    return NodesReport(
        actual.label, reference.label, tuple(rows), actual.runs + reference.runs, held, budget, unseen
    )


def _chunks(names: Sequence[str], actual: Observer, reference: Observer, budget: int) -> list[list[str]]:
    """Return runs of values whose bytes on both sides fit the budget. A value of unknown size has a chunk of its own."""
    chunks: list[list[str]] = []
    bytes_left = 0
    for name in names:
        sizes = [o.bytes_of(name) for o in (actual, reference)]
        size = budget if None in sizes else sum(s for s in sizes if s is not None)
        if not chunks or size > bytes_left:
            chunks.append([])
            bytes_left = budget
        chunks[-1].append(name)
        bytes_left -= size
    return chunks
