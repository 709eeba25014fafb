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
