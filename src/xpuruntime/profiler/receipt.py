"""Receipt: what ran. It compares the plan with the evidence collected from the run itself."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..plugins.loader import package_version
from ..printable import line
from ..program.plan import Plan, Region
from ..protocols import Evidence, EvidenceRow
from ..targets import DeviceId

__all__ = ["Receipt", "ReceiptFinding", "confirm"]


@dataclass(frozen=True, slots=True)
class ReceiptFinding:
    """One comparison of the plan with the evidence.

    ok:   False means that something ran differently, or that a step was promised and none was reported.
    said: False means that the engine says nothing about it; then nothing contradicts the plan, and nothing confirms it.
    """

    region: str
    claim: str
    ok: bool
    seen: str
    said: bool = True

    def __str__(self) -> str:
        mark = ("ok " if self.said else "-- ") if self.ok else "NOT"
        return line(f"{mark} {self.region}: {self.claim}: {self.seen}")


def confirm(plan: Plan, evidence: Mapping[str, Evidence]) -> tuple[ReceiptFinding, ...]:
    """Check the plan against the evidence of each region: engine version, device, precision, inner fallbacks, node coverage."""
    findings: list[ReceiptFinding] = []
    for region in plan.regions:
        seen = evidence.get(region.id)
        if seen is None:
            findings.append(ReceiptFinding(region.id, "evidence was collected", False, "none"))
            continue
        findings += [
            _version(region, seen),
            _device(region, seen),
            _precision(region, seen),
            ReceiptFinding(
                region.id,
                "the engine used only what was requested",
                not seen.fallbacks,
                "; ".join(seen.fallbacks) or "no fallback inside the engine",
            ),
        ]
    return tuple(findings)


def _version(region: Region, seen: Evidence) -> ReceiptFinding:
    ok = seen.version == region.engine_version and seen.engine == region.engine
    return ReceiptFinding(
        region.id, f"{region.engine} {region.engine_version} ran", ok, f"{seen.engine} {seen.version}".strip()
    )


def _device(region: Region, seen: Evidence) -> ReceiptFinding:
    kinds = sorted({row.device for row in seen.rows})
    wanted = DeviceId.parse(region.device)
    # `auto` promises no device, so whatever the engine took is what was asked for.
    ok = wanted.kind == "auto" or all(_same_device(DeviceId.parse(k), wanted) for k in kinds)
    text = ", ".join(kinds) or "no step was reported"
    return ReceiptFinding(region.id, f"every step ran on {region.device}", ok, text, said=bool(kinds))


def _same_device(seen: DeviceId, wanted: DeviceId) -> bool:
    return seen == wanted or (wanted.kind == "gpu" and seen.kind in ("gpu", "cuda", "metal", "webgpu"))


def _precision(region: Region, seen: Evidence) -> ReceiptFinding:
    """Report steps that compute in a narrower float than the plan states. Integer data movement is not reported."""
    if region.precision.startswith("int"):
        return _integers(region, seen)
    floats = sorted({row.precision for row in seen.rows if "float" in row.precision})
    if not floats:
        return ReceiptFinding(
            region.id, f"computed in {region.precision}", True, "not reported by the engine", said=False
        )
    narrower = [f for f in floats if _WIDTH.get(f, 64) < _WIDTH.get(region.precision, 0)]
    return ReceiptFinding(region.id, f"computed in {region.precision}", not narrower, ", ".join(floats))


def _integers(region: Region, seen: Evidence) -> ReceiptFinding:
    """Check that a quantized model's products run in integers, except those that the model itself leaves in floats."""
    products = [row for row in seen.rows if row.weights]
    floats = sum(not row.in_integers for row in products)
    ok = not products or (floats < len(products) and floats <= region.float_products)
    text = "; ".join(_operands(products)) or "not reported by the engine"
    return ReceiptFinding(region.id, f"computed in {region.precision}", ok, text, said=bool(products))


def _operands(rows: Iterable[EvidenceRow]) -> list[str]:
    """Return the number of products by types of activations and weights."""
    counts = Counter((row.activations, row.weights) for row in rows if row.weights)
    return [
        f"{n} product{'s' if n > 1 else ''} of {a} activations and {w} weights"
        for (a, w), n in sorted(counts.items())
    ]


