"""Recorded ops as data: the ones that the outputs depend on, and their digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .frames import Places

__all__ = ["Op", "Trace"]


class Op(NamedTuple):
    """One call. words: text, and the numbers of tensors. results: numbers of tensors. writes: whether it changes an argument. place: where it was called."""

    name: str
    words: list[Any]
    results: list[int]
    writes: bool
    place: tuple[int, ...]


@dataclass
class Trace:
    """Ops in order, and the words of the outputs.

    labels: the text of each tensor by its number. Tensors that no op made have names there, the others their form.
    """

    places: Places | None = None
    ops: list[Op] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._named: dict[str, int] = {}

    def named(self, label: str) -> int:
        """Return the number of a tensor that no op makes. Equal labels are one tensor."""
        if label not in self._named:
            self._named[label] = self.numbered(label)
        return self._named[label]

    def numbered(self, label: str) -> int:
        """Return the number of another tensor."""
        self.labels.append(label)
        return len(self.labels) - 1

    def digest(self, places: bool) -> str:
        """Return the digest of the ops that outputs and writes depend on. places: whether it covers where they were called."""
        digest = hashlib.sha256()
        names: dict[int, str] = {}
        named = set(self._named.values())

        def text(words: list[Any]) -> str:
            return "\0".join(f"%{names.get(w) or self.labels[w]}" if type(w) is int else w for w in words)

        for op in self._live():
            line = [op.name, text(op.words)]
            for number in op.results:
                if number not in names and number not in named:
                    names[number] = str(len(names))
                line.append(f"{names.get(number)} {self.labels[number]}")
            if places:
                line.append(str(op.place))
            digest.update(("\1".join(line) + "\2").encode("utf-8", "surrogatepass"))
        digest.update(text(self.outputs).encode("utf-8", "surrogatepass"))
        if places and self.places is not None:
            digest.update(self.places.digest().encode())
        return digest.hexdigest()

    def _live(self) -> list[Op]:
        read = {w for w in self.outputs if type(w) is int}
        live = []
        for op in reversed(self.ops):
            if op.writes or not read.isdisjoint(op.results):
                live.append(op)
                read.update(w for w in op.words if type(w) is int)
        return live[::-1]
