"""The exporters: IR op -> function that writes its ONNX nodes. One file per group of families."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ....ir.tables import joined
from . import (
    activation,
    algebra,
    creation,
    dense,
    indexing,
    layers,
    movement,
    norm,
    pointwise,
    pool,
    triangular,
)
from .graph_builder import Exporter, NodeExport, OnnxGraphBuilder

__all__ = ["EXPORTERS", "MIN_OPSETS", "Exporter", "NodeExport", "OnnxGraphBuilder"]

_FILES = (pointwise, activation, algebra, movement, indexing, creation, pool, norm, layers, triangular, dense)

EXPORTERS: Mapping[str, Exporter] = joined("exporter of", (file.EXPORTERS for file in _FILES))

MIN_OPSETS: Mapping[str, int] = MappingProxyType(
    {
        "affine_grid": 20,
        "attention": 23,
        "bitcast": 26,
        "bitwise_and": 18,
        "bitwise_not": 18,
        "bitwise_or": 18,
        "bitwise_xor": 18,
        "col2im": 18,
        "cholesky": 13,
        "cumprod": 26,
        "deform_convolution": 19,
        "det": 11,
        "dft": 17,
        "dropout": 12,
        "einsum": 12,
        "expert_linear": 12,
        "ge": 12,
        "grid_sample": 16,
        "le": 12,
        "rope": 23,
        "slogdet": 13,
        "solve": 13,
        "solve_triangular": 13,
        "stft": 17,
        "tensor_scatter": 24,
        "tril": 14,
        "triu": 14,
    }
)
"""The first opset that has an op's ONNX equivalent, where that is above 11."""
