"""Edits of ONNX models: each returns a copy of the ModelProto with one node changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .site import NotApplicableError

__all__ = [
    "as_op",
    "attribute",
    "copy_of",
    "forward",
    "reshaped",
    "shape_of",
    "with_attribute",
    "without_input",
]


def copy_of(model: Any) -> Any:
    """Return a copy of a ModelProto."""
    return type(model).FromString(model.SerializeToString())


def _edited(model: Any, k: int, edit: Callable[[Any], None]) -> Any:
    copy = copy_of(model)
    edit(copy.graph.node[k])
    return copy


def forward(model: Any, k: int, keep: int) -> Any:
    """Replace node ``k`` by the identity of its input ``keep``."""

    def edit(node: Any) -> None:
        input_name = node.input[keep]
        node.op_type = "Identity"
        del node.attribute[:]
        del node.input[:]
        node.input.append(input_name)

    return _edited(model, k, edit)


def as_op(model: Any, k: int, op_type: str, attributes: dict[str, Any]) -> Any:
    """Replace node ``k`` by another op of its first input."""
    from onnx import helper

    def edit(node: Any) -> None:
        node.op_type = op_type
        del node.input[1:]
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(n, v) for n, v in attributes.items())

    return _edited(model, k, edit)


def without_input(model: Any, k: int, position: int) -> Any:
    """Remove an optional input of node ``k``."""

    def edit(node: Any) -> None:
        node.input[position] = ""

    return _edited(model, k, edit)


def with_attribute(model: Any, k: int, name: str, value: Any) -> Any:
    """Set an attribute of node ``k``."""
    from onnx import helper

    def edit(node: Any) -> None:
        others = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, value)])

    return _edited(model, k, edit)


def reshaped(model: Any, shapes: Mapping[str, tuple[Any, ...]], k: int, name: str, value: Any) -> Any:
    """Set an attribute that changes shapes. The stored shapes are removed, and later nodes must accept the new ones.

    shapes: current shapes of the model's values.
    Raises NotApplicableError.
    """
    from onnx import shape_inference

    copy = with_attribute(model, k, name, value)
    del copy.graph.value_info[:]
    try:
        inferred = shape_inference.infer_shapes(copy, check_type=True, strict_mode=True, data_prop=True).graph
    except shape_inference.InferenceError as error:
        raise NotApplicableError(f"the shapes do not fit any more: {error}") from error
    flat = {v.name: shape_of(v) for v in inferred.value_info}
    name = copy.graph.node[k].output[0]
    if flat.get(name) == shapes.get(name):
        raise NotApplicableError("its result is as large as before, so no step is taken")
    for node in copy.graph.node:  # shape inference does not check the size of a Reshape
        if node.op_type == "Reshape" and not _same_size(flat, node):
            raise NotApplicableError(f"the shapes do not fit any more at {node.name}")
    return copy


def _same_size(shapes: dict[str, tuple[Any, ...]], node: Any) -> bool:
    shape_in, shape_out = shapes.get(node.input[0]), shapes.get(node.output[0])
    is_static = (
        shape_in is not None
        and shape_out is not None
        and all(isinstance(d, int) for d in (*shape_in, *shape_out))
    )
    return not is_static or bool(np.prod(shape_in or ()) == np.prod(shape_out or ()))


def shape_of(value: Any) -> tuple[Any, ...]:
    """Return a ValueInfoProto's dims: numbers, names, or None if unknown."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return an attribute's value, or the default."""
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
