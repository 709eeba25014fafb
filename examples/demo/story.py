"""Results of the demo as values: answers of each engine, receipts, agreement with float64, and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.zoo import Answer, Sample, ZooModel
from xpuruntime.decisions import Candidate, Decision, Reason
from xpuruntime.numerics import Comparison
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.workbench.bench.engines import BenchReport
from xpuruntime.workbench.compare.engines import PairComparison

# An installed engine that fails on a model is a fault of the run. A missing engine is only listed.
FAILURES = frozenset({Reason.BUILD_FAILED, Reason.RUN_FAILED})

# The project's own engine. A wrong result of it is a fault; a wrong result of another engine is a finding, which the demo lists.
OURS = "native"


@dataclass(frozen=True)
class Chapter:
    """Results of one model.

    answers_by_sample: each sample, with the answer of each engine.
    pairs:   each engine compared with float64, on the sample on which the engines differ most.
    refused: engines that did not take part, with their reasons.
    reasons: the reason of each tolerance, by engine and output (``openvino logits``).
    """

    model: ZooModel
    path: Path
    answers_by_sample: tuple[tuple[Sample, Mapping[str, Answer]], ...]
    receipts: Mapping[str, Receipt]
    pairs: tuple[PairComparison, ...]
    bench: BenchReport
    refused: tuple[Candidate, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def right(self) -> int:
        """Return the number of right answers."""
        return sum(answer.right(sample) for sample, by in self.answers_by_sample for answer in by.values())

    @property
    def answers(self) -> int:
        """Return the number of answers."""
        return sum(len(by) for _, by in self.answers_by_sample)

    @property
    def worst(self) -> float | None:
        """Return the largest max|d|/max|ref| of any engine against float64; None if nothing was compared."""
        return max((c.max_rel for p in self.pairs for c in p.outputs), default=None)

    @property
    def off(self) -> dict[str, float]:
        """Return the largest max|d|/max|ref| of each engine that exceeds its tolerance."""
        return {p.actual: max(c.max_rel for c in p.outputs) for p in self.pairs if not p.ok}

    def findings(self) -> list[str]:
        """Return a sentence for each wrong result of another vendor's engine, with the figure."""
        name = self.model.name
        pairs = [self._off(p, c) for p in self.pairs if p.actual != OURS and (c := p.first_difference)]
        slipped = [
            f"{name}: {engine} while measuring: {text}"
            for engine, text in self.bench.wrong.items()
            if not self._is_fault(engine)
        ]
        return [*pairs, *slipped]

    def reason(self, pair: PairComparison, output: Comparison) -> str:
        """Return the reason of an output's tolerance."""
        return self.reasons.get(f"{pair.actual} {output.name}", "")

    def _off(self, pair: PairComparison, output: Comparison) -> str:
        why = self.reason(pair, output)
        text = f"{self.model.name}: {pair.actual} is off from {pair.reference} in output {output.name!r}: {output.reason}"
        return f"{text} (the tolerance: {why})" if why else text

    def _is_fault(self, engine: str) -> bool:
        """Return True if wrong outputs of the benchmark are faults. They are not if equally many engines disagree, so that nobody knows who is right."""
        return engine == OURS and self.bench.judged_by != "nobody"

    def faults(self) -> list[str]:
        """Return a sentence for each fault."""
        name = self.model.name
        wrong = [
            f"{name}: {engine} says {answer.headline!r} of {sample.name}, which is {sample.expected!r}"
            for sample, by in self.answers_by_sample
            for engine, answer in by.items()
            if not answer.right(sample)
        ]
        pairs = [self._off(p, c) for p in self.pairs if p.actual == OURS and (c := p.first_difference)]
        split = [
            f"{name}: the engines say different things of {sample.name}: {', '.join(f'{e}: {a.headline}' for e, a in by.items())}"
            for sample, by in self.answers_by_sample
            if len({a.headline for a in by.values()}) > 1
        ]
        failed = [f"{name}: {c.name} failed: {c.reason}" for c in self.refused if c.code in FAILURES]
        slipped = [
            f"{name}: {engine} while measuring: {text}"
            for engine, text in self.bench.wrong.items()
            if self._is_fault(engine)
        ]
        unproved = [
            f"{name}: {engine} ran otherwise than planned: {f.claim}: {f.seen}"
            for engine, receipt in self.receipts.items()
            for f in receipt.findings
            if not f.ok
        ]
        return [*wrong, *pairs, *split, *failed, *slipped, *unproved]


@dataclass(frozen=True)
class Reading:
    """A page read by two models. ``truth`` is the text drawn on it; ``allowed`` is the largest edit distance, in letters."""

    name: str
    path: Path
    truth: str
    texts: Mapping[str, str]
    allowed: int

    def edits(self, engine: str) -> int:
        """Return the edit distance between the engine's text and the truth."""
        return distance(self.texts[engine], self.truth)

    def faults(self) -> list[str]:
        """Return a sentence for each engine whose text differs by more than ``allowed`` letters."""
        return [
            f"{self.name}: {engine} is {n} letters off, {self.allowed} allowed"
            for engine in self.texts
            if (n := self.edits(engine)) > self.allowed
        ]

    def findings(self) -> list[str]:
        """Return a sentence if the engines' texts differ."""
        if len(set(self.texts.values())) < 2:
            return []
        letters = ", ".join(f"{engine} {self.edits(engine)}" for engine in self.texts)
        return [f"{self.name}: the engines read different texts; letters off: {letters}"]


