"""Rule: conditions on a node, and demands on its kernel."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..types import DimLike, DType
from .fields import kinds
from .fields.expression import Condition
from .fields.record import Names, Problem, of_kind, record
from .vocabulary import INTEGER_KERNELS, PHASES_WITHIN, dims_of_family, kernels_of_words, nearest

__all__ = ["NodeFacts", "Rule", "check_activations", "matches_name"]


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
    kernels that give equal bits on every run), ``weights`` (type of stored weights), ``activations`` (type that inputs of layers with
    such weights are rounded to). A rule has either ``use`` or ``prefer``. Raises PolicyError.

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
    activations: str | None = of_kind(
        kinds.ACTIVATIONS_KIND,
        "type that inputs of layers with such weights are rounded to; int8: integer products, for weights of 4 bits and stored ones; model: floats",
    )
    reason: str | None = of_kind(kinds.REASON, "the reason, which explain shows")

    def _check_together(self) -> None:
        limits = (self.workspace_bytes, self.deterministic, self.weights, self.activations)
        if self.use is None and not self.prefer and not self.forbid and limits == (None,) * len(limits):
            do = "Add use, prefer, forbid, workspace_bytes, deterministic, weights or activations."
            raise Problem((), "a rule demands nothing", do=do)
        if self.use is not None and self.prefer:
            raise Problem(("prefer",), "has no effect together with use", do="Keep one of the two.")
        for word in ("weights", "activations"):
            if getattr(self, word) is None:
                continue
            if self.use is not None:
                raise Problem((word,), "has no effect together with use", do="Keep one of the two.")
            if self.op and "matmul" not in self.op:
                what = f"only ops of the family matmul have such {word}"
                raise Problem((word,), what, got=repr(self.op), do=f"Write op: matmul, or remove {word}.")
        check_activations(self.weights, self.activations)
        kernel = next(iter(kernels_of_words(self.weights, self.activations)), None)
        if kernel in self.forbid:
            words = f"weights: {self.weights}" + (
                f" with activations: {self.activations}" if kernel in INTEGER_KERNELS.values() else ""
            )
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


def check_activations(weights: str | None, activations: str | None) -> None:
    """Raise Problem if ``activations`` of a rule or a layer demands integers that no kernel multiplies by its ``weights``."""
    if activations != "int8" or weights in INTEGER_KERNELS:
        return
    raise Problem(
        ("activations",),
        "int8 needs weights of 4 bits, or stored ones, in the same place",
        got="no weights" if weights is None else f"weights: {weights}",
        do=f"Write weights: {' or '.join(INTEGER_KERNELS)}, or remove activations: int8.",
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
