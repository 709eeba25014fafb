"""Names from files in whatever people read: no control character reaches a terminal, and no name begins a line of its own."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime import printable
from xpuruntime.profiler.html import html_report

FORGED = "confirmed by evidence, 999 runs"
EVIL = f"n\x1b[2J\x1b]0;owned\x07\x9b1m\u202eback\r\nreceipt for x: {FORGED}\x85\u2028  \x00end"


def harmless(text: str) -> bool:
    """Nothing that a terminal obeys, and the forged words begin no line."""
    kinds = {unicodedata.category(c) for c in text if c not in "\n\t"}
    turning = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    return (
        not kinds & {"Cc", "Cs", "Zl", "Zp"}
        and not turning & set(text)
        and not any(line.strip().startswith(("receipt for x", FORGED)) for line in text.split("\n"))
    )


@given(st.text(st.characters(categories=None)))
def test_a_line_is_one_line_that_says_everything(text: str) -> None:
    shown = printable.line(text)
    assert harmless(shown) or FORGED in text
    assert "\n" not in shown
    shown.encode()
    if not set(text) & set("\\") and "\r" not in text:
        assert shown.encode("latin-1", "backslashreplace").decode("unicode_escape") == text


@given(st.dictionaries(st.text(st.characters(categories=None)), st.text(st.characters(categories=None))))
def test_json_is_exact(document: dict[str, str]) -> None:
    text = printable.as_json(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(text) == document
    text.encode()
    assert not {unicodedata.category(c) for c in text if c not in "\n\t"} & {"Cc", "Cs", "Zl", "Zp"}


def test_errors_and_log_messages(caplog: pytest.LogCaptureFixture) -> None:
    error = xrt.ModelError(f"model {EVIL}", EVIL, got=EVIL, do=EVIL)
    assert harmless(str(error).replace("\n    ", "\n>"))
    assert all(line.startswith("    ") for line in str(error).split("\n")[1:])
    assert error.to_json()["got"] == EVIL
    with caplog.at_level(logging.WARNING, "xpuruntime.session"):
        printable.logger("xpuruntime.session").warning("%s runs", EVIL)
    (said,) = caplog.messages
    assert "\x1b" not in said
    assert f"\n    receipt for x: {FORGED}" in said


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model all of whose names are hostile, in a file whose name is."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(n + EVIL, TensorProto.FLOAT, ["d" + EVIL, 4]) for n in "xy"]
    node = helper.make_node("Relu", ["x" + EVIL], ["y" + EVIL], name=EVIL)
    graph = helper.make_graph([node], EVIL, info[:1], info[1:])
    folder = tmp_path_factory.mktemp("hostile")
    path = folder / (EVIL.replace("\0", "").replace("/", "") + ".onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "native"])
def test_plans_and_receipts(model: Path, engine: str, tmp_path: Path) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    with xrt.InferenceSession(model, engine=engine, device="cpu") as session:
        session.run([np.ones((2, 4), np.float32)])
        receipt = session.receipt()
        shown = [
            str(session.plan),
            session.plan.explain(nodes=True),
            str(receipt),
            *map(str, receipt.findings),
        ]
        shown += [decision.explain() for decision in session.plan.decisions]
        assert all(map(harmless, shown)), shown
        assert sum(line.startswith("receipt for ") for line in str(receipt).split("\n")) == 1
        assert session.plan.to_json()["nodes"][0]["name"] == EVIL
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")
        html_report(tmp_path / "r.html", EVIL, receipt)
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert not set(page) & set("\x1b\x07\x9b\x85\u202e\u2028")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "verb", [("inspect", "--nodes"), ("explain", "--nodes"), ("run", "--receipt"), ("compare",)]
)
def test_the_command_line(model: Path, verb: tuple[str, ...]) -> None:
    pytest.importorskip("onnxruntime")
    name, *flags = verb
    engine = {"inspect": (), "compare": ("--engines", "onnxruntime,native")}.get(
        name, ("--engine", "onnxruntime")
    )
    command = [sys.executable, "-m", "xpuruntime.cli", name, str(model), *flags, *engine]
    for more in ((), ("--json",)):
        done = subprocess.run([*command, *more], capture_output=True, check=False, timeout=300)
        text = done.stdout.decode()
        assert done.returncode == 0, done.stderr
        assert harmless(text) or more
        assert not set(text + done.stderr.decode()) & set("\x1b\x07\x9b\x85\u202e\u2028")
        if more:
            assert EVIL in json.dumps(json.loads(text), ensure_ascii=False).replace(
                "\\u001b", "\x1b"
            ) or json.loads(text)


def test_an_ascii_terminal_gets_escapes(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from support.onnx_models import small_classifier

    onnx.save(small_classifier(), path := tmp_path / "modèle→.onnx")
    environment = os.environ | {
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
    }
    command = [sys.executable, "-m", "xpuruntime.cli", "inspect", str(path)]
    for more in ((), ("--json",)):
        done = subprocess.run(
            [*command, *more], capture_output=True, env=environment, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        if more:
            json.loads(done.stdout)
        else:
            assert done.stdout.isascii()


def test_tables_and_progress_take_text_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpuruntime.cli import console

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    console.print_table(f"[/red] :snake: {EVIL}", ("a",), [(EVIL,)])
    console.print_line(EVIL)
    with console.progress("reading [/red][bold]m.onnx") as now:
        now("[/nothing]")
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert shown.startswith("[/red] :snake: n")
    assert not set(shown) & set("\x1b\x07\x9b\x85\u202e\u2028\r")
