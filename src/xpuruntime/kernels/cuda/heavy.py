"""Helpers of the compute-heavy kernels (matmul, conv, attention): tensor-core dtypes, 16-byte alignment, device limits, comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.c_types import C_TYPES
from ...codegen.target import CodegenTarget
from ...types import DType, TensorSpec
from ..kernel import NodeCall
from ..spec.product import sizes
from .launch import Argument

__all__ = [
    "CHUNK_BYTES", "MAX_BLOCKS_YZ", "REFERENCE_SMS", "TAGS", "about", "argument", "bytes_of", "c_bool", "constants", "in_chunks", "multiprocessors",
    "shared_limit",
]  # fmt: skip

TAGS: Mapping[DType, str] = {DType.BFLOAT16: "tensor::Bf16", DType.FLOAT16: "tensor::F16"}
"""Dtypes that tensor cores multiply, with their C++ tags in ``templates/cuda/tensor.cuh``."""

CHUNK_BYTES = 16
"""Bytes of a vector load."""

MAX_BLOCKS_YZ = 65535
"""Maximum blocks of a grid along y or z (CUDA C++ Programming Guide, technical specifications)."""

REFERENCE_SMS = 132
"""Number of SMs that the tuned launch configurations fill: that of an H100. With fewer SMs, the same grid runs in more waves."""


def multiprocessors(target: CodegenTarget) -> int:
    """Return the number of SMs of the target, or ``REFERENCE_SMS`` if the target does not record it."""
    return target.config.num_sms or REFERENCE_SMS


def shared_limit(target: CodegenTarget) -> int:
    """Return the maximum shared memory per block in bytes; 48 KiB, which every GPU has, if the target does not record it."""
    return target.config.smem_per_block or 48 * 1024


def in_chunks(dtype: DType, *elements: int) -> bool:
    """Return whether all of these strides or extents are multiples of 16 bytes."""
    return all(e * dtype.bits // 8 % CHUNK_BYTES == 0 for e in elements)


def c_bool(value: object) -> str:
    """Return ``true`` or ``false``."""
    return "true" if value else "false"


def constants(kind: str, values: Mapping[str, object]) -> str:
    """Return ``    static constexpr int m = 1, n = 2;``."""
    return f"    static constexpr {kind} " + ", ".join(f"{n} = {v}" for n, v in values.items()) + ";"


def argument(spec: TensorSpec, ref: str, name: str, *, written: bool = False) -> Argument:
    """Return an argument for a buffer of a spec's dtype."""
    return Argument(ref, name, "bool" if spec.dtype is DType.BOOL else C_TYPES[spec.dtype], written)


def about(call: NodeCall, what: str) -> str:
    """Return the comment above a kernel: op, shapes and tiling. It has no node name, so that equal kernels share one text."""
    ins = ", ".join(f"{s.dtype.value}{list(sizes(s))}" for s in (t.spec for t in call.tensors))
    return f"{call.op}: {ins} -> {list(sizes(call.outputs[0]))}; {what}"


def bytes_of(specs: Sequence[TensorSpec]) -> int:
    """Return the minimum memory traffic in bytes: every buffer once."""
    return sum(s.size_bytes or 0 for s in specs)
