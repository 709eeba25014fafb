"""Comparison with PyTorch's answers: tolerances by dtype, and exceptions for samples where PyTorch itself is less precise."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["LOOSE", "TOLERANCE", "disagreement"]

TOLERANCE = {
    "float64": 1e-10, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "complex64": 1e-5, "complex128": 1e-10,
}  # fmt: skip
"""Largest difference, as a share of the value plus a tenth of the largest value; integers and bool are exact."""

_HALF = "PyTorch keeps partial results in the half type"
_ONE = "one element: its distance from the mean is 0, PyTorch's is a rounding error times 1/sqrt(eps)"

LOOSE: dict[tuple[str, str], tuple[float, float, str]] = {
    ("nn.functional.conv_transpose3d", "bfloat16"): (1e-1, 0.0, _HALF),
    ("nn.functional.conv_transpose3d", "float16"): (1e-1, 0.0, _HALF),
    ("nn.functional.adaptive_avg_pool3d", "bfloat16"): (5e-2, 0.0, _HALF),
    ("nn.functional.adaptive_avg_pool3d", "float16"): (2e-2, 0.0, _HALF),
    ("interpolate.linear", "bfloat16"): (5e-2, 0.0, _HALF),
    ("interpolate.linear", "float16"): (1e-2, 0.0, _HALF),
    ("interpolate.bicubic", "float16"): (1e-2, 0.0, _HALF),
    ("conv2d.backward", "float16"): (2e-2, 0.0, _HALF),
    ("avg_pool2d.backward", "bfloat16"): (5e-2, 0.0, _HALF),
    ("avg_pool2d.backward", "float16"): (1e-2, 0.0, _HALF),
    ("interpolate.linear", "uint8"): (0.0, 1.0, "PyTorch rounds to uint8 after each axis"),
    ("native_layer_norm", "bfloat16"): (1.6e-2, 2e-3, _ONE),
    ("native_layer_norm", "float16"): (2e-3, 2e-3, _ONE),
    ("layer_norm.backward", "float32"): (1e-5, 5e-5, _ONE),
    ("layer_norm.backward", "float64"): (1e-10, 1e-14, _ONE),
}
"""Relative and absolute tolerance by (entry, dtype) instead of the default, with the reason."""


def disagreement(
    actual: NDArray[Any], expected: NDArray[Any], tolerance: tuple[float, float] | None = None
) -> str:
    """Return how a result differs from PyTorch's, or an empty text. Specs, NaN and infinities must be equal."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
    usual = TOLERANCE.get(str(expected.dtype))
    # Kernels lose digits below the smallest normal number, or flush to zero.
    tiny = 0.0 if usual is None else float(ml_dtypes.finfo(expected.real.dtype).smallest_normal)
    share, absolute = tolerance or (usual or 0.0, tiny)
    kind = np.complex128 if expected.dtype.kind == "c" else np.float64
    exact = usual is None and tolerance is None
    a, b = (actual, expected) if exact else (actual.astype(kind), expected.astype(kind))
    if exact:
        count = np.count_nonzero(a != b)
        return f"differs at {count} of {expected.size} places" if count else ""
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return f"has {a[~finite][:3]} where PyTorch has {b[~finite][:3]}"
    a, b = a[finite], b[finite]
    allowed = np.maximum(share * (np.abs(b) + 0.1 * np.abs(b).max(initial=0.0)), absolute)
    wrong = np.abs(a - b) > allowed
    if not wrong.any():
        return ""
    worst = int(np.argmax(np.where(wrong, np.abs(a - b), 0)))
    return f"differs at {np.count_nonzero(wrong)} of {expected.size} places, most {a[worst]} for {b[worst]}"
