"""Facts of a CUBIN: the registers, stack and shared memory of each kernel, and whether a launch is possible.

A CUBIN is an ELF file (System V ABI). Its section ``.nv.info`` is a list of attributes. Each has a byte for its form, one for its kind, and two
for a value or for the length of its data. Kind 0x2f is (symbol index, registers per thread), kind 0x11 (symbol index, bytes of stack per thread).
The section ``.nv.shared.NAME`` has the size of a kernel's static shared memory. Tests check all of them against kernels that were written to
have given figures.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import BuildError

__all__ = ["KernelResources", "check_launch", "kernels_in"]

_REGISTERS = 65536  # per SM
_THREADS = 1024  # per block
_WARP, _GRANULE = 32, 256  # registers are allocated per warp, in this unit
# CUDA C++ Programming Guide, technical specifications per compute capability: the same from 8.0 to 12.0.


_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11
_FIELDS = {_REGISTER_COUNT: "registers", _FRAME_SIZE: "stack_bytes"}
_WITH_LENGTH = 4  # form of an attribute whose value is the length of its data


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The share of a multiprocessor that a kernel takes.

    registers:    per thread.
    stack_bytes:  local memory per thread: spilled registers, and arrays that are indexed by values.
    shared_bytes: static shared memory per block, with what the driver reserves.
    """

    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


def kernels_in(cubin: bytes) -> Mapping[str, KernelResources]:
    """Return the kernels of a CUBIN, and what each takes. Raises ValueError for anything else."""
    if cubin[:6] != b"\x7fELF\x02\x01" or len(cubin) < 64:
        raise ValueError("not a 64-bit ELF file")
    try:
        (offset,) = struct.unpack_from("<Q", cubin, 40)
        size, count, names = struct.unpack_from("<HHH", cubin, 58)
        heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + i * size) for i in range(count)]
        sections = {_text(cubin, heads[names][4] + h[0]): h for h in heads}
        symbols = sections[".symtab"]
        texts = heads[symbols[6]][4]
        kernels = {n.removeprefix(".text."): KernelResources() for n in sections if n.startswith(".text.")}
        for kind, index, value in _counts(_data(cubin, sections[".nv.info"])):
            (name,) = struct.unpack_from("<I", cubin, symbols[4] + index * symbols[9])
            if (kernel := _text(cubin, texts + name)) in kernels:
                kernels[kernel] = replace(kernels[kernel], **{_FIELDS[kind]: value})
        for kernel in kernels:
            if shared := sections.get(f".nv.shared.{kernel}"):
                kernels[kernel] = replace(kernels[kernel], shared_bytes=shared[5])
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise ValueError(f"a damaged CUBIN: {error}") from error
    return kernels


def _data(cubin: bytes, head: Sequence[int]) -> bytes:
    return cubin[head[4] : head[4] + head[5]]


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()


def _counts(info: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, symbol index and value of the attributes in ``_FIELDS``."""
    at = 0
    while at + 4 <= len(info):
        form, kind, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _WITH_LENGTH:
            if kind in _FIELDS:
                index, number = struct.unpack_from("<II", info, at)
                yield kind, index, number
            at += value


def check_launch(cubin: bytes, symbol: str, block: Sequence[int], who: str) -> None:
    """Check that a kernel can be launched with these threads. Raises BuildError: no such kernel, or too many registers or threads."""
    kernels = kernels_in(cubin)
    resources = kernels.get(symbol)
    if resources is None:
        raise BuildError(
            who,
            f"the compiled code has no kernel {symbol!r}",
            got=f"kernels {', '.join(kernels) or 'none'}",
            do='Define it as extern "C" __global__.',
        )
    threads = math.prod(block)
    if threads > _THREADS:
        raise BuildError(
            who,
            f"{symbol} is launched with {threads} threads per block; the maximum is {_THREADS}",
            do="Return a Launch with a smaller block.",
        )
    registers = resources.registers
    registers_per_warp = -(-registers * _WARP // _GRANULE) * _GRANULE
    needed = registers_per_warp * -(-threads // _WARP)
    if needed > _REGISTERS:
        raise BuildError(
            who,
            f"{symbol} needs {registers} registers per thread, {needed} for {threads} threads; a multiprocessor has {_REGISTERS}",
            do=f"Launch smaller blocks, or write __launch_bounds__({threads}) so that the compiler uses fewer registers.",
        )
