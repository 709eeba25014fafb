"""The report page: valid, self-contained, complete, and deaf to markup in names."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import xpuruntime as xrt  # noqa: E402
from xpuruntime.decisions import Candidate, Decision, Reason  # noqa: E402
from xpuruntime.numerics import compare_all  # noqa: E402
from xpuruntime.profiler import blocks, drawing, figures  # noqa: E402
from xpuruntime.profiler.blocks import duration, number, size  # noqa: E402
from xpuruntime.profiler.html import Badge, Section, html_report  # noqa: E402
from xpuruntime.workbench.bench.engines import bench  # noqa: E402
from xpuruntime.workbench.compare.engines import PairComparison  # noqa: E402
from xpuruntime.workbench.doctor import smoke_model  # noqa: E402

HOSTILE = "<script>alert('1')</script>"
TRICKY = 'a&b "c" $x^2$ ]]> \u5206\u985e </style>'
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags, ids, links, and whether every tag that opens closes in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def hostile_model() -> tuple[bytes, dict[str, np.ndarray]]:
    """The doctor's tiny model, its nodes and its output under names that are markup."""
    data, feeds, _ = smoke_model()
    model = onnx.load_from_string(data)
    for node, name in zip(model.graph.node, (HOSTILE, TRICKY, "relu"), strict=True):
        node.name = name
    model.graph.node[-1].output[0] = HOSTILE
    model.graph.output[0].name = HOSTILE
    return model.SerializeToString(), feeds


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory):
    """A receipt of a real run, a decision that failed, a comparison and a benchmark of real numbers."""
    data, feeds = hostile_model()
    cache = tmp_path_factory.mktemp("store")
    with xrt.InferenceSession(data, engine="onnxruntime", device="cpu", cache_dir=cache) as session:
        outputs = session.run(feeds)
        receipt = session.receipt()
    with pytest.raises(xrt.EngineUnavailable) as refused:
        xrt.InferenceSession(data, engine="tensorrt", cache_dir=cache)
    values = list(outputs.values())
    pair = PairComparison(
        "onnxruntime", "mine", 1e-5, compare_all(list(outputs), values, [v * 1.5 for v in values], 1e-5)
    )
    measured = bench(data, ["onnxruntime"], seconds=0.05, control=False)
    return receipt, refused.value.decision, pair, measured


@pytest.fixture(scope="module")
def text(story, tmp_path_factory: pytest.TempPathFactory) -> str:
    receipt, decision, pair, measured = story
    path = tmp_path_factory.mktemp("page") / "report.html"
    section = Section(
        TRICKY, [HOSTILE, pair, measured, [receipt, receipt]], HOSTILE, Badge(HOSTILE, True), "mine"
    )
    picture = blocks.Picture(b"GIF89a", "image/gif", HOSTILE, HOSTILE)
    more = Section(
        "Blocks", [picture, blocks.Listing(HOSTILE, HOSTILE), blocks.FactList(((HOSTILE, HOSTILE),))]
    )
    written = html_report(
        path,
        HOSTILE,
        section,
        receipt,
        receipt,
        receipt.plan,
        decision,
        more,
        lead=HOSTILE,
        badge=Badge("bad", False),
    )
    assert written == path
    return path.read_text(encoding="utf-8")


def test_every_tag_closes_and_every_id_is_one(text: str) -> None:
    page = Page(text)
    assert page.faults == []
    assert sorted(page.ids) == sorted(set(page.ids))


def test_nothing_is_fetched_and_nothing_runs(text: str) -> None:
    page = Page(text)
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base", "form", "image"}
    places = [
        v for _, name, v in page.attributes if name in ("src", "href", "xlink:href", "srcset", "action")
    ]
    assert places
    assert all(v.startswith(("#", "data:image/")) for v in places)
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert re.findall(r"(?i)https?://|//[a-z]+\.[a-z]|@import|url\((?!#)", text) == []


def test_links_within_the_page_lead_somewhere(text: str) -> None:
    page = Page(text)
    assert {v[1:] for _, name, v in page.attributes if name == "href"} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)


