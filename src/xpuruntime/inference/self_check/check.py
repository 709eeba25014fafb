"""Comparison of a session's outputs with an independent reference, in a bounded share of the opening time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ...decisions import Reason
from ...engines import lookup
from ...errors import XpuError
from ...ir import Graph, family_of
from ...ir.ops.control import bodies_of
from ...ir.shapes.symbols import bind, specialize
from ...numerics import Comparison, compare, tolerance_for
from ...profiler import trace
from ...progress import step
from ...protocols import Array, ModelSource
from ...storage.store import Store
from ...types import DType
from ..native.model import original_model, sized_model
from .bounded import Inconclusive, bounded_outputs, differ_in_last_places_of_one
from .conditioning import MARGIN, WIDEST, sensitivity, widened
from .locate import Located
from .overflow import as_in_type
from .record import keep, recall
from .references import EngineReference, Interpreter, Module, OutOfTime, Reference
from .ties import choices_of
from .verdict import Verdict
from .work import GraphCost, endless, free_bytes, work_of

__all__ = ["LEAST_S", "MOST_S", "SHARE", "CheckedModel", "SelfCheck", "verdict_of"]

SHARE, MOST_S = 0.1, 2.0
"""The highest share of the opening time that a check may take, and its upper bound in seconds."""
LEAST_S = 0.1
"""Seconds that a check may always take."""
_SUSPECT_S = 10.0
"""Additional seconds for the reference's own float64 error once outputs differ unusually: a verdict against a session must be certain."""
_USUAL = 0.1
"""Share of the tolerance table that correct engines of one precision stay within; four times a smaller distance is no limit."""

_OF_EXPORT = "PyTorch's export of the module has the session's values, so the module computes other values when it is exported"
_ADVICE_ON_EXPORT = (
    "Make forward compute the same when it is exported: what it does must not depend on torch.compiler.is_compiling(), "
    "torch.compiler.is_exporting(), torch.is_grad_enabled() or Python state. "
    "self_check='always' compares again at each opening, 'off' accepts the export's values."
)

_log = logging.getLogger("xpuruntime.session")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The settings of a check and the user's data for it.

    word:      the policy's ``first_open``, ``always`` or ``off``.
    module:    the session's ``nn.Module``; ``arguments``: the example inputs for calling it.
    examples:  the same inputs as arrays by name, or None for seeded ones.
    began:     start of the opening, by ``time.perf_counter``.
    """

    word: str
    module: Any = None
    arguments: Any = None
    examples: Mapping[str, Array] | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Return how many seconds a check that starts now may take."""
        if self.word == "always":
            return MOST_S
        return min(MOST_S, max(LEAST_S, SHARE * (time.perf_counter() - self.began)))


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """The model and session under check.

    run:       returns outputs for inputs by name and leaves the session unchanged.
    precision: the precision that it computes in.
    key:       everything that decides its results and the reference's; a verdict is valid for this key. None: no verdict is stored.
    feeds, told: inputs, and their name in messages; ``example``: True if they are the session's example inputs.
    locate:    names the first value that differs, or a tie between equal scores.
    """

    model: ModelSource
    engine: str
    precision: DType
    run: Callable[[dict[str, Array]], Sequence[Array]]
    key: Mapping[str, Any] | None
    feeds: dict[str, Array]
    told: str
    example: bool
    locate: Callable[[Mapping[str, Array]], Located] | None = None


def verdict_of(subject: CheckedModel, check: SelfCheck, store: Store) -> Verdict:
    """Return the verdict on a session, or a stored one under ``first_open``. Errors of references and models are not raised."""
    if check.word == "off":
        return Verdict.none("self_check is off")
    key = subject.key
    if check.word == "first_open" and key is not None and (known := recall(store, key)) is not None:
        _log.debug("%s: self_check: taken from the store: %s", subject.model.name, known.text)
        return known
    verdict, settled = _compared(subject, check)
    _log.debug("%s: self_check: %s (%s)", subject.model.name, verdict.text, verdict.by)
    if (
        settled and key is not None and not verdict.advice
    ):  # advice: the user mends the module, not the engine
        keep(store, key, verdict)
    return verdict


