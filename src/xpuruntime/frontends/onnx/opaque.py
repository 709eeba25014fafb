"""Lossless conversion of ONNX nodes that are not lowered to IR nodes and back.

Attributes that the IR can represent stay readable. Every other one (graphs, large or packed tensors, empty lists, types) is kept
as its AttributeProto in base64, under ``{"proto": ...}``. Values that its subgraphs capture follow its own operands, and
``captures`` has the names that the subgraphs use for them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from ...ir import MAX_CONST_ELEMENTS, Attrs, Const
from ...types import DType
from .tensors import tensor_array

__all__ = ["CAPTURES", "captured", "decode", "encode"]

CAPTURES = "captures"
_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
_LISTS = {_FLOATS: "floats", _INTS: "ints"}


def encode(node: Any, dtypes: Mapping[int, DType], captures: Iterable[str] = ()) -> dict[str, Any]:
    """Return the attributes of a NodeProto as attribute values of the IR."""
    attributes = {a.name: _encode(a, dtypes) for a in node.attribute}
    names = tuple(captures)
    return attributes | ({CAPTURES: names} if names else {})


def _encode(attribute: Any, dtypes: Mapping[int, DType]) -> Any:
    kind = attribute.type
    if kind == _INT:
        return int(attribute.i)
    if kind == _FLOAT:
        return float(attribute.f)
    if kind in _LISTS and len(getattr(attribute, _LISTS[kind])):
        return tuple(getattr(attribute, _LISTS[kind]))
    if kind == _STRING and (text := _text(attribute.s)) is not None:
        return text
    if kind == _STRINGS and attribute.strings:
        texts = tuple(map(_text, attribute.strings))
        if None not in texts:
            return texts
    if kind == _TENSOR and dtypes.get(attribute.t.data_type, DType.STRING) is not DType.STRING:
        import math

        if math.prod(attribute.t.dims) <= MAX_CONST_ELEMENTS and not attribute.t.external_data:
            return Const(tensor_array(attribute.t))
    return {"proto": base64.b64encode(attribute.SerializeToString(deterministic=True)).decode("ascii")}


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def decode(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the AttributeProtos of ``encode``'s result, without ``captures``."""
    from onnx import AttributeProto, helper, numpy_helper

    protos = []
    for name, value in attributes.items():
        if name == CAPTURES:
            continue
        if isinstance(value, Attrs):
            protos.append(AttributeProto.FromString(base64.b64decode(value["proto"])))
        elif isinstance(value, Const):
            protos.append(helper.make_attribute(name, numpy_helper.from_array(value.numpy())))
        else:
            protos.append(helper.make_attribute(name, list(value) if isinstance(value, tuple) else value))
    return protos


def captured(node: Any) -> list[str]:
    """Return the names that a node's subgraphs capture, in order and without duplicates."""
    from .proto import reads

    operands = set(node.input)
    return [name for name in reads(node) if name not in operands]
