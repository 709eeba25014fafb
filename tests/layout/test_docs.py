"""The documents run: every ```python, ```bash and ```console block, in order per file, in a folder with a small model.

The folder holds what a reader would have: `model.onnx` (input "input"), `other.onnx` (the same with one weight changed) and
`inputs.npz`. Python blocks of a file share one process and its names. Of a console block the lines after `$ ` run.
A block that cannot run here follows a comment that says why: `<!-- not run: needs a CUDA device -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.ko.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
LANGUAGES = ("python", "bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; ``excuse`` is why it is not run, or empty."""

    line: int
    language: str
    text: str
    excuse: str


def blocks(text: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(text):
        marker = NOT_RUN.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(line, match[1], match[2], marker[1] if marker else ""))
    return found


def driver(page: str, found: list[Block]) -> str:
    """A program that runs the blocks in order and says which one failed. Line numbers in tracebacks are the page's."""
    lines = ["import os, subprocess, sys", "names = {'__name__': '__main__'}"]
    for block in found:
        if block.language not in LANGUAGES or block.excuse:
            continue
        lines.append(f"print('block at line {block.line}', file=sys.stderr, flush=True)")
        if block.language == "python":
            source = "\n" * (block.line - 1) + block.text
            lines.append(f"exec(compile({source!r}, {page!r}, 'exec'), names)")
        else:
            shown = block.language == "console"
            commands = (
                [c[2:] for c in block.text.splitlines() if c.startswith("$ ")] if shown else [block.text]
            )
            lines += [
                f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {c!r}], check=True)" for c in commands
            ]
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder."""
    from examples.small_model import small_model

    model = small_model()
    onnx.save(model, tmp_path / "model.onnx")
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights.flat[0] += 0.5
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(weights, model.graph.initializer[0].name)
    )
    onnx.save(model, tmp_path / "other.onnx")
    np.savez(
        tmp_path / "inputs.npz",
        input=np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32),
    )
    return tmp_path


def run(page: str, text: str, folder: Path, store: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # for `support`
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    # A page that trims or clears the store has one of its own.
    environment["XPU_CACHE_DIR"] = str(folder / "cache" if "xpu cache" in text else store)
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", driver(page, blocks(text))],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [p for p in PAGES if p.is_file()], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_runs(path: Path, folder: Path, shared_store: Path) -> None:
    done = run(path.name, path.read_text(encoding="utf-8"), folder, shared_store)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


FOLDERS = ("docs", "examples", "benchmarks", "cpp", "tests")
WRITTEN = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_s_links_lead_somewhere_and_its_excuses_say_why(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    outside = FENCE.sub("", text)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", outside):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
    for block in blocks(text):
        assert not block.excuse or len(block.excuse) > 9, (
            f"{path.name}:{block.line}: {block.excuse!r} is no reason"
        )
        assert block.language != "console" or "$ " in block.text, f"{path.name}:{block.line} has no command"


EXAMPLE = textwrap.dedent("""
    ```python
    a = 1
    ```
    ```bash
    test -f model.onnx
    ```
    <!-- not run: there is no such command -->
    ```bash
    no-such-command
    ```
    ```python
    assert a == {value}
    ```
""")


def test_the_runner_shares_names_skips_excuses_and_sees_failures(folder: Path, shared_store: Path) -> None:
    assert run("page.md", EXAMPLE.format(value=1), folder, shared_store).returncode == 0
    wrong = run("page.md", EXAMPLE.format(value=2), folder, shared_store)
    assert wrong.returncode != 0
    assert 'File "page.md", line 13' in wrong.stderr
    missing = run(
        "page.md",
        EXAMPLE.format(value=1).replace("test -f model.onnx", "test -f no.onnx"),
        folder,
        shared_store,
    )
    assert missing.returncode != 0
    shown = run(
        "page.md",
        "```console\n$ echo hello > made\nhello\n$ test -f made\n$ false\n```\n",
        folder,
        shared_store,
    )
    assert shown.returncode != 0
    assert (folder / "made").exists()


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("name", ["inference_basic.py", "npu_inference.py"])
def test_an_example_runs_as_it_stands_from_any_folder(name: str, folder: Path) -> None:
    for arguments in ([], ["model.onnx"]):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name), *arguments],
            cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "receipt for " in done.stdout
        assert "confirmed by evidence" in done.stdout
    if name == "npu_inference.py" and "UnavailableError" not in done.stdout:
        assert "DeviceUnavailable: " in done.stdout
        assert "onnxruntime on cpu runs model instead" in done.stdout
