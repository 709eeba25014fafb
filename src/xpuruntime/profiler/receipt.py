"""Receipt: what ran. It compares the plan with the evidence collected from the run itself."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DeviceUnavailable, FormatError
from ..plugins.loader import package_version
from ..printable import line
from ..program.plan import Plan, Region
from ..protocols import Evidence, EvidenceRow
from ..targets import DeviceId

__all__ = ["Receipt", "ReceiptFigures", "ReceiptFinding", "confirm"]

_FORMAT = "xpuruntime-receipt"


@dataclass(frozen=True, slots=True)
class ReceiptFinding:
    """One comparison of the plan with the evidence.

    ok:   False if something ran differently from the plan, or if evidence that the plan requires is missing.
    said: False if the engine reports nothing about the claim, so that it is neither confirmed nor contradicted.
    seen: the fact in the evidence, as text.
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
        region_evidence = evidence.get(region.id)
        if region_evidence is None:
            findings.append(ReceiptFinding(region.id, "evidence was collected", False, "none"))
            continue
        findings += [
            _version(region, region_evidence),
            _device(region, region_evidence),
            _precision(region, region_evidence),
            ReceiptFinding(
                region.id,
                "the engine used only what was requested",
                not region_evidence.fallbacks,
                "; ".join(region_evidence.fallbacks) or "no fallback inside the engine",
            ),
            *_code(region, region_evidence),
        ]
    return tuple(findings)


def _version(region: Region, evidence: Evidence) -> ReceiptFinding:
    ok = evidence.version == region.engine_version and evidence.engine == region.engine
    return ReceiptFinding(
        region.id,
        f"{region.engine} {region.engine_version} ran",
        ok,
        f"{evidence.engine} {evidence.version}".strip(),
    )


def _device(region: Region, evidence: Evidence) -> ReceiptFinding:
    kinds = sorted({row.device for row in evidence.rows})
    planned = DeviceId.parse(region.device)
    # With `auto` the engine may choose any device.
    ok = planned.kind == "auto" or all(_same_device(DeviceId.parse(k), planned) for k in kinds)
    text = ", ".join(kinds) or "no step was reported"
    return ReceiptFinding(region.id, f"every step ran on {region.device}", ok, text, said=bool(kinds))


def _code(region: Region, evidence: Evidence) -> list[ReceiptFinding]:
    """Compare the machine code that was called with the program's; nothing for engines whose code cannot be read."""
    rows = [(i, row) for i, row in enumerate(evidence.rows) if row.code is not None]
    if not rows and not evidence.binaries:
        return []
    wrong = [
        f"step {i} ({row.kernel.partition(':')[0]} for {', '.join(row.nodes) or row.op}): {row.code.text}"
        for i, row in rows
        if row.code is not None and not row.code.same
    ]
    wrong += [f"binary {b.text}" for b in evidence.binaries if not b.same]
    functions, binaries = len(rows), len(evidence.binaries)
    seen = f"{functions} function{'' if functions == 1 else 's'} and {binaries} binar{'y' if binaries == 1 else 'ies'} have its digests"
    return [
        ReceiptFinding(region.id, "every call ran the program's code", not wrong, "; ".join(wrong) or seen)
    ]


def _same_device(actual: DeviceId, planned: DeviceId) -> bool:
    return actual == planned or (planned.kind == "gpu" and actual.kind in ("gpu", "cuda", "metal", "webgpu"))


def _precision(region: Region, evidence: Evidence) -> ReceiptFinding:
    """Report steps that compute in a narrower float than the plan states. Integer data movement is not reported."""
    if region.precision.startswith("int"):
        return _integers(region, evidence)
    floats = sorted({row.precision for row in evidence.rows if "float" in row.precision})
    if not floats:
        return ReceiptFinding(
            region.id, f"computed in {region.precision}", True, "not reported by the engine", said=False
        )
    narrower = [f for f in floats if _WIDTH.get(f, 64) < _WIDTH.get(region.precision, 0)]
    return ReceiptFinding(region.id, f"computed in {region.precision}", not narrower, ", ".join(floats))


