"""The file format of one store entry, written atomically and read with its checksum.

``magic | header length | header JSON | payload``. Spaces after the header align the payload. The header holds the payload's length and sha256, all ingredients of the
entry's key, and the creation time.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError

__all__ = [
    "ALIGNMENT",
    "MAGIC",
    "REBUILD_ADVICE",
    "VERSION",
    "check_payload",
    "digest",
    "entry_parts",
    "mapped",
    "read_header",
]

MAGIC = b"XPUSTORE"
VERSION = 1
ALIGNMENT = 64
REBUILD_ADVICE = "Remove the file; it is rebuilt when needed."


def digest(ingredients: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a key's ingredients. Raises TypeError for anything but plain data."""
    text = json.dumps(ingredients, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_header(path: Path, head: bytes, file: Any) -> dict[str, Any]:
    """Read an entry's header; ``head`` is the file's first 16 bytes, already read. Raise FormatError.

    The file's size must match the header, so an endless or sparse file is refused before its payload is read.
    """
    who = f"store entry {path}"
    if len(head) != 16 or head[:8] != MAGIC:
        raise FormatError(who, "is not a store entry", got=head[:8], do=REBUILD_ADVICE)
    version, length = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if version != VERSION:
        raise FormatError(
            who, f"has format version {version}; this release reads {VERSION}", do=REBUILD_ADVICE
        )
    if length > 1 << 24:
        raise FormatError(who, "header is damaged", got=f"length {length}", do=REBUILD_ADVICE)
    try:
        header = json.loads(file.read(length))
        types = {"kind": str, "key": str, "bytes": int, "sha256": str, "made": float, "ingredients": dict}
        if not all(isinstance(header[k], t) for k, t in types.items()):
            raise TypeError("a field has the wrong type")
        if digest(header["ingredients"]) != header["key"]:
            raise ValueError("the key is not the digest of the ingredients")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(who, "header is damaged", got=error, do=REBUILD_ADVICE) from error
    size = os.fstat(file.fileno()).st_size - 16 - length
    if size != header["bytes"]:
        what = "is truncated" if size < header["bytes"] else "is longer than its header says"
        raise FormatError(who, what, got=f"{size} of {header['bytes']} bytes", do=REBUILD_ADVICE)
    return dict(header)


def entry_parts(
    kind: str, key: str, ingredients: Mapping[str, Any], *payload: bytes | memoryview
) -> tuple[bytes | memoryview, ...]:
    """Return the parts of an entry's file in order. The payload begins at a multiple of ``ALIGNMENT`` bytes, so that it can be mapped."""
    checksum = hashlib.sha256()
    for part in payload:
        checksum.update(part)
    header = {
        "kind": kind,
        "key": key,
        "bytes": sum(map(len, payload)),
        "sha256": checksum.hexdigest(),
        "made": time.time(),
        "ingredients": dict(ingredients),
    }
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-(16 + len(text)) % ALIGNMENT)
    head = MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little")
    return head, text, *payload


def mapped(file: Any) -> memoryview:
    """Map the rest of the file from its position. The private mapping is writable, because some libraries refuse read-only memory."""
    offset = file.tell()
    if os.fstat(file.fileno()).st_size <= offset:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[offset:]


def check_payload(path: Path, header: Mapping[str, Any], payload: bytes | memoryview) -> None:
    """Raise FormatError if the payload does not match its checksum."""
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise FormatError(f"store entry {path}", "does not match its checksum", do=REBUILD_ADVICE)
