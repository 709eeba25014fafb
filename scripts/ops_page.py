"""Write docs/reference/ops.md from the op table: `python scripts/ops_page.py`. A test fails when it is stale."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from xpuruntime.ir import OPS, OpEntry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "ops.md"
HEAD = """# Ops

<!-- Written by scripts/ops_page.py from src/xpuruntime/ir/ops; change the table, then run it. -->

The {count} ops of the [intermediate representation](../concepts/intermediate-representation.md), by op family. Policies use the names of the families.

In a signature, operands come before the semicolon and attributes after it. `x#` may be a number, `x?` is optional, and `x*` is a list. An output `y?` is optional.
Where the last column is empty, the op is the PyTorch op of that name.

| mark | meaning |
|---|---|
| **pointwise** | each output element depends on the operands' elements at the same index |
| **commutative** | the order of the operands does not matter |
| **random** | the result is random |
| **view** | the result may share memory with the operand |
| **engines only** | the output shape depends on values, so native kernels do not support the op |
"""


def page() -> str:
    """Return the whole page."""
    families: dict[str, list[OpEntry]] = defaultdict(list)
    for row in OPS.values():
        families[row.family].append(row)
    parts = [HEAD.format(count=len(OPS))]
    for family in sorted(families):
        parts.append(f"\n## {family}\n\n| op | ONNX | ATen | notes |\n|---|---|---|---|\n")
        parts += [_line(row) for row in sorted(families[family], key=lambda r: r.name)]
    return "".join(parts)


def _line(row: OpEntry) -> str:
    marks = [w for w in ("pointwise", "commutative", "random") if getattr(row, w)]
    marks += ["view"] if row.view else []
    marks += ["engines only"] if row.data_dependent else []
    notes = "; ".join(
        [*([f"**{', '.join(marks)}**"] if marks else []), *([row.meaning] if row.meaning else [])]
    )
    cells = [f"`{row.signature}`", _names(row.onnx), _names(row.aten), notes]
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"


def _names(names: tuple[str, ...]) -> str:
    return " ".join(f"`{n}`" for n in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(OPS)} ops")
