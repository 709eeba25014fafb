"""Exporters of constants, ranges and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
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


_DRAWN = {DType.FLOAT16: 11, DType.BFLOAT16: 8}
"""Bits of a uniform number in a narrow type. ONNX Runtime draws float32 and float64."""


def _drawn(e: NodeExport, op: str, size: Sequence[DimLike], dtype: DType, **attrs: Any) -> str:
    """Add a draw of float32 or float64 numbers."""
    attrs = {"seed": _seed(e), **attrs, "dtype": e.builder.numbers[dtype]}
    if all(isinstance(d, int) for d in size):
        return e.add(f"Random{op}", [], shape=list(size), **attrs)
    like = e.add("ConstantOfShape", [e.builder.dims(list(size))])
    return e.add(f"Random{op}Like", [like], **attrs)


def _seed(e: NodeExport) -> float | None:
    """Return the seed as ONNX stores it, whose bits are the IR's."""
    seed = e["seed"]
    return None if seed is None else float(np.array(seed & 0xFFFFFFFF, np.uint32).view(np.float32))


def _rand(e: NodeExport) -> None:
    dtype, (low, high) = e["dtype"], (e["low"], e["high"])
    wide = dtype if dtype is DType.FLOAT64 else DType.FLOAT32
    if dtype is wide:
        e.to(_drawn(e, "Uniform", e["size"], wide, low=low, high=high), dtype, wide)
        return
    y = _drawn(e, "Uniform", e["size"], wide)
    if dtype in _DRAWN:  # rounded down: the narrow type would round to the bound
        steps = e.constant(2.0 ** _DRAWN[dtype], wide)
        y = e.add("Div", [e.add("Floor", [e.add("Mul", [y, steps])]), steps])
    y = e.add("Add", [e.add("Mul", [y, e.constant(high - low, wide)]), e.constant(low, wide)])
    e.to(y, dtype, wide)


def _randn(e: NodeExport) -> None:
    wide = e["dtype"] if e["dtype"] is DType.FLOAT64 else DType.FLOAT32
    e.to(_drawn(e, "Normal", e["size"], wide, mean=e["mean"], scale=e["std"]), e["dtype"], wide)


def _bernoulli(e: NodeExport) -> None:
    """Write bernoulli as a comparison. The function that ONNX gives for Bernoulli, which engines expand, is true with probability 1 - x."""
    wide = DType.FLOAT64 if e.spec().dtype is DType.FLOAT64 else DType.FLOAT32
    number = _drawn(e, "Uniform", e.spec().shape, wide)
    below = e.add("Less", [number, e.operand(0, wide)])
    e.to(below, e.node.spec.dtype, DType.BOOL)


def _multinomial(e: NodeExport) -> None:
    kind = {"sample_size": e["samples"], "dtype": e.builder.numbers[e["dtype"]], "seed": _seed(e)}
    e.add("Multinomial", [e.operand(0)], out=True, **kind)


def _dropout(e: NodeExport) -> None:
    """Write dropout; in training as a comparison, since optimizations of ONNX Runtime 1.31 remove Dropout behind an addition."""
    if not e["train"] or not e["p"]:
        train = e.constant(False, DType.BOOL)
        e.add("Dropout", [e.operand(0), e.constant(e["p"], DType.FLOAT32), train], out=True)
        return
    dtype, seed = e.node.spec.dtype, e["seed"]
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    of_node = None if seed is None else float(seed & 0xFFFFFF)
    number = _drawn(e, "Uniform", e.spec().shape, wide, seed=of_node)
    dropped = e.add("Less", [number, e.constant(e["p"], wide)])
    factor = e.constant(1 / (1 - e["p"]) if e["p"] < 1 else 0.0, wide)
    scale = e.add("Where", [dropped, e.constant(0, wide), factor])
    y = e.add("Mul", [e.operand(0, wide), scale])  # NaN of a dropped NaN, as in PyTorch
    e.builder.add("Cast", [y], e.outs[:1], to=e.builder.numbers[dtype])
    if len(e.outs) > 1:
        e.builder.add("Not", [dropped], e.outs[1:])


EXPORTERS: dict[str, Exporter] = {
    "arange": _arange,
    "bernoulli": _bernoulli,
    "constant": _constant,
    "dims": _dims,
    "dropout": _dropout,
    "eye": _eye,
    "full": _full,
    "multinomial": _multinomial,
    "rand": _rand,
    "randn": _randn,
}