def test_markup_in_names_is_shown_not_obeyed(text: str) -> None:
    assert "<script" not in text
    page = Page(text)
    assert page.text.count(HOSTILE) >= 8  # title, heading, badge, lead, node, output, listing, facts
    assert TRICKY in page.text
    assert ("img", "alt", HOSTILE) in page.attributes


def test_all_that_was_found_out_is_there(text: str, story) -> None:
    receipt, decision, pair, measured = story
    shown = Page(text).text
    for finding in receipt.findings:
        assert finding.claim in shown
        assert finding.seen in shown
    for evidence in receipt.evidence.values():
        assert evidence.version in shown
        assert evidence.time_source in shown
        for row in evidence.rows:
            assert row.kernel in shown
    for candidate in decision.rejected:
        assert candidate.name in shown
        assert candidate.code.value in shown
        assert candidate.reason in shown
        assert candidate.do in shown
    assert "✗ nothing" in shown
    assert "✗ differs" in shown
    assert pair.outputs[0].reason in shown
    assert measured.sentence in shown
    assert duration(measured.ranked[0].summary.median) in shown
    for name, version in receipt.versions.items():
        assert name in shown
        assert version in shown


def test_it_has_both_themes_prints_and_is_labeled(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    page = Page(text)
    assert ("html", "lang", "en") in page.attributes
    drawings = [a for a in page.attributes if a[0] == "svg" and a[1] == "aria-label"]
    assert len(drawings) == sum(a[0] == "svg" and a[1] == "role" for a in page.attributes) > 0
    assert all(len(value) > 20 for _, _, value in drawings)
    # every color of a drawing is a variable of the page
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        assert re.findall(r"#[0-9a-f]{6}\b", svg) == []


def test_a_part_without_a_view_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="html_report has no view of int"):
        html_report(tmp_path / "x.html", "x", 3)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(xrt.StoreError, match="cannot write"):
        html_report(tmp_path / "file" / "x.html", "x", "y", machine=False)


def test_without_the_extra_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "jinja2" else real(n, *a))
    with pytest.raises(drawing.ReportExtraMissing) as caught:
        html_report(tmp_path / "x.html", "x", "y")
    assert str(caught.value) == (
        "[html report] needs jinja2, which the extra 'report' installs; got not installed. "
        "Run: pip install 'xpuruntime[report]'"
    )
    assert caught.value.exit_code == 6


def test_chosen_and_rejected_candidates_stand_apart(tmp_path: Path) -> None:
    chosen = Candidate("this", Reason.FASTEST, "was the fastest")
    other = Candidate("that", Reason.SLOWER, "took longer", "Wait.")
    path = html_report(tmp_path / "x.html", "x", Decision("engine", "m", chosen, (other,)), machine=False)
    shown = Page(path.read_text(encoding="utf-8")).text
    assert "✓ this" in shown
    assert "not that" in shown
    assert "Wait." in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1.00"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,234"),
        (1.234e-5, "1.23e-05"),
        (-2, "-2.00"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.500 µs"), (874, "874 µs"), (4623, "4.62 ms"), (92_700, "92.7 ms"), (1.3e6, "1.30 s")],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (49152, "48.0 KiB"), (2**34, "16.0 GiB")]
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


def test_long_labels_keep_as_much_as_fits_of_both_ends() -> None:
    assert drawing.literal("a" * 44) == "a" * 44
    assert drawing.literal("b" * 40 + "$" + "c" * 40, 11) == "bbbbb…ccccc"


def test_a_plot_of_equal_outputs_has_no_logarithm_of_zero() -> None:
    svg = figures.dots(
        [figures.Dot("row", 0, 0.0)], {0: "one"}, "difference", "nothing differs at all", log=True
    )
    assert "equal" in svg
    assert "nan" not in svg.lower()


def test_an_interval_that_bounds_nothing_is_drawn_to_what_was_seen() -> None:
    medians = {0: figures.Dot("a", 0, 2.0, 0.0, math.inf)}
    svg = figures.runs({0: [1.0, 2.0, 3.0]}, medians, {0: "a"}, "ms", "three runs of one engine")
    assert "inf" not in re.sub(r"[^ \d.a-z-]", "", svg.lower()).split()
