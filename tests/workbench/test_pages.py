"""Pages of plans, receipts, diffs and bisections: layout, hostile names, content. A browser opens one where Playwright is installed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.onnx_models import save_small_mlp

import xpuruntime as xrt
from xpuruntime.inference.models.edges import node_reads
from xpuruntime.inference.models.programs import open_program
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.profiler.trace import Trace, TraceSpan
from xpuruntime.program.plan import Plan
from xpuruntime.workbench.bisect.bisection import bisect
from xpuruntime.workbench.pages.bisect_page import bisect_page
from xpuruntime.workbench.pages.diff_page import diff_page
from xpuruntime.workbench.pages.graph_layout import layers_of, positions
from xpuruntime.workbench.pages.page import Lane, Page, PageNode, PageTable, write_page
from xpuruntime.workbench.pages.receipt_page import receipt_page, snapshot_page
from xpuruntime.workbench.review.diff import diff
from xpuruntime.workbench.review.snapshot import of_plan, of_program
from xpuruntime.workbench.values.side import Side, open_source

pytest.importorskip("onnx")

BROWSERS = ("chromium", "google-chrome", "chromium-headless-shell")
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "\"'`${1}&lt;<img src=x onerror=alert(1)><!--",
    "@DATA@ @SCRIPT@ @STYLE@",
    "__proto__",
    "\u202eback\u2028line\x1b[31m",
    "\ud800",
    "",
)


class Reader(HTMLParser):
    """The elements of a page, and the text of its scripts and its title."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._tag, []).append(data)


def read_page(path: Path) -> tuple[Reader, dict[str, Any]]:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    data, script = reader.texts["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [v for k, v in reader.attributes if k == "content" and v and "script-src" in v]
    assert f"script-src 'sha256-{digest}'" in policy
    return reader, json.loads(data)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    save_small_mlp(path, np.random.default_rng(0))
    return path


@pytest.fixture(scope="module")
def receipt(model: Path) -> Receipt:
    x = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    with xrt.InferenceSession(model, engine="native", device="cpu") as session:
        session.run({"x": x})
        return session.receipt()


# ── layout ──


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=30))
def test_positions_are_distinct_for_any_graph(edges: list[list[int]]) -> None:
    reads = [[i for i in dict.fromkeys(inputs) if i < len(edges)] for inputs in edges]
    points = positions(reads)
    assert len(set(points)) == len(points) == len(edges)


def test_layers_are_longest_paths_and_cycles_end() -> None:
    assert layers_of([[], [0], [0, 1], [2, 0]]) == [0, 1, 2, 3]
    assert layers_of([[3], [0], [1], []]) == [1, 2, 3, 0]  # not in an execution order
    assert len(layers_of([[1], [0], [2]])) == 3


@pytest.mark.parametrize("deep", [True, False])
def test_deep_and_wide_graphs_have_the_shape_of_a_screen(deep: bool) -> None:
    points = positions([[], *([k if deep else 0] for k in range(1999))])
    width = (max(x for x, _ in points) + 1) * 190
    height = (max(y for _, y in points) + 1) * 46
    assert 1 < width / height < 4


# ── the file ──


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    nodes = tuple(PageNode(name, (name, float("nan"), 1.5), HOSTILE[:k]) for k, name in enumerate(HOSTILE))
    page = Page(
        HOSTILE[0], (HOSTILE[1], None), ("op", "a us", "b us"), ("op",), nodes, HOSTILE,
        (Lane(HOSTILE[0], ((0.0, 1.0, HOSTILE[1], HOSTILE[3]),)),), HOSTILE[1],
        tables=(PageTable(HOSTILE[0], HOSTILE, (HOSTILE,), HOSTILE[1]),),
    )  # fmt: skip
    reader, data = read_page(write_page(tmp_path / "page.html", page))
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    assert reader.texts["title"] == [HOSTILE[0]]
    assert [n[0] for n in data["nodes"]][:4] == list(HOSTILE[:4])
    assert "\u202e" not in data["nodes"][4][0]
    assert data["nodes"][3][2] == [0, 1, 2]
    assert data["nodes"][0][1] == [HOSTILE[0], "nan", 1.5]


