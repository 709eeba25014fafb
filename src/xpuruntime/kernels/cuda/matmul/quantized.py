"""Linear layers with weights of fewer bits on CUDA: ``matmul/int8_weights``, ``matmul/fp8_weights``, ``matmul/int4_weights`` (groups of 32, 64 or 128
inputs), and ``matmul/stored_weights`` (the groups of a GGUF file's blocks).

Few rows are bandwidth-bound: the kernel of ``templates/cuda/quantized.cuh`` reads the codes once, on tensor cores for 16-bit floats. For more rows, a
first stage writes the weight as floats to a workspace, and cuBLASLt multiplies it; under ``batch_invariant``, or without cuBLASLt, our own GEMM.
``quantized_rows`` has the rows in between. Codes and scales are those of the CPU's kernels: weights are quantized when they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....storage.blocks import GroupForm
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.channel_codes import FP8, INT8, ChannelCodes
from ...spec.linear import LinearLayer, not_in_blocks, why_not
from ..heavy import REFERENCE_SMS, TAGS, about, in_chunks, shared_limit
from ..launch import Argument, ByAlignment, LaunchConfig, blocks_for, cuda_stage
from .gemv_problem import GemvProblem, gemv_finish, problem_of_layer
from .generated import Generated
from .libraries import CublasLt
from .quantized_rows import by_wgmma, rows_config, rows_lowered
from .quantized_tiles import STEP, QuantizedConfig, QuantizedTiles, struct_text, weight_arguments
from .text import parts_of

__all__ = [
    "KERNELS",
    "MAX_ROWS",
    "QuantizedConfig",
    "QuantizedTiles",
    "QuantizedWeights",
    "by_floats",
    "product_stage",
    "quantized_config",
    "quantized_stage",
]

MAX_ROWS = 16
"""Maximum rows of the bandwidth-bound kernel; above this, writing the weight as floats first is faster."""

_ROWS = {True: 16, False: 4}
"""Maximum rows of a block, with and without tensor cores."""
_STAGES, _MOST_STAGES, _RESERVED = 3, 7, 1024
"""Tiles in flight per warp; the most of them where all blocks of a launch run at once; shared memory that an SM reserves for each block."""
_MANY_WARPS = 12
"""Warps of a block where every SM has at most two tiles of outputs."""
_WARPS = {(4, False): 4, (4, True): 6, (8, False): 6, (8, True): 8}
"""Warps of a block by the bits of a code, and whether an SM has more than eight tiles of outputs."""
_THREADS, _PIECES = 256, 4
"""Threads of a block that writes the weight as floats, and pieces of eight inputs of a thread."""


def quantized_config(
    layer: LinearLayer, form: GroupForm | None, limit: int, *, alone: bool = True
) -> QuantizedConfig | None:
    """Return the config for a layer; None if a row of x does not fit in the ``limit`` of shared memory. ``alone``: False for a launch of several products."""
    t, mma = QuantizedTiles(layer, form), layer.dtype in TAGS
    per_sm = t.tiles / REFERENCE_SMS
    if per_sm <= 2:
        split, per = _MANY_WARPS, 1
    else:
        split, per = (
            _WARPS[t.bits, per_sm > 8],
            1 if per_sm <= 4 else 2 if per_sm <= 8 else 4 if layer.m == 1 else 8,
        )
    split = min(split, t.steps)
    rows = min(layer.m, _ROWS[mma])
    while rows:
        config = QuantizedConfig(rows, split, _STAGES, per, 1 if split > 8 else 2)
        deeper = _resident(t, replace(config, stages=_MOST_STAGES), limit, mma)
        if deeper is not None and alone and layer.m <= rows:
            return deeper
        for stages in (_STAGES, 2):
            if t.shared(replace(config, stages=stages), mma) <= limit:
                return replace(config, stages=stages)
        rows //= 2
    return None


def _resident(t: QuantizedTiles, most: QuantizedConfig, limit: int, mma: bool) -> QuantizedConfig | None:
    """Return the config with the stages that copy all tiles of a warp before ``griddep_wait``, or the most with which all blocks of a launch run at once.

    A launch then waits for the one before it with its weight in shared memory: on an H100 the down projection of Qwen2.5-1.5B takes 4.2 us
    instead of 6.5, gate and up 7.2 instead of 8.7. Return None if an SM has more than three blocks, or no room for them.
    """
    blocks = math.ceil(math.ceil(t.tiles / most.tiles_per_block) / REFERENCE_SMS)
    needed = math.ceil(t.steps / most.split) * most.tiles_per_block + 1
    for stages in range(min(needed, most.stages), _STAGES, -1):
        config = replace(most, stages=stages)
        if blocks <= 3 and blocks * (t.shared(config, mma) + _RESERVED) - _RESERVED <= limit:
            return config
    return None


@dataclass(frozen=True, slots=True)
class QuantizedWeights(Kernel):
    """Linear layers whose weight has codes in groups of a form, or ``codes`` with a scale per output (no form).

    Only a policy that names the kernel uses it.

    stored:    the groups are those of the blocks that a weight is stored in.
    libraries: whether cuBLASLt multiplies many rows, if it is installed.
    """

    name: str
    form: GroupForm | None
    stored: bool = False
    on_request: bool = True
    ops: tuple[str, ...] = ("linear", "fused_linear", "norm_linear")
    codes: ChannelCodes = INT8
    libraries: bool = True

    def batch_invariant_form(self) -> QuantizedWeights:
        """Return the kernel that multiplies many rows by our own GEMM."""
        return replace(self, libraries=False)

    def form_of(self, call: NodeCall) -> GroupForm | None:
        """Return the form of a layer's weight."""
        return call.tensor(1).groups if self.stored else self.form

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and a constant weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        layer = LinearLayer.of(call)
        if layer.dtype is DType.FLOAT64:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, "weights of 4 or 8 bits are not supported for float64"
            )
        if self.stored and call.tensor(1).groups is None:
            return not_in_blocks(call)
        if call.op != "norm_linear":
            return Support.yes()
        if layer.m > MAX_ROWS:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, f"at most {MAX_ROWS} rows are supported, got {layer.m}"
            )
        if layer.m and quantized_config(layer, self.form_of(call), shared_limit(target)) is None:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, f"a row of {layer.k} inputs does not fit in shared memory"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage; for many rows without wgmma, to one that writes the weight as floats and a GEMM."""
        layer, form = LinearLayer.of(call), self.form_of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        config = quantized_config(layer, form, shared_limit(target)) if layer.m <= MAX_ROWS else None
        tiles = QuantizedTiles(layer, form, codes=self.codes)
        if config is not None:
            lowered = LoweredCall((quantized_stage(call, form, config, self.codes),))
        else:
            kernels = (CublasLt(), Generated())[not self.libraries :]
            product = next(k for k in kernels if k.supports(call, target))
            if by_wgmma(tiles, target, library=isinstance(product, CublasLt)):
                lowered = rows_lowered(call, tiles, rows_config(tiles, target))
            else:
                lowered = by_floats(call, tiles, product.lower(call, target))
        extra = {} if form else {"extra0": (1, self.codes.scales(layer.n * layer.halves))}
        return replace(lowered, weights={1: tiles.packed(stored=self.stored)}, extra_weights=extra)


def quantized_stage(
    call: NodeCall, form: GroupForm | None, config: QuantizedConfig, codes: ChannelCodes = INT8
) -> Stage:
    """Return the stage of few rows of a linear layer."""
    tiles = QuantizedTiles(LinearLayer.of(call), form, codes=codes)
    return product_stage(call, tiles, config, problem_of_layer(call))


def product_stage(
    call: NodeCall, t: QuantizedTiles, config: QuantizedConfig, s: GemvProblem, begin: Sequence[str] = ()
) -> Stage:
    """Return the stage of few rows. ``begin``: lines that set ``left`` and ``right`` to the operands of a block, if it has its own."""
    layer, form, mma = t.layer, t.form, t.layer.dtype in TAGS
    a, _, *rest = s.arguments
    arguments = [a, *weight_arguments(form), *rest]
    left, right = ("left", "right") if begin else ("a", "b")
    norm = "(const KERNEL_quantized::S *)nullptr" if s.scale is None else s.scale.name
    operands = [*dict.fromkeys(x.name for x, *_ in s.terms), "y"]
    given = f"{right}, {norm}, {'nullptr' if form else 'scales'}, finish);"
    before = struct_text(t, config, norm=s.scale is not None, aligned=s.aligned)
    body, end = [*begin, f"const KERNEL_finish finish = {{{', '.join(operands)}}};"], None
    if s.aligned:
        before.append(
            "struct KERNEL_unaligned : KERNEL_quantized { static constexpr bool ALIGNED = false; };"
        )
        end = ByAlignment(
            (a.name, *([norm] if s.scale else [])),
            f"quantized::run<KERNEL_quantized>({left}, {given}",
            f"quantized::run<KERNEL_unaligned>({left}, {given}",
        )
    else:
        body.append(f"quantized::run<KERNEL_quantized>({left}, {given}")
    launch = LaunchConfig(
        (math.ceil(t.tiles / config.tiles_per_block), math.ceil(layer.m / config.rows), 1),
        (config.split * 32, 1, 1),
        t.shared(config, mma),
        min_blocks_per_sm=config.min_blocks_per_sm,
    )
    stem = f"{'norm_' if s.scale else ''}{t.word}_{layer.m}x{layer.n * layer.halves}x{layer.k}"
    return cuda_stage(
        f"{stem}_{s.act}" if s.gated else stem,
        about(call, f"codes of {t.word}{f' in groups of {form.group}' if form else ''}, 16 outputs at a time, by {config.split} warps"),
        arguments, body, launch, end=end, before=[*before, *gemv_finish(s)], parts=parts_of(s.act, "quantized"), waits_itself=True,
        flops=2 * layer.m * layer.n * layer.halves * layer.k, bytes=t.spec.size_bytes or 0,
    )  # fmt: skip


def by_floats(call: NodeCall, t: QuantizedTiles, product: LoweredCall) -> LoweredCall:
    """Return the stages of many rows: the weight as floats in a workspace, then ``product``, which multiplies it."""
    layer, form = t.layer, t.form
    aligned = in_chunks(layer.dtype, layer.k) and layer.k % 8 == 0
    body = [f"quantized::dequantize<KERNEL_quantized, {_PIECES}>(b, {'nullptr' if form else 'scales'}, to);"]
    count = t.matrices * layer.n * t.steps * STEP[t.bits] // 8
    weight = f"temp{len(product.temps)}"
    to = Argument(weight, "to", C_TYPES[layer.dtype], written=True)
    size = t.matrices * layer.n * layer.k * layer.dtype.bits // 8
    widen = cuda_stage(
        f"floats_of_{t.word}_{layer.n}x{layer.k}", about(call, f"the weight's codes of {t.word} as {layer.dtype.value}"),
        [*weight_arguments(form), to], body, LaunchConfig((blocks_for(count, _THREADS * _PIECES), 1, 1), (_THREADS, 1, 1)),
        before=struct_text(t, QuantizedConfig(1, 1, 2), norm=False, aligned=aligned), parts=frozenset({"quantized"}),
        bytes=size + (t.spec.size_bytes or 0),
    )  # fmt: skip
    stages = [replace(s, args=tuple(weight if x == "in1" else x for x in s.args)) for s in product.stages]
    return replace(product, stages=(widen, *stages), temps=(*product.temps, size))


KERNELS: tuple[Any, ...] = (
    QuantizedWeights("matmul/int8_weights", None),
    QuantizedWeights("matmul/fp8_weights", None, codes=FP8),
    *(
        QuantizedWeights("matmul/int4_weights" + suffix, GroupForm(4, group, "bfloat16"))
        for suffix, group in (("", 32), ("_64", 64), ("_128", 128))
    ),
    QuantizedWeights("matmul/stored_weights", None, stored=True),
)
