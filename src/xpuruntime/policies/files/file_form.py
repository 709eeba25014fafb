"""FileForm, the base of the three policy classes: conversion to and from plain data and files, and a digest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from ...storage.store import digest
from ..fields.record import dump
from .document import save_document

__all__ = ["VERSION", "FileForm"]

VERSION = 1


class FileForm:
    """A policy that can be written as a document. ``_part`` is the document's key for the class; empty for the whole document."""

    __slots__ = ()
    _part: ClassVar[Literal["", "kernel", "execution"]] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as a document: plain JSON data, ``{"version": 1, "kernel": {...}, "execution": {...}}``."""
        return {"version": VERSION, **({self._part: dump(self)} if self._part else dump(self))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build the policy from ``to_dict``'s data. Of a document with both parts, only the class's own is used. Raises PolicyError."""
        return cls._of(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document, JSON or YAML by the suffix. Raises PolicyError, StoreError."""
        save_document(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy file. Of a file with both parts, only the class's own is used. Raises PolicyError with file, line and key."""
        return cls._of(os.fspath(path))

    @classmethod
    def _of(cls, source: Mapping[str, Any] | str) -> Self:
        from .load import load_policy

        policy: Any = load_policy(source, part=cls._part or None)
        return getattr(policy, cls._part) if cls._part else policy  # type: ignore[no-any-return]

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON; equal policies have equal digests."""
        return digest(self.to_dict())
