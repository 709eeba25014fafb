"""External data of ONNX models: where it is stored, and whether the reference is safe and complete.

A model file is untrusted input. The location of external data is a path relative to the model's folder. A path that leaves the
folder (absolute, ``..``, a symbolic link) is refused, because a model could otherwise read any file of its user.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ....errors import ModelError
from ....printable import shortened
from ....types import DType

__all__ = ["check_tensors", "tensors"]

_EXTERNAL = 1  # TensorProto.EXTERNAL


def tensors(model: Any) -> Iterator[Any]:
    """Yield every TensorProto of a model: initializers (sparse ones too), attributes, subgraphs, local functions, training graphs."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _attribute_tensors(function.attribute_proto)
        for node in function.node:
            yield from _node_tensors(node)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: Any) -> Iterator[Any]:
    yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[Any]) -> Iterator[Any]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in (
            *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
            *attribute.sparse_tensors,
        ):
            yield from (sparse.values, sparse.indices)
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def check_tensors(model: Any, who: str, folder: Path | None, dtypes: dict[int, DType]) -> tuple[Path, ...]:
    """Check that the data of every tensor is complete, and return the external files, sorted and without duplicates.

    folder: folder of the model file; None for a model in memory.
    dtypes: TensorProto.DataType -> DType.
    Raises ModelError: external data is missing, outside the folder, too short, or raw data has the wrong length.
    """
    files: dict[str, Path] = {}
    for tensor in tensors(model):
        expected = _size(tensor, who, dtypes)
        if tensor.data_location == _EXTERNAL:
            entries = _entries(tensor, who)
            location = entries.get("location", "")
            try:
                path = _locate(tensor, who, folder, location)
                _check_span(tensor, who, entries, path, expected)
            except (
                OSError,
                ValueError,
            ) as error:  # the system rejects the name, or the folder cannot be read
                raise ModelError(
                    who,
                    f"external data of tensor {tensor.name!r} cannot be read",
                    got=f"{shortened(location)}: {getattr(error, 'strerror', None) or error}",
                    do="Save the model again with a plain file name for its data.",
                ) from error
            files[location] = path
        elif tensor.HasField("raw_data") and expected is not None and len(tensor.raw_data) != expected:
            raise ModelError(
                who,
                f"tensor {tensor.name!r} needs {expected} bytes of data",
                got=f"{len(tensor.raw_data)} bytes",
                do="The file is damaged or was written wrongly: fetch or export it again.",
            )
    return tuple(files[k] for k in sorted(files))


def _size(tensor: Any, who: str, dtypes: dict[int, DType]) -> int | None:
    """Return the bytes of the packed tensor; None for strings and unknown types."""
    if any(d < 0 for d in tensor.dims):
        raise ModelError(
            who,
            f"tensor {tensor.name!r} has a negative extent",
            got=str(list(tensor.dims)),
            do="The file is damaged: fetch or export it again.",
        )
    dtype = dtypes.get(tensor.data_type)
    return None if dtype is None or not dtype.bits else (math.prod(tensor.dims) * dtype.bits + 7) // 8


def _entries(tensor: Any, who: str) -> dict[str, str]:
    """Return a tensor's external data by key. A duplicate key is refused: readers differ on whether the first or the last counts."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            raise ModelError(
                who,
                f"external data of tensor {tensor.name!r} has a duplicate key {shortened(entry.key)}",
                got=f"{shortened(entries[entry.key])} and {shortened(entry.value)}",
                do="The file is damaged or hostile: fetch or export it again.",
            )
        entries[entry.key] = entry.value
    return entries


def _locate(tensor: Any, who: str, folder: Path | None, location: str) -> Path:
    if folder is None:
        raise ModelError(
            who,
            f"tensor {tensor.name!r} has external data, which a model in memory cannot refer to",
            got=shortened(location),
            do="Pass the path of the .onnx file instead.",
        )
    # Check the POSIX and the Windows reading, so that every system refuses the same files.
    spellings = (PurePosixPath(location), PureWindowsPath(location))
    outside = any(p.is_absolute() or p.drive or p.root or ".." in p.parts for p in spellings)
    if not location or "\0" in location or location.endswith(("/", "\\")) or outside:
        raise ModelError(
            who,
            f"external data of tensor {tensor.name!r} must be in the model's folder",
            got=shortened(location),
            do="Refused: such a path can read any file. Save the model again with a plain file name for its data.",
        )
    path = folder / location
    if path.resolve() != folder.resolve() / location:
        raise ModelError(
            who,
            f"external data of tensor {tensor.name!r} is reached through a symbolic link",
            got=f"{location!r} -> {str(path.resolve())!r}",
            do="Refused: a link can read any file. Copy the data file into the model's folder.",
        )
    if not path.is_file():
        raise ModelError(
            who,
            f"external data of tensor {tensor.name!r} is missing",
            got=f"no file {str(path)!r}",
            do="Put the data file next to the .onnx file, under its original name.",
        )
    return path


def _check_span(tensor: Any, who: str, entries: Mapping[str, str], path: Path, expected: int | None) -> None:
    size = path.stat().st_size
    offset, length = (entries.get(k, "") for k in ("offset", "length"))
    if not all(v == "" or (v.isdecimal() and len(v) < 20) for v in (offset, length)):
        raise ModelError(
            who,
            f"offset and length of the external data of tensor {tensor.name!r} must be non-negative integers",
            got=f"offset {shortened(offset)}, length {shortened(length)}",
            do="The file is damaged: fetch or export it again.",
        )
    start = int(offset or 0)
    span = int(length) if length else (size - start if expected is None else expected)
    if span < 0 or start + span > size:
        raise ModelError(
            who,
            f"external data of tensor {tensor.name!r} ends at byte {start + max(span, 0)}, beyond its file",
            got=f"{size} bytes in {path.name!r}",
            do="The data file is truncated or belongs to another model: fetch it again.",
        )
    if expected is not None and span != expected:
        raise ModelError(
            who,
            f"tensor {tensor.name!r} needs {expected} bytes of external data",
            got=f"{span} bytes",
            do="The file is damaged or was written wrongly: fetch or export it again.",
        )
