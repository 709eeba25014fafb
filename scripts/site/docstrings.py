"""A griffe extension that renders the docstrings of this package: lines `name:  meaning` become a list of parameters."""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAMETER = re.compile(r"^(?P<names>[*`]*[A-Za-z_][\w.*`]*(?:, [*`]*[\w.*`]+)*):\s+(?P<text>\S.*)$")
PROSE = {"Raises", "Note", "Returns", "Example", "Default", "See"}


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown: aligned parameter lines as a list, underlined words as bold headings."""
    written: list[str] = []
    inside = False  # in a list of parameters
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"-{3,}", line) and written and written[-1]:
            written[-1] = f"**{written[-1]}**"
            written.append("")
            continue
        match = PARAMETER.match(line)
        starts = not written or not written[-1] or inside
        if match and starts and match["names"] not in PROSE and (number or len(lines) == 1):
            if not inside and written and written[-1]:
                written.append("")
            names = ", ".join(f"`{name.strip('`')}`" for name in match["names"].split(", "))
            written.append(f"- {names}: {match['text']}")
            inside = True
        elif inside and line.startswith(" "):
            written.append(f"    {line.strip()}")
        else:
            if inside and line:
                written.append("")
            inside = (
                inside and not line and number + 1 < len(lines) and bool(PARAMETER.match(lines[number + 1]))
            )
            written.append(line)
    return "\n".join(written)


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object once."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that was just read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
