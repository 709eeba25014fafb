"""Linear layers with weights of fewer bits on CUDA: ``matmul/int8_weights``, ``matmul/fp8_weights``, ``matmul/int4_weights`` (groups of 32, 64 or 128
inputs), and ``matmul/stored_weights`` (the groups of a GGUF file's blocks).

Few rows are bandwidth-bound: the kernel of ``templates/cuda/quantized.cuh`` reads the codes once, on tensor cores for 16-bit floats. For more rows, a
first stage writes the weight as floats to a workspace, and cuBLASLt multiplies it; under ``batch_invariant``, or without cuBLASLt, our own GEMM. Codes and scales are those of the CPU's kernels:
weights are quantized when they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...spec.channel_codes import FP8, INT8, ChannelCodes, shifted
from ...spec.linear import LinearLayer, not_in_blocks, why_not
from ..heavy import REFERENCE_SMS, TAGS, about, c_bool, constants, in_chunks, shared_limit
from ..launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .gemv import GemvProblem, gemv_finish, problem_of_layer
from .generated import Generated
from .libraries import CublasLt
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

_OUTPUTS = 16
"""Outputs of a tile."""
_STEP = {4: 128, 8: 64}
"""Inputs of a tile, by the bits of a code."""
_CODES_BYTES = 1024
"""Bytes of a tile's codes."""
_NUMBERS = {"": 0, "bfloat16": 1, "float16": 2, "product": 3, "float32": 4}
"""Numbers of a group -> their index in the template."""
_ROWS = {True: 16, False: 4}
"""Maximum rows of a block, with and without tensor cores."""
_MANY_WARPS = 12
"""Warps of a block where every SM has at most two tiles of outputs."""
_WARPS = {(4, False): 4, (4, True): 6, (8, False): 6, (8, True): 8}
"""Warps of a block by the bits of a code, and whether an SM has more than eight tiles of outputs."""
_THREADS, _PIECES = 256, 4
"""Threads of a block that writes the weight as floats, and pieces of eight inputs of a thread."""


@dataclass(frozen=True, slots=True)
class QuantizedConfig:
    """Sizes of a launch.

    rows:            rows of x that a block multiplies.
    split:           warps of a block, which split the inputs between them.
    stages:          tiles in flight per warp.
    tiles_per_block: tiles of outputs that a block computes in turn.
    min_blocks_per_sm: occupancy that bounds the registers of a thread.
    """

    rows: int
    split: int
    stages: int
    tiles_per_block: int = 1
    min_blocks_per_sm: int = 2


