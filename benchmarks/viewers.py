"""Others' tools open what xpuruntime writes, in a headless browser where they are pages: search, sort, zoom, and screenshots to look at.

    python benchmarks/viewers.py --files FOLDER --shots FOLDER --out benchmarks/results/viewers.json [--nodes 2000]

``--files`` is the folder that ``tests/gpu/attribution.py files`` wrote (of a GPU or the CPU); without it, only the page of a drawn model of
``--nodes`` nodes is opened. Needs playwright with a Chromium, netron, ai-edge-model-explorer, perfetto, junitparser and jsonschema.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "google-chrome", "chromium-headless-shell")
TOOLS = ("playwright", "netron", "ai-edge-model-explorer", "perfetto", "junitparser", "jsonschema")
PORTS = {"netron": 8391, "model explorer": 8392}


def drawn_model(path: Path, count: int) -> None:
    """Write blocks of convolution, activation and residual sum, until there are ``count`` nodes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights, x = np.random.default_rng(0), [], [], "x"
    while len(nodes) + 3 <= count:
        i = len(nodes) // 3
        weights.append(
            numpy_helper.from_array(0.1 * random.standard_normal((4, 4, 3, 3), dtype=np.float32), f"w{i}")
        )
        block = f"/stage{i // 100}/block{i}"
        nodes += [
            helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], name=f"{block}/conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"{block}/relu"),
            helper.make_node("Add", [f"r{i}", x], [f"s{i}"], name=f"{block}/sum"),
        ]
        x = f"s{i}"
    while len(nodes) < count - 1:
        nodes.append(helper.make_node("Tanh", [x], [f"t{len(nodes)}"], name=f"/tail/tanh{len(nodes)}"))
        x = nodes[-1].output[0]
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], name="/tail/pool"))
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 4, 8, 8]), ("y", [1, 4, 1, 1]))
    ]
    graph = helper.make_graph(nodes, "drawn", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


class Desk:
    """The browser, the folder of screenshots, and what was found."""

    def __init__(self, browser: Any, shots: Path) -> None:
        self.browser, self.shots = browser, shots
        self.found: dict[str, Any] = {}
        self.failures: list[str] = []

    def check(self, ok: Any, what: str) -> None:
        """Record a failure without raising."""
        print("  ok  " if ok else "  FAIL", what, flush=True)
        if not ok:
            self.failures.append(what)

    def shot(self, view: Any, name: str) -> None:
        """Save a screenshot."""
        view.screenshot(path=str(self.shots / f"{name}.png"))

    def view(self, problems: list[str]) -> Any:
        """Return a new page that reports its errors."""
        view = self.browser.new_page(viewport={"width": 1500, "height": 950})
        view.on("pageerror", lambda error: problems.append(str(error)))
        return view


def open_receipt(desk: Desk, path: Path, name: str, word: str) -> None:
    """Open a receipt's page: search a node, sort by time, zoom, select in the table, and color by another column."""
    problems: list[str] = []
    view = desk.view(problems)
    view.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else problems.append(r.url)
    )
    started = time.perf_counter()
    view.goto(path.absolute().as_uri())
    view.wait_for_selector("html[data-ready]", state="attached")
    ready = time.perf_counter() - started
    rows = view.locator("#table tbody tr")
    count = rows.count()
    desk.shot(view, f"{name}-open")
    view.fill("#search", word)
    view.press("#search", "Enter")
    view.wait_for_timeout(300)
    matches, selected = rows.count(), str(view.text_content("#detail h3"))
    desk.check(0 < matches < count and word.lower() in selected.lower(), f"{name}: {word!r} finds {matches} of {count} nodes, {selected!r} is selected")  # fmt: skip
    desk.shot(view, f"{name}-search")
    view.fill("#search", "")
    head = view.get_by_role("button", name="step us")
    head.click()
    view.wait_for_timeout(200)
    column = next(
        i for i, t in enumerate(view.locator("#table thead th").all_inner_texts()) if "step us" in t
    )
    cells = [rows.nth(i).locator("td, th").nth(column).inner_text() for i in range(12)]
    times = [float(c.replace(",", "")) for c in cells if c.strip()]
    desk.check(
        len(times) > 3 and times == sorted(times, reverse=True), f"{name}: sorted by time: {times[:4]}"
    )
    graph = view.locator("#graph")
    graph.scroll_into_view_if_needed()
    before = graph.screenshot()
    box = graph.bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    started = time.perf_counter()
    for _ in range(4):
        view.mouse.wheel(0, -240)
    view.wait_for_timeout(200)
    zoom = time.perf_counter() - started - 0.2
    desk.check(graph.screenshot() != before, f"{name}: the wheel zooms")
    desk.shot(view, f"{name}-zoom")
    desk.check(not problems, f"{name}: no error and no request {problems[:2]}")
    desk.found[name] = {
        "nodes": count,
        "ready_s": round(ready, 2),
        "zoom_s": round(zoom, 2),
        "matches": matches,
    }
    view.close()


