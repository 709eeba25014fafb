"""Counts of convolutions and matrix products by arithmetic: integer, QDQ, float."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ....protocols import Products

__all__ = ["count_products"]

_INTEGER = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
_FLOAT = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gemm",
        "GemmFastGelu",
        "MatMul",
        "NhwcConv",
        "NhwcFusedConv",
        "TransposeMatMul",
    }
)
_WEIGHT_ONLY = frozenset({"DynamicQuantizeLSTM", "MatMulBnb4", "MatMulNBits"})
_INT8_ACTIVATIONS = 4  # `accuracy_level` of MatMulNBits
_MOVERS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def count_products(nodes: Collection[Any], stored: Collection[str]) -> Products:
    """Count the products. ``nodes``: NodeProtos, including those of subgraphs; ``stored``: names of weights.

    A product counts as QDQ if both operands are dequantized and at least one of them is computed from integers in the model.
    With quantized weights alone, the arithmetic stays in floats.
    """
    maker = {value: node for node in nodes for value in node.output if value}
    constants = {*stored, *(value for value, node in maker.items() if node.op_type == "Constant")}
    integer = qdq = floats = rounded = 0
    for node in nodes:
        if node.op_type in _INTEGER:
            integer += 1
        elif node.op_type in _FLOAT:
            sides = [_dequantized(value, maker) for value in node.input[:2]]
            between = len(sides) == 2 and None not in sides and any(s not in constants for s in sides)
            qdq, floats = qdq + between, floats + (not between)
        elif node.op_type in _WEIGHT_ONLY:
            floats += 1
            rounded += _rounds(node)
    return Products(integer, qdq, floats, rounded)


def _rounds(node: Any) -> bool:
    """Return whether an engine may round the activations of a product in floats."""
    level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
    return node.op_type == "DynamicQuantizeLSTM" or level == _INT8_ACTIVATIONS


def _dequantized(value: str, maker: Mapping[str, Any]) -> str | None:
    """Return the integer value that a float value is dequantized from, looking through data movement; None if there is none."""
    visited = set[str]()
    while (node := maker.get(value)) is not None and value not in visited:
        visited.add(value)
        if node.op_type == "DequantizeLinear":
            source = str(node.input[0])
            mover = maker.get(source)
            while mover is not None and mover.op_type in _MOVERS and source not in visited:
                visited.add(source)
                source = str(mover.input[0])
                mover = maker.get(source)
            return source
        if node.op_type not in _MOVERS or not node.input:
            return None
        value = node.input[0]
    return None
