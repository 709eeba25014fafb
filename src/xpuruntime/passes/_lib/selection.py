"""Selection of passes by level, by name, and by names with a minus.

2  "extended"          a level: its passes and those of lower levels
["cse", "simplify"]    exactly these
["all", "fuse_gate"]   a level and one more pass
"-fuse_conv"           the usual ones without it; ["basic", "-cse"] likewise
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ...errors import IrError

__all__ = ["LEVELS", "chosen_names"]

LEVELS = ("none", "basic", "extended", "all")
"""Names of the levels 0 to 3; each includes the lower ones."""


def chosen_names(which: Iterable[str] | str | int, table: Sequence[tuple[str, int]], usual: int) -> set[str]:
    """Return the names of the passes to run.

    table: name and lowest level of each pass. usual: the level for names with a minus alone.
    Raise IrError for a level or name that does not exist.
    """
    if isinstance(which, int):
        return _of_level(which, table)
    listed = (
        which.split(",")
        if isinstance(which, str)
        else list(which)
        if isinstance(which, Iterable)
        else [which]
    )
    if not all(isinstance(w, str) for w in listed):
        raise IrError(
            "passes", "must be a level, or names of passes", got=repr(which), do="Use 3, 'all' or ['cse']."
        )
    # Releases before 0.2 spelled these names "recognise".  # words: recognise, colour
    words = [w.strip().replace("recognise_", "recognize_") for w in listed]  # words: recognise, colour
    levels = [w for w in words if w in LEVELS or w.lstrip("+-").isdigit()]
    names = [w for w in words if w not in levels]
    for word in names:
        _known(word.removeprefix("-"), [name for name, _ in table])
    if len(levels) > 1:
        raise IrError(
            "passes",
            "takes at most one level",
            got=", ".join(levels),
            do="Give the highest one; each includes the lower ones.",
        )
    less = {w[1:] for w in names if w.startswith("-")}
    more = {w for w in names if not w.startswith("-")}
    if levels:
        more |= _of_level(LEVELS.index(levels[0]) if levels[0] in LEVELS else int(levels[0]), table)
    elif less and not more:
        more = _of_level(usual, table)
    return more - less


def _of_level(level: int, table: Sequence[tuple[str, int]]) -> set[str]:
    if isinstance(level, bool) or not 0 <= level < len(LEVELS):
        raise IrError(
            "passes",
            f"a level is a number from 0 to {len(LEVELS) - 1}",
            got=level,
            do=f"Give {', '.join(f'{i} ({name})' for i, name in enumerate(LEVELS))}, or names of passes.",
        )
    return {name for name, lowest in table if lowest <= level}


def _known(name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise IrError(
            f"pass {name!r}",
            "does not exist",
            do=(f"Did you mean {near[0]!r}? " if near else "")
            + f"Known ones: {', '.join(known)}; levels {', '.join(LEVELS)}.",
        )
