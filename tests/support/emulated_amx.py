"""The CPU level with AMX on a machine without it: the same kernels with the tile instructions emulated in C++ (``templates/tile.h``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xpuruntime.codegen.cpp.isa import LEVELS
from xpuruntime.codegen.cpp.target import CppTarget
from xpuruntime.program.program import Binary

__all__ = ["EmulatedTiles"]

LEVEL = "x86-64-v4+amx"


class EmulatedTiles(CppTarget):
    """The emulated target ``cpu:x86-64-v4+amx``, for checks of results. Its speed is not that of AMX."""

    def __init__(self) -> None:
        level = LEVELS[LEVEL]
        flags = [f for f in level.march_flags if not f.startswith("-mamx")]
        super().__init__(replace(level, march_flags=(*flags, "-DTILES_EMULATED")))

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Return a binary that requires AVX-512 with bfloat16, but no tiles."""
        binary = super().assemble(functions, parts)
        return replace(binary, requires=tuple(f for f in binary.requires if not f.startswith("amx-")))
