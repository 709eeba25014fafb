"""``xpu lint``: findings with lines, coverage, exit codes, JSON."""

from __future__ import annotations

from pathlib import Path

import pytest


def policy(folder: Path, *lines: str) -> Path:
    path = folder / "p.yaml"
    path.write_text("\n".join(("version: 1", *lines, "")))
    return path


def test_lint_without_a_model(xpu, tmp_path: Path) -> None:
    path = policy(tmp_path, "kernel:", "  rules:", "    - {op: matmul, shape: M < 8 and M > 8, prefer: gemv}")
    done = xpu("lint", path)
    assert done.code == 0
    assert f"{path}:4: warning: kernel.rules[0].shape: no shape satisfies" in done.stdout
    assert "[never]" in done.stdout
    document = xpu("lint", path, "--json").json
    assert document["ok"] is True
    assert [f["code"] for f in document["findings"]] == ["never"]
    assert document["findings"][0]["line"] == 4


def test_lint_exits_with_1_for_an_error_and_5_for_no_policy(xpu, tmp_path: Path, model: Path) -> None:
    forced = policy(tmp_path, "kernel:", "  rules:", "    - {op: matmul, use: gemv}")
    options = ("--target", "cuda:sm_90", "--shape", "batch=64")
    done = xpu("lint", forced, model, *options)
    assert done.code == 1
    assert f"{forced}:4: error: kernel.rules[0]: forces 'gemv', which does not compute" in done.stdout
    assert xpu("lint", forced, model, *options, "--json").json["ok"] is False
    (tmp_path / "bad.yaml").write_text("version: 1\nkernel:\n  matmul: nothing\n")
    done = xpu("lint", tmp_path / "bad.yaml")
    assert done.code == 5
    assert "bad.yaml:3] kernel.matmul: no such kernel" in done.stderr.replace("\n", "")


def test_lint_needs_no_device_and_shows_coverage(xpu, tmp_path: Path, model: Path) -> None:
    path = policy(
        tmp_path, "kernel:", "  matmul: cublasLt", "  rules:", "    - {node: product, deterministic: true}"
    )
    done = xpu("lint", path, model, "-t", "cuda:sm_90", "--shape", "batch=64", "--nodes")
    assert done.code == 0
    assert "Rules on line for cuda:sm_90" in done.stdout
    assert "kernel.matmul: product" in done.stdout
    assert "0 of 1 nodes that get a kernel are matched by no rule" in done.stdout


def test_options_of_lint_need_a_model(xpu, tmp_path: Path) -> None:
    assert xpu("lint", policy(tmp_path, "kernel: {matmul: gemv}"), "--target", "cpu").code == 2


