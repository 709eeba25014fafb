"""Magika standard_v3_3: detects a file's type from its bytes.

Yanick Fratantonio and others, "Magika: AI-Powered Content-Type Detection", ICSE 2025. The model sees 1,024 bytes from
either end of the file, taken after the white space there; 256 is used where a short file has no byte.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .base import DATA, Answer, Arrays, Check, Sample, ZooModel, package_file, shipped

PACKAGES = {"magika": "1.0.3"}
FOLDER = "magika/models/standard_v3_3"
SHA256 = "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"

SAMPLES = (
    Sample("primes.py", "python", DATA / "files" / "primes.py"),
    Sample("station.json", "json", DATA / "files" / "station.json"),
    Sample("readings.csv", "csv", DATA / "files" / "readings.csv"),
    Sample("backup.sh", "shell", DATA / "files" / "backup.sh"),
    Sample("invoice.png", "png", DATA / "invoice.png"),
    Sample("chelsea.jpg", "jpeg", DATA / "photos" / "chelsea.jpg"),
    # Named as text on purpose: the name is not looked at.
    Sample("notes.txt", "sql", DATA / "files" / "notes.txt"),
)


@cache
def settings() -> dict[str, Any]:
    """The model's own configuration: labels in output order, sizes, the score that each label needs."""
    return dict(json.loads(package_file(PACKAGES, f"{FOLDER}/config.min.json").read_text(encoding="utf-8")))


def write(path: Path) -> Check:
    """Copy the file that the package ships."""
    return shipped(package_file(PACKAGES, f"{FOLDER}/model.onnx"), SHA256, path)


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """``bytes``: int32 [1, 2048], the file's two ends."""
    assert sample.path is not None
    facts = settings()
    content = sample.path.read_bytes()
    head = content[: facts["block_size"]].lstrip()[: facts["beg_size"]]
    tail = content[-facts["block_size"] :].rstrip()[-facts["end_size"] :]
    tokens = np.full((1, facts["beg_size"] + facts["end_size"]), facts["padding_token"], np.int32)
    tokens[0, : len(head)] = list(head)
    if tail:
        tokens[0, -len(tail) :] = list(tail)
    return {"bytes": tokens}


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """The three likeliest kinds; "unsure" heads them where the model's own threshold for the first is not reached."""
    facts = settings()
    scores = np.asarray(outputs["target_label"], np.float64)[0]
    best = [int(i) for i in scores.argsort()[::-1][:3]]
    names: list[str] = facts["target_labels_space"]
    enough = facts["thresholds"].get(names[best[0]], facts["medium_confidence_threshold"])
    headline = names[best[0]] if scores[best[0]] >= enough else "unsure"
    return Answer(headline, tuple((names[i], float(scores[i])) for i in best))


MODEL = ZooModel(
    name="magika",
    title="Magika standard_v3_3",
    task="file type detection",
    licence="Apache-2.0",
    licence_from="the wheel's metadata (License: Apache-2.0 and the classifier)",
    packages=PACKAGES,
    write=write,
    samples=lambda: SAMPLES,
    inputs=inputs,
    interpret=interpret,
)
