"""Kernels of oneDNN 3 (the extra ``xpuruntime[onednn]``): matrix products and convolutions. A policy selects them: ``matmul="onednn"``.

``cpp/src/backends/cpu/onednn.cpp`` calls the library, which chooses its implementation when a program is loaded. Loading raises if only
oneDNN's reference implementation is available.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import env
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage, operand_ref
from ..spec.product import sizes

__all__ = ["KERNELS", "OneDnn", "installed"]

_DTYPES = (DType.FLOAT32, DType.BFLOAT16)
_LINEAR = ("linear", "fused_linear")
_MATMUL = ("mm", "bmm", "matmul")
_CONV = ("convolution", "fused_convolution")


@functools.cache
def installed() -> bool:
    """Return whether oneDNN's package is installed or ``XPU_LIBONEDNN`` names a path. Load nothing."""
    if env.get_path("XPU_LIBONEDNN") is not None or (Path(sys.prefix) / "lib" / "libdnnl.so.3").exists():
        return True
    try:
        metadata.distribution("onednn-cpu-gomp")
    except metadata.PackageNotFoundError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class OneDnn(Kernel):
    """A kernel that calls oneDNN. ``word``: the library kernel's name in the core."""

    name: str
    word: str
    ops: tuple[str, ...]

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for float32 and bfloat16 with dense weights, if oneDNN is installed."""
        refused = _refused(call, target)
        if refused is not None:
            return refused
        if not installed():
            return Support.no(
                Reason.NOT_INSTALLED, "oneDNN is not installed", do="pip install 'xpuruntime[onednn]'"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one library call, which divides its work over threads itself."""
        options = _conv_options(call) if self.word == "convolution" else _matmul_options(call)
        present = [i for i in range(len(call.inputs)) if call.optional(i) is not None]
        flops = _flops(call)
        stage = Stage(
            stem=self.word,
            source="",
            args=(*(operand_ref("in", i) for i in present), "out0"),
            library="onednn",
            options=options,
            flops=flops,
            bytes=sum(s.size_bytes or 0 for s in (*(t.spec for t in call.tensors), call.outputs[0])),
        )
        # oneDNN splits sums by the number of threads, so bits may differ.
        return LoweredCall((stage,), deterministic=False, batch_invariant=False)


def _refused(call: NodeCall, target: CodegenTarget) -> Support | None:
    def no(reason: str) -> Support:
        return Support.no(Reason.SHAPE_UNSUPPORTED, reason)

    if not target.name.startswith("cpu:x86"):
        return Support.no(
            Reason.DEVICE_MISMATCH, f"oneDNN's package is built for x86-64, not for {target.name}"
        )
    y = call.outputs[0]
    if y.dtype not in _DTYPES:
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"float32 and bfloat16 are supported, not {y.dtype.value}"
        )
    if any(0 in sizes(s) for s in (y, *(t.spec for t in call.tensors))):
        return no("an operand is empty")
    if any(s.layout is not None and s.layout.alloc != s.shape for s in (y, *(t.spec for t in call.tensors))):
        return no("padded channels are not supported")
    if any(not t.spec.is_dense for t in call.tensors if t.is_weight):
        return no("weights must be dense")
    residual = call.optional(3) if len(call.inputs) > 3 else None
    if residual is not None and (
        residual.spec.shape != y.shape or residual.spec.physical.strides != y.physical.strides
    ):
        return no("the residual must have the result's shape and strides")
    return _conv_refused(call) if call.op in _CONV else _matmul_refused(call)


def _matmul_refused(call: NodeCall) -> Support | None:
    x, w, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
    if call.op in _LINEAR:
        if not (x.is_dense and y.is_dense and w.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and result must be dense")
        return None
    if x.rank != w.rank or not 2 <= x.rank <= 6:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, f"both operands must have the same rank, from 2 to 6; got {x} and {w}"
        )
    return None


def _conv_refused(call: NodeCall) -> Support | None:
    x, weight = call.tensor(0).spec, call.tensor(1).spec
    if call.attrs["transposed"]:
        return Support.no(Reason.NOT_IMPLEMENTED, "transposed convolutions are not supported")
    if not 3 <= x.rank <= 5:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"1 to 3 spatial dims are supported, not {x.rank - 2}")
    if not weight.is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the filters must be dense")
    return None


def _common(call: NodeCall) -> dict[str, Any]:
    return {
        "bias": len(call.inputs) > 2 and call.optional(2) is not None,
        "residual": len(call.inputs) > 3 and call.optional(3) is not None,
        "weight_known": call.tensor(1).is_weight,
        "act": call.attrs.get("act", "none"),
    }


def _matmul_options(call: NodeCall) -> Mapping[str, Any]:
    return _common(call) | {"transposed": call.op in _LINEAR}


def _conv_options(call: NodeCall) -> Mapping[str, Any]:
    n = call.tensor(0).spec.rank - 2
    padding = tuple(call.attrs["padding"])
    return _common(call) | {
        "stride": tuple(call.attrs["stride"]),
        "dilation": tuple(call.attrs["dilation"]),
        "padding": padding if len(padding) == 2 * n else (*padding, *padding),
        "groups": call.attrs["groups"],
    }


def _flops(call: NodeCall) -> int:
    y, w = sizes(call.outputs[0]), sizes(call.tensor(1).spec)
    products = 1
    for d in y:
        products *= d
    if call.op in _LINEAR:
        return 2 * products * w[1]
    if call.op in _MATMUL:
        return 2 * products * w[-2]
    for d in w[1:]:
        products *= d
    return 2 * products


KERNELS: tuple[Any, ...] = (
    OneDnn("matmul/onednn", "matmul", (*_LINEAR, *_MATMUL)),
    OneDnn("conv/onednn", "convolution", _CONV),
)
