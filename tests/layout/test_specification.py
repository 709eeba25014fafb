"""The specification's inference examples on the machine at hand.

Without the device an example ends in the named error, with advice. With device and engine changed to what is there, the same text runs, and
its numbers are those of `onnx.reference`. `test_specification_blocks.py` runs every block as it is written.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.numerics import compare, tolerance_for

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

sys.path.insert(0, str(Path(__file__).parent))
from spec_blocks import BLOCKS  # noqa: E402

INFERENCE, OPENVINO_NPU, QNN_NPU = "design 7.3", "design 10.3", "design 11.3"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from examples.small_model import small_model

    path = tmp_path_factory.mktemp("specification") / "model.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.fixture
def names(model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The setup of an example: its model in the working folder, and what earlier examples imported or made."""
    monkeypatch.chdir(model.parent)
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    return {"gk": xrt, "KernelPolicy": xrt.KernelPolicy, "ExecutionPolicy": xrt.ExecutionPolicy, "x": x}


def reference(model: Path, x: np.ndarray) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(model)).run(None, {"input": x})[0]  # type: ignore[no-any-return]


def run(example: str, names: dict[str, Any], changes: dict[str, str]) -> np.ndarray:
    """The example with its words changed, each of which must be there; its session's output on x."""
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    exec(compile(example, "example", "exec"), names)
    out = names["out"] if "out" in names else names["sess"].run({"input": names["x"]})
    (value,) = out.values()
    return value  # type: ignore[no-any-return]


# As written


def test_tensorrt_as_written_says_what_to_use_instead(names: dict[str, Any]) -> None:
    with pytest.raises(xrt.EngineUnavailable, match="tensorrt") as caught:
        exec(BLOCKS[INFERENCE], names)
    assert caught.value.do
    assert caught.value.decision is not None
    assert caught.value.decision.chosen is None


def test_the_intel_npu_as_written_repeats_the_vendor_s_reason(names: dict[str, Any]) -> None:
    import openvino

    if "NPU" in openvino.Core().available_devices:
        pytest.skip("this machine has an NPU: the example runs")
    with pytest.raises(xrt.DeviceUnavailable, match="OpenVINO lists no NPU here") as caught:
        exec(BLOCKS[OPENVINO_NPU], names)
    assert "allow_fallback='cpu'" in caught.value.do


def test_qualcomm_as_written_falls_back_with_one_warning(
    names: dict[str, Any], model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        value = run(BLOCKS[QNN_NPU], names, {})
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert "qnn on npu cannot be had" in caplog.text
    assert names["sess"].plan.regions[0].device == "cpu"
    assert names["sess"].plan.regions[0].precision == "float32", "the fallback holds for the precision, too"
    result = compare("out", value, reference(model, names["x"]), tolerance_for(xrt.DType.FLOAT32))
    assert result.ok, result


# With device and engine changed to what is there


@pytest.mark.parametrize("engine", ["onnxrt", "openvino"])
def test_inference_with_what_is_there(engine: str, names: dict[str, Any], model: Path) -> None:
    import openvino

    value = run(BLOCKS[INFERENCE], names, {'"cuda:0"': '"cpu"', '"tensorrt"': f'"{engine}"'})
    # OpenVINO computes in float16 on processors that do.
    has = engine == "openvino" and "FP16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    computed = xrt.DType.FLOAT16 if has else xrt.DType.FLOAT32
    result = compare("out", value, reference(model, names["x"]), tolerance_for(computed))
    assert result.ok, result
    precision = names["sess"].plan.decision("precision")
    assert names["sess"].plan.regions[0].precision == computed.value
    assert [c.name for c in precision.rejected] == ([] if has else ["float16"]), (
        "where fp16 cannot be had, the plan says so"
    )


@pytest.mark.parametrize("engine", ["onnxrt", "openvino"])
def test_npu_examples_with_what_is_there(engine: str, names: dict[str, Any], model: Path) -> None:
    # The model is not quantized: int8 is had nowhere, so it is an error, or falls back with the rest.
    with pytest.raises(xrt.PrecisionUnavailable, match="is not quantized"):
        run(BLOCKS[OPENVINO_NPU], names, {'"npu"': '"cpu"', '"openvino"': f'"{engine}"'})
    value = run(BLOCKS[QNN_NPU], names, {'"npu"': '"cpu"', '"qnn"': f'"{engine}"'})
    assert names["sess"].plan.regions[0].precision == "float32"
    result = compare("out", value, reference(model, names["x"]), tolerance_for(xrt.DType.FLOAT32))
    assert result.ok, result