def open_netron(desk: Desk, path: Path) -> None:
    """Open the exported graph in Netron's own page, and a node's metadata."""
    import netron
    import onnx

    problems: list[str] = []
    names = [n.name for n in onnx.load(path).graph.node]
    address = netron.serve(path.name, path.read_bytes(), address=("127.0.0.1", PORTS["netron"]))
    view = desk.view(problems)
    try:
        view.goto(f"http://{address[0]}:{address[1]}")
        view.wait_for_timeout(1500)
        consent = view.locator("button:has-text('Accept')")
        if consent.count() and consent.first.is_visible():
            consent.first.click()
        view.wait_for_selector("g.node, .node", state="attached", timeout=60_000)
        drawn = view.locator("g.node").count()
        desk.check(drawn >= len(names), f"netron: {drawn} nodes are drawn for {len(names)}")
        view.wait_for_timeout(2000)  # the layout moves until it is complete
        box = view.get_by_text("BatchNormalization").first.bounding_box()
        view.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        view.wait_for_selector(".sidebar-item-value-line", timeout=20_000)
        view.wait_for_timeout(500)
        facts = {str(e.get_attribute("title")) for e in view.locator(".sidebar-item-name input").all()}
        wanted = {"engine", "device", "kernel", "precision"}
        desk.check(wanted <= facts, f"netron: the node's properties have {sorted(facts)}")
        desk.shot(view, "netron")
        desk.check(not problems, f"netron: no error {problems[:2]}")
        desk.found["netron"] = {"nodes": len(names), "drawn": drawn}
    finally:
        view.close()
        netron.stop(address)


def open_model_explorer(desk: Desk, graph: Path, data: Path) -> None:
    """Open the graph with node data in Model Explorer's own server and page."""
    problems: list[str] = []
    start = (
        "import sys, model_explorer as m\n"
        "c = m.config().add_model_from_path(sys.argv[1]).add_node_data_from_path(sys.argv[2])\n"
        "print('DATA', c.to_url_param_value(), flush=True)\n"
        "m.visualize_from_config(c, host='127.0.0.1', port=int(sys.argv[3]), no_open_in_browser=True)"
    )
    port = PORTS["model explorer"]
    line = [sys.executable, "-c", start, str(graph), str(data), str(port)]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    view = desk.view(problems)
    try:
        assert server.stdout is not None
        query = next(text.split()[1] for text in server.stdout if text.startswith("DATA"))
        _wait_for(lambda: view.goto(f"http://localhost:{port}/?data={query}"))
        view.wait_for_selector("canvas", timeout=60_000)
        view.wait_for_timeout(6000)
        desk.shot(view, "model-explorer")
        text = view.inner_text("body")
        (only,) = json.loads(graph.read_text())["graphs"]
        desk.check(only["id"] in text, f"model explorer: the graph {only['id']!r} is open")
        fails = [w for w in ("Failed", "Error", "Unsupported") if w in text]
        desk.check(not fails and not problems, f"model explorer: no error {fails} {problems[:2]}")
        desk.found["model explorer"] = {"nodes": len(only["nodes"]), "data": data.name}
    finally:
        view.close()
        server.terminate()
        server.wait(20)


def _wait_for(work: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def read_files(desk: Desk, folder: Path) -> None:
    """Read the trace by Perfetto's classes, the JUnit file by a parser, and the rules by their JSON schema."""
    import jsonschema
    import junitparser
    import yaml
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString((folder / "run.pftrace").read_bytes())
    events = [p.track_event for p in trace.packet if p.HasField("track_event")]
    begins, ends = (sum(e.type == kind for e in events) for kind in (1, 2))
    desk.check(begins == ends > 0, f"perfetto: {begins} slices begin and {ends} end")
    names = {e.name for e in events if e.name}
    suite = junitparser.JUnitXml.fromstring((folder / "results.xml").read_bytes())
    desk.check(
        (suite.tests, suite.failures) == (3, 1), f"junitparser: {suite.tests} rules, {suite.failures} fails"
    )
    assert ET.parse(folder / "results.xml").getroot().tag == "testsuites"
    schema = json.loads((ROOT / "docs/schema/check.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((folder / "rules.yaml").read_text()), schema)
    desk.check(True, "jsonschema: the rules are valid")
    desk.found["files"] = {
        "packets": len(trace.packet),
        "slices": begins,
        "names": len(names),
        "rules": suite.tests,
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--files", type=Path)
    parser.add_argument("--shots", type=Path, default=Path("build/viewers"))
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("playwright is missing: pip install playwright netron model-explorer") from None
    if args.files is not None and not args.files.is_dir():
        raise SystemExit(f"--files: no folder {args.files}")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit(f"no browser: install one of {', '.join(BROWSERS)}")
    args.shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"])  # fmt: skip
        desk = Desk(browser, args.shots)
        large = Path(folder)
        drawn_model(large / "drawn.onnx", args.nodes)
        run = [
            "run",
            str(large / "drawn.onnx"),
            "--engine",
            "native",
            "--device",
            "cpu",
            "--html",
            str(large / "drawn.html"),
        ]
        subprocess.run(
            [sys.executable, "-m", "xpuruntime", *run], check=True, capture_output=True, timeout=600
        )
        open_receipt(desk, large / "drawn.html", "drawn", "block456/conv")
        if args.files is not None:
            open_receipt(desk, args.files / "receipt.html", "receipt", "relu_12")
            read_files(desk, args.files)
            open_netron(desk, args.files / "receipt.onnx")
            open_model_explorer(
                desk,
                (args.files / "explorer.json").absolute(),
                (args.files / "explorer.kernel.json").absolute(),
            )
        browser_version = browser.version
        browser.close()
    tools = {t: metadata.version(t) for t in TOOLS} | {"chromium": browser_version}
    document = {"machine": facts() | {"tools": tools}, **desk.found, "failures": desk.failures}
    if args.out is not None:
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(desk.failures)} failures")
    return 1 if desk.failures else 0


if __name__ == "__main__":
    sys.exit(main())
