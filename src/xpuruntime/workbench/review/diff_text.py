"""A diff as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from ...printable import line
from .diff import Diff, OutputChange
from .markdown import cell, code

__all__ = ["diff_markdown", "diff_text", "headline"]

_MOST_TIMES = 12


def headline(diff: Diff) -> str:
    """Return the number of changes of each kind, in one line."""
    counts = {
        "node{s} changed": sum(len(c.names) for c in diff.changed),
        "node{s} removed": len(diff.removed),
        "node{s} added": len(diff.added),
        "new cop{ies}": len(diff.new_transfers),
        "vanished cop{ies}": len(diff.vanished_transfers),
        "decision{s} changed": len(diff.decisions),
        "output{s} changed": sum(not o.equal_bits for o in diff.outputs),
    }
    parts = [f"{n} {_plural(words, n)}" for words, n in counts.items() if n]
    parts = (["another model"] if diff.model else []) + parts
    return ", ".join(parts) or ("no difference" if diff.empty else "other facts differ")


def _plural(words: str, count: int) -> str:
    return words.format(s="" if count == 1 else "s", ies="y" if count == 1 else "ies")


def diff_text(diff: Diff, *, times: int = _MOST_TIMES) -> str:
    """Return the differences as lines, with the ``times`` nodes whose time differs most."""
    lines = [f"{diff.kind} {diff.a} -> {diff.b}: {headline(diff)}", *_lines(diff, times)]
    return "\n".join(map(line, lines))


def _lines(diff: Diff, times: int) -> Iterator[str]:
    for change in diff.model:
        yield f"  {change}"
    for node in diff.changed:
        more = f" (with {', '.join(node.together)})" if node.together else ""
        yield f"  {node.op} {node.name}{more}: {'; '.join(map(str, node.fields))}"
    for word, names in (("only in the first", diff.removed), ("only in the second", diff.added)):
        for name in names:
            yield f"  {word}: {name}"
    for word, transfers in (("new copy", diff.new_transfers), ("no copy", diff.vanished_transfers)):
        for t in transfers:
            size = "" if t.bytes is None else f", {t.bytes} bytes"
            yield f"  {word} of {t.value}: {t.source} -> {t.destination}{size}"
    for decision in diff.decisions:
        yield f"  {decision.question} for {decision.subject}: {decision.old or 'none'} -> {decision.new or 'none'}"
    for fact in diff.facts:
        yield f"  {fact}"
    if diff.memory is not None:
        old, new = diff.memory
        yield f"  memory: {old} -> {new} bytes ({new - old:+d})"
    for output in diff.outputs:
        yield f"  output {output.name}: {_output_text(output)}"
    if diff.time is not None:
        yield f"  time of a run: {diff.time}"
    for time in diff.times[:times]:
        yield f"    {time.name}: {time}"
    if len(diff.times) > times:
        yield f"    ... and {len(diff.times) - times} more nodes"
    for note in diff.notes:
        yield f"  note: {note}"


def _output_text(output: OutputChange) -> str:
    if output.equal_bits:
        return "equal bits"
    parts = [] if output.max_abs is None else [f"max|d| {output.max_abs:g}"]
    parts += [str(f) for f in output.fields]
    return "; ".join(parts) or "other bits, equal statistics"


def diff_markdown(diff: Diff) -> str:
    """Return the differences as Markdown for a pull request."""
    lines = [f"**{cell(diff.kind)}** `{code(diff.a)}` to `{code(diff.b)}`: {headline(diff)}", ""]
    if diff.changed:
        lines += ["| node | op | change |", "|---|---|---|"]
        for node in diff.changed:
            names = ", ".join(f"`{code(n)}`" for n in node.names)
            lines.append(f"| {names} | {cell(node.op)} | {cell('; '.join(map(str, node.fields)))} |")
        lines.append("")
    rest = [text.strip() for text in diff_text(diff, times=0).splitlines()[1 + len(diff.changed) :]]
    lines += [f"- {cell(text)}" for text in rest]
    return "\n".join(lines).rstrip() + "\n"
