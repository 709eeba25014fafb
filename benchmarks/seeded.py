"""Seeded networks of full size as ONNX files, for benchmarks that open files: weights that hide nothing, made once into build/seeded."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SEEDED", "seeded_onnx"]

SEEDED = ("resnet50", "bert")
_FOLDER = Path(__file__).resolve().parents[1] / "build" / "seeded"


def seeded_onnx(name: str) -> Path:
    """The file of a network of ``xpuruntime.testing.models``, relative to the working folder."""
    from xpuruntime.testing import models

    _FOLDER.mkdir(parents=True, exist_ok=True)
    return Path(os.path.relpath(models.export_onnx(name, _FOLDER / f"{name}.onnx", size="full")))
