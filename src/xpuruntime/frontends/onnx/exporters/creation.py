"""Exporters of constants, ranges and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import Dim, DimLike, DType
from .graph_builder import Exporter, NodeExport

__all__ = ["EXPORTERS"]


def _constant(e: NodeExport) -> None:
    from onnx import numpy_helper

    e.add("Constant", [], out=True, value=numpy_helper.from_array(e["value"].numpy()))


def _full(e: NodeExport) -> None:
    from onnx import numpy_helper

    dtype = e["dtype"]
    value = np.array([e["value"]]).astype(dtype.numpy)
    e.add(
        "ConstantOfShape", [e.builder.dims(list(e["size"]))], out=True, value=numpy_helper.from_array(value)
    )


def _bound(e: NodeExport, value: Any, dtype: DType) -> str:
    if not isinstance(value, Dim):
        return e.constant(value, dtype)
    number = e.add("Reshape", [e.builder.dim(value), e.ints([])])
    return number if dtype is DType.INT64 else e.cast(number, dtype)


def _arange(e: NodeExport) -> None:
    dtype = e["dtype"]
    plain = all(not isinstance(v, float) for v in (e["start"], e["end"], e["step"]))
    supported = (
        dtype if dtype in (DType.INT64, DType.INT32, DType.INT16, DType.FLOAT32, DType.FLOAT64) else None
    )
    kind = supported or (DType.INT64 if plain else DType.FLOAT64)
    value = e.add("Range", [_bound(e, e[name], kind) for name in ("start", "end", "step")])
    e.to(value, dtype, kind)


def _eye(e: NodeExport) -> None:
    zeros = e.add("ConstantOfShape", [e.builder.dims([e["rows"], e["columns"]])])
    e.add("EyeLike", [zeros], out=True, k=e["diagonal"], dtype=e.builder.numbers[e["dtype"]])


def _dims(e: NodeExport) -> None:
    values: list[DimLike] = list(e["values"])
    e.add("Identity", [e.builder.dims(values)], out=True)


def _random(op: str, names: dict[str, str]) -> Exporter:
    def export(e: NodeExport) -> None:
        attrs = {onnx_name: e[ir_name] for ir_name, onnx_name in names.items()}
        attrs["dtype"] = e.builder.numbers[e["dtype"]]
        if all(isinstance(d, int) for d in e["size"]):
            e.add(f"Random{op}", [], out=True, shape=list(e["size"]), **attrs)
        else:
            like = e.add("ConstantOfShape", [e.builder.dims(list(e["size"]))])
            e.add(f"Random{op}Like", [like], out=True, **attrs)

    return export


def _bernoulli(e: NodeExport) -> None:
    e.add("Bernoulli", [e.operand(0)], out=True, dtype=e.builder.numbers[e.node.spec.dtype])


def _multinomial(e: NodeExport) -> None:
    e.add(
        "Multinomial", [e.operand(0)], out=True, sample_size=e["samples"], dtype=e.builder.numbers[e["dtype"]]
    )


def _dropout(e: NodeExport) -> None:
    train = e.constant(bool(e["train"]), DType.BOOL)
    e.add("Dropout", [e.operand(0), e.constant(e["p"], DType.FLOAT32), train], out=True, seed=e["seed"])


EXPORTERS: dict[str, Exporter] = {
    "arange": _arange,
    "bernoulli": _bernoulli,
    "constant": _constant,
    "dims": _dims,
    "dropout": _dropout,
    "eye": _eye,
    "full": _full,
    "multinomial": _multinomial,
    "rand": _random("Uniform", {"low": "low", "high": "high"}),
    "randn": _random("Normal", {"mean": "mean", "std": "scale"}),
}
