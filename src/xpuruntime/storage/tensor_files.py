"""Tensors in files: memory-mapped reading of safetensors and raw bytes, and atomic writing of safetensors.

The safetensors format (8-byte little-endian header length, JSON header, dense little-endian data) is parsed here, because
the safetensors package returns no bfloat16 or float8 to NumPy, and because a memory map costs nothing until it is read.
Files are untrusted: a path outside the folder and a size that does not match are errors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, ModelError
from ..types import DType, TensorSpec
from .files import open_regular
from .store import write_atomic

__all__ = [
    "CODES",
    "TensorFiles",
    "element_digest",
    "pack_bits",
    "read_safetensors",
    "unpack_bits",
    "write_safetensors",
]

CODES: dict[DType, str] = {
    DType.BOOL: "BOOL",
    DType.UINT8: "U8",
    DType.UINT16: "U16",
    DType.UINT32: "U32",
    DType.UINT64: "U64",
    DType.INT8: "I8",
    DType.INT16: "I16",
    DType.INT32: "I32",
    DType.INT64: "I64",
    DType.FLOAT16: "F16",
    DType.BFLOAT16: "BF16",
    DType.FLOAT32: "F32",
    DType.FLOAT64: "F64",
    DType.COMPLEX64: "C64",
    DType.FLOAT8_E4M3FN: "F8_E4M3",
    DType.FLOAT8_E5M2: "F8_E5M2",
    DType.FLOAT8_E8M0FNU: "F8_E8M0",
}
"""The safetensors names of the dtypes that the format has."""

_DTYPES = {code: dtype for dtype, code in CODES.items()}
_MAX_HEADER = 100 << 20


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Map every tensor of a safetensors file, read-only, by name. Raises FormatError."""
    who, path = f"weights file {os.fspath(path)}", Path(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise FormatError(who, "is not a safetensors file, or is truncated", got=f"{size} bytes")
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.zeros(0, np.uint8)
        if not isinstance(header, dict):
            raise TypeError("the header is not an object")
        return {name: _tensor(data, facts) for name, facts in header.items() if name != "__metadata__"}
    except OSError as error:
        raise FormatError(who, "cannot be read", got=error.strerror, do="Check the path.") from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise FormatError(who, "has a damaged header", got=str(error)[:200]) from error


def _tensor(data: NDArray[Any], facts: Any) -> NDArray[Any]:
    dtype, shape, (begin, end) = _DTYPES[facts["dtype"]], tuple(facts["shape"]), facts["data_offsets"]
    spec = TensorSpec(shape, dtype)
    if not all(type(d) is int and d >= 0 for d in (*shape, begin, end)) or not begin <= end <= data.size:
        raise ValueError(f"tensor outside the file: {facts}")
    if end - begin != spec.size_bytes:
        raise ValueError(f"size of the tensor does not match its shape: {facts}")
    return data[begin:end].view(dtype.numpy).reshape(shape)


def write_safetensors(arrays: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> dict[str, str]:
    """Write arrays as one safetensors file atomically, and return the sha256 of each array's bytes.

    Raises StoreError, and FormatError for a dtype that the format lacks (strings, sub-byte types).
    """
    path = Path(path)
    header: dict[str, Any] = {}
    digests: dict[str, str] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        dtype = DType.of(array.dtype)
        if dtype not in CODES:
            raise FormatError(f"weights file {path}", "cannot hold this dtype", got=f"{name}: {dtype.value}")
        raw = np.ascontiguousarray(array).tobytes()
        end = offset + len(raw)
        header[name] = {"dtype": CODES[dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        digests[name] = hashlib.sha256(raw).hexdigest()
        parts.append(raw)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    write_atomic(path, len(text).to_bytes(8, "little"), text, *parts)
    return digests


def element_digest(array: NDArray[Any], dtype: DType) -> str:
    """Return the sha256 of an array's elements: row-major, little-endian, sub-byte types packed."""
    flat = (
        pack_bits(array, dtype) if dtype.bits < 8 else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    )
    return hashlib.sha256(flat.data if flat.size else b"").hexdigest()


class TensorFiles:
    """Tensors in files below one folder. Each is mapped read-only when it is first read."""

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = Path(folder)
        self._files: dict[Path, dict[str, NDArray[Any]]] = {}

    def read(
        self, name: str, spec: TensorSpec, *, file: str, form: str, key: str = "", offset: int = 0
    ) -> NDArray[Any]:
        """Map the array of one weight and check its shape and dtype.

        file: path below the folder; ``form``: ``safetensors`` (``key``: the tensor's name there, the weight's own by default) or
        ``raw`` (row-major, little-endian, from byte ``offset``; sub-byte types packed, low bits first).
        Raises ModelError for a file that is missing, unsafe, too short, or holds another dtype or shape; FormatError for a damaged one.
        """
        who = f"weight %{name}"
        if not file:
            raise ModelError(who, "has no file", do="Pass its array by name.")
        path = (self.folder / file).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            do = "Move the file next to the graph."
            raise ModelError(who, "names a file outside the graph's folder", got=file, do=do)
        if form == "safetensors":
            array = self._tensors(path).get(key or name)
            if array is None:
                raise ModelError(
                    who,
                    "is missing in its file",
                    got=f"{key or name} in {path}",
                    do="Check that the file belongs to this model.",
                )
        elif form == "raw":
            array = _raw(who, path, spec, offset)
        else:
            raise ModelError(who, "has an unknown format", got=repr(form), do="Use safetensors or raw.")
        if tuple(array.shape) != spec.shape or DType.of(array.dtype) is not spec.dtype:
            got = f"{DType.of(array.dtype).value}{list(array.shape)} for {spec}"
            do = "The file belongs to another model."
            raise ModelError(who, "has another shape or dtype in its file", got=got, do=do)
        return array

    def _tensors(self, path: Path) -> dict[str, NDArray[Any]]:
        if path not in self._files:
            self._files[path] = read_safetensors(path)
        return self._files[path]


def _raw(who: str, path: Path, spec: TensorSpec, offset: int) -> NDArray[Any]:
    count = spec.size_bytes
    shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
    try:
        if count is None or offset < 0 or offset + count > path.stat().st_size:
            raise ModelError(
                who,
                "is outside its file",
                got=f"{count} bytes at {offset} in {path}",
                do="Download the file again: it is cut or damaged.",
            )
        if not count:
            return np.zeros(shape, spec.dtype.numpy)
        if spec.dtype.bits >= 8:
            return np.memmap(path, spec.dtype.numpy, "r", offset, shape)
        return unpack_bits(np.memmap(path, np.uint8, "r", offset, (count,)), spec.dtype, shape)
    except OSError as error:
        raise ModelError(
            who,
            "cannot be read",
            got=f"{path}: {error.strerror}",
            do="Check that the file exists and can be read.",
        ) from error


# ── sub-byte types: packed in files and buffers, one byte each in NumPy ──

_SIGNED = {DType.INT4: ml_dtypes.int4, DType.INT2: ml_dtypes.int2}


def unpack_bits(data: NDArray[np.uint8], dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Unpack the elements of a sub-byte dtype, the first in the lowest bits (as ONNX and safetensors pack them)."""
    bits, count = dtype.bits, math.prod(shape)
    per_byte, mask = 8 // bits, (1 << bits) - 1
    codes = np.empty((data.size, per_byte), np.uint8)
    for i in range(per_byte):
        codes[:, i] = (data >> (i * bits)) & mask
    flat = codes.reshape(-1)[:count]
    if dtype in _SIGNED:
        half = 1 << (bits - 1)
        return ((flat ^ half).astype(np.int8) - half).astype(dtype.numpy).reshape(shape)
    if dtype.is_float:  # the code is the byte's low bits
        return flat.view(dtype.numpy).reshape(shape)
    return flat.astype(dtype.numpy).reshape(shape)


def pack_bits(array: NDArray[Any], dtype: DType) -> NDArray[np.uint8]:
    """Pack elements of a sub-byte dtype in row-major order, the first in the lowest bits; unused bits of the last byte are zero."""
    bits = dtype.bits
    per_byte, mask = 8 // bits, (1 << bits) - 1
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & mask
    codes = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    codes[: flat.size] = flat
    packed = np.zeros(codes.size // per_byte, np.uint8)
    for i in range(per_byte):
        packed |= codes[i::per_byte] << (i * bits)
    return packed
