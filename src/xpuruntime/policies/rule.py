"""Rule: conditions on a node, and demands on its kernel."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..types import DimLike, DType
from .fields import kinds
from .fields.expression import Condition
from .fields.record import Names, Problem, of_kind, record
from .vocabulary import INTEGER_KERNELS, PHASES_WITHIN, WeightWords, dims_of_family, nearest

__all__ = ["ACTIVATIONS_MEANING", "NodeFacts", "Rule", "matches_name", "settle_activations"]

ACTIVATIONS_MEANING = (
    "type that inputs of the layers with these weights are rounded to; int8: integer products, for weights in int8 or 4 bits, and stored "
    "ones, or float products where a rule forbids the kernel or limits its workspace; model: float products"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts about the node that a kernel is chosen for.

    sources:         names of the source nodes that it computes (a fused node has several); rules match these, too.
    dtype:           element type that the op computes in.
    dims:            named dims (``vocabulary.DIMS``); a symbolic or missing one makes a condition unknown.
    phase:           one of ``vocabulary.PHASES``.
    workspace_bytes: workspace that the device can provide; None for no limit.
    """

    node: str
    family: str
    sources: tuple[str, ...] = ()
    dtype: DType | None = None
    dims: Mapping[str, DimLike] = field(default_factory=dict)
    phase: str = "inference"
    device: str = ""
    workspace_bytes: int | None = None


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a KernelPolicy. It matches a node if all of its conditions hold.

    Conditions (all optional): ``op``, ``node``, ``dtype``, ``shape``, ``phase``. Demands (at least one): ``use`` (this kernel or an
    error), ``prefer`` (these first, in order), ``forbid`` (never these), ``workspace_bytes`` (at most), ``deterministic`` (only
    kernels that give equal bits on every run), ``weights`` (type of stored weights), together with ``activations`` (type that inputs of
    these layers are rounded to). A rule has either ``use`` or ``prefer``. Raises PolicyError.

    >>> Rule(op="matmul", shape="M <= 16", phase="decode", use="gemv", reason="few rows: bound by memory")
    """

    op: Names = of_kind(kinds.OPS, "op family, or a list of them", default=())
    node: Names = of_kind(
        kinds.PATTERN,
        "pattern that must match the whole name of the node or of any source node: shell-style (* ? [...]), or a "
        "regular expression after 're:'",
        default=(),
    )
    dtype: Names = of_kind(kinds.DTYPES, "dtype that the op computes in, or a list", default=())
    shape: str | None = of_kind(
        kinds.CONDITION, "condition over named dims, such as 'M <= 16 and K % 8 == 0'"
    )
    phase: Names = of_kind(
        kinds.PHASE_LIST,
        "phase, or a list; inference includes prefill, decode and sample, and decode includes sample",
        default=(),
    )
    use: str | None = of_kind(kinds.KERNEL, "force this kernel; an error if it is unavailable")
    prefer: Names = of_kind(kinds.KERNEL_LIST, "kernels to try first, in this order", default=())
    forbid: Names = of_kind(kinds.KERNEL_LIST, "kernels that are never used", default=())
    workspace_bytes: int | str | None = of_kind(
        kinds.SIZE, "maximum workspace of one kernel, in bytes or as '32 MiB'"
    )
    deterministic: bool | None = of_kind(
        kinds.BOOLEAN, "true: only kernels that give equal bits on every run, with any number of threads"
    )
    weights: str | None = of_kind(
        kinds.WEIGHTS_KIND,
        "type that constant weights of linear layers are stored in; model: the model's own",
    )
    activations: str | None = of_kind(kinds.ACTIVATIONS_KIND, ACTIVATIONS_MEANING)
    reason: str | None = of_kind(kinds.REASON, "the reason, which explain shows")

    @property
    def weight_words(self) -> WeightWords | None:
        """Return the demand on weights; None if there is none."""
        return None if self.weights is None else WeightWords(self.weights, self.activations)

    def _check_together(self) -> None:
        settle_activations(self, "rule")
        limits = (
            self.workspace_bytes is not None or self.deterministic is not None or self.weights is not None
        )
        if self.use is None and not self.prefer and not self.forbid and not limits:
            do = "Add use, prefer, forbid, workspace_bytes, deterministic or weights."
            raise Problem((), "a rule demands nothing", do=do)
        if self.use is not None and self.prefer:
            raise Problem(("prefer",), "has no effect together with use", do="Keep one of the two.")
        if self.use is not None and self.weights is not None:
            raise Problem(("weights",), "has no effect together with use", do="Keep one of the two.")
        if self.weights is not None and self.op and "matmul" not in self.op:
            do = "Write op: matmul, or remove weights."
            raise Problem(
                ("weights",), "only ops of the family matmul have such weights", got=repr(self.op), do=do
            )
        words = self.weight_words
        if words is not None and (kernel := next(iter(words.kernels), None)) in self.forbid:
            raise Problem(("forbid",), f"forbids {kernel!r}, which computes {words}", do="Remove one.")
        for name in (*([self.use] if self.use else ()), *self.prefer):
            if name in self.forbid:
                raise Problem(("forbid",), f"forbids {name!r}, which the same rule names", do="Remove one.")
        if self.shape is not None:
            dims = dims_of_family(self.op)
            for name in sorted(parsed(self.shape).names - dims.keys()):
                of = f"{' and '.join(self.op)} ops have" if self.op else "every op has (set `op` for more)"
                do = f"{nearest(name, dims)}What {of}: {', '.join(dims)}."
                raise Problem(("shape",), f"no such dim {name!r}", got=repr(self.shape), do=do)

    def matches(self, facts: NodeFacts) -> bool:
        """Return True if every condition holds; an unknown condition does not."""
        return (
            (not self.op or facts.family in self.op)
            and (not self.phase or phase_covered(facts.phase, self.phase))
            and (not self.dtype or (facts.dtype is not None and facts.dtype.value in self.dtype))
            and (
                not self.node
                or any(matches_name(p, n) for p in self.node for n in (facts.node, *facts.sources))
            )
            and (self.shape is None or parsed(self.shape).holds(facts.dims) is True)
        )

    def undecided(self, facts: NodeFacts) -> bool:
        """Return True if the shape condition is unknown (a dim is symbolic or missing) and every other condition holds."""
        if self.shape is None or parsed(self.shape).holds(facts.dims) is not None:
            return False
        return replace(self, shape=None).matches(facts)

    def label(self) -> str:
        """Return the conditions in one line, for reasons."""
        parts = [
            f"{key}={'|'.join(value) if isinstance(value, tuple) else value}"
            for key in ("op", "node", "dtype", "shape", "phase")
            if (value := getattr(self, key))
        ]
        return ", ".join(parts) or "every op"


def settle_activations(demands: Any, where: str) -> None:
    """Raise Problem for ``activations`` without ``weights``, or with weights for which no kernel rounds. ``model`` becomes None, its normal form.

    demands: a Rule or a KernelPolicy. where: its name in messages.
    """
    weights, activations = demands.weights, demands.activations
    if activations is None:
        return
    if weights is None:
        do = f"Write weights in the same {where}, or remove activations."
        raise Problem(("activations",), f"needs weights in the same {where}", got=repr(activations), do=do)
    if activations == "model":
        object.__setattr__(demands, "activations", None)
    elif weights not in INTEGER_KERNELS:
        do = f"Write weights: {' or '.join(INTEGER_KERNELS)}, or remove activations."
        raise Problem(
            ("activations",),
            "no kernel multiplies such weights by activations of 8 bits",
            got=f"weights: {weights}",
            do=do,
        )


def phase_covered(phase: str, phases: Names) -> bool:
    """Return True if one of the phases is this one or includes it."""
    return phase in phases or any(phase in PHASES_WITHIN.get(p, ()) for p in phases)


def matches_name(pattern: str, name: str) -> bool:
    """Return True if a rule's pattern matches the whole name."""
    return _matcher(pattern)(name) is not None


@functools.lru_cache(maxsize=4096)
def _matcher(pattern: str) -> Callable[[str], object]:
    source = pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern)
    return re.compile(source).fullmatch


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Condition:
    """Parse a condition that was checked before, and cache the result."""
    return Condition.parse(text)
