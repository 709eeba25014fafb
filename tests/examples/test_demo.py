"""The demo: its verdicts on values made by hand, and the whole of it as a user starts it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

for package in ("scipy", "PIL", "jinja2", "matplotlib"):
    pytest.importorskip(package)

from examples.demo.story import Chapter, Question, Reading, Story, distance, score  # noqa: E402
from examples.zoo import CACHE, DATA, MODELS, Answer, Sample  # noqa: E402
from xpuruntime.decisions import Candidate, Decision, Reason  # noqa: E402
from xpuruntime.numerics import Comparison  # noqa: E402
from xpuruntime.profiler.statistics import paired_ratio, summarize  # noqa: E402
from xpuruntime.workbench.bench.engines import BenchReport, RankedEngine  # noqa: E402
from xpuruntime.workbench.compare.engines import PairComparison  # noqa: E402

CAT, DOG = Answer("cat", (("cat", 0.9), ("dog", 0.1))), Answer("dog", (("dog", 0.6),))
SAMPLE = Sample("photo", "cat")


def agreement(ok: bool, value: float = 1e-6, engine: str = "openvino") -> PairComparison:
    reason = "" if ok else "max|d|/max|ref| 0.1 is over 5e-05"
    found = Comparison("logits", ok, 5e-5, value, value, 1.0, 1.0, 3, 10, reason)
    return PairComparison(engine, "float64", 5e-5, (found,))


def speed(fast: Iterable[float], slow: Iterable[float], verdicts: tuple[str, str], **more) -> BenchReport:
    a, b = tuple(fast), tuple(slow)
    facts = {"version": "1", "device": "cpu", "precision": "float32", "threads": 2}
    ranked = (
        RankedEngine({"engine": "onnxruntime", **facts}, summarize(a), None, verdicts[0], a),
        RankedEngine({"engine": "openvino", **facts}, summarize(b), paired_ratio(b, a), verdicts[1], b),
    )
    base = BenchReport(
        "m", "a machine", "its sample", 2, len(a), 1.0, "each other", ranked, {}, (), 0.95, {}, 0.01
    )
    return dataclasses.replace(base, **more)


def chapter(**more) -> Chapter:
    answers = ((SAMPLE, {"onnxruntime": CAT, "openvino": CAT}),)
    base = Chapter(
        MODELS["magika"], Path("m.onnx"), answers, {}, (agreement(True),),
        speed([1e3] * 20, [2e3] * 20, ("fastest", "slower")),
    )  # fmt: skip
    return dataclasses.replace(base, **more)


def story(**more) -> Story:
    refused = Decision(
        "engine", "m", None, (Candidate("openvino on npu", Reason.NO_DEVICE, "none here", "Add one."),)
    )
    chosen = Decision("engine", "m", Candidate("onnxruntime on cpu", Reason.FASTEST, "median 1 us"))
    engines = {"onnxruntime": "1", "openvino": "2"}
    reading = Reading("page", DATA / "invoice.png", "abc", dict.fromkeys(engines, "abc"), 0)
    base = Story(
        engines,
        "a machine",
        2,
        (chapter(),),
        (reading,),
        Question("ask", refused, "no"),
        Question("auto", chosen),
        1.0,
    )
    return dataclasses.replace(base, **more)


def test_a_good_story_has_no_faults() -> None:
    told = story()
    assert told.faults() == []
    assert told.counts == (4, 4)
    assert (
        told.answer
        == "4 of 4 answers are right; onnxruntime and openvino agree with float64 to 1.0e-06 of each output's largest value"
    )
    assert told.speed == "fastest: onnxruntime on 1 of 1 models"
    assert told.to_json()["ok"] is True


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"answers_by_sample": ((SAMPLE, {"onnxruntime": DOG, "openvino": DOG}),)},
            "magika: onnxruntime says 'dog' of photo, which is 'cat'",
        ),
        (
            {"answers_by_sample": ((SAMPLE, {"onnxruntime": CAT, "openvino": DOG}),)},
            "magika: the engines say different things of photo: onnxruntime: cat, openvino: dog",
        ),
        (
            {"pairs": (agreement(False, 0.1, "native"),)},
            "magika: native is off from float64 in output 'logits': max|d|/max|ref| 0.1 is over 5e-05",
        ),
        (
            {"refused": (Candidate("openvino", Reason.BUILD_FAILED, "no memory"),)},
            "magika: openvino failed: no memory",
        ),
        (
            {"bench": speed([1.0] * 9, [1.0] * 9, ("fastest", "slower"), wrong={"native": "output 'y' differs"})},
            "magika: native while measuring: output 'y' differs",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_told(change: dict, fault: str) -> None:
    told = story(chapters=(chapter(**change),))
    assert fault in told.faults()
    assert told.to_json()["ok"] is False


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            {"pairs": (agreement(False, 0.1), agreement(True, 2e-6, "onnxruntime"))},
            "magika: openvino is off from float64 in output 'logits': max|d|/max|ref| 0.1 is over 5e-05",
        ),
        (
            {"bench": speed([1.0] * 9, [1.0] * 9, ("fastest", "slower"), wrong={"openvino": "output 'y' differs"})},
            "magika: openvino while measuring: output 'y' differs",
        ),
        (
            {"bench": speed([1.0] * 9, [1.0] * 9, ("fastest", "slower"), wrong={"native": "output 'y' differs"}, judged_by="nobody")},
            "magika: native while measuring: output 'y' differs",
        ),
    ],
)  # fmt: skip
def test_another_engine_that_is_off_is_a_finding_and_no_fault(change: dict, finding: str) -> None:
    told = story(chapters=(chapter(**change),))
    assert told.findings() == told.to_json()["findings"] == [finding]
    assert told.faults() == []
    assert told.to_json()["ok"] is True


def test_a_tolerance_is_told_with_its_reason() -> None:
    from examples.demo.play import _reason

    assert _reason(5e-5, 5e-5, 0.0, 0.0, "float32") == "usual for float32"
    assert _reason(4e-4, 5e-5, 1e-4, 1e-5, "float32") == "4 times what float32 itself is off here"
    assert _reason(4e-4, 5e-5, 1e-5, 1e-4, "float32") == "4 times the shift by the inputs' last bits"
    assert _reason(5e-3, 5e-5, 1.0, 1.0, "float32").startswith("100 times the usual for float32")
    told = chapter(pairs=(agreement(False, 0.1),), reasons={"openvino logits": "usual for float32"})
    assert told.findings() == [
        "magika: openvino is off from float64 in output 'logits': max|d|/max|ref| 0.1 is over 5e-05 (the tolerance: usual for float32)"
    ]


def test_the_answer_names_who_is_off_and_by_how_much() -> None:
    pairs = (agreement(False, 2e-4), agreement(True, 2e-6, "onnxruntime"))
    assert story(chapters=(chapter(pairs=pairs),)).answer == (
        "4 of 4 answers are right; onnxruntime agrees with float64 to 2.0e-06 of each output's largest value; "
        "openvino is off by 2.0e-04 on magika"
    )


def test_the_reference_computes_in_float64(tmp_path: Path) -> None:
    """A sum that float32 loses: 1 + 2**-30 - 1, with a constant in the graph and a weight next to it."""
    onnx = pytest.importorskip("onnx")
    import numpy as np

    from examples.demo.reference import exact_outputs

    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 1.0}> { c = Constant <value_float = -1.0> ()  s = Add(x, w)  y = Add(s, c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = np.full(2, 2.0**-30, np.float32)
    exact = exact_outputs(tmp_path / "m.onnx", {"x": x})
    assert exact.outputs["y"].dtype == np.float64
    assert exact.outputs["y"].tolist() == [2.0**-30] * 2
    assert exact.rounding == {"y": 1.0}


def test_an_engine_that_is_not_here_is_no_fault_and_is_told_once() -> None:
    absent = Candidate("openvino", Reason.NOT_INSTALLED, "not installed", "Run: pip install openvino")
    alone = chapter(
        answers_by_sample=((SAMPLE, {"onnxruntime": CAT}),),
        pairs=(agreement(True, engine="onnxruntime"),),
        refused=(absent,),
    )
    told = story(engines={"onnxruntime": "1"}, chapters=(alone, alone), readings=())
    assert told.faults() == []
    assert told.absent == (absent,)
    assert told.answer == (
        "2 of 2 answers are right; onnxruntime agrees with float64 to 1.0e-06 of each output's largest value"
    )
    assert told.speed == "one engine is here, so none is the fastest"


def test_a_difference_that_cannot_be_shown_is_no_win() -> None:
    even = chapter(
        bench=speed([1e3] * 9, [1e3] * 9, ("no difference can be shown", "no difference can be shown"))
    )
    assert story(chapters=(chapter(), even)).speed == (
        "fastest: onnxruntime on 1; no difference can be shown on 1 of 2 models"
    )
    assert story(chapters=(even,)).speed == "no difference can be shown on 1 of 1 models"


def test_a_page_may_be_off_by_what_is_allowed() -> None:
    page = Reading("scan", Path("scan.jpg"), "Invoice", {"a": "Invoce", "b": "Invoce"}, 1)
    assert page.edits("a") == 1
    assert page.faults() == []
    strict = dataclasses.replace(page, allowed=0)
    assert strict.faults() == ["scan: a is 1 letters off, 0 allowed", "scan: b is 1 letters off, 0 allowed"]
    split = dataclasses.replace(page, texts={"a": "Invoice", "b": "Invoce"})
    assert split.faults() == []
    assert split.findings() == ["scan: the engines read different texts; letters off: a 0, b 1"]


@pytest.mark.parametrize(
    ("text", "truth", "edits"),
    [("", "", 0), ("abc", "abc", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("abc", "acb", 2)],
)
def test_edit_distance(text: str, truth: str, edits: int) -> None:
    assert distance(text, truth) == distance(truth, text) == edits


def test_a_score_belongs_to_its_headline() -> None:
    assert score(CAT) == 0.9
    assert score(Answer("Total", (("5 characters", 0.8),))) == 0.8
    assert score(Answer("2 pieces", (("here", 0.8), ("there", 0.7)))) is None
    assert score(Answer("nothing")) is None


def test_the_terminal_keeps_to_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.demo import terminal

    monkeypatch.setenv("COLUMNS", "200")
    bad = chapter(
        answers_by_sample=((SAMPLE, {"onnxruntime": CAT, "openvino": DOG}),), pairs=(agreement(False, 0.1),)
    )
    terminal.show(story(chapters=(chapter(), bad)), Path("build/demo/report.html"))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    first = shown[: shown.index("What each engine said")]
    assert "✗ 5 of 6 answers are right; onnxruntime agrees with float64" in " ".join(first.split())
    assert "openvino is off by 1.0e-01 on magika" in " ".join(first.split())
    assert "openvino on npu (no_device)" in shown
    assert "onnxruntime on cpu (fastest)" in shown


def test_the_page_tells_the_faults(tmp_path: Path) -> None:
    from examples.demo import page

    bad = chapter(answers_by_sample=((SAMPLE, {"onnxruntime": CAT, "openvino": DOG}),))
    text = page.write(story(chapters=(bad,)), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "✗ magika: openvino says &#39;dog&#39; of photo, which is &#39;cat&#39;" in text
    assert 'badge bad">' in text


def pinned_packages_are_here() -> bool:
    pins = {name: version for model in MODELS.values() for name, version in model.packages.items()}
    try:
        return all(metadata.version(name) == version for name, version in pins.items())
    except metadata.PackageNotFoundError:
        return False


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """``python -m examples.demo --quick`` as a user starts it, from the repository's root, with little time to measure."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "examples.demo", "--quick", "--seconds", "0.2", *options]
    return subprocess.run(
        command, cwd=root, env={**os.environ, "XPU_AUTO_SECONDS": "2"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


PAGES = "ppocr-det,ppocr-rec"  # the two models that read pages together
CHAPTERS = (*(name for name in MODELS if name not in PAGES.split(",")), PAGES)


@pytest.fixture(scope="module")
def models(part: Callable[[Sequence[str], int], list[str]]) -> list[str]:
    """All models of the demo; in the gate a drawn one. The pair that reads pages takes four times as long: tests of the zoo read them, too."""
    drawn = ",".join(part(CHAPTERS, 0) or part(CHAPTERS[:-1], 1)).split(",")
    return [name for name in MODELS if name in drawn]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, models: list[str]) -> tuple[dict, Path]:
    """The demo's JSON document and its folder."""
    if not pinned_packages_are_here():
        pytest.skip("the zoo's packages are not installed: scripts/setup")
    out = tmp_path_factory.mktemp("demo")
    named = "all" if len(models) == len(MODELS) else ",".join(models)
    done = demo("--models", named, "--json", "--out", str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return json.loads(done.stdout), out


@pytest.mark.sampled(group="played", one_in=3)
@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_every_engine_says_the_truth(played: tuple[dict, Path], models: list[str]) -> None:
    document, _ = played
    assert document["ok"] is True
    assert document["faults"] == []
    assert set(document["engines"]) >= {"onnxruntime"}
    assert [m["model"] for m in document["models"]] == models
    assert bool(document["pages"]) == set(models).issuperset(PAGES.split(","))
    for model in document["models"]:
        assert set(model["receipts"]) == set(document["engines"])
        assert all(r["confirmed"] and r["runs"] == len(model["answers"]) for r in model["receipts"].values())
        assert {p["actual"] for p in model["agreement"]} == set(document["engines"])
        assert {s["engine"] for s in model["speed"]["ranked"]} == set(document["engines"])
        assert {s["threads"] for s in model["speed"]["ranked"]} == {document["threads"]}
    assert all(set(p["edits"]) == set(document["engines"]) for p in document["pages"])


@pytest.mark.sampled(group="played", one_in=3)
@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_it_asks_and_is_told_why(played: tuple[dict, Path]) -> None:
    document, _ = played
    npu = document["unavailable"]
    assert npu["chosen"] is None or "npu" in npu["chosen"]["name"]
    assert all(c["reason"] for c in npu["rejected"])
    assert document["auto"]["chosen"]["code"] in ("fastest", "only_one")


@pytest.mark.sampled(group="played", one_in=3)
@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_the_page_shows_every_model_engine_and_reason(played: tuple[dict, Path], models: list[str]) -> None:
    document, out = played
    text = (out / "report.html").read_text(encoding="utf-8")
    import html

    shown = html.unescape(text)
    for model in document["models"]:
        assert model["title"] in shown
        for answer in model["answers"]:
            assert all(said["answer"] in shown for said in answer["said"].values())
    for candidate in document["unavailable"]["rejected"] + document["auto"]["rejected"]:
        assert candidate["reason"] in shown
    for name, version in document["engines"].items():
        assert name in shown
        assert version in shown
    samples = [sample for name in models for sample in MODELS[name].samples()]
    pictures = sum(sample.path is not None and sample.path.suffix in (".jpg", ".png") for sample in samples)
    assert text.count("data:image/jpeg;base64,") >= pictures + len(document["pages"])
    assert "http://" not in text
    assert "https://" not in text


def test_a_model_that_the_zoo_has_not_is_an_error() -> None:
    import typer

    from examples.demo.__main__ import model_list

    assert model_list("all") == tuple(MODELS)
    assert model_list("magika, minilm-l6") == ("minilm-l6", "magika")
    for text, got in (("magika,resnet", "resnet"), (" ,", " ,")):
        with pytest.raises(typer.BadParameter, match=f"'{got}' is none of efficientnet-lite0, "):
            model_list(text)


@pytest.mark.sampled(one_in=3)
@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_model_that_went_bad_ends_in_exit_1(tmp_path: Path) -> None:
    """The built files are there, but one model's weights are not its own any more: the answers give it away."""
    onnx = pytest.importorskip("onnx")
    if not pinned_packages_are_here():
        pytest.skip("the zoo's packages are not installed: scripts/setup")
    zoo = tmp_path / "zoo"
    MODELS["magika"].onnx_path()
    shutil.copytree(CACHE, zoo)
    model = onnx.load(zoo / "magika.onnx")
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(model, zoo / "magika.onnx")
    options = ("--models", "magika", "--engines", "onnxruntime")
    done = demo(*options, "--zoo", str(zoo), "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "✗ magika: onnxruntime says" in done.stdout
    assert "✗ magika: onnxruntime says" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
