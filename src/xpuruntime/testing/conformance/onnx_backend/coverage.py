"""Coverage of the onnx package's backend suite as a table. Any unexpected result fails.

    python -m xpuruntime.testing.conformance.onnx_backend.coverage interpreter [--part 10] [--json]

``native`` and ``native-plain`` compile node cases to native kernels, with every pass and with none. ``session`` and ``round-trip`` run on
ONNX Runtime. ``--part n`` selects a stratified sample: of the cases with the same first op, the first and every n-th after it.
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

__all__ = ["KNOWN", "REASONS", "examine", "known_cases", "load_known", "main", "stratified", "table"]

KNOWN = Path(__file__).with_name("known.yaml")
"""The list of known cases."""

REASONS = ("random", "rounding", "noise", "vendor", "no-tensor")
"""Reasons why a case may differ from the suite's answer; the file of known cases gives details."""
_RUNNERS = ("interpreter", "session", "round-trip", "native", "native-plain")


def load_known(path: Path, runner: str) -> dict[str, dict[str, Any]]:
    """Return each known case with its entry (``reason``, and ``ulps`` or ``atol``). Raises ValueError for an unknown reason or a duplicate case."""
    import yaml

    entries: dict[str, dict[str, Any]] = {}
    for reason, entry in (yaml.safe_load(path.read_text(encoding="utf-8")).get(runner) or {}).items():
        if reason not in REASONS:
            raise ValueError(f"{path.name}: reason {reason!r} is not one of {', '.join(REASONS)}")
        for name in entry["cases"]:
            if name in entries:
                raise ValueError(f"{path.name}: duplicate case {name!r} under {runner}")
            entries[name] = {**entry, "reason": reason}
    return entries


def known_cases(runner: str) -> dict[str, dict[str, Any]]:
    """Return the built-in list of known cases; see ``load_known``."""
    return load_known(KNOWN, runner)


def stratified(all_cases: Iterable[BackendCase], part: int) -> list[BackendCase]:
    """Return the first case of each first op, and each ``part``-th after it."""
    groups: dict[str, list[BackendCase]] = defaultdict(list)
    for case in all_cases:
        groups[case.ops[0] if case.ops else ""].append(case)
    return [case for group in groups.values() for case in group[::part]]


def examine(
    case: BackendCase, runner: str, entries: Mapping[str, Mapping[str, Any]]
) -> tuple[CaseVerdict, str]:
    """Return the verdict, and the way in which it is unexpected; empty if it is expected."""
    entry = entries.get(case.name, {})
    verdict = _verdict(case, runner)
    if not entry:
        return verdict, _unlisted(case, runner, verdict)
    if verdict.outcome == Outcome.RIGHT and entry["reason"] != "random":
        return verdict, f"is right: remove it from the list of known cases ({entry['reason']})"
    match entry["reason"]:
        case "rounding":
            retried = interpret(case, ulps=entry["ulps"])
        case "noise":
            retried = interpret(replace(case, atol=entry["atol"]))
        case "vendor":
            vendor_verdict = vendor(case)
            return (
                verdict,
                ""
                if vendor_verdict.outcome == Outcome.WRONG
                else f"ONNX Runtime itself is {vendor_verdict.outcome}",
            )
        case "no-tensor":
            expected_refusal = "must be a tensor" in verdict.why
            return verdict, "" if expected_refusal else f"is refused for another reason: {verdict.why}"
        case _:
            return verdict, ""
    return (
        verdict,
        "" if retried.outcome == Outcome.RIGHT else f"differs by more than the list says: {retried.why}",
    )


def _each(
    selected: Sequence[BackendCase], runner: str, entries: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[CaseVerdict, str, str]]:
    """Yield the verdict of each case, the way in which it is unexpected (or ""), and a short reason of a refusal."""
    if not runner.startswith("native"):
        for case in selected:
            yield (*examine(case, runner, entries), "")
        return
    from .native import check_natively

    passes = "none" if runner == "native-plain" else "all"
    for case, native in zip(selected, check_natively(selected, passes=passes, looser=entries), strict=True):
        verdict, unexpected = native.verdict, ""
        if verdict.outcome == Outcome.WRONG:
            unexpected = f"is wrong: {verdict.why}"
        elif case.name in entries and not native.loosened and entries[case.name]["reason"] != "random":
            unexpected = f"needs no entry in the list of known cases ({entries[case.name]['reason']})"
        yield verdict, unexpected, native.reason


