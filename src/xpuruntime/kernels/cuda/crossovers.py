"""Crossovers: sizes at which one kernel becomes faster than another, as measured on each compute capability.

The compiler has no device. Where it has no measured times of a call (``compile(times=)``, ``xpu tune``), ``Kernel.leads`` compares the call with
these sizes. To add a GPU, run the benchmarks that a field names and add a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...codegen.cuda.target import CudaTarget
from ...codegen.target import CodegenTarget
from ...types import DType

__all__ = ["CROSSOVERS", "Crossovers", "crossovers_of"]


@dataclass(frozen=True, slots=True)
class Crossovers:
    """The crossovers of one compute capability.

    device:                 the GPU on which they were measured; gated_min_rows and hopper_act_* on an H200.
    product_max_k:          by dtype: our GEMM with an activation leads cuBLASLt with a second stage for at most so many values per result, and
    product_min_results:    at least so many results (``benchmarks/cuda/products_16bit.py``).
    product_short_k:        maximum k for which small tiles of our GEMM are the fastest (the same).
    gated_min_rows:         a gated layer of 16 bits is one launch for at least so many rows (``products_hopper.py``).
    hopper_min_work:        our GEMM of 16 bits has the tiles of ``hopper_gemm.py`` for at least m * n * k of this (the same).
    hopper_act_min_sizes:   with an activation that cuBLASLt lacks, that GEMM leads cuBLASLt with a second stage for at least these m, n and k, and
    hopper_act_min_work:    m * n * k of this (the same).
    conv_min_filters:       our implicit GEMM in float32 leads for at least so many filters of a group (``conv_float32.py``).
    grouped_product_max_k:  maximum k of a grouped 1x1 convolution of 16 bits for which our tiles lead cuDNN's engine (``suite.py``, mixnet_s).
    cudnn_attention_heads:  head sizes at which cuDNN's attention was compared with ``flash_v2`` (``attention_sizes.py``).
    cudnn_attention_tiles:  it leads for at least so many tiles of 128 queries, or
    cudnn_attention_queries: without a causal mask, for at least so many queries.
    gemv_mma_min_bytes:     one row of 16 bits is multiplied on tensor cores instead of by FMAs for weights of at least so many bytes (smaller ones
                            would keep the next launch, whose weight fills an SM's shared memory, from starting early), and
    gemv_mma_min_k:         at least so many inputs, and
    gemv_mma_min_fill:      tiles of columns for at least so many percent of the SMs (``decoder_sizes.py``).
    quantized_max_rows:     maximum rows for which a quantized weight is multiplied directly: instead of cuBLASLt, and instead of our GEMM, over the
                            weight as floats (``quantized_rows.py``).
    """

    device: str
    product_max_k: Mapping[DType, int]
    product_min_results: Mapping[DType, int]
    product_short_k: int
    gated_min_rows: int
    hopper_min_work: int
    hopper_act_min_sizes: tuple[int, int, int]
    hopper_act_min_work: int
    conv_min_filters: int
    grouped_product_max_k: int
    cudnn_attention_heads: tuple[int, ...]
    cudnn_attention_tiles: int
    cudnn_attention_queries: int
    gemv_mma_min_bytes: int
    gemv_mma_min_k: int
    gemv_mma_min_fill: int
    quantized_max_rows: tuple[int, int]


CROSSOVERS: Mapping[str, Crossovers] = {
    "sm_90": Crossovers(
        device="NVIDIA H100 80GB HBM3",
        product_max_k={DType.FLOAT32: 128, DType.FLOAT16: 192, DType.BFLOAT16: 192},
        product_min_results={DType.FLOAT32: 1 << 20, DType.FLOAT16: 1 << 19, DType.BFLOAT16: 1 << 19},
        product_short_k=768,
        gated_min_rows=256,
        hopper_min_work=1 << 30,
        hopper_act_min_sizes=(197, 384, 96),
        hopper_act_min_work=1 << 27,
        conv_min_filters=4,
        grouped_product_max_k=512,
        cudnn_attention_heads=(64, 128),
        cudnn_attention_tiles=512,
        cudnn_attention_queries=512,
        gemv_mma_min_bytes=13 << 20,
        gemv_mma_min_k=1024,
        gemv_mma_min_fill=70,
        quantized_max_rows=(64, 1024),
    )
}
"""The crossovers of each compute capability that was measured."""
_DEFAULT = "sm_90"


def crossovers_of(target: CodegenTarget) -> Crossovers:
    """Return the crossovers of a target's compute capability; those of sm_90 for one that was not measured."""
    name = target.sm.name if isinstance(target, CudaTarget) else _DEFAULT
    return CROSSOVERS.get(name, CROSSOVERS[_DEFAULT])
