"""A check of several engines' outputs of one model: against a reference if there is one, else by majority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..numerics import compare
from ..protocols import Array

__all__ = ["OutputCheck", "check_outputs"]


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The engines with right outputs and, for every other engine, its first output that differs.

    by: what the outputs were compared with: ``each other`` (all agree), ``onnx.reference``, ``the majority``, ``nobody`` (no majority: no
        engine counts as right) or ``nothing to compare with`` (one engine, which counts as right).
    """

    by: str
    right: tuple[str, ...]
    wrong: Mapping[str, str]


def check_outputs(
    outputs: Mapping[str, Sequence[Array]],
    names: Sequence[str],
    limits: Mapping[str, float],
    reference: Sequence[Array] | None = None,
) -> OutputCheck:
    """Check the outputs of each engine, which are in the order of ``names``. ``limits`` holds the tolerance of each output."""

    def difference(engine: str, expected: Sequence[Array], label: str) -> str:
        comparisons = (
            compare(n, a, r, limits[n]) for n, a, r in zip(names, outputs[engine], expected, strict=True)
        )
        first = next((c for c in comparisons if not c.ok), None)
        return "" if first is None else f"output {first.name!r} disagrees with {label}: {first.reason}"

    def check_against(expected: Sequence[Array], by: str, label: str) -> OutputCheck:
        differences = {engine: difference(engine, expected, label) for engine in outputs}
        correct = tuple(engine for engine, text in differences.items() if not text)
        return OutputCheck(by, correct, {engine: text for engine, text in differences.items() if text})

    if reference is not None:
        return check_against(reference, "onnx.reference", "onnx.reference")
    if len(outputs) < 2:
        return OutputCheck("nothing to compare with", tuple(outputs), {})
    agreeing = {e: [other for other in outputs if not difference(other, outputs[e], e)] for e in outputs}
    if all(len(others) == len(outputs) for others in agreeing.values()):
        return OutputCheck("each other", tuple(outputs), {})
    head = max(agreeing, key=lambda engine: len(agreeing[engine]))
    if 2 * len(agreeing[head]) > len(outputs):
        return check_against(outputs[head], "the majority", head)
    opponents = {e: next(o for o in outputs if o not in agreeing[e]) for e in outputs}
    # A comparison is relative to the scale of its reference, so a difference may show in one direction alone.
    texts = {e: difference(e, outputs[o], o) or difference(o, outputs[e], e) for e, o in opponents.items()}
    return OutputCheck("nobody", (), texts)
