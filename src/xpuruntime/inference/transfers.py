"""A policy's limits on transfers, applied to a session's model."""

from __future__ import annotations

from collections.abc import Mapping

from ..compiler.transfers import check_waits
from ..errors import PolicyError, XpuError
from ..frontends.onnx.importer import load_onnx
from ..ir.host_waits import HostWait, host_waits
from ..protocols import ModelSource

__all__ = ["check_model"]


def check_model(who: str, transfers: Mapping[str, str] | None, model: ModelSource) -> None:
    """Raise PolicyError if the policy has ``transfers: {sync: none}`` and the host must wait in a run: a value on the device decides sizes,
    or what runs next. Raise it as well if the nodes of the model cannot be read.
    """
    if (transfers or {}).get("sync") == "none":
        check_waits(who, _waits_of(who, model))


def _waits_of(who: str, model: ModelSource) -> tuple[HostWait, ...]:
    """Return the nodes that make the host wait. Raise PolicyError if the nodes of the model cannot be read."""
    if model.format == "program":
        bodies = [e.name for e in model.graph.entries if e.is_body]
        why, do = "a value decides which entry point runs", "Compile a model without control flow."
        return tuple(HostWait(name, "entry point", why, do) for name in bodies)
    try:
        if model.format == "graph":
            return host_waits(model.graph[0])
        if model.format == "onnx":
            return host_waits(load_onnx(model))
        why = f"a model of the format {model.format} is not read node by node"
    except XpuError as error:
        why = f"the model cannot be read node by node: {error.what}"
    do = "Open the model as ONNX, or leave sync out."
    raise PolicyError(who, "execution.transfers.sync: none cannot be checked", got=why, do=do)
