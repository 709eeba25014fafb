"""NVIDIA GPUs by compute capability: what a kernel may use, and how NVRTC is told.

Figures: CUDA C++ Programming Guide, "Compute Capabilities" (table of technical specifications per compute capability).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEVELS", "SmLevel", "sm_level"]


@dataclass(frozen=True, slots=True)
class SmLevel:
    """One compute capability.

    name:          ``sm_90``, as targets and binaries say it; ``number``: 90.
    architecture:  NVRTC's option: ``sm_90a`` has the instructions that only that family has.
    shared_bytes:  most shared memory of one block, asked for at launch; ``threads``: resident threads of a multiprocessor.
    wgmma, tma:    Hopper's asynchronous products and copies.
    """

    name: str
    number: int
    architecture: str
    shared_bytes: int
    threads: int = 2048
    wgmma: bool = False
    tma: bool = False

    @property
    def bf16(self) -> bool:
        """Whether tensor cores take bfloat16."""
        return self.number >= 80


# From the least to the most that a device must be. A binary runs on devices of its major number with its minor number or more;
# one compiled for an "a" architecture on exactly that.
LEVELS: dict[str, SmLevel] = {
    level.name: level
    for level in (
        SmLevel("sm_80", 80, "sm_80", 163 * 1024),
        SmLevel("sm_86", 86, "sm_86", 99 * 1024, threads=1536),
        SmLevel("sm_89", 89, "sm_89", 99 * 1024, threads=1536),
        SmLevel("sm_90", 90, "sm_90a", 227 * 1024, wgmma=True, tma=True),
        SmLevel("sm_100", 100, "sm_100", 227 * 1024, tma=True),
        SmLevel("sm_120", 120, "sm_120", 99 * 1024, threads=1536, tma=True),
    )
}


def sm_level(capability: Sequence[int]) -> SmLevel | None:
    """The most that a device of compute capability (major, minor) runs; None for one below or beside all of them."""
    major, minor = capability
    fitting = [v for v in LEVELS.values() if v.number // 10 == major and v.number % 10 <= minor]
    return fitting[-1] if fitting else None
