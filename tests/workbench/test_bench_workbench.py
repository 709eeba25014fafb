"""Benchmarks: on real engines, and the ranking on recorded timings where the truth is known."""

from __future__ import annotations

import dataclasses
import importlib.util
import time

import numpy as np
import pytest

from xpuruntime.errors import StoreError
from xpuruntime.workbench.bench import engines as module
from xpuruntime.workbench.bench.engines import NO_DIFFERENCE, BenchReport, bench
from xpuruntime.workbench.output_check import check_outputs
from xpuruntime.workbench.session_options import SessionOptions

ENGINES = [e for e in ("onnxruntime", "openvino") if importlib.util.find_spec(e)]
engines = pytest.mark.skipif(len(ENGINES) < 2, reason="needs onnxruntime and openvino")
FACTS = {n: {"engine": n, "version": "1"} for n in "abc"}


def _noise(random, factor: float, rounds: int = 200) -> list[float]:
    return list(factor * random.lognormal(0, 0.05, rounds))


def test_ranking_tells_a_factor_and_not_noise() -> None:
    random = np.random.default_rng(0)
    times = {"a": _noise(random, 2.0), "b": _noise(random, 1.0), "c": _noise(random, 1.0)}
    ranked = module._rank(FACTS, times, 1 - 0.05 / 3, 0.0)
    assert ranked[-1].name == "a"
    assert ranked[-1].verdict == "slower"
    assert ranked[-1].ratio.value == pytest.approx(2.0, rel=0.05)
    assert [s.verdict for s in ranked[:2]] == [NO_DIFFERENCE, NO_DIFFERENCE]
    assert ranked[0].ratio is None


def test_no_difference_smaller_than_the_harness_shows_is_told() -> None:
    random = np.random.default_rng(1)
    times = {"a": _noise(random, 1.1, 2000), "b": _noise(random, 1.0, 2000)}
    assert module._rank(FACTS, times, 0.95, 0.0)[1].verdict == "slower"
    assert module._rank(FACTS, times, 0.95, 0.15)[1].verdict == NO_DIFFERENCE


def test_every_contender_runs_once_per_round() -> None:
    counts = {"a": 0, "b": 0}

    def run(name: str) -> None:
        counts[name] += 1
        time.sleep(0.002)

    times = module._alternate({n: (lambda n=n: run(n)) for n in counts}, 0.3, lambda _: None)
    assert len(times["a"]) == len(times["b"]) > 1
    assert counts["a"] >= len(times["a"]) + module._WARM_UP_RUNS
    assert all(t >= 2000 for t in times["a"]), "times are microseconds"


@engines
def test_a_bench_on_engines(net) -> None:
    report = bench(net, ENGINES, seconds=0.5, options=SessionOptions(device="cpu", threads=1))
    assert report.ok
    assert report.judged_by == "each other"
    assert {s.name for s in report.ranked} == set(ENGINES)
    assert {s.facts["threads"] for s in report.ranked} == {1}
    assert {s.facts["precision"] for s in report.ranked} == {"float32"}
    best, other = report.ranked
    assert best.summary.median <= other.summary.median
    assert other.ratio.value == pytest.approx(other.summary.median / best.summary.median, rel=0.5)
    assert set(report.controls) == set(ENGINES)
    assert report.floor == max([module.MIN_DIFFERENCE, *(c.bias for c in report.controls.values())])
    assert report.rounds == best.summary.count
    data = report.to_json()
    assert data["answer"] == report.sentence
    assert data["ranked"][0]["ratio_to_best"] is None


@engines
def test_disagreement_is_settled_by_the_reference_and_the_wrong_one_is_not_ranked(net) -> None:
    """With a tolerance of 0 the engines' own rounding counts as wrong: a real disagreement that the reference must settle."""
    report = bench(net, ENGINES, seconds=0.2, tolerance=0.0)
    if report.judged_by == "each other":
        pytest.skip("the engines gave equal bits")
    assert report.judged_by == "onnx.reference"
    assert not report.ok
    assert report.wrong
    assert {s.name for s in report.ranked} == set(ENGINES) - set(report.wrong)


def test_a_report_without_a_judge_names_who_is_off_by_how_much_and_from_what() -> None:
    outputs = {"a": [np.array([1.0, 2.0])], "b": [np.array([1.0, 2.5])]}
    verdict = check_outputs(outputs, ["y"], {"y": 1e-6})
    report = BenchReport(
        "m", "a machine", "its sample", 1, 0, 1.0, verdict.by, (), verdict.wrong, (), 0.95, {}, 0.01
    )
    assert report.sentence == (
        "not ranked: no reference shows which outputs are right. "
        "a: output 'y' disagrees with b: max|d|/max|ref| 0.2 is over 1e-06; "
        "b: output 'y' disagrees with a: max|d|/max|ref| 0.25 is over 1e-06"
    )
    wrong = dataclasses.replace(report, judged_by="onnx.reference")
    assert wrong.sentence.startswith("not ranked: no engine has right outputs. a: output 'y' disagrees")


@engines
def test_one_engine_is_measured_without_a_comparison(net) -> None:
    report = bench(net, ["onnxruntime"], seconds=0.2)
    assert [s.verdict for s in report.ranked] == ["only one"]
    assert report.sentence.endswith("nothing to compare with")


@engines
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_plot(net, tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    from xpuruntime.workbench.bench.plot import plot_bench

    path = tmp_path / f"bench{suffix}"
    plot_bench(bench(net, ENGINES, seconds=0.2), path)
    head = path.read_bytes()[:200]
    assert b"<?xml" in head if suffix == ".svg" else head.startswith(b"\x89PNG")
    if suffix == ".svg":
        assert "onnxruntime" in path.read_text()


@engines
def test_plot_to_nowhere(net, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from xpuruntime.workbench.bench.plot import plot_bench

    report = bench(net, ENGINES[:1], seconds=0.1)
    with pytest.raises(StoreError, match="cannot be written"):
        plot_bench(report, tmp_path / "absent" / "bench.svg")
    with pytest.raises(StoreError, match=r"must end in \.svg, \.png, \.pdf"):
        plot_bench(report, tmp_path / "bench.txt")