_WIDTH = {"bfloat16": 16, "float16": 16, "float32": 32, "float64": 64}


@dataclass(frozen=True, slots=True)
class Receipt:
    """The plan, the evidence per region, and the result of comparing the two.

    runs:     how often the session had run when the receipt was written.
    versions: Python, platform and every package that took part.
    """

    plan: Plan
    evidence: Mapping[str, Evidence]
    runs: int
    findings: tuple[ReceiptFinding, ...]
    versions: Mapping[str, str]
    written: float = field(default_factory=time.time)

    @classmethod
    def write(cls, plan: Plan, evidence: Mapping[str, Evidence], runs: int) -> Receipt:
        """Compare the evidence with the plan and record the versions of this process."""
        packages = ("xpuruntime", "numpy", "onnx")
        versions = {"python": platform.python_version(), "platform": platform.platform()}
        versions |= {p: v for p in packages if (v := package_version(p))}
        versions |= {
            e.engine: e.version for e in evidence.values()
        }  # of the loaded library, not of a package's metadata
        return cls(plan, evidence, runs, confirm(plan, evidence), versions)

    @property
    def confirmed(self) -> bool:
        """Return True if no finding contradicts the plan."""
        return all(f.ok for f in self.findings)

    @property
    def coverage(self) -> float:
        """Return the share of the plan's nodes that some step of the evidence names. Nodes that a vendor folded away are not named."""
        named = {n for e in self.evidence.values() for row in e.rows for n in row.nodes}
        return (
            sum(n.name in named for n in self.plan.nodes) / len(self.plan.nodes) if self.plan.nodes else 1.0
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "format": "xpuruntime-receipt",
            "version": 1,
            "written": self.written,
            "runs": self.runs,
            "confirmed": self.confirmed,
            "coverage": self.coverage,
            "findings": [{k: getattr(f, k) for k in f.__slots__} for f in self.findings],
            "evidence": {k: e.to_json() for k, e in self.evidence.items()},
            "versions": dict(self.versions),
            "plan": self.plan.to_json(),
        }

    def text(self, *, rows: int = 12) -> str:
        """Return readable lines: verdict, findings, decisions that fell back, and the ``rows`` most expensive steps of each region."""
        head = "confirmed by evidence" if self.confirmed else "NOT confirmed by evidence"
        lines = [f"receipt for {self.plan.model['name']}: {head}, {self.runs} runs"]
        lines += [f"  {f}" for f in self.findings]
        lines += [f"  {d}" for d in self.plan.decisions if d.question == "self_check"]
        lines += [f"  warning: {w}" for w in self.plan.warnings]
        for region, evidence in self.evidence.items():
            lines += _evidence_text(region, evidence, rows)
        lines.append(
            f"  {self.coverage:.0%} of {len(self.plan.nodes)} model nodes are named by a step that ran"
        )
        lines.append("  " + ", ".join(f"{k} {v}" for k, v in self.versions.items()))
        return "\n".join(map(line, lines))

    __str__ = text


def _evidence_text(region: str, evidence: Evidence, rows: int) -> list[str]:
    timed = sorted(evidence.rows, key=lambda r: -(r.time_us or 0.0))
    total = sum(r.time_us or 0.0 for r in timed)
    source = f"placement from the {evidence.placement_source}"
    source += f", times from a {evidence.time_source}" if evidence.time_source else ", no times"
    lines = [f"  {region}: {evidence.engine} {evidence.version}, {len(timed)} steps, {source}"]
    lines += [f"    {line}" for line in _operands(evidence.rows)]
    for row in timed[:rows]:
        clock = (
            ""
            if row.time_us is None
            else f"{row.time_us:9.1f} us {row.time_us / total if total else 0:4.0%}  "
        )
        names = row.nodes[0] + (f" +{len(row.nodes) - 1}" if len(row.nodes) > 1 else "") if row.nodes else "-"
        lines.append(f"    {clock}{row.op:<16} {row.kernel} {row.precision}  {names}".rstrip())
        lines += [f"        ran {seen}" for seen in row.seen]
    if len(timed) > rows:
        lines.append(f"    ... and {len(timed) - rows} more steps")
    lines += [f"    note: {n}" for n in evidence.notes]
    return lines
