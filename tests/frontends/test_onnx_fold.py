"""Folds of ONNX ops that other tests do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.frontends.onnx.fold import fold


@pytest.mark.parametrize(
    ("operands", "attrs", "parts"),
    [
        ([np.arange(5)], {"num_outputs": 2}, [[0, 1, 2], [3, 4]]),
        ([np.arange(4)], {"num_outputs": 2}, [[0, 1], [2, 3]]),
        ([np.arange(5), np.array([1, 4])], {"num_outputs": 2}, [[0], [1, 2, 3, 4]]),
        ([np.arange(5)], {"split": [2, 3]}, [[0, 1], [2, 3, 4]]),
        ([np.arange(2)], {"num_outputs": 3}, [[0], [1], []]),
        ([np.arange(4)], {}, None),  # the number of parts is that of the node's outputs
        ([np.arange(2)], {"num_outputs": 4}, None),  # a part of negative size
    ],
)
def test_split(operands: list[Any], attrs: dict[str, Any], parts: list[list[int]] | None) -> None:
    found = fold("Split", operands, attrs)
    assert (None if found is None else [part.tolist() for part in found]) == parts
