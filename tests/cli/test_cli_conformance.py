"""``xpu conformance``: a backend of one's own by its dotted name, as text and as JSON, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

EDGE = ("conformance", "examples.porting.edge_backend:EdgeBackend", "--target", "examples.porting.edge_target:EdgeTarget")  # fmt: skip
ONE = ("--suite", "kernels", "--sample", 1)

WRONG = """
from examples.porting.edge_target import EdgeTarget

class Wrong(EdgeTarget):
    def shader_source(self, filename):
        return super().shader_source(filename).replace("np.multiply(a, b, out=out)", "np.add(a, b, out=out)")
"""


def test_a_table_with_counts_and_reasons(xpu) -> None:
    done = xpu(*EDGE, *ONE)
    assert done.code == 0
    assert "native" in done.stdout
    assert "on EdgeBackend (npu-sim): npu-sim:edge" in done.stdout
    assert "npu-sim:edge has no kernel for addmm" in done.stdout
    assert done.stdout.endswith("nothing is wrong\n")


def test_json_has_every_count(xpu) -> None:
    document = xpu(*EDGE, *ONE, "--json").json
    assert document["ok"] is True
    (suite,) = document["suites"]
    assert suite["suite"] == "kernels"
    assert suite["right"] > 5
    assert suite["right"] + suite["wrong"] + suite["refused"] + suite["excused"] == suite["cases"]


def test_a_page_has_counts_reasons_and_what_failed(xpu, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    from xpuruntime.testing.conformance import CaseFinding, ConformanceReport, SuiteReport
    from xpuruntime.testing.conformance.page import write_page

    done = xpu(*EDGE, *ONE, "--report", tmp_path / "page.html")
    assert done.code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "npu-sim:edge has no kernel for addmm" in page
    assert "nothing is wrong" in page
    found = [
        CaseFinding("timm/a cpu float32 batch 2", "right", "error 1e-7"),
        CaseFinding("timm/b cpu float32 batch 2", "wrong", "error <2>"),
        CaseFinding("timm/c", "not run", "export: no"),
    ]
    facts = {"engine": "native", "version": "1", "device": "cpu", "machine": "one"}
    suites = [SuiteReport("models", found), SuiteReport("ops", not_run="needs torch")]
    page = write_page(tmp_path / "two.html", ConformanceReport(facts, suites)).read_text(encoding="utf-8")
    for text in (
        "1 failed",
        "timm/b",
        "error &lt;2&gt;",
        "2 networks",
        "1 did not run",
        "export: no",
        "needs torch",
    ):
        assert text in page


def test_a_wrong_kernel_ends_with_one(xpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is in a folder that already has one, as it does while it is written."""
    (tmp_path / "wrong_target.py").write_text(WRONG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = xpu(*EDGE[:-1], "wrong_target:Wrong", *ONE)
    assert done.code == 1
    assert "kernels: WRONG mul(3x1x5, 4x1) float32 by elementwise/ported" in done.stdout
    assert "1 wrong" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("conformance", "onnxruntme"), 6, "Did you mean 'onnxruntime'"),
        (
            ("conformance", "examples.porting.edge_backend:EdgeBackend"),
            6,
            "--target package.module:ToyTarget",
        ),
        (("conformance", "--report", "nowhere/page.html"), 4, "no file can be written there"),
        (("conformance", "--report", "/"), 4, "no file can be written there"),
        (("conformance", "--suite", "node"), 4, "Suites are nodes, ops, kernels, networks"),
        (("conformance", "--suite", ","), 2, "--suite: names nothing"),
        (("conformance", "--only", "bert"), 2, "--only: is for the suite models"),
        (("conformance", "--suite", "nodes", "--workers", "2"), 2, "--workers: is for the suite models"),
        (("conformance", "-s", "models", "--only", ","), 2, "--only: names nothing"),
        (("conformance", "-s", "models", "--precision", ","), 2, "--precision: names nothing"),
        (("conformance", "-s", "models", "--precision", "float3"), 4, "Use float32, float16, bfloat16"),
        (("conformance", "-s", "models", "--precision", "int8"), 4, "Use float32, float16, bfloat16"),
        (("conformance", "-s", "models", "--batch", "x"), 4, "Give a number from 1 to 4096, or open"),
        (("conformance", "-s", "models", "--batch", "0"), 4, "Give a number from 1 to 4096, or open"),
        (("conformance", "-s", "models", "--also", "tpu"), 6, "no such device"),
        (("conformance", "-s", "models", "--workers", "9" * 20), 4, "Give 0 to 1024."),
        (("conformance", "-s", "models", "--results", "/"), 9, "cannot read"),
        (("conformance", "--jobs", "-1"), 2, "--jobs"),
        (("conformance", "--jobs", "9" * 20), 4, "Give 0 to 1024."),
        (("conformance", "-d", "cuda:0"), 4, "device does not apply: cpu is the device"),
        (("conformance", "onnxruntime", "-d", "tpu"), 6, "no such device"),
        (("conformance", "native", "-d", "tpu"), 6, "no such device"),
        (("conformance", "onnxruntime", "--target", "cpu"), 4, "target does not apply"),
        (("conformance", "os:path"), 6, "is not a backend of native programs"),
        (("conformance", "os.path:join"), 6, "cannot be called without arguments: TypeError"),
        ((*EDGE[:-1], "os.path:join"), 6, "cannot be called without arguments: TypeError"),
    ],
)
def test_what_cannot_be_had_is_said(xpu, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = xpu(*arguments)
    assert done.code == code
    assert says in done.stderr


@pytest.mark.parametrize("text", ["no JSON", "[1]", "\xff"])
def test_a_file_that_has_no_results_is_kept(xpu, tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(text.encode("latin-1"))
    done = xpu("conformance", "--suite", "models", "--sample", 1, "--results", file, "--only", "no_such")
    assert done.code == 4, done.stderr
    assert "is not a results file" in done.stderr
    assert file.read_bytes() == text.encode("latin-1")
