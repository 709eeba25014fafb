"""NodeProtos: attributes as Python values, ONNX's own function definitions of ops, and function bodies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ..not_lowered import NotLowered
from .proto import sub_graphs
from .tensors import tensor_array

__all__ = [
    "NOT_LOWERED_REASONS",
    "attributes",
    "body_nodes",
    "defaults",
    "resolve_references",
    "schema_body",
    "version",
]

NOT_LOWERED_REASONS = {
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"), "text is not supported"),
    "Optional": "optional values are not supported",
    **dict.fromkeys(
        ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap", "SplitToSequence"),
        "sequences are supported only if the import knows their elements, and positions inside them",
    ),
    "ImageDecoder": "decoding of image files is not supported",
}  # fmt: skip
"""Op -> the reason why it is opaque."""


def defaults(node: Any, opset: int, local: Any) -> dict[str, Any]:
    """Return the defaults of an op's attributes; nothing if the model itself defines the op, by the function ``local``."""
    if local is not None:
        return {}
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except Exception:  # SchemaError is a class of onnx's C++ module: the op is another runtime's
        return {}
    return {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}


def attributes(node: Any) -> dict[str, Any]:
    """Return a node's attributes as Python values: tensors as arrays, graphs unchanged."""
    values: dict[str, Any] = {}
    for a in node.attribute:
        match a.type:  # onnx.AttributeProto.AttributeType
            case 1:
                values[a.name] = float(a.f)
            case 2:
                values[a.name] = int(a.i)
            case 3:
                values[a.name] = a.s.decode("utf-8", "surrogateescape")
            case 4:
                values[a.name] = tensor_array(a.t)
            case 5:
                values[a.name] = a.g
            case 6:
                values[a.name] = list(a.floats)
            case 7:
                values[a.name] = list(a.ints)
            case 8:
                values[a.name] = [s.decode("utf-8", "surrogateescape") for s in a.strings]
            case _:
                raise NotLowered(f"attribute {a.name!r} has an unsupported type")
    return values


def resolve_references(node: Any, actuals: Mapping[str, Any]) -> Any:
    """Return the node with references to its function's attributes resolved. References without a value are dropped."""
    if not any(a.ref_attr_name for a in node.attribute) and not (actuals and sub_graphs(node)):
        return node
    import onnx

    resolved = onnx.NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy = resolved.attribute.add()
            copy.CopyFrom(attribute)
            for graph in ([copy.g] if copy.HasField("g") else []) + list(copy.graphs):
                for inner in graph.node:
                    inner.CopyFrom(resolve_references(inner, actuals))
        elif attribute.ref_attr_name in actuals:
            copy = resolved.attribute.add()
            copy.CopyFrom(actuals[attribute.ref_attr_name])
            copy.name = attribute.name
    return resolved


def body_nodes(body: Any, call: Any) -> list[Any]:
    """Return the nodes of a body, with the operands that the caller omits marked as absent."""
    absent = {
        f for f, a in itertools.zip_longest(body.input, call.input[: len(body.input)], fillvalue="") if not a
    }
    if not absent:
        return list(body.node)
    import onnx

    nodes = []
    for node in body.node:
        if absent & set(node.input):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for i, name in enumerate(copy.input):
                if name in absent:
                    copy.input[i] = ""
            node = copy
        nodes.append(node)
    return nodes


def version(op: str, opset: int) -> int:
    """Return the opset of the op's definition that is valid in ``opset``; 0 if the op is newer."""
    import onnx

    try:
        return int(onnx.defs.get_schema(op, opset, "").since_version)
    except Exception:  # SchemaError is a class of onnx's C++ module: the op is newer
        return 0


def schema_body(node: Any, domain: str, opset: int, type_of: Callable[[str], Any]) -> Any:
    """Return ONNX's own definition of the op as a function for these operands; None if it has none.

    type_of: the name of a value -> its TypeProto, or None if its type is unknown.
    """
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, opset, domain)
    except Exception:  # SchemaError is a class of onnx's C++ module
        return None
    if schema.has_function:
        fitting = [v for v in schema.function_opset_versions if v <= opset]
        if fitting:
            return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fitting)))
    if not schema.has_context_dependent_function:
        return None
    fitting = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    types = [type_of(i) if i else onnx.TypeProto() for i in node.input]
    if not fitting or any(t is None for t in types):
        return None
    try:
        text = schema.get_context_dependent_function_with_opset_version(
            max(fitting), node.SerializeToString(), [t.SerializeToString() for t in types]
        )
    except Exception:  # the schema's C++ code rejects these types
        return None
    body = onnx.FunctionProto.FromString(text)
    return body if body.node else None  # the body is empty if there is no definition for these types
