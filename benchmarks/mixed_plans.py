"""One model on several engines by measured cost, against each engine alone: ``place: {"*": "auto"}``.

    python benchmarks/mixed_plans.py [--models NAME ...] [--threads 1] [--rounds 9] [--busy] [--keep]

The session that measuring chose (it may be one engine, where no mix is clearly faster) and a session of each engine answer the same inputs, real ones
where a sample has the sizes below, are compared, and then run in turns, round after round; a round is as many runs as fit in a tenth of a second. The
figure is the best engine's time over the choice's, taken again after the choice was made: the median of the rounds' ratios, with its 95% interval. Over 1
means that the choice is faster. ``--busy`` times by the process's own clock, which other programs disturb less: for one thread only, and never kept.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts, keep
from seeded import SEEDED, seeded_onnx

import xpuruntime as xrt
from xpuruntime.inference.execution.seeded_inputs import sample_feeds
from xpuruntime.inference.selection import auto
from xpuruntime.numerics import compare_all
from xpuruntime.profiler.statistics import paired_ratio

ENGINES = ("native", "onnxruntime", "openvino")
LEAST = 0.97
ALIKE = (
    2e-3  # largest max|d|/max|ref| between the choice and an engine; seeded inputs are rougher than real ones
)
ROUND_S = 0.1

# Sizes of open dims by model, those of real use: a photograph, a line of text, a page, a sentence.
ZOO: dict[str, dict[str, int]] = {
    "basic-pitch": {"unk__749": 1},
    "efficientnet-lite0": {"batch": 1},
    "magika": {"unk__214": 1},
    "minilm-l6": {"batch": 1, "tokens": 128},
    "ppocr-det": {"DynamicDimension.0": 1, "DynamicDimension.1": 320, "DynamicDimension.2": 320},
    "ppocr-rec": {"DynamicDimension.0": 1, "DynamicDimension.1": 640},
}
REAL = ("basic-pitch", "efficientnet-lite0", "magika")  # their samples have these sizes
OTHERS: dict[str, dict[str, int]] = {
    "minilm_search": {"batch": 1, "tokens": 128},
    "fcn32_mobilenet_v2": {},
    "mobilenet_v2": {},
    "resnet50": {},
    "bert": {},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", nargs="*", default=[*ZOO, *OTHERS], choices=[*ZOO, *OTHERS])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.busy:
        auto.CLOCK = time.process_time_ns
    about = facts("onnxruntime", "openvino", "numpy")
    rows = []
    for name in args.models:
        rows.append(measure(name, args.threads, args.rounds))
        print(line(rows[-1]), flush=True)
    if args.keep and not args.busy:
        print("wrote", keep("mixed_plans", {"machine": about, "least": LEAST, "rows": rows}))
    bad = [r for r in rows if r["ratio"] < LEAST or not r["right"]]
    wins = [r for r in rows if r["mixed"] and r["interval"][0] > 1]
    print(
        f"least ratio {min(r['ratio'] for r in rows):.3f}; faster on several engines: {', '.join(r['model'] for r in wins) or 'none'}"
    )
    return 1 if bad else 0


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """One model."""
    path = seeded_onnx(name) if name in SEEDED else Path("build/zoo", f"{name}.onnx")
    sizes = {**ZOO, **OTHERS}[name]
    common = {"static_shape": True, "fixed_shapes": sizes} if sizes else {}
    real = sample(name) if name in REAL else None
    with tempfile.TemporaryDirectory() as store:

        def opened(engine: str, **extra: Any) -> xrt.InferenceSession:
            policy = {"version": 1, "execution": {**common, **extra}}
            return xrt.InferenceSession(
                path,
                device="cpu",
                engine=engine,
                policy=policy,
                threads=threads,
                cache_dir=store,
                example_inputs=real,
            )

        began = time.monotonic()
        sessions = {"choice": opened("auto", place={"*": "auto"})}
        seconds = time.monotonic() - began
        sessions |= {e: opened(e) for e in ENGINES}
        choice = sessions["choice"]
        feeds = real or sample_feeds(choice.input_info)
        errors = agreement(sessions, feeds)
        by_round = in_turns(sessions, feeds, rounds)
        times = {n: statistics.median(t) for n, t in by_round.items()}
        decision = choice.plan.decision("engine")
        best = min(ENGINES, key=lambda e: times[e])
        ratio = paired_ratio(by_round[best], by_round["choice"], 0.95)
        row = {
            "model": name,
            "threads": threads,
            "chosen": decision.chosen.name,
            "mixed": len(choice.plan.regions) > 1,
            "regions": [
                {"engine": r.engine, "nodes": sum(n.region == r.id for n in choice.plan.nodes)}
                for r in choice.plan.regions
            ],
            "candidates": {c.name: c.facts.get("median_us") for c in (decision.chosen, *decision.rejected)},
            "why_not": {c.name: c.reason for c in decision.rejected},
            "median_ms": times,
            "best_engine": best,
            "ratio": ratio.value,
            "interval": [ratio.interval.low, ratio.interval.high],
            "inputs": "seeded" if real is None else "real",
            "errors": errors,
            "right": all(e <= ALIKE for e in errors.values()),
            "seconds_to_choose": seconds,
        }
        for session in sessions.values():
            session.close()
    return row


def agreement(sessions: dict[str, xrt.InferenceSession], feeds: dict[str, Any]) -> dict[str, float]:
    """By engine the largest max|d|/max|ref| of the choice's outputs from its own."""
    answers = {n: list(s.run(feeds).values()) for n, s in sessions.items()}
    names = [s.name for s in sessions["choice"].output_info]
    return {
        e: max(c.max_rel for c in compare_all(names, answers["choice"], answers[e], np.inf)) for e in ENGINES
    }


def sample(name: str) -> dict[str, Any]:
    """The first real input that comes with a model of the zoo."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from examples.zoo import MODELS

    return MODELS[name].inputs(MODELS[name].samples()[0])


def in_turns(
    sessions: dict[str, xrt.InferenceSession], feeds: dict[str, Any], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds: the median run of every round."""
    times_by_session: dict[str, list[float]] = {n: [] for n in sessions}
    for turn in range(rounds):
        for name in sorted(sessions, reverse=turn % 2 == 1):
            sessions[name].run(feeds)  # what others left in the caches is not its own
            times: list[float] = []
            end = time.monotonic() + ROUND_S
            while not times or time.monotonic() < end:
                start = auto.CLOCK()
                sessions[name].run(feeds)
                times.append((auto.CLOCK() - start) / 1e6)
            times_by_session[name].append(statistics.median(times))
    return times_by_session


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    times = ", ".join(f"{n} {t:.2f}" for n, t in row["median_ms"].items())
    right = "" if row["right"] else ", OTHER OUTPUTS"
    low, high = row["interval"]
    return (
        f"{row['model']:20} {row['ratio']:.3f} [{low:.3f}, {high:.3f}]  {row['chosen']} ({times} ms){right}"
    )


if __name__ == "__main__":
    sys.exit(main())