@dataclass(frozen=True, slots=True)
class QuantizedTiles:
    """The weight of a layer in tiles of 16 outputs, or the matrices of ``experts`` experts.

    codes: the codes of a weight without groups.
    steps: tiles along the inputs. tiles: tiles along the outputs of a half.
    """

    layer: LinearLayer
    form: GroupForm | None
    experts: int = 0
    codes: ChannelCodes = INT8

    @property
    def word(self) -> str:
        """The codes as a part of names of functions."""
        return f"int{self.form.bits}" if self.form else self.codes.word

    @property
    def bits(self) -> int:
        return self.form.bits if self.form else 8

    @property
    def groups(self) -> int:
        """Groups of an output in a tile."""
        return _STEP[self.bits] // self.form.group if self.form else 0

    @property
    def bytes(self) -> int:
        return _CODES_BYTES + (self.form.number_bytes * _OUTPUTS * self.groups if self.form else 0)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.layer.k / _STEP[self.bits]))

    @property
    def tiles(self) -> int:
        return self.layer.panels(_OUTPUTS)

    @property
    def spec(self) -> TensorSpec:
        dtype = DType.INT8 if self.form else self.codes.dtype
        return TensorSpec((self.matrices * self.tiles, self.steps, self.bytes), dtype)

    @property
    def matrices(self) -> int:
        """Matrices of ``tiles`` tiles: each half of a layer, or of an expert."""
        return max(1, self.experts) * self.layer.halves

    def shared(self, c: QuantizedConfig, mma: bool) -> int:
        """Return the shared memory of a block, as ``Sizes::BYTES`` of the template."""
        halves, k = self.layer.halves, self.steps * _STEP[self.bits]
        ring = c.split * c.stages * halves * self.bytes
        x = c.rows * (k * (2 if mma else 4) + (16 if self.form is None else 64 if self.bits == 4 else 32))
        sums = self.steps * self.groups * c.rows * 8 if mma else 0
        norms = 4 * c.rows * (1 + math.ceil(k / 256)) if self.layer.scale is not None else 0
        return ring + x + math.ceil(sums / 16) * 16 + max(norms, 2 * c.split * _OUTPUTS * halves * c.rows * 4)

    def packed(self, *, stored: bool) -> Packed:
        """Return the packing [outputs, inputs] -> tiles; ``stored``: of the outputs' groups. Outputs and inputs beyond the weight are zeros."""
        layer, form, rows, steps = self.layer, self.form, self.matrices * self.tiles, self.steps
        k = steps * _STEP[self.bits]
        tail = [layer.k // form.group, form.bytes] if form is not None and stored else [layer.k]
        done = self._experts_padded(tail) if self.experts else layer.padded(_OUTPUTS, tail)
        if form is None:  # scales are those of the weight before it is padded
            done = [self.codes.quantize, *(shifted(s) for s in done)]

        def add(op: str, source: str | tuple[str, ...] = "", **attrs: Any) -> str:
            last = f"%{len(done) - 1}" if done else "%in"
            done.append(RecipeStep(op, source if isinstance(source, tuple) else (source or last,), attrs))
            return f"%{len(done) - 1}"

        if form is None or not stored:
            add("pad", begin=[0, 0], end=[0, k - layer.k])
        else:
            add("pad", begin=[0, 0, 0], end=[0, k // form.group - tail[0], 0])
        if form is None:
            add("reshape", shape=[rows, 2, 8, steps, 4, 16])
            add("permute", order=[0, 3, 1, 2, 4, 5])
            add("reshape", shape=[rows, steps, _CODES_BYTES])
            return Packed(tuple(done), self.spec)
        groups = f"%{len(done) - 1}" if stored else add("groups_int4", group=form.group)
        add("slice", groups, dim=2, begin=0, end=form.code_bytes)
        add("reshape", shape=[rows, 2, 8, steps, 4, 4, 4])
        add("permute", order=[0, 3, 1, 2, 5, 4, 6])
        codes = add("reshape", shape=[rows, steps, _CODES_BYTES])
        add("slice", groups, dim=2, begin=form.code_bytes, end=form.bytes)
        add("reshape", shape=[rows, _OUTPUTS, steps, form.number_bytes * self.groups])
        add("permute", order=[0, 2, 1, 3])
        numbers = add("reshape", shape=[rows, steps, form.number_bytes * _OUTPUTS * self.groups])
        add("concat", (codes, numbers), dim=2)
        return Packed(tuple(done), self.spec, form if stored else None)

    def _experts_padded(self, tail: list[int]) -> list[RecipeStep]:
        """Return steps that pad each half of each expert's outputs to whole tiles, and put all outputs in one dim."""
        n, padded, zeros = self.layer.n, self.tiles * _OUTPUTS, [0] * len(tail)
        return [
            RecipeStep("reshape", ("%in",), {"shape": [self.matrices, n, *tail]}),
            RecipeStep("pad", ("%0",), {"begin": [0, 0, *zeros], "end": [0, padded - n, *zeros]}),
            RecipeStep("reshape", ("%1",), {"shape": [self.matrices * padded, *tail]}),
        ]


def quantized_config(layer: LinearLayer, form: GroupForm | None, limit: int) -> QuantizedConfig | None:
    """Return the config for a layer; None if a row of x does not fit in the ``limit`` of shared memory."""
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
        for stages in (3, 2):
            config = QuantizedConfig(rows, split, stages, per, 1 if split > 8 else 2)
            if t.shared(config, mma) <= limit:
                return config
        rows //= 2
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
        """Lower the call to one stage; for many rows, to one that writes the weight as floats and a GEMM."""
        layer, form = LinearLayer.of(call), self.form_of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        config = quantized_config(layer, form, shared_limit(target)) if layer.m <= MAX_ROWS else None
        tiles = QuantizedTiles(layer, form, codes=self.codes)
        if config is not None:
            lowered = LoweredCall((quantized_stage(call, form, config, self.codes),))
        else:
            kernels = (CublasLt(), Generated())[not self.libraries :]
            product = next(k for k in kernels if k.supports(call, target)).lower(call, target)
            lowered = by_floats(call, tiles, product)
        extra = {} if form else {"extra0": (1, self.codes.scales(layer.n * layer.halves))}
        return replace(lowered, weights={1: tiles.packed(stored=self.stored)}, extra_weights=extra)


def _struct(t: QuantizedTiles, c: QuantizedConfig, *, norm: bool, aligned: bool) -> list[str]:
    """Return the struct ``KERNEL_quantized`` of the template's parameters."""
    layer, mma = t.layer, t.layer.dtype in TAGS
    numbers = {
        "m": layer.m, "n": layer.n, "k": layer.k, "ROWS": c.rows, "COLUMN_TILES": math.ceil(c.rows / 8), "BITS": t.bits,
        "GROUP": t.form.group if t.form else 0, "NUMBERS": _NUMBERS[t.form.numbers if t.form else ""],
        "MATRICES": t.matrices, "STEPS": t.steps, "TILES": t.tiles, "SPLIT": c.split, "STAGES": c.stages, "TILES_PER_BLOCK": c.tiles_per_block,
    }  # fmt: skip
    flags = {
        "E4M3": t.form is None and t.codes is FP8,
        "GATED": layer.halves == 2,
        "NORM": norm,
        "ALIGNED": aligned,
    }
    return [
        "struct KERNEL_quantized {",
        f"    typedef {C_TYPES[layer.dtype]} S;",
        f"    typedef {TAGS[layer.dtype] if mma else 'void'} T;",
        constants("int", numbers),
        constants("bool", {name: c_bool(v) for name, v in flags.items()}),
        f"    static __device__ __forceinline__ float eps() {{ return {layer.eps!r}f; }}",
        "};",
    ]


def _weight_arguments(form: GroupForm | None) -> list[Argument]:
    codes = Argument("in1", "b", "int8_t")
    return [codes] if form else [codes, Argument("extra0", "scales", "float")]


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
    arguments = [a, *_weight_arguments(form), *rest]
    left, right = ("left", "right") if begin else ("a", "b")
    norm = "(const KERNEL_quantized::S *)nullptr" if s.scale is None else s.scale.name
    operands = [*dict.fromkeys(x.name for x, *_ in s.terms), "y"]
    given = f"{right}, {norm}, {'nullptr' if form else 'scales'}, finish);"
    before = _struct(t, config, norm=s.scale is not None, aligned=s.aligned)
    body = [*begin, f"const KERNEL_finish finish = {{{', '.join(operands)}}};"]
    if s.aligned:
        before.append(
            "struct KERNEL_unaligned : KERNEL_quantized { static constexpr bool ALIGNED = false; };"
        )
        pointers = " | ".join(f"(uint64_t){n}" for n in (left, *([norm] if s.scale else [])))
        body += [
            f"if (({pointers}) % 16 == 0) quantized::run<KERNEL_quantized>({left}, {given}",
            f"else quantized::run<KERNEL_unaligned>({left}, {given}",
        ]
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
        arguments, body, launch, before=[*before, *gemv_finish(s)], parts=parts_of(s.act, "quantized"), waits_itself=True,
        flops=2 * layer.m * layer.n * layer.halves * layer.k, bytes=t.spec.size_bytes or 0,
    )  # fmt: skip


def by_floats(call: NodeCall, t: QuantizedTiles, product: LoweredCall) -> LoweredCall:
    """Return the stages of many rows: the weight as floats in a workspace, then ``product``, which multiplies it."""
    layer, form = t.layer, t.form
    aligned = in_chunks(layer.dtype, layer.k) and layer.k % 8 == 0
    body = [f"quantized::dequantize<KERNEL_quantized, {_PIECES}>(b, {'nullptr' if form else 'scales'}, to);"]
    count = t.matrices * layer.n * t.steps * _STEP[t.bits] // 8
    weight = f"temp{len(product.temps)}"
    to = Argument(weight, "to", C_TYPES[layer.dtype], written=True)
    size = t.matrices * layer.n * layer.k * layer.dtype.bits // 8
    widen = cuda_stage(
        f"floats_of_{t.word}_{layer.n}x{layer.k}", about(call, f"the weight's codes of {t.word} as {layer.dtype.value}"),
        [*_weight_arguments(form), to], body, LaunchConfig((blocks_for(count, _THREADS * _PIECES), 1, 1), (_THREADS, 1, 1)),
        before=_struct(t, QuantizedConfig(1, 1, 2), norm=False, aligned=aligned), parts=frozenset({"quantized"}),
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
