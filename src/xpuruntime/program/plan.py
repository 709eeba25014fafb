"""Plan: a table of nodes with their regions and their edges, the decisions, and the transfers. A plan holds no values or attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..decisions import Decision
from ..errors import FormatError
from ..types import TensorSpec
from .explain import explain, summary

__all__ = ["Plan", "PlanNode", "Region", "Transfer"]

_FORMAT = "xpuruntime-plan"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Region:
    """A connected part of the model that one engine runs.

    precision:    the precision that it computes in (``float32``; ``int8`` for a quantized model).
    float_products: number of convolutions and matrix products that a quantized model leaves in floats.
    alternatives: ``engine on device``, in the order of fallback if this one fails to load.
    inputs, outputs: values that cross the region's boundary; with one region, the model's own.
    """

    id: str
    engine: str
    engine_version: str
    device: str
    precision: str
    threads: int | None = None
    alternatives: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    float_products: int = 0


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One node of the user's model: its name and op, its op family, and the region that runs it.

    spec:    type of its result, as ``float32[batch, 10]``; empty if unknown.
    lowered: the IR ops that it was lowered to; ``opaque: reason`` if only vendor engines support it; empty if it was not lowered.
    kernel:  the kernels that compute it (``matmul/gemv``); empty if it needs none, or if they are the engine's own or not chosen yet.
    reads:   names of the nodes whose results it reads. inputs: names of the model's inputs that it reads.
    """

    name: str
    op: str
    family: str
    region: str
    domain: str = ""
    spec: str = ""
    lowered: str = ""
    kernel: str = ""
    reads: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of a value between regions, or between the caller's memory (``caller``) and a device.

    bytes:  its size; None if the shape is not known before a run.
    shared: True if both sides share the device's memory, so that nothing is copied.
    """

    value: str
    source: str
    destination: str
    bytes: int | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a session: what runs where, and why.

    model:     name, digest and format of the model.
    request:   the user's demands and the origin of each (argument, file, environment, built-in).
    decisions: every choice, in order.
    """

    model: Mapping[str, str]
    request: Mapping[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    regions: tuple[Region, ...]
    nodes: tuple[PlanNode, ...] = field(repr=False)
    transfers: tuple[Transfer, ...] = ()
    decisions: tuple[Decision, ...] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()

    def region(self, name: str) -> Region:
        """Return the region with the id. Raises KeyError."""
        return {r.id: r for r in self.regions}[name]

    @property
    def engines(self) -> dict[str, str]:
        """Return the version of each engine of the regions, in their order."""
        return {r.engine: r.engine_version for r in self.regions}

    def decision(self, question: str) -> Decision | None:
        """Return the first decision on a question (``engine``, ``precision``, ...), or None."""
        return next((d for d in self.decisions if d.question == question), None)

    def decision_for(self, subject: str, question: str = "engine") -> Decision:
        """Return the decision on a question for a region or a node. Raises KeyError."""
        return {(d.subject, d.question): d for d in self.decisions}[subject, question]

    def explain(self, *, nodes: bool = False) -> str:
        """Describe the plan, every decision with all rejected candidates, and on request every node."""
        return explain(self, nodes=nodes)

    def __str__(self) -> str:
        return summary(self)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which ``from_json`` reads."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "model": dict(self.model),
            "request": dict(self.request),
            "inputs": [_spec_json(s) for s in self.inputs],
            "outputs": [_spec_json(s) for s in self.outputs],
            "regions": [{k: _plain(getattr(r, k)) for k in Region.__slots__} for r in self.regions],
            "nodes": [{k: _plain(getattr(n, k)) for k in PlanNode.__slots__} for n in self.nodes],
            "transfers": [{k: getattr(t, k) for k in Transfer.__slots__} for t in self.transfers],
            "decisions": [d.to_json() for d in self.decisions],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> Plan:
        """Build a plan from ``to_json``'s data or its JSON text. Raises FormatError."""
        try:
            read: Mapping[str, Any] = json.loads(data) if isinstance(data, str) else data
            if read["format"] != _FORMAT:
                raise ValueError(f"format is {read['format']!r}")
            if read["version"] != _VERSION:
                raise ValueError(f"version {read['version']} where this release reads {_VERSION}")
            return cls(
                model=_texts(read["model"]),
                request=dict(read["request"]),
                inputs=tuple(_spec_parse(s) for s in read["inputs"]),
                outputs=tuple(_spec_parse(s) for s in read["outputs"]),
                regions=tuple(_typed(Region(**_tuples(r))) for r in read["regions"]),
                nodes=tuple(_typed(PlanNode(**_tuples(n))) for n in read["nodes"]),
                transfers=tuple(_typed(Transfer(**t)) for t in read["transfers"]),
                decisions=tuple(Decision.from_json(d) for d in read["decisions"]),
                warnings=tuple(map(str, read["warnings"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(
                "plan",
                "is not a plan that this release reads",
                got=error,
                do="Create the plan again with this release.",
            ) from error


_Entry = TypeVar("_Entry", Region, PlanNode, Transfer)
_NUMBERS = ("threads", "bytes", "float_products")
_LISTS = ("alternatives", "inputs", "outputs", "reads")


def _typed(entry: _Entry) -> _Entry:
    """Return an entry of a file after checking the types of its fields. Raise ValueError."""
    for name in entry.__slots__:
        value = getattr(entry, name)
        if name in _NUMBERS:
            ok = type(value) is int or (value is None and name != "float_products")
        elif name in _LISTS:
            ok = isinstance(value, tuple) and all(type(v) is str for v in value)
        else:
            ok = type(value) is (bool if name == "shared" else str)
        if not ok:
            raise ValueError(f"{name} of a {type(entry).__name__} is {str(value)[:40]!r}")
    return entry


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a model. Raise ValueError, KeyError."""
    facts = dict(data)
    if not all(type(v) is str for v in facts.values()):
        raise ValueError("facts of the model must be texts")
    return facts | {"name": facts["name"], "digest": facts["digest"]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def _spec_json(spec: TensorSpec) -> dict[str, str]:
    return {"name": spec.name, "spec": str(spec)}


def _spec_parse(data: Mapping[str, str]) -> TensorSpec:
    return TensorSpec.parse(data["spec"], data["name"])
