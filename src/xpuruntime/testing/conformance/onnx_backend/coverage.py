"""Coverage of the onnx package's backend suite as a table. Any unexpected result fails.

    python -m xpuruntime.testing.conformance.onnx_backend.coverage interpreter [--part 10] [--json]

``native`` and ``native-plain`` compile node cases to native kernels, with every pass and with none. ``session`` and ``round-trip`` are checked on ONNX
Runtime. ``--part n`` takes a stratified sample: cases are grouped by their first op, and each group gives its first and every n-th after it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....errors import XpuError
from .suite import KINDS, BackendCase, CaseVerdict, Outcome, cases, interpret, round_trip, session, vendor

__all__ = ["KNOWN", "REASONS", "judge", "known_cases", "load_known", "main", "stratified", "table"]

KNOWN = Path(__file__).with_name("known.yaml")
"""The list of known cases."""

REASONS = ("random", "rounding", "noise", "vendor", "no-tensor")
"""Reasons why a case may differ from the suite's answer; the file of known cases gives details."""
_JUDGED = ("interpreter", "session", "round-trip", "native", "native-plain")


def load_known(path: Path, judged: str) -> dict[str, dict[str, Any]]:
    """Return each known case with its entry (``reason``, and ``ulps`` or ``atol``). Raises ValueError for an unknown reason or a duplicate case."""
    import yaml

    entries: dict[str, dict[str, Any]] = {}
    for reason, entry in (yaml.safe_load(path.read_text(encoding="utf-8")).get(judged) or {}).items():
        if reason not in REASONS:
            raise ValueError(f"{path.name}: reason {reason!r} is none of {', '.join(REASONS)}")
        for name in entry["cases"]:
            if name in entries:
                raise ValueError(f"{path.name}: duplicate case {name!r} under {judged}")
            entries[name] = {**entry, "reason": reason}
    return entries


def known_cases(judged: str) -> dict[str, dict[str, Any]]:
    """Return our own list; see ``load_known``."""
    return load_known(KNOWN, judged)


def stratified(every: Iterable[BackendCase], part: int) -> list[BackendCase]:
    """Return the first case of each first op, and each ``part``-th after it."""
    groups: dict[str, list[BackendCase]] = defaultdict(list)
    for case in every:
        groups[case.ops[0] if case.ops else ""].append(case)
    return [case for group in groups.values() for case in group[::part]]


def judge(case: BackendCase, judged: str, known: Mapping[str, Mapping[str, Any]]) -> tuple[CaseVerdict, str]:
    """Return the verdict, and what is unexpected about it (empty: nothing)."""
    entry = known.get(case.name, {})
    verdict = _verdict(case, judged)
    if not entry:
        return verdict, _unlisted(case, judged, verdict)
    if verdict.outcome == Outcome.RIGHT and entry["reason"] != "random":
        return verdict, f"is right: remove it from the list of known cases ({entry['reason']})"
    match entry["reason"]:
        case "rounding":
            again = interpret(case, ulps=entry["ulps"])
        case "noise":
            again = interpret(replace(case, atol=entry["atol"]))
        case "vendor":
            theirs = vendor(case)
            return (
                verdict,
                "" if theirs.outcome == Outcome.WRONG else f"ONNX Runtime itself is {theirs.outcome}",
            )
        case "no-tensor":
            said = "must be a tensor" in verdict.why
            return verdict, "" if said else f"is refused for another reason: {verdict.why}"
        case _:
            return verdict, ""
    return (
        verdict,
        "" if again.outcome == Outcome.RIGHT else f"differs by more than the list says: {again.why}",
    )


def _each(
    some: Sequence[BackendCase], judged: str, known: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[CaseVerdict, str, str]]:
    """Yield the verdict of each case, what is unexpected about it, and a short reason of a refusal."""
    if not judged.startswith("native"):
        for case in some:
            yield (*judge(case, judged, known), "")
        return
    from .native import judge_natively

    passes = "none" if judged == "native-plain" else "all"
    for case, found in zip(some, judge_natively(some, passes=passes, looser=known), strict=True):
        verdict, said = found.verdict, ""
        if verdict.outcome == Outcome.WRONG:
            said = f"is wrong: {verdict.why}"
        elif case.name in known and not found.loosened:
            said = f"needs no entry in the list of known cases ({known[case.name]['reason']})"
        yield verdict, said, found.reason


def _verdict(case: BackendCase, judged: str) -> CaseVerdict:
    if judged == "interpreter":
        return interpret(case)
    return session(case) if judged == "session" else _trip(case)


