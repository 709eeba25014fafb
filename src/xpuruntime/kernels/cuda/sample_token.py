"""``sample_token`` on CUDA devices, without a sort of the vocabulary (``templates/cuda/sampled_token_blocks.cuh``).

Three launches: logits after penalties and their maximum; weights and a histogram of them; the thresholds of top_k and top_p, and the token. The
first two divide each row over blocks. The last has one block per row and reads the row at most three times from L2.
"""

from __future__ import annotations

import math

from ...codegen.c_types import C_TYPES
from ...codegen.target import CodegenTarget
from ..kernel import NodeCall, Stage
from ..spec.product import sizes
from ..spec.sample_token import SampleToken
from .heavy import MAX_BLOCKS_YZ, constants, multiprocessors
from .launch import Argument, LaunchConfig, cuda_stage
from .movement.moves import cuda_moves_stage

__all__ = ["KERNELS"]

_BINS, _THREADS, _WIDE = 2048, 256, 1024
_MIN_CHUNK = 1024
"""Fewest elements of a block: four per thread."""


class CudaSampleToken(SampleToken):
    """Blocks of a row, then one block per row."""

    def __init__(self) -> None:
        super().__init__(cuda_moves_stage)

    def sampled(self, call: NodeCall, target: CodegenTarget) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
        """Return three stages. temp0: logits; temp1: maxima of chunks; temp2 and temp3: number and weight of tokens per bin; temp4: weights of chunks."""
        logits = call.tensor(0).spec
        batch, vocab = sizes(logits)
        kind, padded = C_TYPES[logits.dtype], math.ceil(vocab / 4) * 4
        blocks = max(1, min(multiprocessors(target) // batch, padded // _MIN_CHUNK))
        chunk = math.ceil(padded / blocks / 4) * 4
        chunks = math.ceil(padded / chunk)
        sizes_of = {"vocab": vocab, "padded": padded, "chunk": chunk, "chunks": chunks}
        before = [
            "struct KERNEL_sizes {",
            f"    typedef {kind} S;",
            constants("int", sizes_of),
            "};",
        ]
        step, counts = logits.physical.strides[0], call.tensor(1).spec.physical.strides[0]
        settings, numbers = (call.tensor(i).spec.physical.strides[0] for i in (2, 3))
        after = call.outputs[1].physical.strides[0]

        def row_of(name: str) -> list[str]:
            return [
                f"for (int64_t r = {name}; r < {batch}; r += {min(batch, MAX_BLOCKS_YZ)}) {{",
                f"const sampled::Row row = sampled::row_of(in2 + r * {settings}, in3 + r * {numbers});",
            ]

        # The last stage reads the counts, too: memory is updated in place by a stage that is the last to read it.
        counted = Argument("in1", "in1", "int32_t")
        parameters = [Argument("in2", "in2", "float"), Argument("in3", "in3", "int64_t")]
        x, maxima = (Argument(f"temp{i}", n, "float", True) for i, n in enumerate(("x", "maxima")))
        number, mass, sums = (
            Argument("temp2", "number", "uint32_t", True),
            Argument("temp3", "mass", "unsigned long long", True),
            Argument("temp4", "sums", "unsigned long long", True),
        )
        of_row = {
            "x": f"x + r * {padded}",
            "maxima": f"maxima + r * {chunks}",
            "number": f"number + r * {_BINS}",
            "mass": f"mass + r * {_BINS}",
            "sums": f"sums + r * {chunks}",
        }
        first = [
            *row_of("blockIdx.y"),
            f"sampled::logits_of_chunk<KERNEL_sizes, {_THREADS}>(in0 + r * {step}, in1 + r * {counts}, row, {of_row['x']}, {of_row['maxima']},"
            f" {of_row['number']}, {of_row['mass']});",
            "}",
        ]
        second = [
            *row_of("blockIdx.y"),
            f"sampled::weights_of_chunk<KERNEL_sizes, {_THREADS}>({of_row['x']}, {of_row['maxima']}, row, {of_row['sums']}, {of_row['number']},"
            f" {of_row['mass']});",
            "__syncthreads();",
            "}",
        ]
        third = [
            "const int64_t r = blockIdx.x;",
            f"const sampled::Row row = sampled::row_of(in2 + r * {settings}, in3 + r * {numbers});",
            f"const int64_t token = sampled::token_of<KERNEL_sizes>({of_row['x']}, {of_row['maxima']}, {of_row['sums']}, {of_row['number']},"
            f" {of_row['mass']}, row);",
            "if (threadIdx.x == 0) {",
            f"  out0[r * {call.outputs[0].physical.strides[0]}] = token;",
            f"  if (row.counted && token >= 0) out1[r * {after} + token] += 2;",
            "}",
        ]
        grid = LaunchConfig((chunks, min(batch, MAX_BLOCKS_YZ), 1), (_THREADS, 1, 1))
        parts = frozenset({"sampled_token_blocks"})
        size = logits.size_bytes or 0
        stages = (
            cuda_stage(
                f"sample_token_logits_{batch}x{vocab}", f"logits of {batch} rows of {vocab} tokens after penalties, and their maxima",
                [Argument("in0", "in0", kind), counted, *parameters, x, maxima, number, mass],
                first, grid, before=before, parts=parts, flops=4 * batch * vocab, bytes=size + 4 * batch * vocab,
            ),
            cuda_stage(
                f"sample_token_weights_{batch}x{vocab}", f"weights of {batch} rows of {vocab} tokens, and their histograms",
                [*parameters, x, maxima, number, mass, sums],
                second, grid, before=before, parts=parts, flops=12 * batch * vocab, bytes=4 * batch * vocab,
            ),
            cuda_stage(
                f"sample_token_{batch}x{vocab}", f"the tokens of {batch} rows of {vocab}",
                [counted, *parameters, x, maxima, number, mass, sums, Argument("out0", "out0", "int64_t", True), Argument("out1", "out1", "int32_t", True)],
                third, LaunchConfig((batch, 1, 1), (_WIDE, 1, 1)), before=before, parts=parts, flops=4 * batch * vocab, bytes=8 * batch * vocab,
            ),
        )  # fmt: skip
        temps = (
            4 * batch * padded,
            4 * batch * chunks,
            4 * batch * _BINS,
            8 * batch * _BINS,
            8 * batch * chunks,
        )
        return stages, temps


KERNELS = (CudaSampleToken(),)
