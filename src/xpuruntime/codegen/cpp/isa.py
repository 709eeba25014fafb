"""Instruction-set levels of CPUs: vector width, required CPU features and compiler options.

The x86-64 levels are those of the System V psABI ("micro-architecture levels"); feature names are those of ``xpu doctor``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...targets import CPU_NARROW, CPU_WIDE, TargetConfig

__all__ = ["LEVELS", "IsaLevel", "best_level", "own_level"]


@dataclass(frozen=True, slots=True)
class IsaLevel:
    """One instruction-set level.

    vector_bytes:  bytes of a vector register.
    features:      features that CPUID (or the auxiliary vector) must report.
    march_flags:   compiler options.
    binary_format: format of the compiled binary.
    config:        default sizes of generated code.
    """

    name: str
    architecture: str
    vector_bytes: int
    features: frozenset[str]
    march_flags: tuple[str, ...]
    binary_format: str
    config: TargetConfig

    def lanes(self, item_bytes: int = 4) -> int:
        """Return the elements of one vector."""
        return self.vector_bytes // item_bytes


_V2 = frozenset({"cx16", "lahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_WIDE = ("-march=x86-64-v4", "-mprefer-vector-width=512")

# From the highest level to the lowest.
LEVELS: dict[str, IsaLevel] = {
    level.name: level
    for level in (
        IsaLevel(
            "x86-64-v4+amx",
            "x86_64",
            64,
            _V4 | {"avx512vnni", "avx512bf16", "amx-tile", "amx-bf16", "amx-int8"},
            (*_WIDE, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
            "elf-x86-64",
            CPU_WIDE,
        ),
        IsaLevel(
            "x86-64-v4+bf16",
            "x86_64",
            64,
            _V4 | {"avx512vnni", "avx512bf16"},
            (*_WIDE, "-mavx512vnni", "-mavx512bf16"),
            "elf-x86-64",
            CPU_WIDE,
        ),
        IsaLevel(
            "x86-64-v4+vnni",
            "x86_64",
            64,
            _V4 | {"avx512vnni"},
            (*_WIDE, "-mavx512vnni"),
            "elf-x86-64",
            CPU_WIDE,
        ),
        IsaLevel("x86-64-v4", "x86_64", 64, _V4, _WIDE, "elf-x86-64", CPU_WIDE),
        IsaLevel("x86-64-v3", "x86_64", 32, _V3, ("-march=x86-64-v3",), "elf-x86-64", CPU_NARROW),
        IsaLevel("x86-64-v2", "x86_64", 16, _V2, ("-march=x86-64-v2",), "elf-x86-64", CPU_NARROW),
        IsaLevel(
            "aarch64+dotprod",
            "aarch64",
            16,
            frozenset({"asimddp"}),
            ("-march=armv8.2-a+dotprod",),
            "elf-aarch64",
            CPU_NARROW,
        ),
        IsaLevel("aarch64", "aarch64", 16, frozenset(), ("-march=armv8-a",), "elf-aarch64", CPU_NARROW),
    )
}


def best_level(architecture: str, features: Collection[str]) -> IsaLevel | None:
    """Return the first level whose features are all present; None if there is none."""
    available = frozenset(features)
    for level in LEVELS.values():
        if level.architecture == architecture and level.features <= available:
            return level
    return None


def own_level() -> IsaLevel | None:
    """Return the best level of this machine, or None if the machine is below all of them."""
    from ... import _core

    facts = _core.cpu_facts()
    # Linux grants AMX tiles per process and may refuse them.
    refused = _core.missing_requirements(facts.flags)
    return best_level(facts.architecture, set(facts.flags).difference(refused))
