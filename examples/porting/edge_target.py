"""Step 1 and 2: what code for the edge accelerator looks like, as data and as names."""

from __future__ import annotations

from pathlib import Path

from xpuruntime import CodegenTarget
from xpuruntime.targets import TargetConfig

KERNELS = Path(__file__).parent / "kernels"

EDGE = TargetConfig(
    name="edge",
    channel_alignment_bytes=1,
    channel_tile=8,
    matmul_tile=8,
    max_threadgroup_1d=128,
    max_threadgroup_2d=8,
    max_threadgroup_3d_xy=8,
    max_threadgroup_3d_z=2,
    max_dispatches_per_batch=64,
)


class EdgeTarget(CodegenTarget):
    """Names kernels and the files that hold them; a kernel that no file has is a LookupError, which becomes a reason."""

    name = "npu-sim:edge"
    config = EDGE

    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        return self._in_file(kernel_name, "elementwise.py")

    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        return ("matmul_vec" if is_vec else "matmul_tiled") + ("_t" if transpose_b else ""), "matmul.py"

    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        return self._in_file(kernel_type, "fused.py")

    def shader_source(self, filename: str) -> str:
        return (KERNELS / filename).read_text(encoding="utf-8")

    def _in_file(self, entry: str, file: str) -> tuple[str, str]:
        if f"def {entry}(" not in self.shader_source(file):
            raise LookupError(f"{file} has no {entry}")
        return entry, file
