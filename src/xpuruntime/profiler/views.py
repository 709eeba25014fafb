"""Report views of plans, decisions and the machine, as blocks. ``Series`` assigns each engine a color."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..decisions import Candidate, Decision
from ..program.plan import Plan
from .blocks import Block, Cell, Columns, FactList, Table, size

__all__ = ["Series", "decision_blocks", "machine_blocks", "plan_table"]


class Series:
    """A number for each engine, in order of first use, which selects one color and marker throughout a page."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> int:
        """Return the number of an engine."""
        return self._numbers.setdefault(name, len(self._numbers))

    def named(self, names: Iterable[str]) -> dict[int, str]:
        """Return number -> name, for legends."""
        return {self.of(n): n for n in names}


def plan_table(plans: Sequence[Plan], series: Series) -> Table:
    """Return one row per region of each plan: engine, device, settings and content of the region."""
    rows: list[tuple[Cell | str, ...]] = []
    show_model = len({plan.model["digest"] for plan in plans}) > 1
    for plan in plans:
        for region in plan.regions:
            families = Counter(n.family for n in plan.nodes if n.region == region.id)
            counts = ", ".join(f"{n} {family}" for family, n in families.most_common())
            head = Cell(region.engine, region.engine_version, series=series.of(region.engine))
            nodes = Cell(f"{sum(families.values())} nodes", counts)
            row = (head, region.device, region.precision, str(region.threads or "-"), nodes)
            rows.append((Cell(plan.model["name"]), *row) if show_model else row)
    columns = ("engine", "device", "precision", "threads", "region")
    return Table(("model", *columns) if show_model else columns, tuple(rows), frozenset({"threads"}))


def decision_blocks(decisions: Sequence[Decision]) -> list[Block]:
    """Return a table with a row for what each decision chose and for each candidate that it rejected: code, reason and advice."""
    rows: list[tuple[Cell | str, ...]] = []
    for d in decisions:
        head = Cell(d.question, d.subject)
        if d.chosen is None:
            rows.append((head, Cell("✗ nothing", "none was available", tone="bad"), ""))
        else:
            rows.append((head, *_candidate(d.chosen, "✓ ", "good")))
        rows += [("", *_candidate(c, "not ", "dim")) for c in d.rejected]
    return [Table(("question", "candidate", "reason"), tuple(rows))]


def _candidate(c: Candidate, sign: str, tone: str) -> tuple[Cell | str, ...]:
    return Cell(sign + c.name, c.code.value, tone=tone, keep=True), Cell(c.reason, c.do)


def machine_blocks(versions: Mapping[str, str]) -> list[Block]:
    """Return the facts of this machine: processor, memory, CUDA devices, loaded libraries, and ``versions`` by name."""
    from ..runtime.device import cpu, cuda, libraries

    c = cpu()
    caches = ", ".join(
        f"L{x.level}{x.type[:1].lower() if x.level == 1 else ''} {size(x.bytes)}" for x in c.caches
    )
    limit = f", limit {size(c.memory_limit_bytes)}" if c.memory_limit_bytes else ""
    report = cuda()
    gpus = "; ".join(f"cuda:{d.index} {d.name}, {size(d.memory_bytes)}" for d in report.devices)
    pairs = (
        ("processor", f"{c.model} ({c.level or c.architecture})"),
        ("cores", f"{c.usable_cores} usable of {c.logical_cores} logical"),
        ("caches", caches or "unknown"),
        ("memory", f"{size(c.memory_bytes)}{limit}"),
        ("CUDA devices", gpus or f"none: {report.status.message.partition(';')[0]}"),
    )
    loaded = tuple((x.title, f"{x.version or 'loaded'}" if x.loaded else "not here") for x in libraries())
    return [Columns(((FactList(pairs),), (FactList((*versions.items(), *loaded)),)))]
