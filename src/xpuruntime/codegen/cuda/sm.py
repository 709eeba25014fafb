"""NVIDIA GPUs by compute capability: the features and limits of each, and its NVRTC option.

Figures: CUDA C++ Programming Guide, "Compute Capabilities" (table of technical specifications per compute capability).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEVELS", "SmLevel", "sm_level"]


@dataclass(frozen=True, slots=True)
class SmLevel:
    """One compute capability.

    name, number:     ``sm_90``, as in targets and binaries; 90.
    architecture:     NVRTC's option. ``sm_90a`` enables instructions that only that architecture has.
    num_sms:          SMs that generated code assumes if no GPU is named: those of one data-center GPU.
    smem_per_block:   maximum shared memory per block in bytes, by opt-in at launch.
    max_cluster_size: maximum blocks per cluster that every GPU of this capability supports; 1 without clusters.
    threads:          maximum resident threads per SM.
    wgmma, tma:       Hopper's asynchronous warpgroup matrix products, and bulk copies.
    """

    name: str
    number: int
    architecture: str
    num_sms: int
    smem_per_block: int
    max_cluster_size: int = 1
    threads: int = 2048
    wgmma: bool = False
    tma: bool = False

    @property
    def bf16(self) -> bool:
        """True if tensor cores support bfloat16."""
        return self.number >= 80


# In ascending order. A binary runs on devices of its major number with its minor number or a higher one; a binary for an "a" architecture
# runs on exactly that capability. Default counts: A100, A10, L40S, H100 SXM and H200, B200, RTX 5090.
LEVELS: dict[str, SmLevel] = {
    level.name: level
    for level in (
        SmLevel("sm_80", 80, "sm_80", 108, 163 * 1024),
        SmLevel("sm_86", 86, "sm_86", 72, 99 * 1024, threads=1536),
        SmLevel("sm_89", 89, "sm_89", 142, 99 * 1024, threads=1536),
        SmLevel("sm_90", 90, "sm_90a", 132, 227 * 1024, 8, wgmma=True, tma=True),
        SmLevel("sm_100", 100, "sm_100", 148, 227 * 1024, 8, tma=True),
        SmLevel("sm_120", 120, "sm_120", 170, 99 * 1024, 8, threads=1536, tma=True),
    )
}


def sm_level(capability: Sequence[int]) -> SmLevel | None:
    """Return the highest level that a device of compute capability (major, minor) runs; None if it runs none of them."""
    major, minor = capability
    supported = [v for v in LEVELS.values() if v.number // 10 == major and v.number % 10 <= minor]
    return supported[-1] if supported else None