@dataclass(frozen=True)
class Question:
    """A session request as Python code, and the decision that it led to. ``error`` is its text if the request failed."""

    code: str
    decision: Decision
    error: str = ""


@dataclass(frozen=True)
class Story:
    """Results of the whole demo. ``engines``: name -> version of those that took part."""

    engines: Mapping[str, str]
    machine: str
    threads: int
    chapters: tuple[Chapter, ...]
    readings: tuple[Reading, ...]
    unavailable: Question
    auto: Question
    seconds: float

    @property
    def absent(self) -> tuple[Candidate, ...]:
        """Return the engines that took part in no chapter."""
        seen = {c.name: c for chapter in self.chapters for c in chapter.refused if c.name not in self.engines}
        return tuple(seen.values())

    def faults(self) -> list[str]:
        """Return every fault; the demo succeeds if there is none."""
        return [fault for part in (*self.chapters, *self.readings) for fault in part.faults()]

    def findings(self) -> list[str]:
        """Return wrong results of other vendors' engines, and pages that engines read differently. They do not fail the demo."""
        return [finding for part in (*self.chapters, *self.readings) for finding in part.findings()]

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of right answers and of all answers, including pages."""
        pages = [(r.edits(e) <= r.allowed) for r in self.readings for e in r.texts]
        right = sum(c.right for c in self.chapters) + sum(pages)
        return right, sum(c.answers for c in self.chapters) + len(pages)

    @property
    def answer(self) -> str:
        """Return the result in one sentence."""
        right, total = self.counts
        text = f"{right} of {total} answers are right"
        off = [(engine, value, c.model.name) for c in self.chapters for engine, value in c.off.items()]
        within = [e for e in self.engines if e not in {engine for engine, _, _ in off}]
        worst = max(
            (o.max_rel for c in self.chapters for p in c.pairs if p.actual in within for o in p.outputs),
            default=0.0,
        )
        sentences = [
            f"{' and '.join(within)} {'agrees' if len(within) == 1 else 'agree'} with float64 to {worst:.1e} of each output's largest value"
        ]
        sentences = sentences if within else []
        sentences += [f"{engine} is off by {value:.1e} on {model}" for engine, value, model in off]
        return "; ".join([text, *sentences])

    @property
    def speed(self) -> str:
        """Return how often each engine was fastest, counting only significant differences."""
        if len(self.engines) < 2:
            return "one engine is here, so none is the fastest"
        wins: dict[str, int] = {}
        for chapter in self.chapters:
            ranked = chapter.bench.ranked
            if ranked and ranked[0].verdict == "fastest":
                wins[ranked[0].name] = wins.get(ranked[0].name, 0) + 1
        fastest = ", ".join(f"{name} on {n}" for name, n in sorted(wins.items(), key=lambda w: -w[1]))
        open_ = len(self.chapters) - sum(wins.values())
        undecided = f"no difference can be shown on {open_}" if open_ else ""
        return "; ".join(part for part in (f"fastest: {fastest}" if fastest else "", undecided) if part) + (
            f" of {len(self.chapters)} models"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return {
            "ok": not self.faults(),
            "answer": self.answer,
            "faults": self.faults(),
            "findings": self.findings(),
            "engines": dict(self.engines),
            "absent": [c.to_json() for c in self.absent],
            "machine": self.machine,
            "threads": self.threads,
            "seconds": round(self.seconds, 1),
            "models": [_chapter_json(c) for c in self.chapters],
            "pages": [
                {
                    "name": r.name,
                    "truth": r.truth,
                    "texts": dict(r.texts),
                    "edits": {e: r.edits(e) for e in r.texts},
                }
                for r in self.readings
            ],
            "unavailable": {"asked": self.unavailable.code, **self.unavailable.decision.to_json()},
            "auto": {"asked": self.auto.code, **self.auto.decision.to_json()},
        }


def _chapter_json(chapter: Chapter) -> dict[str, Any]:
    return {
        "model": chapter.model.name,
        "title": chapter.model.title,
        "file": str(chapter.path),
        "answers": [
            {
                "sample": sample.name,
                "truth": sample.expected,
                "said": {
                    engine: {
                        "answer": a.headline,
                        "right": a.right(sample),
                        "details": [{"text": text, "score": score} for text, score in a.details],
                    }
                    for engine, a in by.items()
                },
            }
            for sample, by in chapter.answers_by_sample
        ],
        "receipts": {engine: r.to_json() for engine, r in chapter.receipts.items()},
        "agreement": [p.to_json() for p in chapter.pairs],
        "tolerance_reasons": dict(chapter.reasons),
        "speed": chapter.bench.to_json(),
        "refused": [c.to_json() for c in chapter.refused],
    }


def distance(text: str, truth: str) -> int:
    """Return the edit distance: the fewest letters to insert, delete or replace (V. I. Levenshtein, 1966)."""
    row = list(range(len(truth) + 1))
    for i, x in enumerate(text, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(truth, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def score(answer: Answer) -> float | None:
    """Return the score of the headline's candidate, or the only score; else None."""
    if answer.details and (len(answer.details) == 1 or answer.details[0][0] == answer.headline):
        return answer.details[0][1]
    return None
