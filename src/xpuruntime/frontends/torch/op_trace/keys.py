"""Keys of modules: the digest of a module's trace and of all else that decides its graph."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from ....printable import logger
from ..export import find_torch
from ..names import output_names
from .outline import call_of, outline_digest
from .results import KnownResults
from .running import TracedCall, trace_of_export, trace_of_module
from .words import NotTraced

__all__ = ["TracedModule", "traced_module"]

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module with what is known of it before ``forward`` runs.

    outline: digest of names, forms, settings and the content of what no checkpoint has.
    results: results of ops of earlier traces of the outline.
    """

    model: Any
    call: TracedCall
    outline: str
    results: KnownResults = field(default_factory=KnownResults)

    def key(self) -> str | None:
        """Return the key: equal keys compute the same from the module's tensors, with the same names. None if a trace does not describe the module."""
        try:
            trace, structure = trace_of_module(self.model, self.call, self.results)
            return _key(self.outline, trace.digest(places=True), structure)
        except Exception as error:  # whatever the module raises here, an export reports or does not meet
            self._tell(error)
            return None

    def key_as_exported(self, program: Any) -> str | None:
        """Return the key if the nodes of an export of the module do the same; None otherwise."""
        try:
            trace, structure = trace_of_module(self.model, self.call, self.results)
            exported, theirs = trace_of_export(program, self.call, self.results)
            if trace.digest(places=False) != exported.digest(places=False) or output_names(
                structure
            ) != output_names(theirs):
                raise NotTraced("ops other than those of the export")
            return _key(self.outline, trace.digest(places=True), structure)
        except Exception as error:
            self._tell(error)
            return None

    def _tell(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        _log.debug("%s: each start exports it; its trace has %s", type(self.model).__name__, text)


def traced_module(model: Any, example_inputs: Any) -> TracedModule | None:
    """Return what is known of a module without running it; None for one that is not traced, and for another kind of model."""
    try:
        if not isinstance(model, find_torch().nn.Module):
            return None
        call = call_of(model, example_inputs)
        return TracedModule(model, call, outline_digest(model, call))
    except Exception as error:  # of attributes and inputs of any class
        _log.debug("%s: each start exports it; %s", type(model).__name__, error)
        return None


def _key(outline: str, trace: str, structure: Any) -> str:
    names = "\0".join(output_names(structure))
    return hashlib.sha256(f"{outline} {trace} {names}".encode("utf-8", "surrogatepass")).hexdigest()
