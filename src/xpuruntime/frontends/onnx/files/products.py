"""Counts of convolutions and matrix products by arithmetic: integer, QDQ, float."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ....protocols import Products

__all__ = ["count_products", "count_wide_pairs"]

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
_WIDE = frozenset({4, 5, 6, 12, 7, 13})  # TensorProto: uint16, int16, int32, uint32, int64, uint64
_MOVERS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def count_products(nodes: Collection[Any], stored: Mapping[str, int]) -> Products:
    """Count the products. ``nodes``: NodeProtos, including those of subgraphs; ``stored``: element types of weights by name.

    A product counts as QDQ if both operands are dequantized and at least one of them is computed from integers in the model.
    With quantized weights alone, the arithmetic stays in floats.
    """
    maker = {value: node for node in nodes for value in node.output if value}
    constants = {*stored, *(value for value, node in maker.items() if node.op_type == "Constant")}
    integer = qdq = floats = rounded = wide = 0
    for node in nodes:
        if node.op_type in _INTEGER:
            integer += 1
        elif node.op_type in _FLOAT:
            pairs = [_dequantizing(value, maker) for value in node.input[:2]]
            sides = [None if pair is None else _codes(pair, maker) for pair in pairs]
            between = len(sides) == 2 and None not in sides and any(s not in constants for s in sides)
            qdq, floats = qdq + between, floats + (not between)
            wide += between and any(_is_wide(pair, maker, stored) for pair in pairs)
        elif node.op_type in _WEIGHT_ONLY:
            floats += 1
            rounded += _rounds(node)
    return Products(integer, qdq, floats, rounded, wide)


def count_wide_pairs(nodes: Collection[Any], stored: Mapping[str, int]) -> int:
    """Count the QuantizeLinear nodes whose codes have more than 8 bits."""
    maker = {value: node for node in nodes for value in node.output if value}
    return sum(node.op_type == "QuantizeLinear" and _is_wide(node, maker, stored) for node in nodes)


def _is_wide(pair: Any, maker: Mapping[str, Any], stored: Mapping[str, int]) -> bool:
    """Return whether the codes of a QuantizeLinear or DequantizeLinear have more than 8 bits."""
    if len(pair.input) > 2 and pair.input[2]:
        return _element_type(pair.input[2], maker, stored) in _WIDE
    if pair.op_type == "QuantizeLinear":
        return next((a.i for a in pair.attribute if a.name == "output_dtype"), 0) in _WIDE
    codes = _codes(pair, maker)
    before = maker.get(codes)
    if before is not None and before.op_type == "QuantizeLinear":
        return _is_wide(before, maker, stored)
    return _element_type(codes, maker, stored) in _WIDE


def _element_type(value: str, maker: Mapping[str, Any], stored: Mapping[str, int]) -> int:
    """Return the element type of a constant; 0 if it is computed."""
    node = maker.get(value)
    if node is None:
        return stored.get(value, 0)
    constant = next((a.t for a in node.attribute if a.name == "value"), None)
    return 0 if node.op_type != "Constant" or constant is None else int(constant.data_type)


def _rounds(node: Any) -> bool:
    """Return whether an engine may round the activations of a product in floats."""
    level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
    return node.op_type == "DynamicQuantizeLSTM" or level == _INT8_ACTIVATIONS


def _dequantizing(value: str, maker: Mapping[str, Any]) -> Any | None:
    """Return the DequantizeLinear that a float value comes from, looking through data movement; None if there is none."""
    visited = set[str]()
    while (node := maker.get(value)) is not None and value not in visited:
        visited.add(value)
        if node.op_type == "DequantizeLinear":
            return node
        if node.op_type not in _MOVERS or not node.input:
            return None
        value = node.input[0]
    return None


def _codes(pair: Any, maker: Mapping[str, Any]) -> str:
    """Return the integer value that a DequantizeLinear reads, looking through data movement."""
    visited = set[str]()
    source = str(pair.input[0])
    while (mover := maker.get(source)) is not None and mover.op_type in _MOVERS and source not in visited:
        visited.add(source)
        source = str(mover.input[0])
    return source
