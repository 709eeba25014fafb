"""Fixing of symbolic dims, for ``static_shape=True`` with ``fixed_shapes``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError, PolicyError
from ..ir.shapes.fixed_sizes import fixed_sizes
from ..protocols import ModelSource
from ..types import Dim, TensorSpec

__all__ = ["fix_shapes"]


def fix_shapes(model: ModelSource, fixed: Mapping[str, int | Sequence[int]]) -> ModelSource:
    """Return the model with fixed dims. Keys are symbols (``batch: 1``) or input names (``x: [1, 3, 224, 224]``).

    Raises PolicyError for an unknown key or a shape that contradicts the model, ModelError for a format other than ONNX.
    """
    sizes = fixed_sizes(model.inputs, fixed, f"model {model.name}")
    unused = {s for spec in model.inputs for s in spec.symbols} - set(sizes)
    if unused:
        raise PolicyError(
            f"model {model.name}",
            "static_shape=True needs a size for every symbolic dim of the inputs",
            got=f"no size for {', '.join(sorted(unused))}",
            do=f"Add fixed_shapes={{{', '.join(f'{u!r}: SIZE' for u in sorted(unused))}}}.",
        )
    if not sizes:
        return model
    if model.format != "onnx":
        raise ModelError(
            f"model {model.name}",
            "symbolic dims can be fixed in ONNX models only",
            got=model.format,
            do="Reshape the model with its own tools, or pass the ONNX file.",
        )
    import onnx

    from .model_file import open_model

    proto = onnx.load(str(model.path)) if model.path else onnx.load_from_string(model.data or b"")
    # open_model names the dims that the file leaves unnamed, so those are found by position.
    inputs = {s.name: s for s in model.inputs}
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        _fix_value(value, inputs.get(value.name), sizes)
    return open_model(proto.SerializeToString(), name=model.name)


def _fix_value(value: Any, spec: TensorSpec | None, sizes: Mapping[str, int]) -> None:
    for axis, d in enumerate(value.type.tensor_type.shape.dim):
        symbol = str(spec.shape[axis]) if spec and isinstance(spec.shape[axis], Dim) else d.dim_param
        symbol = symbol.strip("'")
        if symbol in sizes:
            d.dim_value = sizes[symbol]
