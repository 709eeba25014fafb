"""Recorded ops as data: the ones that the outputs depend on, and their digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .frames import Places

__all__ = ["DispatchedOp", "OpTrace"]


class DispatchedOp(NamedTuple):
    """One call. words: text, and the numbers of tensors. results: numbers of tensors. writes: whether it changes an argument. place: where it was called."""

    name: str
    words: list[Any]
    results: list[int]
    writes: bool
    place: tuple[int, ...]


@dataclass
class OpTrace:
    """Ops in order, and the words of the outputs.

    names: the names of tensors that no op made, by their numbers. forms: the form of each tensor by its number.
    """

    places: Places | None = None
    ops: list[DispatchedOp] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    forms: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def named(self, name: str, form: str) -> int:
        """Return the number of a tensor that no op makes. Equal names are one tensor."""
        if name not in self._numbers:
            self._numbers[name] = number = self.numbered(form)
            self.names[number] = name
        return self._numbers[name]

    def numbered(self, form: str) -> int:
        """Return the number of another tensor."""
        self.forms.append(form)
        return len(self.forms) - 1

    def digest(self, places: bool) -> str:
        """Return the digest of the ops that outputs and writes depend on. places: whether it covers where they were called."""
        digest = hashlib.sha256()
        names = {number: f"%{name}" for number, name in self.names.items()}
        made = 0

        def text(words: list[Any]) -> str:
            return "\0".join([names[w] if type(w) is int else w for w in words])

        for op in self._live():
            line = [op.name, text(op.words)]
            for number in op.results:
                if number not in names:
                    names[number] = f"%{made}"
                    made += 1
                line.append(f"{names[number]} {self.forms[number]}")
            if places:
                line.append(str(op.place))
            digest.update(("\1".join(line) + "\2").encode("utf-8", "surrogatepass"))
        digest.update(text(self.outputs).encode("utf-8", "surrogatepass"))
        if places and self.places is not None:
            digest.update(self.places.digest().encode())
        return digest.hexdigest()

    def _live(self) -> list[DispatchedOp]:
        read = {w for w in self.outputs if type(w) is int}
        live = []
        for op in reversed(self.ops):
            if op.writes or not read.isdisjoint(op.results):
                live.append(op)
                read.update(w for w in op.words if type(w) is int)
        return live[::-1]
