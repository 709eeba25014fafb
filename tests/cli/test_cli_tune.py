"""``xpu tune``, and ``xpu explain`` and ``xpu lint`` by its file."""

from __future__ import annotations

from pathlib import Path


def test_tune_explain_and_lint(xpu, tmp_path: Path, model: Path) -> None:
    times = tmp_path / "times.json"
    options = ("-d", "cpu", "--threads", 1, "--rounds", 2, "--bucket", "batch=3")
    assert xpu("tune", model, "-o", times).code == 4
    document = xpu("tune", model, "-o", times, *options, "--json").json
    assert document["finished"]
    assert document["rounds_measured"] == 4
    assert [r["shapes"] for r in document["runs"]] == [{"batch": 3}]
    shown = xpu("tune", model, "-o", times, *options, "--budget", "5m").stdout
    assert "calibration error" in shown
    assert f"kernel_times: {times}" in shown.replace("\n", "")
    shape = ("--shape", "batch=3", "--times", times)
    predicted = xpu("explain", model, *shape, "--json").json
    assert predicted["unknown"] == 0
    assert predicted["predicted_us"] > 0
    policy = tmp_path / "p.yaml"
    policy.write_text("version: 1\nkernel: {matmul: gemv}\n")
    linted = xpu("lint", policy, model, *shape, "--json").json
    assert linted["prediction"]["calls"][0]["kernel"] == "gemv"
    assert xpu("explain", model, *shape, "--device", "h200").code == 4
    assert xpu("explain", model, *shape, "--threads", 2).code == 2
    assert xpu("tune", model, "-o", times, "--budget", "soon").code == 2
    assert xpu("lint", policy, "--times", times).code == 2


def test_sessions_and_programs_are_measured_when_they_are_built(xpu, tmp_path: Path, model: Path) -> None:
    sized = [model, "--threads", 1, "--cache-dir", tmp_path / "store"]
    asked = ["--engine", "native", "--device", "cpu", "--tune", 60, "--shape", "batch=2"]
    shown = [xpu("run", *sized, *asked, "--receipt").stdout for _ in range(2)]
    tune = [[line.strip() for line in text.splitlines() if "tune for " in line] for text in shown]
    assert tune[0] == tune[1] != []
    assert "measured on" in tune[0][0] or "no call has several kernels" in tune[0][0]
    output = tmp_path / "tuned.npubin"
    assert xpu("compile", model, "--tune", 60, "--shape", "batch=2", "-o", output).code == 0
    assert "tune for " in xpu("inspect", output).stdout
    refused = xpu("compile", model, "--tune", 60, "-t", "cpu:x86-64-v3", "--shape", "batch=2", "-o", output)
    assert refused.code != 0
    assert "Name the target cpu, cuda or cuda:0, or leave --tune out." in refused.stdout + refused.stderr
    assert xpu("compile", model, "--tune", 60, "--passes", "1", "--shape", "batch=2").code == 2
    assert xpu("tune", model, "--tune", 60, "-o", tmp_path / "t.json").code == 2
    assert "--tune " not in xpu("tune", "--help").stdout