def test_a_page_loads_nothing(tmp_path: Path) -> None:
    page = Page("empty", ("ok", True), ("op",), ("op",), ())
    text = write_page(tmp_path / "page.html", page).read_text()
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[\w./]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, not a request
    assert not re.search(r"""\b(?:src|href)=["'](?!#)|@import|url\(""", text)


# ── content ──


def test_a_receipt_has_edges_kernels_times_and_figures(receipt: Receipt, tmp_path: Path) -> None:
    page = receipt_page(receipt)
    assert [n.name for n in page.nodes] == [n.name for n in receipt.plan.nodes]
    assert page.verdict == ("confirmed by evidence", True)
    by_name = {n.name: dict(zip(page.columns, n.values, strict=True)) for n in page.nodes}
    for row in receipt.evidence["r0"].rows:
        for name in row.nodes:
            assert by_name[name]["kernel"] == row.kernel.partition(": ")[0]
            assert by_name[name]["step us"] == row.time_us
    products = [r for r in receipt.evidence["r0"].rows if r.kernel.startswith("matmul/")]
    # 2 rows by 16 inputs are 2 * 2 * 16 operations per output; a fused step adds those of its other nodes.
    assert products[0].flops >= 2 * 2 * 16
    assert products[0].bytes >= 16 * 2 * 4
    assert {p.node for p in page.points} == {
        r.nodes[0] for r in receipt.evidence["r0"].rows if r.flops and r.bytes
    }
    assert [lane.name for lane in page.lanes] == ["r0 native"]
    _, data = read_page(write_page(tmp_path / "page.html", page))
    assert any(reads for _, _, reads, _ in data["nodes"])
    again = Receipt.from_json(json.loads(json.dumps(receipt.to_json())))
    assert receipt_page(again) == page


def test_recorded_spans_are_nested_rows(receipt: Receipt) -> None:
    trace = Trace()
    kernel = receipt.evidence["r0"].rows[0].kernel.partition(": ")[0]
    trace.spans = (
        TraceSpan("run", 7, 1_000_000, 9_000), TraceSpan(kernel, 7, 1_001_000, 2_000, 0),
        TraceSpan("other", 7, 1_004_000, 2_000, 0), TraceSpan("wait", 8, 1_002_000, 1_000),
    )  # fmt: skip
    lanes = {lane.name: lane.spans for lane in receipt_page(receipt, trace).lanes}
    first = receipt.evidence["r0"].rows[0].nodes[0]
    assert lanes == {
        "thread 7": ((0.0, 9.0, "run", ""),),
        "inside (1)": ((1.0, 2.0, kernel, first), (4.0, 2.0, "other", "")),
        "thread 8": ((2.0, 1.0, "wait", ""),),
    }


def test_regions_of_a_recording_and_counted_transfers_are_shown(receipt: Receipt) -> None:
    (region,), (first, *rest) = receipt.plan.regions, receipt.plan.nodes
    plan = replace(
        receipt.plan,
        regions=(region, replace(region, id="r1", engine="onnxruntime")),
        nodes=(first, *(replace(n, region="r1") for n in rest)),
    )
    evidence = receipt.evidence["r0"]
    moved = replace(evidence, transfers={"h2d": 3, "inner_d2h": 1, "waits": 0})
    trace = Trace()
    trace.spans = (TraceSpan("r0: native", 7, 0, 10), TraceSpan("r1: onnxruntime", 7, 10, 10))
    page = receipt_page(replace(receipt, plan=plan, evidence={"r0": moved, "r1": evidence}), trace)
    assert [span[3] for span in page.lanes[0].spans] == [first.name, rest[0].name]
    (counted,) = [t for t in page.tables if t.title == "Counted transfers"]
    assert counted.rows == (("r0", "h2d", 3), ("r0", "inner d2h", 1))


