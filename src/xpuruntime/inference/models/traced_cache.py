"""Store records of modules by the ops of their ``forward``, so that a second start does not export a module.

Two records have the kind ``traced``. One says that modules of an outline (``frontends.torch.op_trace.outline``) do the same in a trace as in an
export, and holds the results of their ops; only with it ``forward`` runs for a trace. The other names, for a trace, the record of the export
(``exported_cache``) that did the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import FormatError, StoreError
from ...printable import logger
from ...storage.store import Store, digest

if TYPE_CHECKING:
    from ...frontends.torch.op_trace.keys import TracedModule
    from ...frontends.torch.weights import TorchImport

__all__ = ["KIND", "TracedStart"]

KIND = "traced"
_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class TracedStart:
    """The opening of one module. maker: everything else that decides its graph, as data."""

    traced: TracedModule
    store: Store
    maker: Mapping[str, Any]

    @staticmethod
    def of(model: Any, example_inputs: Any, store: Store, maker: Mapping[str, Any]) -> TracedStart | None:
        """Return the opening; None for a module that is not traced, and for an ExportedProgram."""
        from ...frontends.torch.op_trace.keys import traced_module

        traced = traced_module(model, example_inputs)
        return None if traced is None else TracedStart(traced, store, maker)

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The module's parameters and buffers by name."""
        return self.traced.call.tensors

    def known_record(self) -> str | None:
        """Return the key of the record of an export that did what this module does; None if none is known."""
        results = self.store.recall(KIND, digest(self._outline()), _results)
        if results is None:
            return None
        self.traced.results.data.update(results)
        trace = self.traced.key()
        if trace is None:
            return None
        return self.store.recall(KIND, digest(self._trace(trace)), _record)

    def keep(self, program: Any, result: TorchImport, record: str) -> None:
        """Store the record's key if the module does in a trace what it did in its export, and if all weights can be found without the export."""
        if self.store.mode != "rw" or not self._finds(result):
            return
        trace = self.traced.key_as_exported(program)
        if trace is None:
            return
        try:
            self.store.put(KIND, self._trace(trace), json.dumps({"record": record}).encode())
            self.store.put(KIND, self._outline(), json.dumps({"results": self.traced.results.data}).encode())
        except StoreError as error:  # a full disk must not stop a model that is already open
            _log.debug("%s The next start exports the module again.", error)

    def _finds(self, result: TorchImport) -> bool:
        from ...frontends.torch.weights import tensor_key

        own = {tensor_key(tensor) for tensor in self.tensors.values()}
        tensors = result.weights.tensors
        return all(
            w.data or (w.name in tensors and tensor_key(tensors[w.name]) in own) for w in result.graph.weights
        )

    def _outline(self) -> dict[str, Any]:
        return {**self.maker, "name": type(self.traced.model).__name__, "outline": self.traced.outline}

    def _trace(self, key: str) -> dict[str, Any]:
        return {**self.maker, "name": type(self.traced.model).__name__, "trace": key}


def _record(payload: bytes) -> str:
    record = json.loads(payload)["record"]
    if not isinstance(record, str) or len(record) != 64 or not set(record) <= set("0123456789abcdef"):
        raise FormatError("record", "names no record", got=repr(record)[:80])
    return record


def _results(payload: bytes) -> dict[str, Any]:
    results = json.loads(payload)["results"]
    if not isinstance(results, dict):
        raise FormatError("record", "has no results of ops", got=type(results).__name__)
    return results