def test_a_session_warns_of_a_rule_that_matches_nothing(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")
    from xpuruntime import InferenceSession

    path = policy(
        tmp_path,
        "kernel:",
        "  rules:",
        "    - {node: absent*, prefer: naive}",
        "    - {node: prod*, prefer: naive}",
    )
    with InferenceSession(model, engine="onnxruntime", device="cpu", policy=path) as session:
        warnings = [w for w in session.plan.warnings if "policy" in w]
    assert warnings == ["policy p.yaml, kernel.rules[0]: matches none of the 2 nodes of line"]
    assert sum("matches none" in r.getMessage() for r in caplog.records) == 1


def test_a_native_session_warns_of_families_without_a_node(tmp_path: Path, model: Path) -> None:
    from xpuruntime import InferenceSession

    path = policy(
        tmp_path, "kernel:", "  rules:", "    - {op: conv, prefer: naive}", "    - {op: matmul, prefer: generated}",
        "execution: {fixed_shapes: {batch: 1}}",
    )  # fmt: skip
    with InferenceSession(model, engine="native", device="cpu", policy=path) as session:
        assert [w for w in session.plan.warnings if "policy" in w] == [
            "policy p.yaml, kernel.rules[0]: has no effect: no node of conv gets a kernel in line"
        ]


def saved_receipt(xpu, model: Path, folder: Path, word: str) -> Path:
    rules = folder / f"{word}.yaml"
    rules.write_text(f"version: 1\nkernel: {{rules: [{{node: product, use: {word}}}]}}\n")
    path = folder / f"{word}.json"
    done = xpu(
        "run",
        model,
        "-e",
        "native",
        "-d",
        "cpu",
        "--shape",
        "batch=2",
        "--policy",
        rules,
        "--save-receipt",
        path,
    )
    assert done.code == 0, done.stderr
    return path


def test_diff_and_check_of_receipts(xpu, tmp_path: Path, model: Path) -> None:
    old, new = (saved_receipt(xpu, model, tmp_path, word) for word in ("generated", "gemv"))
    done = xpu("diff", old, new)
    assert done.code == 0
    assert "product" in done.stdout
    assert "kernel matmul/generated -> matmul/gemv" in done.stdout
    assert xpu("diff", old, new, "--exit-code").code == 1
    assert xpu("diff", old, old, "--exit-code").code == 0
    assert [n["name"] for n in xpu("diff", old, new, "--json").json["nodes"]] == ["product"]
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\nrules:\n  - {rule: kernels, op: matmul, forbid: gemv}\n  - {rule: confirmed}\n"
    )
    files = ("--junit", tmp_path / "j.xml", "--markdown", tmp_path / "c.md")
    done = xpu("check", new, "--against", old, "--rules", rules, *files)
    assert done.code == 1
    assert "gemv is forbidden" in done.stdout
    assert (tmp_path / "j.xml").read_bytes().startswith(b"<?xml")
    assert "**FAIL**" in (tmp_path / "c.md").read_text()
    assert xpu("check", old, "--rules", rules).code == 0
    assert xpu("check", old, "--rules", rules, "--json").json["ok"] is True


def test_bad_files_of_diff_and_check_are_named(xpu, tmp_path: Path, model: Path) -> None:
    done = xpu("diff", tmp_path / "absent.json", model)
    assert done.code == 9
    assert "absent.json" in done.stderr
    done = xpu("diff", model, model)
    assert done.code == 9
    assert "line.onnx" in done.stderr
    (tmp_path / "rules.yaml").write_text("version: 1\nrules: [{rule: nothing}]\n")
    done = xpu("check", model, "--rules", tmp_path / "rules.yaml")
    assert done.code == 5
    assert "rules.yaml:2" in done.stderr


def test_lock_then_run_under_it(xpu, tmp_path: Path, model: Path) -> None:
    path = tmp_path / "p.lock"
    done = xpu(
        "lock",
        model,
        "-e",
        "native",
        "-d",
        "cpu",
        "--threads",
        1,
        "--bucket",
        "batch=2",
        "--bucket",
        "batch=5",
        "-o",
        path,
    )
    assert done.code == 0, done.stderr
    assert "batch=2 on cpu:" in done.stdout
    assert "batch=5 on cpu:" in done.stdout
    assert "native.target: cpu:" in done.stdout
    for batch in (2, 5):
        done = xpu("run", model, "--lock", path, "--shape", f"batch={batch}", "--json")
        assert done.code == 0, done.stderr
        assert done.json["engine"] == "native"
    done = xpu("run", model, "--lock", path, "--shape", "batch=3", "--json")
    assert done.code == 6
    assert done.json["error"] == "LockError"
    assert "is not in the lock" in done.json["what"]
    assert xpu("run", model, "--lock", path, "-e", "native").code == 5
    assert xpu("diff", path, path, "--exit-code").code == 0