def _verdict(case: BackendCase, runner: str) -> CaseVerdict:
    if runner == "interpreter":
        return interpret(case)
    return session(case) if runner == "session" else _trip(case)


def _unlisted(case: BackendCase, runner: str, verdict: CaseVerdict) -> str:
    """Return the problem of a case that is not in the list: a wrong answer, or a refusal unless the vendor's own API refuses it, too."""
    if verdict.outcome == Outcome.WRONG:
        return f"is wrong: {verdict.why}"
    if verdict.outcome == Outcome.OPAQUE and "do not fit the op" in verdict.why:
        return f"a lowering failed: {verdict.why}"
    if verdict.outcome != Outcome.REFUSED:
        return ""
    if runner == "session":
        vendor_verdict = vendor(case)
        return (
            ""
            if vendor_verdict.outcome == Outcome.REFUSED
            else f"is refused ({verdict.why}), but ONNX Runtime is {vendor_verdict.outcome}"
        )
    return f"is refused: {verdict.why}"


def _trip(case: BackendCase) -> CaseVerdict:
    """Check a round trip. float16 and bfloat16 are compared within two steps, because the exported ops round at other points."""
    narrow = any(v.type.tensor_type.elem_type in (10, 16) for v in case.model.graph.output)
    rtol, atol = (2e-2, 2e-3) if narrow else (1e-4, 1e-5)
    try:
        for inputs, _ in case.data():
            difference = round_trip(case.model, dict(zip(case.inputs, inputs, strict=False)), rtol, atol)
            if difference.startswith("skipped: "):
                return CaseVerdict(case.name, case.kind, "skipped", difference)
            if difference:
                return CaseVerdict(case.name, case.kind, Outcome.WRONG, difference)
    except XpuError as error:
        older = "defines differently" in str(
            error
        )  # an opaque op of an opset that the exporter does not support
        return CaseVerdict(case.name, case.kind, Outcome.OPAQUE if older else Outcome.REFUSED, str(error))
    return CaseVerdict(case.name, case.kind, Outcome.RIGHT)


def table(verdicts: Sequence[CaseVerdict], runner: str) -> str:
    """Return counts per suite, and the most frequent reasons of opaque cases."""
    outcomes = list(dict.fromkeys(["right", *(v.outcome for v in verdicts)]))
    rows = [["suite", "cases", *outcomes, "share right"]]
    for kind in [*dict.fromkeys(v.kind for v in verdicts), "all"]:
        selected = [v for v in verdicts if kind in (v.kind, "all")]
        count = Counter(v.outcome for v in selected)
        rows.append(
            [
                kind,
                str(len(selected)),
                *(str(count[w]) for w in outcomes),
                f"{count['right'] / len(selected):.1%}",
            ]
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        f"onnx backend suite, {runner}",
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
    parser.add_argument("runner", choices=_RUNNERS)
    parser.add_argument(
        "--known", type=Path, default=KNOWN, help="file of known cases, instead of the built-in one"
    )
    parser.add_argument("--part", type=int, default=1, help="check a stratified sample of every n-th case")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    # The suite's newest models use opsets that ONNX Runtime runs without official support; this variable enables it.
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    entries = load_known(options.known, options.runner)
    verdicts, unexpected = [], []
    reasons: Counter[str] = Counter()
    for kind in options.kinds.split(","):
        selected = stratified(cases(kind), options.part)
        for verdict, problem, reason in _each(selected, options.runner, entries):
            verdicts.append(verdict)
            if problem:
                unexpected.append(f"{verdict.case} {problem}")
            if reason:
                reasons[reason] += 1
    if options.part == 1 and options.kinds == ",".join(KINDS):
        missing = set(entries) - {v.case for v in verdicts}
        unexpected += [f"{name} is known, but no such case exists" for name in sorted(missing)]
    if options.json:
        count = Counter((v.kind, v.outcome) for v in verdicts)
        rows = [{"suite": k, "outcome": o, "cases": n} for (k, o), n in sorted(count.items())]
        bound = sum(bool(v.bound) for v in verdicts)
        print(
            json.dumps(
                {
                    "judged": options.runner,
                    "counts": rows,
                    "bound": bound,
                    "reasons": dict(reasons.most_common()),
                    "unexpected": unexpected,
                },
                indent=2,
            )
        )
    else:
        print(table(verdicts, options.runner))
        for line in unexpected:
            print(f"UNEXPECTED {line}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
