"""Devices and code generation targets, as data.

``DeviceId`` is what a user writes (``cuda:0``, ``cpu``, ``npu``); ``TargetConfig`` is what the compiler reads.
Field names of ``TargetConfig`` are those of the backend porting guide.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from .errors import DeviceUnavailable

__all__ = ["CPU_NARROW", "CPU_WIDE", "CUDA_GPU", "DEVICE_KINDS", "TARGETS", "DeviceId", "TargetConfig"]

DEVICE_KINDS: dict[str, str] = {
    "cpu": "the host processor",
    "cuda": "an NVIDIA GPU",
    "gpu": "any GPU that the chosen engine supports, of any vendor",
    "npu": "a neural processing unit, through its vendor's engine",
    "metal": "an Apple GPU",
    "webgpu": "a GPU through WebGPU",
    "auto": "the device that the engine chooses itself",
}

_DEVICE = re.compile(r"([a-z]+)(?::(\d{1,4}))?")


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """One device as a user names it: a kind from ``DEVICE_KINDS`` and an index."""

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, text: str | DeviceId) -> DeviceId:
        """Parse a name such as ``"cuda:1"``. Raises DeviceUnavailable for an unknown kind or a bad index."""
        if isinstance(text, DeviceId):
            return text
        match = _DEVICE.fullmatch(str(text).strip().lower())
        if match is None or match[1] not in DEVICE_KINDS:
            word = match[1] if match else str(text).strip().lower()
            near = difflib.get_close_matches(word, DEVICE_KINDS, n=1)
            raise DeviceUnavailable(
                "device",
                "no such device",
                got=repr(text),
                do=(f"Did you mean {near[0]!r}? " if near else "")
                + f"Use one of {', '.join(DEVICE_KINDS)}; add :INDEX for any but the first one.",
            )
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return (
            f"{self.kind}:{self.index}"
            if self.kind in ("cuda", "metal", "webgpu") or self.index
            else self.kind
        )


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """Hardware parameters for code generation. ``name`` begins with the kind of device: ``cuda_gpu``, ``cpu_wide``.

    ``channel_alignment_bytes`` bytes, ``channel_tile`` and ``matmul_tile`` elements, ``max_threadgroup_*``
    threads, ``max_dispatches_per_batch`` kernel launches per submission.
    """

    name: str
    channel_alignment_bytes: int
    channel_tile: int
    matmul_tile: int
    max_threadgroup_1d: int
    max_threadgroup_2d: int
    max_threadgroup_3d_xy: int
    max_threadgroup_3d_z: int
    max_dispatches_per_batch: int

    @property
    def kind(self) -> str:
        """The kind of device (a key of ``DEVICE_KINDS``) that the name begins with; empty without one."""
        word = re.split(r"[^a-z]", self.name.lower(), maxsplit=1)[0]
        return word if word in DEVICE_KINDS else ""


CUDA_GPU = TargetConfig(
    name="cuda_gpu",
    channel_alignment_bytes=128,
    channel_tile=64,
    matmul_tile=32,
    max_threadgroup_1d=1024,
    max_threadgroup_2d=32,
    max_threadgroup_3d_xy=16,
    max_threadgroup_3d_z=8,
    max_dispatches_per_batch=65535,
)

# On CPUs the fields mean: ``channel_tile`` output channels of a convolution's block, ``matmul_tile`` rows of a matrix
# product's register tile, ``max_threadgroup_1d`` least elements of an elementwise task, ``_2d`` edge of a transpose's tile,
# ``_3d_xy`` pixels and ``_3d_z`` rows of a convolution's or pool's task, ``max_dispatches_per_batch`` calls per submission.
CPU_WIDE = TargetConfig(
    name="cpu_wide",
    channel_alignment_bytes=1,
    channel_tile=64,
    matmul_tile=6,
    max_threadgroup_1d=16384,
    max_threadgroup_2d=16,
    max_threadgroup_3d_xy=56,
    max_threadgroup_3d_z=4,
    max_dispatches_per_batch=65535,
)
"""CPUs with 32 vector registers of 64 bytes."""

CPU_NARROW = TargetConfig(
    name="cpu_narrow",
    channel_alignment_bytes=1,
    channel_tile=16,
    matmul_tile=6,
    max_threadgroup_1d=16384,
    max_threadgroup_2d=8,
    max_threadgroup_3d_xy=56,
    max_threadgroup_3d_z=4,
    max_dispatches_per_batch=65535,
)
"""CPUs with 16 vector registers of 16 or 32 bytes."""

TARGETS: dict[str, TargetConfig] = {t.name: t for t in (CUDA_GPU, CPU_WIDE, CPU_NARROW)}