def test_lock_of_another_model_names_it(xpu, tmp_path: Path, model: Path, other: Path) -> None:
    path = tmp_path / "p.lock"
    assert (
        xpu("lock", model, "-e", "native", "-d", "cpu", "--shape", "batch=2", "-o", path, "--json").code == 0
    )
    done = xpu("run", other, "--lock", path, "--shape", "batch=2", "--json")
    assert (done.code, done.json["error"]) == (6, "LockError")
    assert [c["name"] for c in done.json["changes"]] == ["model"]
    assert xpu("lock", model, "-o", path, "--on-mismatch", "ignore").code == 2


def test_pages_and_files_for_other_viewers(xpu, tmp_path: Path, model: Path) -> None:
    receipt, trace = tmp_path / "r.json", tmp_path / "t.pftrace"
    options = ("--engine", "native", "--device", "cpu")
    done = xpu(
        "run", model, *options, "--save-receipt", receipt, "--trace", trace, "--html", tmp_path / "r.html"
    )
    assert done.code == 0, done.stderr
    assert trace.read_bytes()[:1] == b"\n"  # field 1, a message
    pages = {"r.html": "line: receipt"}
    for page, title, *words in (
        ("i.html", "line: receipt", "inspect", receipt),
        ("e.html", "line: plan", "explain", model, *options),
        ("d.html", "line: difference of two receipts", "diff", receipt, receipt),
        ("b.html", "line: bisection", "bisect", model, "--engine-a", "native", "--no-save"),
    ):
        done = xpu(*words, "--html", tmp_path / page)
        assert done.code == 0, done.stderr
        pages[page] = title
    for page, title in pages.items():
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert f"<title>{title}</title>" in text
        assert '["product",' in text
    assert xpu("inspect", receipt, "--json").json["format"] == "xpuruntime-receipt"
    assert xpu("inspect", receipt, "--export", tmp_path / "v.onnx").code == 0
    assert xpu("inspect", receipt, "--export", tmp_path / "v.json").code == 0
    assert {p.name for p in tmp_path.glob("v.*")} >= {"v.onnx", "v.json", "v.engine.json", "v.step_us.json"}
    assert xpu("inspect", receipt, "--export", tmp_path / "v.png").code == 2
    assert xpu("inspect", model, "--html", tmp_path / "m.html").code == 2


def test_run_names_every_engine_of_a_model_on_several(xpu, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = policy(tmp_path, "execution: {engine: onnxruntime, place: {product: native}}")
    options = ("--policy", path, "--shape", "batch=2")
    document = xpu("run", model, *options, "--json").json
    assert set(document["engines"]) == {"onnxruntime", "native"}
    assert document["engine"] == " + ".join(document["engines"])
    line = " + ".join(f"{name} {version}" for name, version in document["engines"].items())
    assert f"on {line}, cpu, float32" in xpu("run", model, *options).stdout


def test_inspect_shows_a_lock_and_writes_its_page(xpu, tmp_path: Path, model: Path) -> None:
    path = policy(tmp_path, "execution: {engine: onnxruntime, place: {product: native}}")
    pytest.importorskip("onnxruntime")
    assert xpu("lock", model, "--policy", path, "--bucket", "batch=2", "-o", tmp_path / "p.lock").code == 0
    done = xpu("inspect", tmp_path / "p.lock", "--html", tmp_path / "p.html")
    assert done.code == 0
    assert "native" in done.stdout
    assert "r0: " in done.stdout
    assert "product" in (tmp_path / "p.html").read_text()
    assert xpu("inspect", tmp_path / "p.lock", "--json").json["format"] == "xpuruntime-lock"


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "no JSON", '{"format": "other"}', '{"format": 7}', "\N{SNOWMAN}"]
)
def test_inspect_refuses_a_file_as_diff_does(xpu, tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.lock"
    path.write_bytes(text.encode("utf-16" if text == "\N{SNOWMAN}" else "utf-8"))
    shown, compared = xpu("inspect", path), xpu("diff", path, path)
    assert (shown.code, compared.code) == (9, 9)
    assert f"[file {path}] is not a plan, receipt, program or lock" in shown.stderr
    assert shown.stderr == compared.stderr
