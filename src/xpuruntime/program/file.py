"""The program file, ``.npubin``.

    0   8 bytes   magic
    8   u16 u16   format version: major, minor
    12  u32       zero
    16  u64       bytes of the manifest
    24  u64       bytes of the file
    32  32 bytes  sha256 of the 32 bytes before and of the manifest
    64            manifest: JSON (``schema``), then zeros up to a multiple of 64
                  segments, each at a multiple of 64, with zeros between; the manifest has their offsets and digests

All little-endian. The manifest, object code and every segment up to 1 MiB are checked when the file is read, larger ones before their
first use. Versions: a change of how programs run raises the major version, and a reader accepts only its own. An addition (reports,
hints) raises the minor version, and a reader ignores unknown fields of newer minor versions only.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, InputError
from ..storage.store import write_atomic
from ..storage.tensor_files import pack_bits
from ..types import DType
from .kinds import Bad, Reading, SegmentWriter
from .program import CompiledProgram, WeightRef
from .schema import FORMAT, MAJOR, MINOR, PROGRAM
from .segment import DAMAGED, Segment
from .validate import validate

__all__ = ["MAGIC", "embed", "from_bytes", "load", "save", "to_bytes"]

MAGIC = b"XPUPROG\n"
_HEADER = struct.Struct("<8sHHIQQ")
_ALIGN = 64
_MAX_MANIFEST = 1 << 28
_EAGER = 1 << 20
_NEWER = "Update xpuruntime, or compile the model again with this release."


# ── writing ──


def save(
    program: CompiledProgram, path: str | os.PathLike[str], weights: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Write a file atomically; see ``CompiledProgram.save``."""
    write_atomic(Path(path), *_parts(embed(program, weights) if weights else program))


def to_bytes(program: CompiledProgram) -> bytes:
    """Return the bytes that ``save`` writes. Equal programs give equal bytes."""
    return b"".join(_parts(program))


def embed(program: CompiledProgram, weights: Mapping[str, NDArray[Any]]) -> CompiledProgram:
    """Return the program with arrays embedded. Arrays that are not among its weights are ignored, since no kernel reads them.

    Only sub-byte types and arrays that are not row-major are copied. Raises InputError for another dtype or shape.
    """
    refs = tuple(_embedded(w, weights[w.name]) if w.name in weights else w for w in program.weights)
    return replace(program, weights=refs)


def _embedded(ref: WeightRef, array: NDArray[Any]) -> WeightRef:
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if tuple(array.shape) != ref.spec.shape or DType.of(array.dtype) is not ref.spec.dtype:
        actual = f"{array.dtype}{list(array.shape)} for {ref.spec}"
        raise InputError(
            f"weight {ref.name!r}",
            "has another dtype or shape",
            got=actual,
            do="Pass the model's own weights.",
        )
    if ref.spec.dtype.bits < 8:
        array = pack_bits(array, ref.spec.dtype)
    data = Segment(array.reshape(-1).view(np.uint8).data if array.size else b"")
    digest = hashlib.sha256(data.view()).hexdigest()
    return WeightRef(ref.name, ref.spec, digest=digest, data=data)


def _parts(program: CompiledProgram) -> list[bytes | memoryview]:
    who = f"program {program.name!r}"
    validate(program, who, "Report it: the compiler made a program that no reader accepts.")
    writing = SegmentWriter(digest=lambda data: hashlib.sha256(data).digest())
    try:
        body = PROGRAM.write(program, writing)
    except Bad as error:
        raise FormatError(who, f"cannot be written: {error}") from error
    digests = [key.hex() for key, _ in sorted(writing.index.items(), key=lambda item: item[1])]
    sizes = [len(s) for s in writing.segments]
    start, text = 0, b""
    while True:  # the manifest holds offsets, and its length changes them: repeat until it is stable
        offsets, end = _offsets(_HEADER.size + 32 + start, sizes)
        listed = [
            {"offset": o, "bytes": n, "sha256": d} for o, n, d in zip(offsets, sizes, digests, strict=True)
        ]
        manifest = {"format": FORMAT, "segments": listed, "program": body}
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        if len(text) == start:
            break
        start = len(text)
    head = _HEADER.pack(MAGIC, MAJOR, MINOR, 0, len(text), end)
    parts: list[bytes | memoryview] = [head, hashlib.sha256(head + text).digest(), text]
    at = _HEADER.size + 32 + len(text)
    for offset, segment in zip(offsets, writing.segments, strict=True):
        parts += [bytes(offset - at), segment.view()]
        at = offset + len(segment)
    return parts


