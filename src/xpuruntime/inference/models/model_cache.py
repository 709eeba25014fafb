"""Store records of opened model files, so that a second start reads neither the file nor the onnx package.

A record holds the ``ModelSource`` without the file's content. Its key is the identity of every file that the model's digest covers: path, device,
inode, size, and both times to the nanosecond. Any change of a file gives it a new time of status change, which no program can reset, so a record
never describes other content. A file that changed less than two seconds ago is not recorded: a further change might fall into the same tick of
its file system's clock.

A model with fixed dims (``static_shape``) is rewritten from the original. Its record describes the result, and the bytes are written only when
they are read.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import StoreError
from ...frontends.fix_shapes import fix_shapes
from ...frontends.model_file import open_model
from ...plugins.loader import package_version
from ...printable import logger
from ...protocols import ModelSource, NodeRef, Products
from ...storage.files import SETTLED_S, file_identity
from ...storage.store import Store, digest
from ...types import DType, TensorSpec

__all__ = ["KIND", "fixed_known", "open_known"]

KIND = "model"
_FORMAT = 6
_log = logger("xpuruntime.session")


def open_known(model: Any, store: Store) -> ModelSource:
    """Return ``open_model``; for an unchanged path, return the model from its store record. Raises ModelError."""
    if not isinstance(model, str | os.PathLike) or store.mode == "off":
        return open_model(model)
    path = Path(os.fspath(model))
    began = time.time()
    identity = file_identity(path)
    if identity is None:
        return open_model(model)
    key = {"file": [str(path.absolute()), *identity], **_readers()}
    known = store.recall(KIND, digest(key), lambda payload: _of_file(json.loads(payload), path))
    if known is not None and all(file_identity(f) == i for f, i in known[1].items()):
        return known[0]
    source = open_model(model)
    further = {f.relative_to(path.parent).as_posix(): file_identity(f) for f in source.files[1:]}
    seen = [identity, *further.values()]
    whole = source.path == path and file_identity(path) == identity and None not in seen
    if whole and all(began - max(i[3], i[4]) / 1e9 > SETTLED_S for i in seen if i):
        _keep(store, key, source, further)
    return source


def fixed_known(model: ModelSource, sizes: Mapping[str, int | Sequence[int]], store: Store) -> ModelSource:
    """Return ``fix_shapes``; with a store record, defer making the bytes until they are read. Raises as ``fix_shapes``."""
    if model.format != "onnx" or store.mode == "off":
        return fix_shapes(model, sizes)
    fixed = {n: s if isinstance(s, int) else list(s) for n, s in sizes.items()}
    key = {"fixed": fixed, "of": model.digest, **_readers()}
    known: _Deferred | None = store.recall(
        KIND,
        digest(key),
        lambda payload: _source(
            json.loads(payload)["source"], _Deferred, name=model.name, path=None, data=None
        ),
    )
    if known is not None:
        known.postpone(lambda: fix_shapes(model, sizes).data or b"")
        return known
    source = fix_shapes(model, sizes)
    if source is not model:
        _keep(store, key, source, {})
    return source


class _Deferred(ModelSource):
    """A model whose bytes are made at the first read. Pickling and copying make them."""

    __slots__ = ("_make",)
    _make: Callable[[], bytes]

    def postpone(self, make: Callable[[], bytes]) -> None:
        """Leave ``data`` unset until it is read."""
        object.__setattr__(self, "_make", make)
        object.__delattr__(self, "data")

    def __getattr__(self, name: str) -> Any:
        if name != "data":
            raise AttributeError(name)
        data = self._make()
        object.__setattr__(self, "data", data)
        return data


@functools.cache
def _readers() -> dict[str, Any]:
    """Return the versions of the packages that read models. Another version may read a model differently."""
    packages = {p: package_version(p) for p in ("onnx", "openvino")}
    return {"format": _FORMAT, "xpuruntime": __version__, **packages}


def _of_file(record: Mapping[str, Any], path: Path) -> tuple[ModelSource, dict[Path, list[int]]]:
    """Return the model of a record, and the identities of the further files in it. Raise anything."""
    further = {path.parent / str(n): list(i) for n, i in record["further"].items()}
    known = _source(
        record["source"], ModelSource, name=path.stem, path=path, data=None, files=(path, *further)
    )
    return known, further


def _keep(store: Store, key: Mapping[str, Any], model: ModelSource, further: Mapping[str, Any]) -> None:
    """Store a record if it can be read back: a dim's name may be longer than a spec's text can be."""
    known = _plain(model)
    try:
        _source(known | {"nodes": []}, ModelSource, name="", path=None, data=None)
        store.put(KIND, key, json.dumps({"source": known, "further": further}).encode())
    except ValueError as error:
        _log.debug("model %s: the next start reads it again; %s", model.name, error)
    except StoreError as error:  # a full disk must not stop a model that is already open
        _log.debug("%s The next start reads the model again.", error)


def _plain(model: ModelSource) -> dict[str, Any]:
    """Return a ModelSource without name, path and content as plain data."""
    return {
        "format": model.format,
        "digest": model.digest,
        "inputs": [[s.name, str(s)] for s in model.inputs],
        "outputs": [[s.name, str(s)] for s in model.outputs],
        "nodes": [astuple(n) for n in model.nodes],
        "precision": model.precision.value,
        "opsets": dict(model.opsets),
        "quantized": None if model.quantized is None else model.quantized.value,
        "products": list(astuple(model.products)),
        "wide_pairs": model.wide_pairs,
        "functions": sorted(map(list, model.functions)),
    }


def _source(known: Mapping[str, Any], kind: type[Any], **rest: Any) -> Any:
    """Return the inverse of ``_plain``. rest: the fields that ``_plain`` leaves out."""
    return kind(
        format=known["format"],
        digest=known["digest"],
        inputs=tuple(TensorSpec.parse(text, name) for name, text in known["inputs"]),
        outputs=tuple(TensorSpec.parse(text, name) for name, text in known["outputs"]),
        nodes=tuple(
            NodeRef(n, op, domain, tuple(reads), tuple(makes), *difference)
            for n, op, domain, reads, makes, *difference in known["nodes"]
        ),
        precision=DType(known["precision"]),
        opsets=known["opsets"],
        quantized=None if known["quantized"] is None else DType(known["quantized"]),
        products=Products(*known["products"]),
        wide_pairs=known["wide_pairs"],
        functions=frozenset((domain, name) for domain, name in known["functions"]),
        **rest,
    )
