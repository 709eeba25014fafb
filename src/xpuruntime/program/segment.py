"""Segment: memory-mapped bytes of a file. Their digest is checked before the first use."""

from __future__ import annotations

import hashlib

from ..errors import FormatError

__all__ = ["DAMAGED", "Segment"]

DAMAGED = "Copy the file again, or compile the model again."


class Segment:
    """A range of bytes. Without a digest, the bytes were created in this process and are not checked.

    ``who`` is the file, for errors. Segments compare by their bytes, also with ``bytes`` objects.
    """

    __slots__ = ("_checked", "_digest", "_view", "_who")

    def __init__(self, view: memoryview | bytes, digest: str = "", who: str = "segment") -> None:
        self._view, self._digest, self._who = memoryview(view).cast("B").toreadonly(), digest, who
        self._checked = not digest

    @property
    def digest(self) -> str:
        """sha256 of the bytes: the one that the file states, else computed now."""
        if not self._digest:
            self._digest = hashlib.sha256(self._view).hexdigest()
        return self._digest

    def view(self) -> memoryview:
        """Return the bytes, read-only. Raises FormatError when they are not those that were written."""
        if not self._checked:
            if hashlib.sha256(self._view).hexdigest() != self._digest:
                raise FormatError(self._who, "does not match its checksum", do=DAMAGED)
            self._checked = True
        return self._view

    def __len__(self) -> int:
        return len(self._view)

    def __bytes__(self) -> bytes:
        return bytes(self.view())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Segment):
            return self is other or self.view() == other.view()
        return self.view() == other if isinstance(other, bytes) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self.view()[:64]))

    def __reduce__(self) -> tuple[type[Segment], tuple[bytes]]:
        return Segment, (bytes(self),)

    def __repr__(self) -> str:
        return f"Segment({len(self)} bytes)"
