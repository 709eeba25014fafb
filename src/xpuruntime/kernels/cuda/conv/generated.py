"""Convolutions on CUDA: ``conv/implicit_gemm`` (``templates/cuda/implicit_gemm.cuh``) and ``conv/cudnn`` by cuDNN's graph API.

implicit_gemm is a GEMM of pixels by filters with k = taps * channels. It gathers the input window while it loads a tile, so no im2col
matrix is stored. 16-bit floats with contiguous channels (NHWC) run on tensor cores with the tiles of ``matmul/generated``; everything else
runs on CUDA cores. Constant filters are packed at load as [filter, tap, channel]. In float32 it precedes cuDNN, whose engines without TF32 and
Winograd are slower for channels-last data; in 16 bits, for small grouped 1x1 convolutions. ``conv/depthwise`` is preferred to both where each
channel has its own filters, and ``conv/gemv`` in 16 bits where an image has one output pixel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ....codegen.c_types import accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....ir.ops._shapes import pads
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...portable.text import offset_text
from ...spec.conv import FLOATS, OPS, act_of, stem_of, strides_of_weight, supported
from ...spec.conv_shape import ConvShape
from ..crossovers import crossovers_of
from ..heavy import (
    MAX_BLOCKS_YZ,
    REFERENCE_SMS,
    TAGS,
    about,
    bytes_of,
    c_bool,
    constants,
    in_chunks,
    multiprocessors,
    shared_limit,
)
from ..launch import ByAlignment, LaunchConfig, cuda_stage
from ..matmul.fma import FmaConfig, fma_config, fma_launch, fma_lowered, fma_numbers, split_arguments
from ..matmul.generated import Tile, tile_for
from ..matmul.libraries import CHOICES, absent
from ..matmul.text import parts_of
from .depthwise import Depthwise
from .one_pixel import OnePixel
from .text import arguments_of, finish_text, window_text

__all__ = ["KERNELS", "CudnnConv", "ImplicitGemm", "fma_call", "tensor_stage"]

_CLIPPED = frozenset(["relu", "relu6", "leaky_relu"])
"""Activations that clamp; see ``CudnnConv.supports``."""
_IMAGE_CHANNELS = 4
"""Maximum channels of an image: its first layer has no other fast kernel."""
_CUDNN_ACTS = ("none", "relu", "relu6", "leaky_relu", "tanh", "sigmoid", "gelu", "silu", "gelu_tanh")


def _packed(shape: ConvShape, spec: TensorSpec, packed_k: int) -> Packed:
    """Return the filters packed as [filter, tap, channel], padded to ``packed_k`` elements per filter."""
    o, c, taps = shape.groups * shape.filters, shape.channels, shape.taps
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": [o, c, taps]}),
        RecipeStep("permute", ("%0",), {"order": [0, 2, 1]}),
        RecipeStep("reshape", ("%1",), {"shape": [o, taps * c]}),
    ]
    if packed_k > taps * c:
        steps.append(RecipeStep("pad", ("%2",), {"begin": [0, 0], "end": [0, packed_k - taps * c]}))
    return Packed(tuple(steps), TensorSpec((o, packed_k), spec.dtype))


class ImplicitGemm(Kernel):
    """Implicit GEMM convolution."""

    name = "conv/implicit_gemm"
    ops: tuple[str, ...] = OPS
    has_tiles: ClassVar[bool] = True
    """Constant filters are multiplied in tiles, which add in another order than the kernel of computed filters."""

    def exact_form(self) -> Kernel:
        """Return the kernel that computes a convolution with constant filters as one with computed filters."""
        return _WithoutTiles()

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of at most three spatial dims, any stride, padding, dilation, groups and layout; not transposed."""
        answer = supported(call, FLOATS)
        if not answer:
            return answer
        if call.attrs["transposed"]:
            return Support.no(Reason.NOT_IMPLEMENTED, "transposed convolutions are not implemented")
        s = ConvShape.of(call)
        if s.groups > MAX_BLOCKS_YZ or s.pixels >= 2**31:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"more than {MAX_BLOCKS_YZ} groups or 2**31 pixels exceed the grid of a launch",
            )
        if call.tensor(1).is_weight and not call.tensor(1).spec.is_dense:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "constant filters must be dense")
        return answer

    def leads(self, call: NodeCall, target: CodegenTarget) -> bool:
        """Return whether it is the fastest: in float32, unless a group has few filters (``benchmarks/cuda/conv_float32.py``) or one input channel,
        and for small grouped products of 16 bits, for which cuDNN takes a slow engine.
        """
        s, dtype = ConvShape.of(call), call.outputs[0].dtype
        if not call.tensor(1).is_weight:
            return False
        if dtype in TAGS:
            return _is_small_grouped_product(s, dtype, target)
        few_filters = s.groups > 1 and s.filters < crossovers_of(target).conv_min_filters
        if dtype is not DType.FLOAT32 or few_filters:
            return False
        return not Depthwise().supports(call, target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage; the grid's z dimension is the group."""
        s = ConvShape.of(call)
        if not s.pixels * s.filters * s.groups:
            return LoweredCall(())
        dtype = call.outputs[0].dtype
        constant, k = call.tensor(1).is_weight, s.taps * s.channels
        packed_k = math.ceil(k / 8) * 8
        weights = {1: _packed(s, call.tensor(1).spec, packed_k)} if constant else {}
        has_tiles = constant and self.has_tiles and bool(s.channels)
        if has_tiles and dtype is DType.FLOAT32:
            return replace(fma_call(call, s, packed_k, target), weights=weights)
        tensor_cores = has_tiles and dtype in TAGS and s.x[1] == 1 and s.y[1] == 1
        stage = (
            tensor_stage(call, s, packed_k, target)
            if tensor_cores
            else _plain_stage(call, s, packed_k if constant else 0)
        )
        return LoweredCall(
            (stage,), weights=weights, accumulates="float64" if dtype is DType.FLOAT64 else "float32"
        )


def _is_small_grouped_product(s: ConvShape, dtype: DType, target: CodegenTarget) -> bool:
    """Return whether a grouped convolution of one tap is aligned, has few k, and its tiles run at once."""
    aligned = s.channels % 8 == 0 and in_chunks(dtype, s.x[0], *s.x[2:])
    if s.groups == 1 or s.taps != 1 or not aligned or s.x[1] != 1 or s.y[1] != 1:
        return False
    if not 0 < s.channels <= crossovers_of(target).grouped_product_max_k or not s.pixels * s.filters:
        return False
    blocks = tile_for(s.pixels, s.filters, s.groups, target).blocks(s.pixels, s.filters) * s.groups
    return blocks <= multiprocessors(target)


def tensor_stage(
    call: NodeCall, s: ConvShape, packed_k: int, target: CodegenTarget, tile: Tile | None = None
) -> Stage:
    """Return the stage on tensor cores. ``packed_k``: elements of a packed filter."""
    dtype = call.outputs[0].dtype
    t = tile_for(s.pixels, s.filters, s.groups, target) if tile is None else tile
    arguments = arguments_of(call)
    aligned = in_chunks(dtype, s.channels, s.x[0], *s.x[2:])
    pairs = s.filters % 2 == 0 and not any(step % 2 for step in (s.y[0], *s.y[2:]))
    numbers = {
        "BM": t.rows, "BN": t.columns, "STAGES": t.stages, "WARPS_M": t.warps_m, "WARPS_N": t.warps_n, "m": s.pixels, "n": s.filters,
        "k": s.taps * s.channels, "TILES_N": math.ceil(s.filters / t.columns),
    }  # fmt: skip

    def flags(b_aligned: bool, stored: bool) -> str:
        return constants("bool", {"B_ROWS": "false", "B_ALIGNED": c_bool(b_aligned), "PAIRS": c_bool(stored)})

    def run(name: str, fast: bool) -> str:
        return f"gemm::run<{name}>(conv::Pixels<KERNEL_shape, {c_bool(fast)}>{{pixels}}, weights, {packed_k}, finish);"

    before = [
        *window_text(s), "struct KERNEL_sizes {", f"    typedef {TAGS[dtype]} T;", constants("int", numbers), "};",
        f"struct KERNEL_gemm : KERNEL_sizes {{ {flags(True, pairs).strip()} }};",
        f"struct KERNEL_unaligned : KERNEL_sizes {{ {flags(False, False).strip()} }};",
        *finish_text(call, s, arguments, "float"),
    ]  # fmt: skip
    group = "(int64_t)blockIdx.z * "
    body = [
        f"const tensor::u16 *pixels = (const tensor::u16 *)x + {group}{s.channels};",
        f"const tensor::u16 *weights = (const tensor::u16 *)filters + {group}{s.filters * packed_k};",
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};",
    ]
    end = ByAlignment(
        ("x", "filters", "y"),
        run("KERNEL_gemm", aligned and (s.groups == 1 or s.channels % 8 == 0)),
        run("KERNEL_unaligned", False),
    )
    launch = LaunchConfig(
        (t.blocks(s.pixels, s.filters), 1, s.groups),
        (t.threads, 1, 1),
        t.shared,
        min_blocks_per_sm=2 if 2 * t.shared <= shared_limit(target) else 1,
    )
    return cuda_stage(
        stem_of("conv", s), about(call, f"tensor cores, {t.rows} pixels x {t.columns} filters a block"), arguments, body, launch,
        end=end, before=before, parts=parts_of(act_of(call), "implicit_gemm"), flops=s.flops(2),
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def fma_call(
    call: NodeCall, s: ConvShape, packed_k: int, target: CodegenTarget, config: FmaConfig | None = None
) -> LoweredCall:
    """Return a convolution of float32 with constant filters. ``packed_k``: elements of a packed filter."""
    c = fma_config(s.pixels, s.filters, s.taps * s.channels, s.groups, target) if config is None else config
    arguments = arguments_of(call)
    aligned = s.x[1] == 1 and in_chunks(DType.FLOAT32, s.channels, s.x[0], *s.x[2:])
    numbers = fma_numbers(c, s.pixels, s.filters, s.taps * s.channels)
    names = ", ".join(a.name for a in arguments[2:])
    split = split_arguments(c)
    before = [
        *window_text(s), "struct KERNEL_sizes {", constants("int", numbers), "};", *finish_text(call, s, arguments, "float"),
    ]  # fmt: skip

    def run(fast: bool) -> str:
        pixels = f"conv::FloatPixels<KERNEL_shape, {c_bool(fast)}>{{pixels}}"
        lines = f"fma_gemm::Lines<{s.filters}, {packed_k}, {c_bool(fast)}>{{weights, {packed_k}}}"
        memory = "parts, counters" if split else "nullptr, nullptr"
        return f"fma_gemm::run<KERNEL_sizes>({pixels}, {lines}, {memory}, finish);"

    group = "(int64_t)blockIdx.z * "
    body = [
        f"const float *pixels = x + {group}{s.channels * s.x[1]};",
        f"const float *weights = filters + {group}{s.filters * packed_k};",
        f"const KERNEL_finish finish = {{{names}}};",
        *([] if aligned else [run(False)]),
    ]
    end = ByAlignment(("x", "filters"), run(True), run(False)) if aligned else None
    t = c.tile
    launch = fma_launch(c, s.pixels, s.filters, s.groups, target)
    stage = cuda_stage(
        stem_of("conv", s), about(call, f"FMA, {t.rows} pixels x {t.columns} filters a block, {c.splits} splits"), [*arguments, *split], body,
        launch, end=end, before=before, parts=parts_of(act_of(call), "implicit_gemm"), flops=s.flops(2),
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip
    return fma_lowered(c, stage, s.pixels, s.filters, s.groups)


def _plain_stage(call: NodeCall, s: ConvShape, packed_k: int) -> Stage:
    """Return the stage on CUDA cores. ``packed_k``: elements of a packed filter; 0 if the filters are computed and not packed."""
    arguments = arguments_of(call)
    sums, ctype, wtype = accumulator(call.outputs[0].dtype), arguments[0].ctype, arguments[1].ctype
    blocks_wide = math.ceil(s.pixels / 128) * math.ceil(s.filters / 128) * s.groups
    large = sums != "double" and blocks_wide >= REFERENCE_SMS
    rows, columns = (8, 8) if large else (4, 4)
    if packed_k:
        offset = f"(int64_t)column * {packed_k} + k"
        first = f"(int64_t)blockIdx.z * {s.filters * packed_k}"
    else:
        steps = strides_of_weight(s, call.tensor(1).spec)
        tap = offset_text(f"(int64_t)(k / {s.channels})", s.kernel, steps[2:5])
        offset = f"(int64_t)column * {steps[0]} + (int64_t)(k % {s.channels}) * {steps[1]} + {tap}"
        first = f"(int64_t)blockIdx.z * {steps[5]}"
    numbers = {"TM": rows, "TN": columns, "m": s.pixels, "n": s.filters, "k": s.taps * s.channels}
    before = [
        *window_text(s), "struct KERNEL_simt {", f"    typedef {sums} C;", constants("int", numbers),
        constants("bool", {"A_ALONG_K": c_bool(s.x[1] == 1), "B_ALONG_K": "true"}), "};",
        f"struct KERNEL_filters {{ const {wtype} *at; __device__ __forceinline__ {sums} operator()(int k, int column) const"
        f" {{ return ({sums})load<1>(at + ({offset})); }} }};",
        *finish_text(call, s, arguments, sums),
    ]  # fmt: skip
    body = [
        f"const conv::Window<KERNEL_shape, {sums}, {ctype}> left = {{x + (int64_t)blockIdx.z * {s.channels * s.x[1]}}};",
        f"const KERNEL_filters right = {{filters + {first}}};",
        f"simt::run<KERNEL_simt>(left, right, KERNEL_finish{{{', '.join(a.name for a in arguments[2:])}}});",
    ]
    blocks = math.ceil(s.pixels / (16 * rows)) * math.ceil(s.filters / (16 * columns))
    return cuda_stage(
        stem_of("conv", s), about(call, f"{16 * rows} pixels x {16 * columns} filters a block"), arguments, body,
        LaunchConfig((blocks, 1, s.groups), (256, 1, 1), min_blocks_per_sm=2 if large else 0), before=before, parts=parts_of(act_of(call), "implicit_gemm"),
        flops=s.flops(2), bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


@dataclass(frozen=True)
class CudnnConv(Kernel):
    """cuDNN's fused graph of convolution, residual, bias and activation.

    engine: a global engine index of cuDNN; -1: any that computes in the model's dtype (float32 without TF32, sums in float32, no Winograd
            transforms, deterministic).
    choice: an index among the configurations of such engines in the heuristic's list; -1: the first that has a plan.
    """

    name: str = "conv/cudnn"
    engine: int = -1
    choice: int = -1
    ops: tuple[str, ...] = OPS
    on_request: bool = False
    opt_in_reason: str = "pins an engine"
    variants: ClassVar[tuple[Mapping[str, int], ...]] = CHOICES

    def pinned(self, word: str, values: Mapping[str, int]) -> CudnnConv:
        """Return the kernel with an engine or a configuration of cuDNN fixed."""
        engine, choice = values.get("engine", -1), values.get("choice", -1)
        return replace(self, name=f"conv/{word}", engine=engine, choice=choice, on_request=True)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of 16 and 32 bits, one or two spatial dims, constant filters, and a residual of the result's shape and strides."""
        missing = absent("cudnn", "nvidia-cudnn-cu13")
        if missing is not None:
            return missing
        answer = supported(call, (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16))
        if not answer:
            return answer

        def no(reason: str) -> Support:
            return Support.no(Reason.SHAPE_UNSUPPORTED, reason)

        s = ConvShape.of(call)
        if call.attrs["transposed"] or s.rank > 2:
            return no("only non-transposed convolutions of one or two spatial dims are supported")
        if not call.tensor(1).is_weight or not call.tensor(1).spec.is_dense:
            return no("the filters must be constant and dense")
        if not s.pixels * s.filters * s.channels:
            return no("an operand is empty")
        if s.x[1] != 1 or s.y[1] != 1:
            return no("channels must be contiguous")
        if act_of(call) not in _CUDNN_ACTS:
            return no(f"the activation {act_of(call)} is not supported")
        if (
            call.outputs[0].dtype in TAGS
            and s.groups > 1
            and s.channels > 1
            and (s.channels % 8 or s.filters % 8)
        ):
            return no("channels and filters per group must be multiples of 8")
        if (
            call.outputs[0].dtype in TAGS
            and act_of(call) in _CLIPPED
            and (s.filters % 8 or (s.channels % 8 and s.channels > _IMAGE_CHANNELS))
        ):
            return no(
                f"cuDNN's engines for channels that are no multiple of 8 turn NaN into 0 in {act_of(call)}"
            )
        residual = call.optional(3) if call.op == "fused_convolution" else None
        if residual is None:
            return answer
        if residual.spec.shape != call.outputs[0].shape or _strides_of(s, s.r) != _strides_of(s, s.y):
            # cuDNN's float32 engines read the residual with the result's strides (issue 15).
            return no("the residual must have the result's shape and strides")
        return answer

    def view_alignment(self, call: NodeCall, target: CodegenTarget) -> int | None:
        """Return that of the target for filters of one tap. Engines for larger filters may need dense images."""
        return target.place_alignment if ConvShape.of(call).taps == 1 else None

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one library call."""
        s = ConvShape.of(call)
        arguments = arguments_of(call)
        residual = call.optional(3) if call.op == "fused_convolution" else None
        c, o = s.channels, s.filters * s.groups
        kernel = s.kernel[1:]
        begin, end = pads(call.attrs["padding"], s.rank)
        lead = (1,) * (2 - s.rank)
        options: dict[str, Any] = {
            "x_shape": [s.images, c * s.groups, *s.size[1:]], "x_strides": _strides(s.x, c * s.groups, s.size[1:]),
            "w_shape": [o, c, *kernel], "w_strides": [kernel[0] * kernel[1] * c, 1, kernel[1] * c, c],
            "y_shape": [s.images, o, *s.out[1:]], "y_strides": _strides_of(s, s.y),
            "stride": list(s.stride[1:]), "dilation": list(s.dilation[1:]), "begin": [*(0 for _ in lead), *begin],
            "end": [*(0 for _ in lead), *end], "bias": call.optional(2) is not None, "residual": residual is not None,
            "act": act_of(call), "in": call.outputs[0].dtype.value, "engine": self.engine, "choice": self.choice,
        }  # fmt: skip
        if residual is not None:
            options["r_strides"] = _strides_of(s, s.r)
        stage = Stage(
            "conv", "", tuple(a.ref for a in arguments), library="cudnn", options=options, flops=s.flops(2),
            bytes=bytes_of([*(t.spec for t in call.tensors), call.outputs[0]]),
        )  # fmt: skip
        return LoweredCall(
            (stage,), weights={1: _packed(s, call.tensor(1).spec, s.taps * c)}, batch_invariant=False
        )


def _strides_of(s: ConvShape, steps: tuple[int, ...]) -> list[int]:
    """Return the strides of the result or of the residual."""
    return _strides(steps, s.filters * s.groups, s.out[1:])


def _strides(steps: tuple[int, ...], channels: int, space: tuple[int, ...]) -> list[int]:
    """Return the strides of n, c, h, w. Dims of extent 1 get the stride of a dense tensor, because cuDNN recognizes layouts by it."""
    n, c, _, h, w = steps
    w = w or channels
    h = h or w * space[1]
    return [n or h * space[0], c or 1, h, w]


class _WithoutTiles(ImplicitGemm):
    """Implicit GEMM convolution that adds products in one order, whichever filters it has."""

    has_tiles = False


KERNELS: tuple[Any, ...] = (Depthwise(), OnePixel(), CudnnConv(), ImplicitGemm())