def _unlisted(case: BackendCase, judged: str, verdict: CaseVerdict) -> str:
    """Return what is unexpected: wrong answers and refusals, unless the vendor's own API refuses the case, too."""
    if verdict.outcome == Outcome.WRONG:
        return f"is wrong: {verdict.why}"
    if verdict.outcome == Outcome.OPAQUE and "do not fit the op" in verdict.why:
        return f"a row of the table failed: {verdict.why}"
    if verdict.outcome != Outcome.REFUSED:
        return ""
    if judged == "session":
        theirs = vendor(case)
        return (
            ""
            if theirs.outcome == Outcome.REFUSED
            else f"is refused ({verdict.why}), but ONNX Runtime is {theirs.outcome}"
        )
    return f"is refused: {verdict.why}"


def _trip(case: BackendCase) -> CaseVerdict:
    """Compare float16 and bfloat16 within two steps, because the written ops round elsewhere."""
    narrow = any(v.type.tensor_type.elem_type in (10, 16) for v in case.model.graph.output)
    rtol, atol = (2e-2, 2e-3) if narrow else (1e-4, 1e-5)
    try:
        for inputs, _ in case.data():
            said = round_trip(case.model, dict(zip(case.inputs, inputs, strict=False)), rtol, atol)
            if said.startswith("skipped: "):
                return CaseVerdict(case.name, case.kind, "skipped", said)
            if said:
                return CaseVerdict(case.name, case.kind, Outcome.WRONG, said)
    except XpuError as error:
        older = "defines differently" in str(
            error
        )  # an opaque op of an opset that the writer does not support
        return CaseVerdict(case.name, case.kind, Outcome.OPAQUE if older else Outcome.REFUSED, str(error))
    return CaseVerdict(case.name, case.kind, Outcome.RIGHT)


def table(verdicts: Sequence[CaseVerdict], judged: str) -> str:
    """Return counts per suite, and the most frequent reasons of opaque cases."""
    words = list(dict.fromkeys(["right", *(v.outcome for v in verdicts)]))
    rows = [["suite", "cases", *words, "share right"]]
    for kind in [*dict.fromkeys(v.kind for v in verdicts), "all"]:
        some = [v for v in verdicts if kind in (v.kind, "all")]
        count = Counter(v.outcome for v in some)
        rows.append(
            [kind, str(len(some)), *(str(count[w]) for w in words), f"{count['right'] / len(some):.1%}"]
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        f"onnx backend suite, {judged}",
        *("  ".join(c.ljust(n) for c, n in zip(r, widths, strict=True)) for r in rows),
    ]
    bound = sum(bool(v.bound) for v in verdicts)
    if bound:
        lines.append(f"{bound} cases were lowered with inputs bound whose content decides shapes")
    reasons = Counter(
        v.why.split(";")[0][:90] for v in verdicts if v.outcome in (Outcome.OPAQUE, Outcome.REFUSED)
    )
    lines += [f"  {n:4d}  {why}" for why, n in reasons.most_common(12)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; return 1 if anything is unexpected."""
    parser = argparse.ArgumentParser(
        prog="python -m xpuruntime.testing.conformance.onnx_backend.coverage",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("judged", choices=_JUDGED)
    parser.add_argument(
        "--known", type=Path, default=KNOWN, help="file of known cases, instead of the built-in one"
    )
    parser.add_argument("--part", type=int, default=1, help="judge a stratified sample of one case in n")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    # The suite's newest models use opsets that ONNX Runtime runs without official support; this is its own switch.
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    known = load_known(options.known, options.judged)
    verdicts, unexpected = [], []
    reasons: Counter[str] = Counter()
    for kind in options.kinds.split(","):
        some = stratified(cases(kind), options.part)
        for verdict, said, reason in _each(some, options.judged, known):
            verdicts.append(verdict)
            if said:
                unexpected.append(f"{verdict.case} {said}")
            if reason:
                reasons[reason] += 1
    if options.part == 1 and options.kinds == ",".join(KINDS):
        missing = set(known) - {v.case for v in verdicts}
        unexpected += [f"{name} is known, but no such case exists" for name in sorted(missing)]
    if options.json:
        count = Counter((v.kind, v.outcome) for v in verdicts)
        rows = [{"suite": k, "outcome": o, "cases": n} for (k, o), n in sorted(count.items())]
        bound = sum(bool(v.bound) for v in verdicts)
        print(
            json.dumps(
                {
                    "judged": options.judged,
                    "counts": rows,
                    "bound": bound,
                    "reasons": dict(reasons.most_common()),
                    "unexpected": unexpected,
                },
                indent=2,
            )
        )
    else:
        print(table(verdicts, options.judged))
        for line in unexpected:
            print(f"UNEXPECTED {line}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
