"""Constants, ranges, and random numbers."""

from __future__ import annotations

import math

from ...types import Dim, DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import ceil_div
from ._types import float_of

__all__ = ["ROWS"]


def _constant(c: OpCall) -> TensorSpec:
    spec: TensorSpec = c["value"].spec
    return spec


def _full(c: OpCall) -> TensorSpec:
    if any(isinstance(d, int) and d < 0 for d in c["size"]):
        raise Mismatch("a dim cannot be negative", list(c["size"]))
    return TensorSpec(tuple(c["size"]), c["dtype"])


def _arange(c: OpCall) -> TensorSpec:
    start, end, step = c["start"], c["end"], c["step"]
    if step == 0:
        raise Mismatch("step cannot be zero")
    if any(isinstance(v, float) for v in (start, end, step)):
        if any(isinstance(v, Dim) for v in (start, end, step)):
            raise Mismatch("a range cannot have both symbols and fractions", f"{start}, {end}, {step}")
        count = (end - start) / step
        if not math.isfinite(count) or count > 2**40:
            raise Mismatch("the range must be finite", f"{start}, {end}, {step}")
        return TensorSpec((max(math.ceil(count), 0),), c["dtype"])
    if isinstance(step, Dim):
        raise Mismatch("the step must be known", str(step))
    length: DimLike = ceil_div(end - start, step) if step > 0 else ceil_div(start - end, -step)
    return TensorSpec((max(length, 0) if isinstance(length, int) else length,), c["dtype"])


def _eye(c: OpCall) -> TensorSpec:
    return TensorSpec((c["rows"], c["columns"]), c["dtype"])


def _dims(c: OpCall) -> TensorSpec:
    return TensorSpec((len(c["values"]),), DType.INT64)


def _randperm(c: OpCall) -> TensorSpec:
    return TensorSpec((c["n"],), DType.INT64)


def _bernoulli(c: OpCall) -> TensorSpec:
    return TensorSpec(c.tensor().shape, c["dtype"] or c.tensor().dtype)


def _multinomial(c: OpCall) -> TensorSpec:
    x = c.tensor()
    if x.rank not in (1, 2):
        raise Mismatch("x must have rank 1 or 2", str(x))
    return TensorSpec((*x.shape[:-1], c["samples"]), c["dtype"])


def _dropout(c: OpCall) -> list[TensorSpec]:
    x = c.tensor()
    return [TensorSpec(x.shape, float_of(x.dtype)), TensorSpec(x.shape, DType.BOOL)]


def _random_bits(c: OpCall) -> TensorSpec:
    state = c.optional(0)
    if state is not None and (state.shape, state.dtype) != ((2,), DType.INT64):
        raise Mismatch("state must be int64[2], the seed and the number of the run", str(state))
    if c["bits"] not in (32, 53):
        raise Mismatch("bits must be 32 or 53", str(c["bits"]))
    return TensorSpec((c["count"],), DType.INT64)


_SEED = "seed: int? = none"

ROWS: tuple[OpEntry, ...] = (
    op(
        "constant(; value: const) -> y",
        "create",
        _constant,
        onnx="Constant",
        meaning="up to 4096 elements; larger tensors are weights",
    ),
    op(
        "full(; size: dims, value: scalar, dtype: dtype) -> y",
        "create",
        _full,
        aten="full full_like empty.memory_format fill.Scalar scalar_tensor empty_strided",
        onnx="ConstantOfShape",
    ),
    op(
        "arange(; start: number = 0, end: number, step: number = 1, dtype: dtype) -> y",
        "create",
        _arange,
        aten="arange.start_step",
        onnx="Range",
    ),
    op(
        "eye(; rows: dim, columns: dim, diagonal: int = 0, dtype: dtype) -> y",
        "create",
        _eye,
        aten="eye",
        onnx="EyeLike",
    ),
    op(
        "dims(; values: dims) -> y",
        "create",
        _dims,
        aten="sym_size.int sym_numel",
        onnx="Shape Size",
        meaning="int64: the values of dim expressions, for graphs that compute with a shape as data",
    ),
    op(
        f"rand(; size: dims, dtype: dtype = float32, low: float = 0.0, high: float = 1.0, {_SEED}) -> y",
        "random",
        _full,
        aten="rand",
        onnx="RandomUniform RandomUniformLike",
        random=True,
    ),
    op(
        f"randn(; size: dims, dtype: dtype = float32, mean: float = 0.0, std: float = 1.0, {_SEED}) -> y",
        "random",
        _full,
        aten="randn",
        onnx="RandomNormal RandomNormalLike",
        random=True,
    ),
    op(
        "random_bits(state?; count: dim, bits: int = 32, seed: int = 0, stream: int = 0) -> y",
        "random",
        _random_bits,
        meaning="integers of so many random bits, a function of the operands alone: Philox4x32-10 of (place, stream, run) with the seed as its key."
        " state: the seed and the run; without it they are the attribute and 0",
    ),
    op(f"randperm(; n: dim, {_SEED}) -> y", "random", _randperm, aten="randperm", random=True),
    op(
        f"bernoulli(x; dtype: dtype? = none, {_SEED}) -> y",
        "random",
        _bernoulli,
        aten="bernoulli",
        onnx="Bernoulli",
        random=True,
    ),
    op(
        f"multinomial(x; samples: int, dtype: dtype = int64, {_SEED}) -> y",
        "random",
        _multinomial,
        onnx="Multinomial",
        random=True,
        meaning="x has unnormalized log probabilities",
    ),
    op(
        f"dropout(x; p: float = 0.5, train: bool = true, {_SEED}) -> y, mask?",
        "random",
        _dropout,
        aten="native_dropout",
        onnx="Dropout",
        random=True,
    ),
)