def _integers(region: Region, evidence: Evidence) -> ReceiptFinding:
    """Check that a quantized model's products run in integers, except those that the model itself leaves in floats."""
    products = [row for row in evidence.rows if row.weights]
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
class ReceiptFigures:
    """The share of the model's nodes and of the measured time that the evidence accounts for.

    nodes:       number of the model's nodes. named: those that a step names; explained: those with a reason why no step does.
    unexplained: names of all others.
    time_us:     measured time of all steps; attributed_us: of the steps with a named kernel or primitive; None without times.
    unattributed: op and microseconds of the other steps, the slowest first.
    inserted:    op and microseconds of named steps that belong to no node: conversions that the engine inserted.
    """

    nodes: int
    named: int
    explained: int
    unexplained: tuple[str, ...]
    time_us: float | None
    attributed_us: float | None
    unattributed: tuple[tuple[str, float], ...]
    inserted: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, plan: Plan, evidence: Mapping[str, Evidence]) -> ReceiptFigures:
        """Return the figures of a receipt."""
        named = {n for e in evidence.values() for row in e.rows for n in row.nodes}
        reasons = {n for e in evidence.values() for n, why in e.explained.items() if why}
        listed = [n.name for n in plan.nodes]
        rows = [row for e in evidence.values() for row in e.rows]
        timed = any(row.time_us is not None for row in rows)
        other = [(row.op, row.time_us or 0.0) for row in rows if not _has_kernel(row)]
        inserted = [(row.op, row.time_us or 0.0) for row in rows if _has_kernel(row) and not row.nodes]
        total = sum(row.time_us or 0.0 for row in rows)
        return cls(
            len(listed),
            sum(n in named for n in listed),
            sum(n in reasons and n not in named for n in listed),
            tuple(n for n in listed if n not in named and n not in reasons),
            total if timed else None,
            total - sum(t for _, t in other) if timed else None,
            tuple(sorted(other, key=lambda item: -item[1])),
            tuple(sorted(inserted, key=lambda item: -item[1])),
        )

    @property
    def node_share(self) -> float:
        """Share of the nodes that a step names, or that have a reason."""
        return (self.named + self.explained) / self.nodes if self.nodes else 1.0

    @property
    def time_share(self) -> float | None:
        """Share of the measured time in named kernels or primitives; None without times."""
        if self.time_us is None or self.attributed_us is None:
            return None
        return self.attributed_us / self.time_us if self.time_us else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "nodes": self.nodes,
            "named": self.named,
            "explained": self.explained,
            "unexplained": list(self.unexplained),
            "node_share": self.node_share,
            "time_us": self.time_us,
            "time_share": self.time_share,
            "unattributed": [list(item) for item in self.unattributed],
            "inserted": [list(item) for item in self.inserted],
        }

    def lines(self) -> list[str]:
        """Return the figures as text; what is not attributed is listed."""
        text = f"{self.node_share:.0%} of {self.nodes} model nodes are explained: {self.named} by a step that ran, {self.explained} by a reason"
        lines = [text]
        if self.unexplained:
            rest = ", ..." if len(self.unexplained) > 8 else ""
            lines.append(f"not explained: {', '.join(self.unexplained[:8])}{rest}")
        if self.time_share is not None:
            lines.append(f"{self.time_share:.1%} of {self.time_us:.0f} us are in named kernels or primitives")
            if self.inserted:
                spent = sum(t for _, t in self.inserted)
                ops = ", ".join(dict.fromkeys(op for op, _ in self.inserted))
                lines.append(
                    f"{len(self.inserted)} steps are conversions that the engine inserted ({ops}): {spent:.0f} us"
                )
        if self.unattributed:
            steps = ", ".join(f"{op} {t:.1f} us" for op, t in self.unattributed[:8])
            lines.append(f"without a named kernel: {steps}" + (", ..." if len(self.unattributed) > 8 else ""))
        return lines


