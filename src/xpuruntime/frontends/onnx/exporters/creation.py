"""Ops that make elements, in ONNX: constants, ranges, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import Dim, DimLike, DType
from .graph_builder import Form, Writing

__all__ = ["FORMS"]


def _constant(w: Writing) -> None:
    from onnx import numpy_helper

    w.add("Constant", [], out=True, value=numpy_helper.from_array(w["value"].numpy()))


def _full(w: Writing) -> None:
    from onnx import numpy_helper

    dtype = w["dtype"]
    value = np.array([w["value"]]).astype(dtype.numpy)
    w.add("ConstantOfShape", [w.pen.dims(list(w["size"]))], out=True, value=numpy_helper.from_array(value))


def _bound(w: Writing, value: Any, dtype: DType) -> str:
    if not isinstance(value, Dim):
        return w.constant(value, dtype)
    number = w.add("Reshape", [w.pen.dim(value), w.ints([])])
    return number if dtype is DType.INT64 else w.cast(number, dtype)


def _arange(w: Writing) -> None:
    dtype = w["dtype"]
    plain = all(not isinstance(v, float) for v in (w["start"], w["end"], w["step"]))
    own = dtype if dtype in (DType.INT64, DType.INT32, DType.INT16, DType.FLOAT32, DType.FLOAT64) else None
    kind = own or (DType.INT64 if plain else DType.FLOAT64)
    made = w.add("Range", [_bound(w, w[name], kind) for name in ("start", "end", "step")])
    w.to(made, dtype, kind)


def _eye(w: Writing) -> None:
    zeros = w.add("ConstantOfShape", [w.pen.dims([w["rows"], w["columns"]])])
    w.add("EyeLike", [zeros], out=True, k=w["diagonal"], dtype=w.pen.numbers[w["dtype"]])


def _dims(w: Writing) -> None:
    values: list[DimLike] = list(w["values"])
    w.add("Identity", [w.pen.dims(values)], out=True)


def _random(op: str, names: dict[str, str]) -> Form:
    def form(w: Writing) -> None:
        attrs = {theirs: w[ours] for ours, theirs in names.items()}
        attrs["dtype"] = w.pen.numbers[w["dtype"]]
        if all(isinstance(d, int) for d in w["size"]):
            w.add(f"Random{op}", [], out=True, shape=list(w["size"]), **attrs)
        else:
            like = w.add("ConstantOfShape", [w.pen.dims(list(w["size"]))])
            w.add(f"Random{op}Like", [like], out=True, **attrs)

    return form


def _bernoulli(w: Writing) -> None:
    w.add("Bernoulli", [w.operand(0)], out=True, dtype=w.pen.numbers[w.node.spec.dtype])


def _multinomial(w: Writing) -> None:
    w.add("Multinomial", [w.operand(0)], out=True, sample_size=w["samples"], dtype=w.pen.numbers[w["dtype"]])


def _dropout(w: Writing) -> None:
    train = w.constant(bool(w["train"]), DType.BOOL)
    w.add("Dropout", [w.operand(0), w.constant(w["p"], DType.FLOAT32), train], out=True, seed=w["seed"])


FORMS: dict[str, Form] = {
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
