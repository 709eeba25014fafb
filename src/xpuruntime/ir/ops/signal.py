"""Fourier transforms. ATen's ops use complex tensors, ONNX's use pairs of reals in the last dim."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like

__all__ = ["ROWS"]

_COMPLEX = {DType.FLOAT16: DType.COMPLEX64, DType.FLOAT32: DType.COMPLEX64, DType.FLOAT64: DType.COMPLEX128}
_REAL = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}


def _r2c(c: OpCall) -> TensorSpec:
    x, dims = c.tensor(), c["dims"]
    if x.dtype not in _COMPLEX or not dims:
        raise Mismatch("x must be real and dims at least one", f"{x}, {list(dims)}")
    shape = list(x.shape)
    if c["onesided"]:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return TensorSpec(tuple(shape), _COMPLEX[x.dtype])


def _c2r(c: OpCall) -> TensorSpec:
    x, dims = c.tensor(), c["dims"]
    if x.dtype not in _REAL or not dims:
        raise Mismatch("x must be complex and dims at least one", f"{x}, {list(dims)}")
    shape = list(x.shape)
    shape[dims[-1]] = c["last_size"]
    return TensorSpec(tuple(shape), _REAL[x.dtype])


def _c2c(c: OpCall) -> TensorSpec:
    if c.tensor().dtype not in _REAL:
        raise Mismatch("x must be complex", str(c.tensor()))
    return like(c.tensor())


def _dft(c: OpCall) -> TensorSpec:
    """Infer a DFT of ``length`` along dim (default: the dim). A onesided inverse gives reals of that length, a forward one half of it."""
    x, dim = c.tensor(), c["dim"]
    if x.rank < 2 or x.shape[-1] not in (1, 2) or dim == x.rank - 1:
        raise Mismatch("the last dim of x must be 1 (real) or 2 (complex) and not dim", f"{x}, dim {dim}")
    length = x.shape[dim] if c["length"] is None else c["length"]
    if c["onesided"] and c["inverse"] and c["length"] is None:
        length = (x.shape[dim] - 1) * 2
    shape = list(x.shape)
    shape[dim] = length // 2 + 1 if c["onesided"] and not c["inverse"] else length
    shape[-1] = 1 if c["onesided"] and c["inverse"] else 2
    return like(x, shape)


def _stft(c: OpCall) -> TensorSpec:
    x, length, step = c.tensor(), c["frame_length"], c["frame_step"]
    if x.rank != 3 or step < 1:
        raise Mismatch("x must be [batch, length, 1 or 2] and frame_step positive", f"{x}, {step}")
    frames = (x.shape[1] - length) // step + 1
    return like(x, (x.shape[0], frames, length // 2 + 1 if c["onesided"] else length, 2))


_NORM = "normalization: none|by_root|by_n = none"

ROWS: tuple[OpEntry, ...] = (
    op(f"fft_r2c(x; dims: axes, {_NORM}, onesided: bool = true) -> y", "signal", _r2c, aten="_fft_r2c"),
    op(f"fft_c2r(x; dims: axes, {_NORM}, last_size: dim) -> y", "signal", _c2r, aten="_fft_c2r"),
    op(f"fft_c2c(x; dims: axes, {_NORM}, forward: bool = true) -> y", "signal", _c2c, aten="_fft_c2c"),
    op(
        "dft(x; dim: axis = -2, length: dim? = none, inverse: bool = false, onesided: bool = false) -> y",
        "signal",
        _dft,
        onnx="DFT",
    ),
    op(
        "stft(x, window?; frame_length: int, frame_step: int, onesided: bool = true) -> y",
        "signal",
        _stft,
        onnx="STFT",
    ),
)
