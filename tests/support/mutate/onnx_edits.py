"""Edits of ONNX models: each gives a copy of the ModelProto in which one node is another."""

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
    """A ModelProto of its own."""
    return type(model).FromString(model.SerializeToString())


def _edited(model: Any, k: int, edit: Callable[[Any], None]) -> Any:
    copy = copy_of(model)
    edit(copy.graph.node[k])
    return copy


def forward(model: Any, k: int, keep: int) -> Any:
    """Node ``k`` gives its input ``keep`` as it is."""

    def edit(node: Any) -> None:
        input_name = node.input[keep]
        node.op_type = "Identity"
        del node.attribute[:]
        del node.input[:]
        node.input.append(input_name)

    return _edited(model, k, edit)


def as_op(model: Any, k: int, op_type: str, attributes: dict[str, Any]) -> Any:
    """Node ``k`` is another op of its first input."""
    from onnx import helper

    def edit(node: Any) -> None:
        node.op_type = op_type
        del node.input[1:]
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(n, v) for n, v in attributes.items())

    return _edited(model, k, edit)


def without_input(model: Any, k: int, position: int) -> Any:
    """Node ``k`` without an optional input."""

    def edit(node: Any) -> None:
        node.input[position] = ""

    return _edited(model, k, edit)


def with_attribute(model: Any, k: int, name: str, value: Any) -> Any:
    """Node ``k`` with an attribute of this value."""
    from onnx import helper

    def edit(node: Any) -> None:
        others = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, value)])

    return _edited(model, k, edit)


def reshaped(model: Any, shapes: Mapping[str, tuple[Any, ...]], k: int, name: str, value: Any) -> Any:
    """With an attribute that changes shapes: those written in the file go, and what follows must still fit.

    shapes: of the model's values as they are. Raises NotApplicableError.
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
    for node in copy.graph.node:  # inference does not look at what a Reshape holds
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
    """A ValueInfoProto's dims: numbers, names, None where nothing is known."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims)


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute's value, or the default."""
    from onnx import helper

    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
