"""Weights beside a graph: read lazily from safetensors or raw files, written once as safetensors.

The safetensors format (8-byte little-endian header length, JSON header, dense little-endian data) is read here directly, because
the safetensors package hands NumPy no bfloat16 and no float8, and because a memory map costs nothing until it is read.
Files are trusted with nothing: a name that leaves the graph's folder, and a size that does not fit, are errors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, ModelError
from ..store import write_atomic
from ..types import DType, TensorSpec
from .graph import Graph, Value, Weight

__all__ = ["WeightFiles", "open_weights", "read_safetensors", "save_weights"]

_CODES: dict[DType, str] = {
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
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_MAX_HEADER = 100 << 20


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Every tensor of a safetensors file by name, memory-mapped and read-only. Raises FormatError."""
    who, path = f"weights file {os.fspath(path)}", Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_MAX_HEADER, size - 8):
                raise FormatError(who, "is not a safetensors file, or truncated", got=f"{size} bytes")
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.zeros(0, np.uint8)
        if not isinstance(header, dict):
            raise TypeError("the header is no object")
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
        raise ValueError(f"tensor of another size than its shape says: {facts}")
    return data[begin:end].view(dtype.numpy).reshape(shape)


def save_weights(arrays: Mapping[str, NDArray[Any]], path: str | os.PathLike[str]) -> dict[str, Weight]:
    """Write arrays as one safetensors file, whole or not at all, and give the Weight of each, with digest.

    Raises StoreError, and FormatError for a dtype that the format lacks (strings, sub-byte types).
    """
    path = Path(path)
    header: dict[str, Any] = {}
    weights: dict[str, Weight] = {}
    parts: list[bytes] = []
    at = 0
    for name, array in arrays.items():
        dtype = DType.of(array.dtype)
        if dtype not in _CODES:
            raise FormatError(f"weights file {path}", "cannot hold this dtype", got=f"{name}: {dtype.value}")
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(raw)],
        }
        digest = hashlib.sha256(raw).hexdigest()
        spec = TensorSpec(tuple(array.shape), dtype)
        weights[name] = Weight(Value(name, spec), path.name, "safetensors", name, digest=digest)
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    write_atomic(path, len(text).to_bytes(8, "little"), text, *parts)
    return weights


class WeightFiles(Mapping[str, NDArray[Any]]):
    """The weights of a graph by value name, each loaded when first asked for (memory-mapped, read-only).

    Raises ModelError for a weight whose file is missing, unsafe, too short, or of another dtype or shape.
    """

    def __init__(self, graph: Graph, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = Path(folder)
        self._weights = {w.name: w for w in graph.weights}
        self._files: dict[Path, dict[str, NDArray[Any]]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __getitem__(self, name: str) -> NDArray[Any]:
        weight = self._weights[name]
        who = f"weight %{name}"
        if not weight.file:
            raise ModelError(who, "has no file", do="Hand its array in by name.")
        path = (self.folder / weight.file).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ModelError(
                who,
                "names a file outside the graph's folder",
                got=weight.file,
                do="Move it beside the graph.",
            )
        if weight.format == "safetensors":
            if path not in self._files:
                self._files[path] = read_safetensors(path)
            array = self._files[path].get(weight.key or name)
            if array is None:
                raise ModelError(who, "is not in its file", got=f"{weight.key or name} in {path}")
        elif weight.format == "raw":
            array = _raw(who, path, weight)
        else:
            raise ModelError(
                who, "has an unknown format", got=repr(weight.format), do="Use safetensors or raw."
            )
        if tuple(array.shape) != weight.spec.shape or DType.of(array.dtype) is not weight.spec.dtype:
            got = f"{DType.of(array.dtype).value}{list(array.shape)} for {weight.spec}"
            raise ModelError(
                who, "has another type in its file", got=got, do="The file belongs to another model."
            )
        return array


def _raw(who: str, path: Path, weight: Weight) -> NDArray[Any]:
    count = weight.spec.size_bytes
    shape = tuple(int(d) for d in weight.spec.shape if isinstance(d, int))
    try:
        if count is None or weight.offset < 0 or weight.offset + count > path.stat().st_size:
            raise ModelError(who, "lies outside its file", got=f"{count} bytes at {weight.offset} in {path}")
        if not count:
            return np.zeros(shape, weight.spec.dtype.numpy)
        return np.memmap(path, weight.spec.dtype.numpy, "r", weight.offset, shape)
    except OSError as error:
        raise ModelError(who, "cannot be read", got=f"{path}: {error.strerror}") from error


def open_weights(graph: Graph, folder: str | os.PathLike[str] = ".") -> WeightFiles:
    """The graph's weights as a lazy mapping; ``folder`` is where the graph's file lies."""
    return WeightFiles(graph, folder)
