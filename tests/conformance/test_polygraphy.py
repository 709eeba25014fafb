"""Polygraphy, by its own command line and its own comparator, on our runner compared with ONNX Runtime's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("polygraphy")
onnx = pytest.importorskip("onnx")

from support.onnx_models import small_classifier  # noqa: E402

HOOK = "xpuruntime.testing.polygraphy_runner:argument_groups"


@pytest.fixture
def polygraphy(tmp_path: Path):
    """Run Polygraphy, which finds us by the entry point of the installed package."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-c",
            "import sys; from polygraphy.tools import main; sys.exit(main())",
            "run",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(small_classifier(batch=2), path)
    return path


def test_the_project_declares_the_hook(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["polygraphy.run.plugins"] == {"xpu": HOOK}


@pytest.mark.sampled(1, group="polygraphy", one_in=2)
def test_polygraphy_finds_us_equal_to_onnx_runtime(polygraphy, model: Path) -> None:
    done = polygraphy(
        str(model), "--onnxrt", "--xpu", "--xpu-engine", "onnxruntime", "--rtol", "1e-5", "--atol", "1e-6"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "xpu-runner" in done.stdout
    assert "PASSED" in done.stdout


@pytest.mark.sampled(1, group="polygraphy", one_in=2)
def test_polygraphy_judges_another_engine(polygraphy, model: Path) -> None:
    pytest.importorskip("openvino")
    done = polygraphy(
        str(model),
        "--onnxrt",
        "--xpu",
        "--xpu-engine",
        "openvino",
        "--xpu-device",
        "cpu",
        "--rtol",
        "1e-3",
        "--atol",
        "1e-5",
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.sampled(1, group="polygraphy", one_in=2)
def test_polygraphy_tells_a_wrong_model_apart(polygraphy, model: Path, tmp_path: Path) -> None:
    """The comparison can fail: our runner on one model, and what ONNX Runtime said of another."""
    other = tmp_path / "other.onnx"
    onnx.save(small_classifier(seed=1, batch=2), other)
    saved = tmp_path / "outputs.json"
    assert polygraphy(str(other), "--onnxrt", "--save-outputs", str(saved)).returncode == 0
    done = polygraphy(str(model), "--xpu", "--xpu-engine", "onnxruntime", "--load-outputs", str(saved))
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr


def test_an_error_of_ours_reaches_the_user(polygraphy, model: Path) -> None:
    done = polygraphy(str(model), "--xpu", "--xpu-engine", "onnxruntme")
    assert done.returncode != 0
    assert "onnxruntime" in done.stdout + done.stderr  # the suggestion
