"""Segment: a range of bytes, usually of a memory-mapped program file, whose digest is checked before the first use."""

from __future__ import annotations

import hashlib

from ..errors import FormatError

__all__ = ["DAMAGED", "Segment"]

DAMAGED = "Copy the file again, or compile the model again."
"""The advice for a damaged program file."""


class Segment:
    """A range of bytes.

    digest: sha256 that the file states. Empty for bytes that were created in this process, which are not checked.
    who:    the file, for error messages.

    Segments compare by their bytes, also with ``bytes`` objects. The first access to them checks the digest.
    """

    __slots__ = ("_checked", "_digest", "_view", "_who")

    def __init__(self, view: memoryview | bytes, digest: str = "", who: str = "segment") -> None:
        self._view, self._digest, self._who = memoryview(view).cast("B").toreadonly(), digest, who
        self._checked = not digest

    @property
    def digest(self) -> str:
        """sha256 of the bytes: the one that the file states, otherwise computed at the first access."""
        if not self._digest:
            self._digest = hashlib.sha256(self._view).hexdigest()
        return self._digest

    def view(self) -> memoryview:
        """Return the bytes, read-only. Raises FormatError if their sha256 is not the one that the file states."""
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
        return hash(bytes(self.view()[:64]))  # a segment may have gigabytes; equality compares all of them

    def __reduce__(self) -> tuple[type[Segment], tuple[bytes]]:
        return Segment, (bytes(self),)  # a copy in another process has no file behind it

    def __repr__(self) -> str:
        return f"Segment({len(self)} bytes)"