def _compared(subject: CheckedModel, check: SelfCheck) -> tuple[Verdict, bool]:
    """Return the verdict, and True if it may be stored because a reference ran."""
    seconds = check.seconds
    deadline = time.perf_counter() + seconds
    try:
        graph = original_model(subject.model).graph
        sizes = bind(graph.input_specs, {n: a.shape for n, a in subject.feeds.items()})
        if subject.model.graph is None:
            graph = sized_model(subject.model, sizes).graph
        work = work_of(graph, sizes)
    except XpuError as error:
        return Verdict.none(f"the model has no form in the IR: {error.what}"), False
    if drawn := _draws(graph):
        return Verdict.none(f"{drawn} draws random numbers"), False
    if not subject.example and (loop := endless(specialize(graph, sizes))):
        return Verdict.none(f"only the user's inputs say how often {loop} repeats its body"), False
    why_not: list[str] = []
    ours: Sequence[Array] | None = None
    for reference in _at_hand(subject, check, graph):
        if reason := _unaffordable(reference, work, seconds):
            why_not.append(reason)
            continue
        try:
            if ours is None:
                ours = _timed("session", subject.run, dict(subject.feeds))
        except XpuError as error:
            return Verdict.none(f"the model does not run on {subject.told}: {error.got or error.what}"), False
        try:
            return _against(reference, subject, ours, deadline, graph, work), True
        except Inconclusive as finding:
            why_not.append(str(finding))
        except OutOfTime:
            why = f"{reference.name} was stopped at the limit of {seconds:.2g} s"
            return Verdict.none("; ".join((*why_not, why))), True
        except Exception as error:  # errors of a module or a vendor say nothing about the session
            why_not.append(
                f"{reference.name} fails: {str(error).splitlines()[0][:200] if str(error) else error!r}"
            )
    return Verdict.none("; ".join(why_not) or "no reference is available"), False


def _draws(graph: Graph) -> str:
    """Return the first node with a random result."""
    for node in graph.nodes:
        if family_of(node) == "random" and node.attrs.get("train") is not False:
            return node.name
        if any(_draws(body) for body in bodies_of(node)):
            return node.name
    return ""


def _at_hand(subject: CheckedModel, check: SelfCheck, graph: Graph) -> Iterator[Reference]:
    model = subject.model
    if check.module is not None and subject.example and Module.fits(check.module):
        yield Module(model, check.module, check.arguments)
    exact = Interpreter(model) if all(n.op != "opaque" for n in graph.nodes) else None
    first = (
        model.products.rounded > 0 and subject.engine == "native"
    )  # vendors round what neither of these rounds
    if exact is not None and first:
        yield exact
    if model.format == "onnx":
        for name in ("onnxruntime", "openvino"):
            if name != subject.engine and EngineReference.loaded(name):
                yield EngineReference(lookup(name), model)
    if exact is not None and not first:
        yield exact


def _unaffordable(reference: Reference, work: GraphCost, seconds: float) -> str:
    took, needed, free = reference.seconds(work), reference.bytes(work), free_bytes()
    if took > seconds:
        return f"{reference.name} would take about {took:.2g} s, the limit is {seconds:.2g} s"
    if needed > free // 2:
        return f"{reference.name} needs about {needed >> 20} MiB, and {free >> 20} MiB are free"
    return ""


