"""Helpers of the image models: images as arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


def open_rgb(path: str | Path) -> Image.Image:
    """Open an image in RGB, rotated as its metadata says."""
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def center_square(image: Image.Image, side: int) -> Image.Image:
    """Return the largest centered square, resampled to ``side`` x ``side`` pixels."""
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) / 2, (height - edge) / 2
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + edge, top + edge))


def planes(image: Image.Image, mean: float, scale: float, *, bgr: bool = False) -> np.ndarray:
    """Return (pixel - mean) / scale as float32 [3, H, W]."""
    array = (np.asarray(image, np.float32) - mean) / scale
    return np.ascontiguousarray(array[..., :: -1 if bgr else 1].transpose(2, 0, 1))
