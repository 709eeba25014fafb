"""Tensors of an ONNX model by reference: where their bytes are stored, and their content on access.

A tensor with contiguous elements in a file (external data, or ``raw_data`` of a model on disk) is a ``raw`` weight with an
offset into that file. Any other tensor is passed by name, through the mapping ``OnnxWeights``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...protocols import Array
from ...types import DType, TensorSpec

__all__ = ["OnnxWeights", "raw_offsets", "tensor_array", "tensor_spec", "weight_reference"]

_EXTERNAL = 1  # TensorProto.EXTERNAL
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9  # field numbers: ModelProto, GraphProto, TensorProto


def tensor_spec(tensor: Any, dtypes: Mapping[int, DType]) -> TensorSpec | None:
    """Return shape and dtype; None for an unsupported element type."""
    dtype = dtypes.get(tensor.data_type)
    return None if dtype is None else TensorSpec(tuple(int(d) for d in tensor.dims), dtype)


def tensor_array(tensor: Any, folder: Path | None = None) -> Array:
    """Return the elements. Raise ModelError if they do not match the tensor's shape and type."""
    import numpy as np
    from onnx import checker, numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor, base_dir="" if folder is None else str(folder)))
    except (OSError, checker.ValidationError) as error:
        raise ModelError(
            f"tensor {tensor.name!r}",
            "its external data cannot be read",
            got=error,
            do="Save the model again with its data in one plain file.",
        ) from error
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise ModelError(
            f"tensor {tensor.name!r}",
            "its elements do not match its shape and type",
            got=error,
            do="Export the model again.",
        ) from error


def weight_reference(
    tensor: Any, spec: TensorSpec, path: Path | None, offsets: Mapping[str, int]
) -> dict[str, Any]:
    """Return the keywords of the ``Weight`` that refers to the tensor; empty if the array has to be passed by name."""
    if spec.dtype is DType.STRING or spec.dtype.bits < 8:
        return {}
    if tensor.data_location == _EXTERNAL:
        entries = {e.key: e.value for e in tensor.external_data}
        return {"file": entries["location"], "format": "raw", "offset": int(entries.get("offset") or 0)}
    if path is not None and tensor.HasField("raw_data") and tensor.name in offsets:
        return {"file": path.name, "format": "raw", "offset": offsets[tensor.name]}
    return {}


def raw_offsets(data: bytes) -> dict[str, int]:
    """Return the offset of each initializer's ``raw_data`` in a serialized ModelProto, read from the wire format (a tag, then a
    varint or a length; protobuf.dev/programming-guides/encoding).
    """
    offsets: dict[str, int] = {}
    for field, start, end in _fields(data, 0, len(data)):
        if field != _GRAPH:
            continue
        for inner, begin, stop in _fields(data, start, end):
            if inner != _INITIALIZER:
                continue
            name, offset = "", -1
            for part, a, b in _fields(data, begin, stop):
                if part == _NAME:
                    name = data[a:b].decode("utf-8", "replace")
                elif part == _RAW_DATA:
                    offset = a
            if offset >= 0:
                offsets[name] = offset
    return offsets


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield field number, begin and end of every length-delimited field."""
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            yield tag >> 3, at, at + length
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return  # groups, which protobuf 3 does not write


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


class OnnxWeights(Mapping[str, Array]):
    """Weights of an imported model by name, each read on access and not kept."""

    def __init__(self, tensors: Mapping[str, Any], folder: Path | None) -> None:
        self._tensors, self._folder = tensors, folder

    def __getitem__(self, name: str) -> Array:
        return tensor_array(self._tensors[name], self._folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def elements(self, name: str) -> int:
        """Return the number of elements of a weight without reading it."""
        return math.prod(self._tensors[name].dims)