def _offsets(start: int, sizes: list[int]) -> tuple[list[int], int]:
    """Return the offset of each segment, and the end of the last one."""
    offsets = []
    for size in sizes:
        start = -(-start // _ALIGN) * _ALIGN
        offsets.append(start)
        start += size
    return offsets, start


# ── reading ──


def load(path: str | os.PathLike[str]) -> CompiledProgram:
    """Read a file, memory-mapped; see ``CompiledProgram.load``."""
    who = f"program file {os.fspath(path)}"
    try:
        handle = os.open(
            path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # opening a named pipe must not block
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise FormatError(who, "is not a file", do="Pass a file that CompiledProgram.save wrote.")
            data = mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if facts.st_size else b""
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FormatError(who, "cannot be read", got=cause, do="Check the path.") from error
    return replace(_read(memoryview(data), who), folder=str(Path(path).resolve().parent))


def from_bytes(data: bytes | memoryview) -> CompiledProgram:
    """Read a program from ``to_bytes``'s bytes. Raises FormatError."""
    return _read(memoryview(data).cast("B"), "program")


def _read(data: memoryview, who: str) -> CompiledProgram:
    manifest, minor, end = _manifest(data, who)
    try:
        if type(manifest) is not dict or manifest.get("format") != FORMAT:
            raise Bad(f"does not have the format {FORMAT}")
        if minor <= MINOR and (unknown := sorted(set(manifest) - {"format", "segments", "program"})):
            raise Bad(f"has an unknown field {unknown[0][:60]!r}")
        segments = _segments(manifest.get("segments"), data, end, who)
        reading = Reading(segments, lenient=minor > MINOR)
        program: CompiledProgram = PROGRAM.read(manifest.get("program"), reading)
        if len(reading.used) != len(segments) and not reading.lenient:
            raise Bad(f"has {len(segments)} segments, but only {len(reading.used)} are used")
    except Bad as error:
        raise FormatError(who, f"is not a valid program: {error}", do=DAMAGED) from error
    validate(program, who, DAMAGED)
    return program


def _manifest(data: memoryview, who: str) -> tuple[Any, int, int]:
    """Return the manifest as JSON, the minor version, and the end of the manifest, after checking all bytes up to it."""
    magic = bytes(data[: len(MAGIC)])
    if magic != MAGIC[: len(magic)] or not magic:
        raise FormatError(
            who, "is not a program", got=magic, do="Pass a file that CompiledProgram.save wrote."
        )
    begin = _HEADER.size + 32
    if len(data) < begin:
        raise FormatError(who, "is truncated", got=f"{len(data)} bytes", do=DAMAGED)
    _, major, minor, zero, length, size = _HEADER.unpack(data[: _HEADER.size])
    if major != MAJOR:
        old = "older" if major < MAJOR else "newer"
        problem = f"has the {old} format version {major}.{minor}; this release reads {MAJOR}.{MINOR}"
        raise FormatError(who, problem, do=_NEWER)
    if size != len(data):
        problem = "is truncated" if size > len(data) else "is longer than its header says"
        raise FormatError(who, problem, got=f"{len(data)} of {size} bytes", do=DAMAGED)
    if zero or length > min(_MAX_MANIFEST, len(data) - begin):
        raise FormatError(who, "has a damaged header", got=f"a manifest of {length} bytes", do=DAMAGED)
    text = bytes(data[begin : begin + length])
    if hashlib.sha256(bytes(data[: _HEADER.size]) + text).digest() != data[_HEADER.size : begin]:
        raise FormatError(who, "has a manifest that does not match its checksum", do=DAMAGED)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant), minor, begin + length
    except (ValueError, RecursionError) as error:
        raise FormatError(who, "has a manifest that is not JSON", got=str(error)[:200], do=DAMAGED) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("duplicate key in an object")
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _segments(listed: Any, data: memoryview, end: int, who: str) -> list[Segment]:
    """Return the segments. Check that each is at its only valid offset, that padding is zero, and the digests of small ones."""
    if type(listed) is not list:
        raise Bad("must be a list", "segments")
    segments = []
    for i, facts in enumerate(listed):
        path = f"segments[{i}]"
        if type(facts) is not dict or set(facts) != {"offset", "bytes", "sha256"}:
            raise Bad("must have offset, bytes and sha256", path)
        offset, size, digest = facts["offset"], facts["bytes"], facts["sha256"]
        (expected,), _ = _offsets(end, [0])
        if (
            type(offset) is not int
            or offset != expected
            or type(size) is not int
            or not 0 <= size <= len(data) - offset
        ):
            raise Bad(
                f"is at {str(offset)[:20]} with {str(size)[:20]} bytes, in a file of {len(data)} bytes, expected at {expected}",
                path,
            )
        if type(digest) is not str or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise Bad("has no sha256", path)
        if any(data[end:offset]):
            raise Bad("has padding before it that is not zero", path)
        segments.append(Segment(data[offset : offset + size], digest, who))
        end = offset + size
        if size <= _EAGER:
            segments[-1].view()
    if end != len(data):
        raise Bad(f"end at {end}, but the file ends at {len(data)}", "segments")
    return segments