def test_a_diff_marks_changed_added_and_removed_nodes(receipt: Receipt) -> None:
    plan = receipt.plan
    first, *rest = plan.nodes
    other = replace(
        plan, nodes=(replace(first, kernel="matmul/other"), *rest[:-1], replace(rest[-1], name="new"))
    )
    a, b = of_plan(plan, "a"), of_plan(other, "b")
    page = diff_page(diff(a, b), a, b)
    kinds = {n.name: n.values[0] for n in page.nodes}
    assert kinds[first.name] == "kernel"
    assert kinds["new"] == "added"
    assert kinds[rest[-1].name] == "removed"
    assert {kinds[n.name] for n in rest[:-1]} <= {"same"}
    assert page.selected == first.name
    kernel = dict(zip(page.columns, page.nodes[0].values, strict=True))["kernel"]
    assert kernel == f"{first.kernel or 'none'} -> matmul/other"
    assert diff_page(diff(a, a), a, a).verdict == ("nothing differs", True)


def test_edges_of_a_program_are_those_of_its_calls(model: Path) -> None:
    program = xrt.compile(xrt.load_onnx(model), target="cpu", shapes={"batch": 2})
    program.save(model.with_name("p.npubin"))
    page = snapshot_page(of_program(program, "p"))
    names = [n.name for n in page.nodes]
    assert all(set(n.reads) <= set(names[:k]) for k, n in enumerate(page.nodes))
    assert sum(bool(n.reads) for n in page.nodes) == len(names) - 1
    with xrt.InferenceSession(open_program(model.with_name("p.npubin")), device="cpu") as session:
        assert {n.name: n.reads for n in session.plan.nodes} == {n.name: n.reads for n in page.nodes}


def test_edges_of_a_plan_survive_json(receipt: Receipt) -> None:
    plan = Plan.from_json(json.loads(json.dumps(receipt.plan.to_json())))
    assert [n.reads for n in plan.nodes] == [n.reads for n in receipt.plan.nodes]
    older = receipt.plan.to_json()
    for node in older["nodes"]:
        del node["reads"]
    assert Plan.from_json(older).nodes[1].reads == ()


def test_a_bisection_shows_what_depends_on_the_node(model: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    changed = onnx.load(model)
    last = changed.graph.initializer[-1]
    last.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(last) + np.float32(0.5), last.name))
    onnx.save(changed, tmp_path / "changed.onnx")
    source = open_source(str(model))
    a = Side(source, engine="native", device="cpu")
    b = Side(open_source(str(tmp_path / "changed.onnx")), engine="native", device="cpu")
    x = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    result = bisect(a, b, {"x": x})
    page = bisect_page(result, source)
    assert result.node is not None
    positions_of = {n.name: n.values[0] for n in page.nodes}
    assert page.selected in result.node.nodes
    assert {n for n, p in positions_of.items() if p == "first that differs"} == set(result.node.nodes)
    reads = node_reads(source)
    assert all(positions_of[i] in ("before it", "first that differs") for i in reads[page.selected])


# ── in a browser ──


def test_search_sort_and_zoom_in_a_browser(receipt: Receipt, tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api")
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        pytest.skip("no Chromium")
    names = [*HOSTILE[:4], *(f"/layers.{k // 8}/MatMul_{k}" for k in range(2000))]
    nodes = tuple(
        PageNode(n, ("Conv", float(k)), tuple(names[max(0, k - 1) : k])) for k, n in enumerate(names)
    )
    page = replace(
        receipt_page(receipt), columns=("op", "step us"), colors=("op", "step us"), nodes=nodes, selected=""
    )
    path = write_page(tmp_path / "page.html", page)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        view = browser.new_page()
        problems: list[str] = []
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.on(
            "request",
            lambda request: problems.append(request.url) if not request.url.startswith("file:") else None,
        )
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready]", state="attached")
        assert view.title() == page.title
        assert view.locator("#table tbody tr").count() == len(names)
        view.fill("#search", "matmul_1234")
        view.press("#search", "Enter")
        assert view.text_content("#detail h3") == "/layers.154/MatMul_1234"
        assert view.locator("#table tbody tr").count() == 1
        view.fill("#search", "")
        view.get_by_role("button", name="step us").click()
        assert view.locator("#table tbody tr").first.inner_text().startswith("/layers.249/MatMul_1999")
        before = view.locator("#graph").screenshot()
        view.click("#closer")
        view.wait_for_timeout(100)
        assert view.locator("#graph").screenshot() != before
        assert problems == []
        browser.close()
