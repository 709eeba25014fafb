"""The machine code that an executor's calls run, as found in this process, next to what the program holds.

The core reads the addresses that its recordings call, the names that the loader gives them, and the bytes there. The program's side
comes from the object code in the file. So the two differ if anything between the file and the run changed: another function behind the
plan, another build of a function, or bytes that were overwritten in memory.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ... import _core
from ...program.program import CompiledProgram, ExecutionPlan

__all__ = ["CalledFunction", "called_functions", "text_digests"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _EXECUTABLE, _DYNAMIC_SYMBOLS, _FUNCTION = 1, 1, 11, 2


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """The function of one call.

    name, digest:       as called: the loader's name of the address, and sha256 of the code there. Empty if the system does not tell.
    planned, expected:  as planned: the call's symbol, and sha256 of its code in the program.
    """

    name: str
    digest: str
    planned: str
    expected: str

    @property
    def known(self) -> bool:
        """True if the system told the name and the code, and the program's object code has the function."""
        return bool(self.name and self.digest and self.expected)

    @property
    def same(self) -> bool:
        """True unless something else than the program's function is called."""
        return not self.name or (self.name == self.planned and self.digest == self.expected)


def called_functions(
    program: CompiledProgram, plan: ExecutionPlan, core: _core.Executor
) -> list[CalledFunction | None]:
    """Return the function of each call; None for calls of a library, and for devices whose driver reports what ran."""
    called = core.called_code
    if not called:
        return [None] * len(plan.calls)
    functions: list[CalledFunction | None] = []
    for call, (name, code) in zip(plan.calls, called, strict=True):
        index = plan.binary_of(call)
        if call.library or index < 0:
            functions.append(None)
            continue
        expected = _functions(program.binaries[index].data).get(call.symbol, "")
        digest = hashlib.sha256(code).hexdigest() if code else ""
        functions.append(CalledFunction(name, digest, call.symbol, expected))
    return functions


def text_digests(program: CompiledProgram, modules: dict[int, _core.Module]) -> list[tuple[int, str, str]]:
    """Return, for each loaded binary, its index and the sha256 of its executable segments: in memory, and in the program."""
    digests = []
    for index, module in sorted(modules.items()):
        text = module.text()
        expected = _text(program.binaries[index].data)
        if text and expected:
            digests.append((index, hashlib.sha256(text).hexdigest(), expected))
    return digests


@lru_cache(maxsize=64)
def _functions(data: bytes) -> dict[str, str]:
    """Return sha256 of the code of each function in an object's dynamic symbols; empty for data that is no 64-bit ELF object."""
    try:
        return dict(_named_code(data))
    except (struct.error, ValueError, IndexError):
        return {}


def _named_code(data: bytes) -> Iterator[tuple[str, str]]:
    header = _HEADER.unpack_from(data)
    if header[0][:5] != b"\x7fELF\x02":
        return
    offset, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]
    for section in sections:
        if section[1] != _DYNAMIC_SYMBOLS:
            continue
        names = sections[section[6]]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, info, _, _, value, length = _SYMBOL.unpack_from(data, at)
            if info & 15 == _FUNCTION and length:
                begin = names[4] + name
                text = data[begin : data.index(b"\0", begin)].decode()
                start = _file_offset(data, value)
                yield text, hashlib.sha256(data[start : start + length]).hexdigest()


def _segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield flags, offset, address and file size of each loaded segment."""
    header = _HEADER.unpack_from(data)
    for i in range(header[10]):
        kind, flags, offset, address, _, size, _, _ = _SEGMENT.unpack_from(data, header[5] + i * header[9])
        if kind == _LOAD:
            yield flags, offset, address, size


def _file_offset(data: bytes, address: int) -> int:
    for _, offset, start, size in _segments(data):
        if start <= address < start + size:
            return offset + address - start
    raise ValueError(f"no segment holds the address {address}")


@lru_cache(maxsize=64)
def _text(data: bytes) -> str:
    """Return sha256 of the executable segments of an object; empty for data that is no 64-bit ELF object."""
    try:
        if data[:5] != b"\x7fELF\x02":
            return ""
        parts = [data[o : o + n] for flags, o, _, n in _segments(data) if flags & _EXECUTABLE]
    except struct.error:
        return ""
    return hashlib.sha256(b"".join(parts)).hexdigest()