def _has_kernel(row: EvidenceRow) -> bool:
    """Return True if the engine names the step's implementation."""
    return bool(row.kernel) and not row.kernel.lower().startswith("unknown")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The plan, the evidence per region, and the result of comparing the two.

    runs:     number of runs of the session before the receipt was written.
    versions: versions of Python, the platform and every package that was used.
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
        # The version of the loaded library may differ from the package's metadata.
        versions |= {e.engine: e.version for e in evidence.values()}
        return cls(plan, evidence, runs, confirm(plan, evidence), versions)

    @property
    def confirmed(self) -> bool:
        """Return True if no finding contradicts the plan."""
        return all(f.ok for f in self.findings)

    @property
    def coverage(self) -> float:
        """Return the share of the plan's nodes that some step of the evidence names. Nodes that a vendor folded away are not named."""
        covered = {n for e in self.evidence.values() for row in e.rows for n in row.nodes}
        return (
            sum(n.name in covered for n in self.plan.nodes) / len(self.plan.nodes) if self.plan.nodes else 1.0
        )

    @property
    def attribution(self) -> ReceiptFigures:
        """Return the shares of nodes and of time that the evidence accounts for."""
        return ReceiptFigures.of(self.plan, self.evidence)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "format": _FORMAT,
            "version": 1,
            "written": self.written,
            "runs": self.runs,
            "confirmed": self.confirmed,
            "coverage": self.coverage,
            "attribution": self.attribution.to_json(),
            "findings": [{k: getattr(f, k) for k in f.__slots__} for f in self.findings],
            "evidence": {k: e.to_json() for k, e in self.evidence.items()},
            "versions": dict(self.versions),
            "plan": self.plan.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Receipt:
        """Build a receipt from ``to_json``'s data. The findings are made again from plan and evidence. Raises FormatError."""
        try:
            if data["format"] != _FORMAT or data["version"] != 1:
                raise ValueError(f"format {data['format']!r}, version {data['version']!r}")
            runs, written, versions = data["runs"], data["written"], data["versions"]
            if type(runs) is not int or type(written) not in (int, float):
                raise ValueError("runs and written must be numbers")
            plan = Plan.from_json(data["plan"])
            evidence = {str(k): Evidence.from_json(e) for k, e in data["evidence"].items()}
            findings = confirm(plan, evidence)
            return cls(plan, evidence, runs, findings, {str(k): str(v) for k, v in versions.items()}, written)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, DeviceUnavailable) as error:
            raise FormatError(
                "receipt",
                "is not a receipt that this release reads",
                got=error,
                do="Write the receipt again with this release.",
            ) from error

    def text(self, *, rows: int = 12) -> str:
        """Return the receipt as lines: verdict, findings, self-check, warnings, and the ``rows`` most expensive steps of each region."""
        head = "confirmed by evidence" if self.confirmed else "NOT confirmed by evidence"
        lines = [f"receipt for {self.plan.model['name']}: {head}, {self.runs} runs"]
        lines += [f"  {f}" for f in self.findings]
        lines += [f"  {d}" for d in self.plan.decisions if d.question in ("self_check", "tune")]
        lines += [f"  warning: {w}" for w in self.plan.warnings]
        for region, evidence in self.evidence.items():
            lines += _evidence_text(region, evidence, rows)
        lines.append(
            f"  {self.coverage:.0%} of {len(self.plan.nodes)} model nodes are named by a step that ran"
        )
        lines += [f"  {text}" for text in self.attribution.lines()]
        lines.append("  " + ", ".join(f"{k} {v}" for k, v in self.versions.items()))
        return "\n".join(map(line, lines))

    __str__ = text


def _evidence_text(region: str, evidence: Evidence, rows: int) -> list[str]:
    timed = sorted(evidence.rows, key=lambda r: -(r.time_us or 0.0))
    total = sum(r.time_us or 0.0 for r in timed)
    source = f"placement from the {evidence.placement_source}"
    source += f", times from {evidence.times_from}" if evidence.time_source else ", no times"
    lines = [f"  {region}: {evidence.engine} {evidence.version}, {len(timed)} steps, {source}"]
    lines += [f"    {line}" for line in _operands(evidence.rows)]
    if any(evidence.transfers.values()):
        counted = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in evidence.transfers.items() if v)
        lines.append(f"    transfers since the session was opened: {counted}")
    if evidence.memory:
        counted = ", ".join(f"{k} {v}" for k, v in evidence.memory.items() if v)
        lines.append(f"    bytes of memory: {counted}")
    for row in timed[:rows]:
        clock = (
            ""
            if row.time_us is None
            else f"{row.time_us:9.1f} us {row.time_us / total if total else 0:4.0%}  "
        )
        names = row.nodes[0] + (f" +{len(row.nodes) - 1}" if len(row.nodes) > 1 else "") if row.nodes else "-"
        lines.append(f"    {clock}{row.op:<16} {row.kernel} {row.precision}  {names}".rstrip())
        lines += [f"        ran {kernel}" for kernel in row.seen]
    if len(timed) > rows:
        lines.append(f"    ... and {len(timed) - rows} more steps")
    lines += [f"    note: {n}" for n in evidence.notes]
    return lines
