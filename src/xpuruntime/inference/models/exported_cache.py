"""Store records of exported modules: the graph that PyTorch's decomposition and the lowering made of one.

A module is exported every time, because only tracing tells what it computes. The export is then looked up by its digest (``exported_digest``).
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

if TYPE_CHECKING:
    from ...frontends.torch.importer import TorchImport

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
    """Return ``import_torch``; for an export that was imported before, return the graph from its store record. Raises as ``import_torch``.

    parts: what of the module is lowered.
    """
    from ...frontends.torch.exported_digest import exported_digest
    from ...frontends.torch.importer import TorchImport, export_torch
    from ...frontends.torch.weights import TorchWeights

    exported = export_torch(model, example_inputs, dynamic_shapes=dynamic_shapes)
    known = None
    if store.mode != "off" and dynamic_shapes is None:
        known = exported_digest(exported.program, exported.saved)
    if known is None:
        return exported.imported(parts)
    tensors: dict[str, Any] = {**exported.program.constants, **exported.program.state_dict}
    key = {
        "exported": known,
        "name": exported.name,
        "max_rows": parts.max_rows,
        "draws": parts.draws,
        "xpuruntime": __version__,
        "code": code_digest("ir", "frontends"),
    }

    def recalled(payload: bytes) -> TorchImport:
        record = json.loads(payload)
        graph = Graph.from_json(record["graph"])
        by_name = {name: tensors[target] for name, target in record["tensors"].items()}
        if missing := [w.name for w in graph.weights if w.name not in by_name]:
            raise FormatError("record", "has no tensors for weights of its graph", got=missing[0])
        return TorchImport(graph, TorchWeights(by_name))

    result: TorchImport | None = store.recall(KIND, digest(key), recalled)
    if result is None:
        result = exported.imported(parts)
        _keep(store, key, result, tensors)
    return result


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
