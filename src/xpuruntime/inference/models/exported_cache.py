"""Store records of exported modules: the graph that PyTorch's decomposition and the lowering made of one.

An export is looked up by its digest (``exported_digest``). A module whose ops are those of an earlier one (``frontends.torch.op_trace``) is not even exported:
``traced_cache`` knows the record of that one's export.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...errors import FormatError, StoreError
from ...frontends.lowered_parts import EVERYTHING, LoweredParts
from ...ir import Graph
from ...printable import logger
from ...storage.code_digest import code_digest
from ...storage.store import Store, digest
from .traced_cache import TracedStart

if TYPE_CHECKING:
    from ...frontends.torch.weights import TorchImport

__all__ = ["KIND", "import_known"]

KIND = "exported"
_log = logger("xpuruntime.session")


def import_known(
    model: Any,
    example_inputs: Any,
    dynamic_shapes: Any,
    store: Store,
    parts: LoweredParts = EVERYTHING,
) -> TorchImport:
    """Return ``import_torch``; for a module or an export that was imported before, return the graph from its store record. Raises as ``import_torch``.

    parts: what of the module is lowered.
    """
    maker = {
        "max_rows": parts.max_rows,
        "draws": parts.draws,
        "xpuruntime": __version__,
        "code": code_digest("ir", "frontends"),
    }
    result: TorchImport | None
    traced = None
    if store.mode != "off" and dynamic_shapes is None:
        traced = TracedStart.of(model, example_inputs, store, maker)
    if traced is not None and (record := traced.known_record()) is not None:
        result = store.recall(KIND, record, lambda payload: _recalled(payload, traced.tensors))
        if result is not None:
            _log.debug("%s: not exported; its ops are those of store entry %s", result.graph.name, record)
            return result
    from ...frontends.torch.exported_digest import exported_digest
    from ...frontends.torch.importer import export_torch

    exported = export_torch(model, example_inputs, dynamic_shapes=dynamic_shapes)
    known = None
    if store.mode != "off" and dynamic_shapes is None:
        known = exported_digest(exported.program, exported.saved)
    if known is None:
        return exported.imported(parts)
    tensors: dict[str, Any] = {**exported.program.constants, **exported.program.state_dict}
    key = {"exported": known, "name": exported.name, **maker}
    result = store.recall(KIND, digest(key), lambda payload: _recalled(payload, tensors))
    if result is None:
        result = exported.imported(parts)
        _keep(store, key, result, tensors)
    if traced is not None:
        traced.keep(exported.program, result, digest(key))
    return result


def _recalled(payload: bytes, tensors: Mapping[str, Any]) -> TorchImport:
    """Return the import of a record. A weight that is none of these tensors has its elements in the graph. Raise anything."""
    from ...frontends.torch.opaque import to_tensor
    from ...frontends.torch.weights import TorchImport, TorchWeights

    record = json.loads(payload)
    graph = Graph.from_json(record["graph"])
    targets = record["tensors"]
    by_name = {name: tensors[target] for name, target in targets.items() if target in tensors}
    for weight in graph.weights:
        if weight.name not in by_name:
            if weight.name not in targets or not weight.data:
                raise FormatError("record", "has no tensors for weights of its graph", got=weight.name)
            by_name[weight.name] = to_tensor(weight.array())
    return TorchImport(graph, TorchWeights({w.name: by_name[w.name] for w in graph.weights}))


def _keep(store: Store, key: Mapping[str, Any], result: TorchImport, tensors: Mapping[str, Any]) -> None:
    """Store a record if every weight is a tensor of the export."""
    targets = {id(tensor): target for target, tensor in tensors.items()}
    by_name = {name: targets.get(id(tensor)) for name, tensor in result.weights.tensors.items()}
    if None in by_name.values():
        return
    try:
        record = {"graph": result.graph.to_json(), "tensors": by_name}
        store.put(KIND, key, json.dumps(record).encode())
    except StoreError as error:  # a full disk must not stop a model that is already open
        _log.debug("%s The next start imports the module again.", error)
