"""Blocks of a report page, as plain values. ``views`` creates them; ``html`` renders them.

Markup in a text is escaped, not interpreted. A ``tone`` (good, bad, warn, dim) is never the only sign: whoever
sets one also says it in words or by a sign, so that the page reads without colors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

__all__ = [
    "Block",
    "Cell",
    "Columns",
    "FactList",
    "Figure",
    "Fold",
    "Heading",
    "Listing",
    "Picture",
    "Prose",
    "Table",
    "duration",
    "number",
    "size",
    "time_unit",
]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    kind: ClassVar[str] = "prose"
    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading inside a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Preformatted text in a fixed-width font: a plan, a command, a file."""

    kind: ClassVar[str] = "listing"
    text: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """An embedded image. ``data`` is the file's bytes; ``width`` in CSS pixels, None for the image's own."""

    kind: ClassVar[str] = "picture"
    data: bytes = field(repr=False)
    mime: str
    alt: str
    caption: str = ""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: SVG text from ``figures``, and its description in ``alt``."""

    kind: ClassVar[str] = "figure"
    svg: str = field(repr=False)
    alt: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class FactList:
    """Names with their values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    note:   a second, smaller line.
    keep:   on one line.
    share:  0 to 1: a bar behind the text, in the color of ``series``.
    series: number of the series (an engine) that the cell belongs to; None for none.
    href:   id of a section of the same page.
    """

    text: str
    note: str = ""
    tone: str = ""
    mono: bool = False
    keep: bool = False
    share: float | None = None
    series: int | None = None
    href: str = ""
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Columns named in ``right`` are numeric. A string cell is a ``Cell`` of that text."""

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    right: frozenset[str] = frozenset()
    caption: str = ""

    @property
    def cells(self) -> list[list[Cell]]:
        """Return the rows, every cell a ``Cell``."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Columns:
    """Blocks side by side if there is room; each entry is one column."""

    kind: ClassVar[str] = "columns"
    columns: tuple[tuple[Block, ...], ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Collapsible blocks; expanded in print unless nested."""

    kind: ClassVar[str] = "fold"
    title: str
    blocks: tuple[Block, ...]
    open: bool = False


Block: TypeAlias = Prose | Heading | Listing | Picture | Figure | FactList | Table | Columns | Fold


def number(value: float, digits: int = 3) -> str:
    """Return three significant digits without needless exponents: ``0.000123`` -> ``1.23e-04``, ``1234.5`` -> ``1,234``."""
    if value == 0:
        return "0"
    if 10**digits - 0.5 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if 1e-3 <= abs(value) < 1e9 else f"{value:.{digits - 1}e}"


def duration(microseconds: float) -> str:
    """Return a time with a suitable unit: ``874 µs``, ``4.62 ms``, ``1.30 s``."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= scale:
            return f"{number(microseconds / scale)} {unit}"
    return f"{number(microseconds)} µs"


def time_unit(microseconds: float) -> tuple[float, str]:
    """Return the unit for an axis or a column up to this time, and its microseconds."""
    return (1e3, "ms") if microseconds >= 1e3 else (1.0, "µs")


def size(bytes_: int) -> str:
    """Return bytes with a binary unit: ``48.0 KiB``, ``15.6 GiB``."""
    value, units = float(bytes_), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{bytes_} B" if unit == "B" else f"{number(value)} {unit}"
        value /= 1024
    raise AssertionError
