"""``conv/gemv`` on CUDA: convolutions with one output pixel per image, as rows times filters (``templates/cuda/gemv.cuh``).

Squeeze-and-excite blocks convolve means over all pixels, and some networks end in a convolution over the whole image. A tile of a GEMM would compute
few of its rows, in one serial loop over k. This kernel reads the filters once, by all warps of the device.
"""

from __future__ import annotations

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed
from ...spec.conv import OPS, act_of, supported
from ...spec.conv_shape import ConvShape
from ..matmul.gemv import ROWS, gemv_stage, gemv_tile_config
from ..matmul.gemv_problem import GemvProblem
from .text import arguments_of

__all__ = ["OnePixel"]

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)


class OnePixel(Kernel):
    """Convolution of one pixel per image, for few images."""

    name: str = "conv/gemv"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats, up to four images, one group, and constant filters that cover a whole image with contiguous channels."""
        answer = supported(call, _DTYPES)
        if not answer:
            return answer
        s = ConvShape.of(call)

        def no(reason: str) -> Support:
            return Support.no(Reason.SHAPE_UNSUPPORTED, reason)

        if call.attrs["transposed"] or s.groups != 1:
            return no("only non-transposed convolutions of one group are supported")
        if s.kernel != s.size or s.pixels != s.images or any(s.begin) or max(s.dilation) != 1:
            return no("the filters must cover the whole image, without padding")
        if not 0 < s.images <= ROWS or not s.channels * s.taps * s.filters:
            return no(f"1 to {ROWS} images and no empty operand are supported, got {s.images} images")
        if not call.tensor(1).is_weight or not call.tensor(1).spec.is_dense:
            return no("the filters must be constant and dense")
        if not _is_contiguous(s):
            return no("the pixels of an image must be contiguous, channels first of all")
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage over filters packed as [filter, tap, channel]."""
        s, spec = ConvShape.of(call), call.tensor(1).spec
        k = s.taps * s.channels
        arguments = arguments_of(call)
        at = {a.name: a for a in arguments}
        terms = [(at["bias"], "column", 1.0, False)] if "bias" in at else []
        if "residual" in at:
            terms.append((at["residual"], f"row * {s.r[0]}ll + column * {s.r[1]}ll", 1.0, False))
        problem = GemvProblem(
            s.images, s.filters, k, s.x[0] or k, k, spec.dtype, arguments, terms, f"row * {s.y[0]}ll + column * {s.y[1]}ll", True,
            act=act_of(call), begin=("const auto *const left = x;", "const auto *const right = filters;"),
        )  # fmt: skip
        steps = (
            RecipeStep("reshape", ("%in",), {"shape": [s.filters, s.channels, s.taps]}),
            RecipeStep("permute", ("%0",), {"order": [0, 2, 1]}),
            RecipeStep("reshape", ("%1",), {"shape": [s.filters, k]}),
        )
        config = gemv_tile_config(s.images, s.filters, k, spec.dtype)
        stage = gemv_stage(call, config, problem)
        return LoweredCall((stage,), weights={1: Packed(steps, TensorSpec((s.filters, k), spec.dtype))})


def _is_contiguous(s: ConvShape) -> bool:
    """Return whether an image is one run of elements in the order of the packed filters: pixels, and the channels of each."""
    step = 1
    for extent, stride in zip((s.channels, *reversed(s.size)), (s.x[1], *reversed(s.x[2:])), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True
