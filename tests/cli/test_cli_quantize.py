"""``xpu quantize``: what it prints, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the quantizer")


@pytest.fixture
def net(tmp_path: Path) -> tuple[Path, Path, Path]:
    from xpuruntime.workbench.doctor import smoke_model

    model, feeds, _ = smoke_model()
    (tmp_path / "model.onnx").write_bytes(model)
    np.savez(tmp_path / "samples.npz", **{n: np.concatenate([a, 2 * a]) for n, a in feeds.items()})
    return tmp_path / "model.onnx", tmp_path / "samples.npz", tmp_path / "model.int8.onnx"


def test_the_worst_node_is_named_and_the_exit_code_is_that_of_the_budget(
    xpu: Any, net: tuple[Path, Path, Path]
) -> None:
    model, data, out = net
    done = xpu("quantize", model, "--data", data, "-o", out)
    assert done.code == 0
    assert "worst quantized node: product" in done.stdout
    assert "0 of 1 products in floats" in done.stdout
    assert out.is_file()
    assert "precision: int8" in out.with_suffix(".policy.yaml").read_text()
    report = xpu("quantize", model, "--data", data, "-o", out, "--json").json
    assert report["ok"]
    assert report["worst"] == report["nodes"][0]["node"]
    assert set(report["nodes"][0]) == {"node", "op", "error", "added", "kept"}
    over = xpu("quantize", model, "--data", data, "-o", out, "--max-error", "0", "--json")
    assert over.code == 1
    assert over.json["worst"] is None


def test_errors_have_the_codes_of_their_kind(xpu: Any, net: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, out = net
    for code, arguments in (
        (3, ("absent.onnx", "--data", data, "-o", out)),
        (4, (model, "--data", tmp_path / "absent", "-o", out)),
        (5, (model, "--data", data, "-o", out, "--method", "best")),
        (9, (model, "--data", data, "-o", tmp_path / "absent" / "out.onnx")),
    ):
        failed = xpu("quantize", *arguments)
        assert failed.code == code, failed.stderr
        assert "do:" in failed.stderr
