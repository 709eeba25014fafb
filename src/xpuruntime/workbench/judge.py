"""Who is right when several engines ran one model: the reference where there is one, else the majority, else nobody knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..numerics import compare
from ..protocols import Array

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which contenders are right and, for each that is not, its first differing output.

    by: who judged: ``each other`` (all agree), ``onnx.reference``, ``the majority``, ``nobody`` (two camps of equal size: none is called right) or
        ``nothing to compare with`` (one contender: it is not doubted).
    """

    by: str
    right: tuple[str, ...]
    wrong: Mapping[str, str]


def judge(
    outputs: Mapping[str, Sequence[Array]],
    names: Sequence[str],
    limits: Mapping[str, float],
    reference: Sequence[Array] | None = None,
) -> Verdict:
    """Judge contenders by their outputs (in the model's order, ``names``); ``limits`` is the tolerance of each output."""

    def fault(who: str, against: Sequence[Array], judge_name: str) -> str:
        each = (compare(n, a, r, limits[n]) for n, a, r in zip(names, outputs[who], against, strict=True))
        worst = next((c for c in each if not c.ok), None)
        return "" if worst is None else f"output {worst.name!r} disagrees with {judge_name}: {worst.reason}"

    def split(against: Sequence[Array], by: str, label: str) -> Verdict:
        faults = {who: fault(who, against, label) for who in outputs}
        return Verdict(
            by, tuple(w for w, f in faults.items() if not f), {w: f for w, f in faults.items() if f}
        )

    if reference is not None:
        return split(reference, "onnx.reference", "onnx.reference")
    if len(outputs) < 2:
        return Verdict("nothing to compare with", tuple(outputs), {})
    camps = {who: [other for other in outputs if not fault(other, outputs[who], who)] for who in outputs}
    if all(len(camp) == len(outputs) for camp in camps.values()):
        return Verdict("each other", tuple(outputs), {})
    head = max(camps, key=lambda who: len(camps[who]))
    if 2 * len(camps[head]) > len(outputs):
        return split(outputs[head], "the majority", head)
    others = {who: next(o for o in outputs if o not in camps[who]) for who in outputs}
    # Agreement is relative to the reference's scale, so now and then only one of the two directions shows the difference.
    texts = {w: fault(w, outputs[o], o) or fault(o, outputs[w], w) for w, o in others.items()}
    return Verdict("nobody", (), texts)
