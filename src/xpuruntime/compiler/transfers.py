"""Limits of a policy on transfers inside a run: copies between devices, and waits of the host for a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import PolicyError
from ..evidence import Evidence
from ..ir import Graph
from ..ir.host_waits import HostWait, host_waits
from ..program.plan import Plan
from ..targets import DeviceId

__all__ = ["check_graph", "check_placement", "check_plan", "check_waits", "transfer_error"]

_ANY = "any"
_SHOWN = 3


def _limited(transfers: Mapping[str, str] | None) -> dict[str, str]:
    return {k: v for k, v in (transfers or {}).items() if v != _ANY}


def transfer_error(who: str, field: str, value: str, reasons: Iterable[str], do: str) -> PolicyError:
    """Return the error for a limit that a model or a run does not satisfy. ``reasons`` name the nodes."""
    listed = list(reasons)
    more = f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    text = "; ".join(listed[:_SHOWN]) + more
    return PolicyError(who, f"execution.transfers.{field}: {value} is not satisfied", got=text, do=do)


def check_graph(who: str, transfers: Mapping[str, str] | None, graph: Graph) -> None:
    """Raise PolicyError if a node of the graph makes the host wait although ``sync`` is ``none``."""
    if _limited(transfers).get("sync") == "none":
        check_waits(who, host_waits(graph))


def check_waits(who: str, waits: Iterable[HostWait]) -> None:
    """Raise PolicyError if there is a node that makes the host wait."""
    found = list(waits)
    if found:
        reasons = (f"node {w.name!r} ({w.op}): {w.why}, so the host waits for it" for w in found)
        raise transfer_error(who, "sync", "none", reasons, f"{found[0].do} Or allow it with sync: any.")


def check_plan(who: str, transfers: Mapping[str, str] | None, plan: Plan) -> None:
    """Raise PolicyError if a value crosses devices between two regions."""
    limits = _limited(transfers)
    device = {r.id: r.device for r in plan.regions}
    names = {n.name: n.region for n in plan.nodes}
    for t in plan.transfers:
        if t.shared or "caller" in (t.source, t.destination):
            continue
        to_host = DeviceId.parse(device[t.destination]).kind == "cpu"
        from_host = DeviceId.parse(device[t.source]).kind == "cpu"
        fields = [
            f
            for f, applies in (("h2d", not to_host), ("d2h", not from_host), ("sync", not from_host))
            if applies and f in limits
        ]
        if fields:
            readers = [n for n, r in names.items() if r == t.destination]
            text = (
                f"value {t.value!r} is copied from {device[t.source]} to {device[t.destination]} inside a run, for "
                f"{', '.join(map(repr, readers[:_SHOWN]))}{', ...' if len(readers) > _SHOWN else ''}"
            )
            do = "Place these nodes and their neighbors on one device, replace the op that the device lacks, or allow the copy with any."
            raise transfer_error(who, fields[0], limits[fields[0]], [text], do)


def check_placement(
    who: str, transfers: Mapping[str, str] | None, plan: Plan, evidence: Mapping[str, Evidence]
) -> None:
    """Raise PolicyError if an engine runs a step of a region on another device than the region's."""
    limits = _limited(transfers)
    field = next((f for f in ("d2h", "h2d", "sync") if f in limits), "")
    if not field:
        return
    for region in plan.regions:
        kind = DeviceId.parse(region.device).kind
        rows = evidence[region.id].rows if region.id in evidence else ()
        away = (
            [r for r in rows if r.device and DeviceId.parse(r.device).kind != kind] if kind != "auto" else []
        )
        if away:
            reasons = (
                f"{region.engine} runs {', '.join(map(repr, r.nodes[:_SHOWN])) or r.op} ({r.op}) on {r.device}, not on {region.device}"
                for r in away
            )
            do = "Replace the ops that the device lacks, name another engine, or allow the copies with any."
            raise transfer_error(who, field, limits[field], reasons, do)
        if kind not in ("cpu", "auto") and not rows:
            why = f"{region.engine} on {region.device} does not report where its steps run"
            do = "Name another engine, or leave the field out."
            raise PolicyError(
                who, f"execution.transfers.{field}: {limits[field]} cannot be checked", got=why, do=do
            )