def _timed(who: str, call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function as a span of the event log."""
    step(f"checking the outputs: {who}")
    return trace.timed(f"self_check: {who}", call, *arguments)


# ── the comparison ──


def _against(
    reference: Reference,
    subject: CheckedModel,
    ours: Sequence[Array],
    deadline: float,
    graph: Graph,
    work: GraphCost,
) -> Verdict:
    """Compare with one reference. Raises OutOfTime, Inconclusive, and the errors of the reference."""
    same = subject.precision is subject.model.precision
    table = tolerance_for(subject.precision, subject.model.precision)
    if subject.model.quantized is not None and same:
        # Engines round at different places; one code that is a step away changes all later values.
        table = max(table, tolerance_for(subject.model.quantized))
    rounded = same and subject.model.products.rounded > 0 and _rounds_activations(reference, subject)
    if rounded:
        table = max(table, tolerance_for(DType.INT8))
    own: list[Array] | None = None
    exact: list[Array] | None = None
    if reference.rounds:
        own = _timed(reference.name, reference.outputs, subject.feeds, deadline)
        exact = _exact(reference, subject, deadline)
        if exact is not None and _has_new_nan(exact, own):
            exact = None  # for example, a mask in float32 times torch.finfo(torch.float64).min, which float32 does not have
    else:
        exact = _timed(reference.name, reference.exact, subject.feeds, deadline)
    if exact is not None and _shapes(exact) != _shapes(ours):
        # Values decide the sizes, as of a mask, and rounding decides the values: float32 is compared with float32.
        own = own or _timed(reference.name, reference.outputs, subject.feeds, deadline)
        exact = None if _shapes(own) != _shapes(exact) else exact
    truth = exact if exact is not None else own
    assert truth is not None
    usual = (
        exact is not None and reference.rounds and same and subject.model.quantized is None and not rounded
    )
    limits = [max(table, own) * (_USUAL if usual else 1) for own in _tolerances(graph)]
    comparisons = _compare(subject, ours, truth, limits)
    if all(c.ok for c in comparisons):
        return _right(reference, subject, comparisons)
    if same and exact is not None and isinstance(reference, Module):
        own = own or _own(reference, subject)
        near = [] if own is None else _compare(subject, ours, own, limits)
        if near and all(c.ok for c in near):  # float64 does not overflow where the model's type does
            return _right(reference, subject, near)
    limits = _limits(reference, subject, ours, own, exact, limits, same=same)
    if same and exact is not None and own is not None:
        truth = [as_in_type(*row) for row in zip(ours, own, exact, limits, strict=True)]
    comparisons = _compare(subject, ours, truth, limits)
    if all(c.ok for c in comparisons):
        return _right(reference, subject, comparisons)
    vendors = isinstance(reference, EngineReference) or subject.engine != "native"
    if vendors and differ_in_last_places_of_one(
        ours, truth, comparisons, bounded_outputs(graph), subject.precision
    ):
        if isinstance(reference, EngineReference):
            raise Inconclusive(f"the outputs differ from those of {reference.name} by a few last places of 1")
        text = f"the outputs differ from it on {subject.told} by no more than a few last places of 1"
        return Verdict(Reason.CHECKED, reference.name, text)
    if (
        own is not None
        and isinstance(reference, EngineReference)
        and _is_as_exact(subject, ours, own, graph, work)
    ):
        raise Inconclusive(
            f"the outputs differ from those of {reference.name}, and are no farther from exact ones"
        )
    wrong = next(c for c in comparisons if not c.ok)
    text = f"output {wrong.name!r} disagrees with {reference.name} on {subject.told}: {wrong.reason}"
    exported = isinstance(reference, Module) and _is_of_export(
        reference, subject, ours, own, [max(table, limit) for limit in limits]
    )
    if subject.locate is not None and (not exported or choices_of(graph)):
        located = _timed("bisection", subject.locate, subject.feeds)
        differing = {c.name for c in comparisons if not c.ok}
        if differing <= located.undecided:
            return Verdict.none(f"{text}, but {located.text}")
        if isinstance(reference, EngineReference) and differing <= located.right:
            raise Inconclusive(f"{text}, but every value is that of {Interpreter.name}")
        text += f"; {located.text}" if located.text and not exported else ""
    if exported:
        return Verdict(Reason.WRONG_RESULT, reference.name, f"{text}; {_OF_EXPORT}", advice=_ADVICE_ON_EXPORT)
    return Verdict(Reason.WRONG_RESULT, reference.name, text)


def _is_as_exact(
    subject: CheckedModel, ours: Sequence[Array], theirs: Sequence[Array], graph: Graph, work: GraphCost
) -> bool:
    """Return True if the session is at most four times as far from the interpreter in float64 as a vendor is.

    A distance of the vendor counts up to ``WIDEST`` times the tolerance table. Where the interpreter cannot tell in time, the answer is False.
    """
    same = subject.precision is subject.model.precision and subject.model.quantized is None
    if not same or any(n.op == "opaque" for n in graph.nodes):
        return False
    interpreter = Interpreter(subject.model)
    if _unaffordable(interpreter, work, _SUSPECT_S):
        return False
    try:
        until = time.perf_counter() + _SUSPECT_S
        exact = _timed(f"{interpreter.name} in float64", interpreter.exact, subject.feeds, until)
    except Exception:  # it says nothing about the session
        return False
    assert exact is not None
    limits = [
        MARGIN * min(c.max_rel, WIDEST * c.tolerance)
        for c in _compare(subject, theirs, exact, _tolerances(graph))
    ]
    return all(c.ok for c in _compare(subject, ours, exact, limits))


def _tolerances(graph: Graph) -> list[float]:
    """Return the tolerance of the coarsest float type that each output is computed in: a float64 model may have a network in float32."""
    types: dict[str, frozenset[DType]] = {}
    for node in graph.nodes:
        before = frozenset().union(*(types.get(i, frozenset()) for i in node.inputs if isinstance(i, str)))
        for value in node.outputs:
            own = {value.spec.dtype} if value.spec is not None and value.spec.dtype.is_float else set()
            types[value.name] = before | own
    return [tolerance_for(*types.get(output.value, ())) for output in graph.outputs]


def _own(reference: Reference, subject: CheckedModel) -> list[Array] | None:
    """Return the reference's outputs in its own precision, or None if it does not compute them in time."""
    try:
        return _timed(reference.name, reference.outputs, subject.feeds, time.perf_counter() + _SUSPECT_S)
    except Exception:
        return None


def _is_of_export(
    reference: Module,
    subject: CheckedModel,
    ours: Sequence[Array],
    own: Sequence[Array] | None,
    limits: Sequence[float],
) -> bool:
    """Return True if the outputs are those of PyTorch's export, and the module's own differ from them in the same type: no engine is at fault."""
    own = own or _own(reference, subject)
    try:
        exported = _timed("PyTorch's export", reference.as_exported)
    except Exception:  # then nothing is known about it
        return False
    if own is None or all(c.ok for c in _compare(subject, own, exported, limits)):
        return False
    return all(c.ok for c in _compare(subject, ours, exported, limits))


def _has_new_nan(exact: Sequence[Array], own: Sequence[Array]) -> bool:
    """Return True if outputs in float64 are NaN where those in the model's type are numbers: the module computes something else in float64."""
    pairs = [(e, o) for e, o in zip(exact, own, strict=True) if e.shape == o.shape and e.dtype.kind in "fc"]
    return any(bool((np.isnan(e) & ~np.isnan(o)).any()) for e, o in pairs)


def _shapes(arrays: Sequence[Array]) -> list[tuple[int, ...]]:
    return [a.shape for a in arrays]


def _rounds_activations(reference: Reference, subject: CheckedModel) -> bool:
    """Return True if one side may round activations to int8 where the model permits it. Native code and the interpreter do not."""
    return isinstance(reference, EngineReference) or subject.engine != "native"


def _exact(reference: Reference, subject: CheckedModel, deadline: float) -> list[Array] | None:
    try:
        return _timed(f"{reference.name} in float64", reference.exact, subject.feeds, deadline)
    except Exception:  # out of time, or a module that does not support float64: its error is unknown
        return None


def _limits(
    reference: Reference,
    subject: CheckedModel,
    ours: Sequence[Array],
    own: list[Array] | None,
    exact: list[Array] | None,
    least: Sequence[float],
    *,
    same: bool,
) -> list[float]:
    """Return the limit of each output: four times the reference's own distance from float64. If that is unknown, or if the reference does not round
    within ops, the limit exceeds it where the model amplifies rounding.
    """
    names, limits = [s.name for s in subject.model.outputs], list(least)
    if same and exact is not None:
        try:
            if own is None:
                until = time.perf_counter() + _SUSPECT_S
                own = _timed(reference.name, reference.outputs, subject.feeds, until)
            finite = [as_in_type(mine, mine, e, 0.0) for mine, e in zip(own, exact, strict=True)]
            distances = _compare(subject, own, finite, [0.0] * len(names))
            limits = [max(limit, MARGIN * c.max_rel) for limit, c in zip(least, distances, strict=True)]
            if reference.rounds:
                return limits
        except Exception:  # then the distance is unknown
            own = None
    lower = None if same else subject.precision
    moves = widened(min(least, default=0.0), sensitivity(subject.run, names, subject.feeds, ours, lower))
    return [max(moves[n], limit) for n, limit in zip(names, limits, strict=True)]


def _compare(
    subject: CheckedModel, ours: Sequence[Array], truth: Sequence[Array], limits: Sequence[float]
) -> list[Comparison]:
    names = [s.name for s in subject.model.outputs]
    if subject.model.quantized is not None:
        ours, truth = ([_codes_as_floats(a) for a in arrays] for arrays in (ours, truth))
    return [compare(*row) for row in zip(names, ours, truth, limits, strict=True)]


def _codes_as_floats(array: Array) -> Array:
    """Return codes as floats, because those of a quantized model may be a step apart; other arrays unchanged."""
    return array.astype("float32") if array.dtype in ("int8", "uint8") else array


def _right(reference: Reference, subject: CheckedModel, comparisons: Sequence[Comparison]) -> Verdict:
    worst = max(comparisons, key=lambda c: c.max_rel, default=None)
    text = f"the outputs agree with it on {subject.told}"
    if worst is not None:
        text += f": max|d|/max|ref| is at most {worst.max_rel:.2g}, the limit is {worst.tolerance:.2g}"
    return Verdict(Reason.CHECKED, reference.name, text)
