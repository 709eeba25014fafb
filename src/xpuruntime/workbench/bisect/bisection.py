"""Bisection of two sides: which policy change makes them differ, at which node, and a folder that repeats it alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...children import scratch
from ...errors import InputError, XpuError
from ...inference.models.digests import forget_kept
from ...inference.native.model import native_model
from ...policies import Policy
from ...policies.files.load import load_policy
from ...protocols import Array, ModelSource, NodeRef
from ...types import DType
from ..values.observer import ObservedNode, Observer
from ..values.onnx_cut import OnnxCuts
from ..values.pairs import common_values, limits_of
from ..values.program_values import ProgramValues
from ..values.side import Side
from ..values.statistics import difference
from .changes import PolicyChange, applied, changes_between, rule_for, smallest
from .report import Bisection, FaultyNode
from .reproduction import KeptValues, Subject, check_new_folder, save_reproduction
from .walk import Walk, most_runs, walk

__all__ = ["bisect"]

Progress = Callable[[str], None]


def bisect(
    actual: Side,
    reference: Side,
    feeds: Mapping[str, Array],
    *,
    by: str | None = None,
    tolerance: float | None = None,
    save: str | os.PathLike[str] | None = None,
    progress: Progress = lambda _: None,
) -> Bisection:
    """Find where two sides differ on one set of inputs.

    by:        ``policy``: search for the smallest policy change first; ``node``: only for the first value. Default: ``policy`` for one
               model under two policies, else ``node``.
    tolerance: largest max|d|/max|ref| of a value. Default: 0 for sides that are built alike, else that of the coarsest precision.
    save:      a new folder for the reproduction; it is run in a fresh process. None saves nothing.
    Raises the errors of opening and running the sides, InputError, and StoreError for a folder that cannot be written.
    """
    _same_inputs(actual.model, reference.model)
    if save is not None:
        check_new_folder(Path(save))
    if by is None:
        same = actual.model.digest == reference.model.digest
        by = "policy" if same and load_policy(actual.policy) != load_policy(reference.policy) else "node"
    changes: tuple[str, ...] = ()
    trials = 0
    if by == "policy":
        search = _PolicySearch(actual, reference, feeds, tolerance, progress)
        changed = search.run()
        trials = search.trials
        if changed is None:
            return Bisection(search.labels[0], search.labels[1], False, trials=trials)
        actual, changes = actual.with_policy(changed.policy), changed.texts
    with scratch("xpu-bisect-") as folder:
        kept_values = KeptValues(folder / "inputs.npz", feeds)
        result, subject = _walked(actual, reference, feeds, tolerance, kept_values, progress)
        result = replace(result, changes=changes, trials=trials)
        if by == "policy" and not result.differs:
            note = "the outputs differ between the policies, but every value that both sides show agrees"
            result = replace(result, differs=True, notes=(*result.notes, note))
        if result.node is None or save is None or subject is None:
            return result
        progress("saving the reproduction and running it in a fresh process")
        saved = save_reproduction(Path(save), subject, result, kept_values)
        notes = result.notes
        if saved.fails is False:
            notes += (
                "the reproduction does not show the difference in a fresh process: it depends on this process or its environment",
            )
        elif saved.scope != "node" and subject.is_cut:
            notes += (
                f"the node alone does not show the difference, the {saved.scope} does: it depends on what comes before",
            )
        return replace(result, reproduction=saved, notes=notes)


def _same_inputs(model: ModelSource, other: ModelSource) -> None:
    """Raise InputError for models that cannot take the same inputs."""
    a, b = ({s.name: s for s in m.inputs} for m in (model, other))
    if a.keys() == b.keys() and all(s.dtype is b[n].dtype and s.rank == b[n].rank for n, s in a.items()):
        return
    got = f"{', '.join(map(str, model.inputs))} and {', '.join(map(str, other.inputs))}"
    who = f"bisect {model.name!r} against {other.name!r}"
    raise InputError(who, "the two have different inputs", got=got, do="Compare two versions of one model.")


# ── values ──


def _walked(
    actual: Side, reference: Side, feeds: Mapping[str, Array], tolerance: float | None, kept_values: KeptValues, progress: Progress
) -> tuple[Bisection, Subject | None]:  # fmt: skip
    progress(f"opening {actual.model.name}")
    left = actual.observe(feeds)
    try:
        forget_kept()
        progress(f"opening {reference.model.name}")
        right = reference.observe(feeds)
        try:
            _comparable(actual, reference, left, right)
            forget_kept()
            limit = limits_of(actual, reference, left, right, tolerance)
            state = walk(left, right, limit, kept_values.keep, progress)
            seen = _Seen.of(left, right, state)
        finally:
            right.close()
    finally:
        left.close()
    labels = left.label, right.label
    del (
        left,
        right,
        limit,
    )  # the models are read next: memory holds either them or the programs and their weights
    forget_kept()
    bound = most_runs(len(actual.model.nodes) if actual.model.nodes else state.values)
    if not state.differs:
        return Bisection(*labels, False, values=state.values, runs=state.runs, bound=bound), None
    subject = Subject(actual, reference, state, feeds, seen.calls)
    cuts = OnnxCuts(actual.model) if actual.model.format == "onnx" else None
    node = _faulty_node(subject, cuts, seen)
    if cuts is not None and subject.is_cut and actual.model.digest != reference.model.digest:
        members = _members(subject, cuts) if len(node.nodes) > 1 else ()
        del cuts  # it holds the weights of its model
        forget_kept()
        node = _narrowed(node, members, reference.model)
    result = Bisection(*labels, True, node, values=state.values, runs=state.runs, bound=bound)
    return result, subject


@dataclass(frozen=True, slots=True)
class _Seen:
    """Reports of both sides: the step that computes the first value that differs, and the nodes and kernel of each call (none for a vendor's engine)."""

    nodes: Sequence[ObservedNode]
    calls: Sequence[Sequence[tuple[tuple[str, ...], str]]]

    @classmethod
    def of(cls, left: Observer, right: Observer, state: Walk) -> _Seen:
        """Ask the sides, which are closed later."""
        sides = (left, right)
        nodes = tuple(o.node_of(state.value) for o in sides) if state.differs else ()
        return cls(nodes, tuple(o.kernels() if isinstance(o, ProgramValues) else [] for o in sides))


def _comparable(actual: Side, reference: Side, left: Observer, right: Observer) -> None:
    """Raise InputError if no output has one name on both sides."""
    if not set(common_values(left, right)) & set(left.outputs):
        who = f"bisect {actual.model.name!r} against {reference.model.name!r}"
        got = f"{', '.join(left.outputs)} and {', '.join(right.outputs)}"
        raise InputError(
            who,
            "no output has the same name on both sides",
            got=got,
            do="Give two models whose outputs have one name.",
        )


def _faulty_node(subject: Subject, cuts: OnnxCuts | None, seen: _Seen) -> FaultyNode:
    """Return the nodes between the values that agree and the first one that differs."""
    state = subject.state
    assert state.statistics is not None
    one, other = seen.nodes
    nodes, ops = (one.nodes, one.ops) if one.nodes else (other.nodes, other.ops)
    if cuts is not None and state.value in cuts.maker:
        refs = [cuts.nodes[i] for i in cuts.between(state.before, [state.value])]
        nodes, ops = tuple(n.name for n in refs), tuple(n.op for n in refs)
    source = _source_of(subject, cuts, state.value)
    kernels = tuple(
        _kernels_for(nodes, calls, n.kernel) for calls, n in zip(seen.calls, seen.nodes, strict=True)
    )
    return FaultyNode(
        state.value, nodes, ops, (kernels[0], kernels[1]), state.statistics, state.tolerance, *source
    )


def _kernels_for(nodes: Sequence[str], calls: Sequence[tuple[tuple[str, ...], str]], last: str) -> str:
    """Return the kernels of all calls that compute the nodes: one may have no name in the model for its result."""
    kernels = [kernel for computed, kernel in calls if set(computed) & set(nodes)]
    return ", ".join(dict.fromkeys(kernels)) or last


def _source_of(subject: Subject, cuts: OnnxCuts | None, value: str) -> tuple[str, str, int]:
    """Return module, file and line of a value's node: what the file keeps, else the imported graph."""
    known = ("", "", 0)
    if cuts is not None and value in cuts.maker:
        known = cuts.source_of(value)
    if not any(known) and subject.actual.model.format != "program":
        known = _ir_source(subject.actual.model, value) or known
    return known


@dataclass(frozen=True, slots=True)
class _Member:
    """One of several nodes that an engine computes together: its definition, and module, file and line."""

    node: NodeRef
    definition: str
    source: tuple[str, str, int]


def _members(subject: Subject, cuts: OnnxCuts) -> tuple[_Member, ...]:
    """Return the nodes between the values that agree and the first one that differs."""
    group = cuts.between(subject.state.before, [subject.state.value])
    nodes = [(i, cuts.nodes[i]) for i in group]
    return tuple(_Member(n, cuts.definition(i), _source_of(subject, cuts, n.outputs[0])) for i, n in nodes)


def _narrowed(node: FaultyNode, members: Sequence[_Member], other: ModelSource) -> FaultyNode:
    """Return the nodes that the other model defines differently; all of them if there are none."""
    if not members:
        return node
    cuts = OnnxCuts(other)
    changed = [m for m in members if m.definition != cuts.definition_of(m.node.outputs)]
    if not changed:
        return node
    module, file, line = changed[0].source
    names, ops = tuple(m.node.name for m in changed), tuple(m.node.op for m in changed)
    return replace(node, nodes=names, ops=ops, module=module, file=file, line=line)


def _ir_source(model: ModelSource, value: str) -> tuple[str, str, int] | None:
    """Return module, file and line that the imported graph keeps for a value's node."""
    try:
        node = native_model(model).graph.producer(value)
    except XpuError:
        return None
    source = next((s for s in (node.sources if node else ()) if s.file or s.module), None)
    return None if source is None else (source.module, source.file, source.line)


# ── policies ──


@dataclass(frozen=True, slots=True)
class _Changed:
    """The smallest change: the policy with it, and it in words."""

    policy: Policy
    texts: tuple[str, ...]


class _PolicySearch:
    """Delta debugging from the reference's policy towards the actual one."""

    def __init__(
        self, actual: Side, reference: Side, feeds: Mapping[str, Array], tolerance: float | None, progress: Progress
    ) -> None:  # fmt: skip
        self._side, self._feeds, self._tolerance, self._progress = actual, dict(feeds), tolerance, progress
        self._before, self._after = load_policy(reference.policy), load_policy(actual.policy)
        self.trials = 0
        self.labels = (
            f"{actual.model.name} under the policy",
            f"{actual.model.name} under the reference policy",
        )
        self._expected: dict[str, Any] = {}
        self._precision: DType | None = None

    def run(self) -> _Changed | None:
        """Return the smallest change that makes the outputs differ; None if the whole policies agree."""
        self._expected, self._precision = self._outputs(self._before)
        if not self._differs(self._after):
            return None
        changes = changes_between(self._before, self._after)
        left = smallest(changes, self._has_effect)
        policy = applied(self._before, left) if left else self._after
        return self._by_node(left, policy) or _Changed(policy, tuple(map(str, left)))

    def _has_effect(self, changes: Sequence[PolicyChange]) -> bool:
        """Return True if the changes make the outputs differ. A subset that is no valid or possible policy has no effect."""
        self._progress(f"trial {self.trials + 1}: {', '.join(map(str, changes))[:120]}")
        try:
            return self._differs(applied(self._before, changes))
        except XpuError:
            return False

    def _outputs(self, policy: Policy) -> tuple[dict[str, Any], DType]:
        self.trials += 1
        with self._side.with_policy(policy).open() as session:
            return dict(session.run(self._feeds)), DType(session.plan.regions[0].precision)

    def _differs(self, policy: Policy) -> bool:
        outputs, precision = self._outputs(policy)
        return self._differing(outputs, precision)

    def _differing(self, outputs: Mapping[str, Any], precision: DType) -> bool:
        from ...numerics import tolerance_for

        for name, array in outputs.items():
            expected = self._expected[name]
            limit = self._tolerance
            if limit is None:
                limit = tolerance_for(precision, self._precision or precision, DType.of(expected.dtype))
            if difference(array, expected).reason(0.0 if expected.dtype.kind in "biuOUST" else limit):
                return True
        return False

    def _by_node(self, changes: Sequence[PolicyChange], policy: Policy) -> _Changed | None:
        """Narrow a change of kernels to the nodes that it must be made for; None if it cannot be narrowed."""
        if not changes or not all(c.path[0] == "kernel" for c in changes):
            return None
        before = {node: kernel for nodes, kernel in self._kernels(self._before) for node in nodes}
        moved = [(n, k) for n, k in self._kernels(policy) if any(before.get(node, k) != k for node in n)]
        if not moved:
            return None

        def with_rules(calls: Sequence[tuple[tuple[str, ...], str]]) -> Policy:
            rules = [
                rule_for(nodes, kernel, "the kernel of the side that differs") for nodes, kernel in calls
            ]
            return applied(self._before, [PolicyChange(("kernel", "rules"), None, rule) for rule in rules])

        def effect(calls: Sequence[tuple[tuple[str, ...], str]]) -> bool:
            self._progress(
                f"trial {self.trials + 1}: the other kernel for {len(calls)} of {len(moved)} calls"
            )
            try:
                return self._differs(with_rules(calls))
            except XpuError:
                return False

        if not effect(moved):
            return None
        left = smallest(moved, effect)
        texts = [f"kernel of {'+'.join(map(repr, n))}: {before.get(n[0], 'none')} -> {k}" for n, k in left]
        return _Changed(with_rules(left), tuple(texts))

    def _kernels(self, policy: Policy) -> list[tuple[tuple[str, ...], str]]:
        """Return nodes and kernel of each call under a policy, on the native engine; nothing on others."""
        observer = self._side.with_policy(policy).observe(self._feeds)
        try:
            return observer.kernels() if isinstance(observer, ProgramValues) else []
        finally:
            observer.close()
