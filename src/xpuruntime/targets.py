"""Devices and the hardware parameters of generated code, as data.

A user writes a ``DeviceId`` (``cuda:0``, ``cpu``, ``npu``). The compiler reads a ``TargetConfig``, whose field names are those of the
backend porting guide. ``GPUS`` has the published figures of GPUs that can be named without being installed.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from .errors import DeviceUnavailable

__all__ = [
    "CPU_NARROW", "CPU_WIDE", "CUDA_GENERATED", "CUDA_GPU", "DEVICE_KINDS", "GPUS", "TARGETS", "DeviceId", "GpuModel", "TargetConfig",
]  # fmt: skip

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
_ABOUT_MODELS = (
    " {0} is a GPU model, not a device. Compile for it without the GPU: xpu compile MODEL --target cuda:{0}. Predict times on it: xpu explain"
    " MODEL --times FILE --device {0}."
)


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
            model = str(text).strip().lower().rpartition(":")[2]
            raise DeviceUnavailable(
                "device",
                "no such device",
                got=repr(text),
                do=(f"Did you mean {near[0]!r}? " if near else "")
                + f"Use one of {', '.join(DEVICE_KINDS)}; add :INDEX for any but the first one."
                + (_ABOUT_MODELS.format(model) if model in GPUS else ""),
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

    ``channel_alignment_bytes`` is the multiple that the bytes of a value's channels are padded to (1: not padded). ``channel_tile`` and
    ``matmul_tile`` are in elements, ``max_threadgroup_*`` in threads, ``max_dispatches_per_batch`` in kernel launches per submission. On a CPU
    the fields mean what the comment above ``CPU_WIDE`` says.

    The last three fields describe one GPU. 0 means the default of the compute capability (``codegen.cuda.sm``); CPU kernels ignore them.
    num_sms:          streaming multiprocessors. A program also runs on a GPU with another number.
    smem_per_block:   maximum shared memory of a block in bytes, by opt-in at launch.
    max_cluster_size: maximum blocks of a thread block cluster; 1 on a GPU without clusters.
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
    num_sms: int = 0
    smem_per_block: int = 0
    max_cluster_size: int = 0

    @classmethod
    def named(cls, name: str) -> TargetConfig:
        """Return the config for a GPU of ``GPUS``, by its name there (``"h100-sxm"``). Raises DeviceUnavailable for an unknown name."""
        gpu = GPUS.get(name.lower())
        if gpu is None:
            near = difflib.get_close_matches(name.lower(), GPUS, n=1)
            raise DeviceUnavailable(
                "target",
                "no GPU of this name is known",
                got=repr(name),
                do=(f"Did you mean {near[0]!r}? " if near else "") + f"Name one of {', '.join(GPUS)}.",
            )
        return replace(CUDA_GENERATED, name=f"cuda:{name.lower()}", num_sms=gpu.num_sms)

    @property
    def kind(self) -> str:
        """The kind of device (a key of ``DEVICE_KINDS``) that the name begins with; empty if it begins with none."""
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
"""The example of the backend porting guide. The CUDA code generator changes two of its fields (``CUDA_GENERATED``)."""

CUDA_GENERATED = replace(CUDA_GPU, name="cuda", channel_alignment_bytes=1, max_threadgroup_1d=256)
"""The default of the CUDA code generator. Channels are not padded, as cuDNN's and cuBLASLt's fast paths expect; blocks have 256 threads."""

# On a CPU, where a task is the work that one thread takes at a time, ``channel_tile`` is the maximum number of filters of a convolution's
# tile, ``matmul_tile`` the rows of a matrix product's register tile, ``max_threadgroup_1d`` the minimum elements of an elementwise task,
# ``_2d`` the edge of a transpose's tile, ``_3d_z`` the maximum rows of a convolution's or pool's task, and ``_3d_xy`` times ``_3d_z`` the
# maximum pixels of a convolution's task.
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


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU product: its compute capability, which code is generated for, and its number of streaming multiprocessors."""

    capability: str
    num_sms: int


# Multiprocessor counts as NVIDIA publishes them in architecture whitepapers and data sheets. Shared memory per block and cluster size
# follow from the compute capability (CUDA C++ Programming Guide, "Compute Capabilities").
GPUS: dict[str, GpuModel] = {
    "a100": GpuModel("sm_80", 108),
    "a10": GpuModel("sm_86", 72),
    "l4": GpuModel("sm_89", 58),
    "l40s": GpuModel("sm_89", 142),
    "rtx-4090": GpuModel("sm_89", 128),
    "h100-pcie": GpuModel("sm_90", 114),
    "h100-sxm": GpuModel("sm_90", 132),
    "h200": GpuModel("sm_90", 132),
    "b200": GpuModel("sm_100", 148),
}
"""GPUs by name: NAME in the target ``cuda:NAME`` and in ``TargetConfig.named(NAME)``."""
