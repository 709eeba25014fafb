"""Checkpoints as frameworks save them: one safetensors file, or shards with an index. Tensor names may differ from the model's by a prefix.

arrays = read_checkpoint("Qwen2.5-0.5B")                      # a folder, model.safetensors or model.safetensors.index.json
array = WeightSource("weights", "Qwen2.5-0.5B", weights).find(weight)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ..arguments import folder_or_file
from ..errors import FormatError, InputError
from ..types import TensorSpec
from .files import read_regular
from .tensor_files import read_safetensors

__all__ = ["CheckpointWeight", "WeightLike", "WeightSource", "match_names", "read_checkpoint"]

_INDEX = ".safetensors.index.json"
_MAX_INDEX = 100 << 20
_MAX_PARTS = 32  # leading name parts that prefix matching may strip


class WeightLike(Protocol):
    """The fields of a graph's or a program's weight that finding its array needs. ``data`` holds its own elements; None or empty without any."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def spec(self) -> TensorSpec: ...
    @property
    def data(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class CheckpointWeight:
    """A weight to find in a checkpoint. ``names``: its own name, then names of the same tensor: of tied weights, and in its checkpoints."""

    names: tuple[str, ...]
    spec: TensorSpec


class WeightSource:
    """The origin of a model's arrays: the path of a checkpoint, arrays by name, or None for the weights' own files and data.

    aliases: further names of a weight's tensor, by the weight's name. They come from files, so malformed entries are ignored.
    With a folder, a weight that names a file is read from that file in it; all others are read from the folder's checkpoint.
    """

    def __init__(self, who: str, source: Any, weights: Iterable[WeightLike], aliases: Any = None) -> None:
        from_checkpoint = [w for w in weights if not _has_data(w)]
        self.arrays: Mapping[str, Any] = {}
        self.folder: Path | None = None
        self._saved = False
        if isinstance(source, Mapping):
            self.arrays = source
        elif source is not None:
            path = folder_or_file(who, "the source of weights", source)
            if path.is_dir():
                self.folder, from_checkpoint = path, [w for w in from_checkpoint if not w.file]
            if from_checkpoint or self.folder is None:
                self.arrays, self._saved = read_checkpoint(path), True
        queries = [CheckpointWeight(_names(w, aliases), w.spec) for w in from_checkpoint]
        self._keys = match_names(who, queries, self.arrays) if self.arrays else {}

    def find(self, weight: WeightLike) -> Any:
        """Return the array or tensor of a weight, in the type that it has there; None if the source has none."""
        for key in (self._keys.get(weight.name, weight.name), weight.key):
            array = self.arrays.get(key) if key else None
            # A checkpoint may store a constant of the model in another type: the model's own array is used then.
            if array is not None and not (
                self._saved and _has_data(weight) and not _fits(array, weight.spec)
            ):
                return array
        return None


def _has_data(weight: WeightLike) -> bool:
    return weight.data is not None and weight.data != ""


def _names(weight: WeightLike, aliases: Any) -> tuple[str, ...]:
    names = aliases.get(weight.name, ()) if isinstance(aliases, Mapping) else ()
    names = [n for n in names if isinstance(n, str)] if isinstance(names, list | tuple) else []
    return tuple(dict.fromkeys([weight.name, *([weight.key] if weight.key else []), *names]))


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return every tensor of a checkpoint by name, memory-mapped and read-only.

    path: a safetensors file; the index of its shards (``model.safetensors.index.json``); or a folder that holds either.
    Raises FormatError for a file that is missing, damaged, or outside the folder of its index.
    """
    path = Path(path)
    if path.is_dir():
        path = _main_file(path)
    if not path.name.endswith(_INDEX):
        return read_safetensors(path)
    arrays: dict[str, NDArray[Any]] = {}
    for file in sorted(set(_shards(path).values())):
        arrays |= read_safetensors(path.parent / file)
    missing = [name for name in _shards(path) if name not in arrays]
    if missing:
        raise FormatError(
            f"checkpoint {path}", "lists a tensor that no shard has", got=", ".join(missing[:3])
        )
    return arrays


def _main_file(folder: Path) -> Path:
    """Return the index of a folder, or its only safetensors file."""
    for pattern in (f"*{_INDEX}", "*.safetensors"):
        files = sorted(folder.glob(pattern))
        preferred = [f for f in files if f.name.startswith("model.")]
        if len(files) == 1 or len(preferred) == 1:
            return (preferred or files)[0]
        if files:
            names = ", ".join(f.name for f in files[:4])
            raise FormatError(
                f"checkpoint {folder}", "holds several models", got=names, do="Give the path of one."
            )
    names = ", ".join(sorted(f.name for f in folder.iterdir())[:6]) or "an empty folder"
    raise FormatError(
        f"checkpoint {folder}",
        "holds no safetensors",
        got=names,
        do="Save it with save_pretrained(folder), or give another folder.",
    )


def _shards(index: Path) -> dict[str, str]:
    """Return the file name of each tensor that the index lists."""
    who = f"checkpoint {index}"
    try:
        if index.stat().st_size > _MAX_INDEX:
            raise FormatError(who, "has an index larger than 100 MiB", got=f"{index.stat().st_size} bytes")
        files = json.loads(read_regular(index))["weight_map"]
    except OSError as error:
        raise FormatError(who, "cannot be read", got=error.strerror, do="Check the path.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(who, "has a damaged index", got=str(error)[:200]) from error
    if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
        raise FormatError(who, "has a damaged index", got="a weight_map that does not map names to files")
    for file in files.values():
        if Path(file).name != file:
            raise FormatError(who, "names a file outside its folder", got=file[:200])
    return files


def match_names(who: str, weights: Iterable[CheckpointWeight], arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the checkpoint's name of each wanted weight that it has, by the weight's own name.

    A weight is found by any of its names. If some are missing, one prefix may be added to or removed from all names (``model.`` of a base
    model in a larger one), provided that every weight is then found with its shape and dtype. Raises InputError if two prefixes would work.
    """
    weights = list(weights)
    direct = {w.names[0]: next((n for n in w.names if n in arrays), "") for w in weights}
    missing = [w for w in weights if not direct[w.names[0]]]
    if not missing:
        return direct
    match: tuple[str, dict[str, str]] | None = None
    for strip, add in _prefixes(missing[0].names, arrays):
        keys = _renamed(weights, arrays, strip, add)
        prefix = repr(add) if add else f"none for {strip!r}"
        if keys is None or (match is not None and keys == match[1]):
            continue
        if match is not None:
            raise InputError(
                who,
                "match the checkpoint under several prefixes",
                got=f"{match[0]} or {prefix}",
                do="Pass the arrays by name.",
            )
        match = prefix, keys
    return match[1] if match is not None else {name: key for name, key in direct.items() if key}


def _prefixes(names: Iterable[str], arrays: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return each (prefix to remove, prefix to add) that turns one of the names into a name of the checkpoint."""
    for name in names:
        parts = name.split(".", _MAX_PARTS)
        for i in range(len(parts)):
            strip, rest = ".".join([*parts[:i], ""]) if i else "", ".".join(parts[i:])
            for key in filter(lambda k: isinstance(k, str), arrays):
                if key == rest and strip:
                    yield strip, ""
                elif key.endswith("." + rest):
                    yield strip, key[: -len(rest)]


def _renamed(
    weights: Iterable[CheckpointWeight], arrays: Mapping[str, Any], strip: str, add: str
) -> dict[str, str] | None:
    """Return every weight's name in the checkpoint under one prefix; None if one is missing or has another shape or dtype."""
    keys = {}
    for w in weights:
        renamed = (add + n.removeprefix(strip) for n in w.names if n.startswith(strip))
        key = next((n for n in renamed if n in arrays and _fits(arrays[n], w.spec)), None)
        if key is None:
            return None
        keys[w.names[0]] = key
    return keys


def _fits(array: Any, spec: TensorSpec) -> bool:
    """Return True if an array or a tensor has a weight's shape and dtype."""
    name = str(getattr(array, "dtype", "")).removeprefix("torch.")
    return name == spec.dtype.value and tuple(getattr(array, "shape", ())) == spec.shape
