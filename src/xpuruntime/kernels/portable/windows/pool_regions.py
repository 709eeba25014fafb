"""Data-dependent pools: ``max_unpool`` and regions of interest (``templates/pool_regions.h``)."""

from __future__ import annotations

import math

from ....codegen.c_types import C_TYPES
from ....codegen.loops.points import number
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import NodeCall
from ...spec.conv_shape import sizes, strides_of
from ...spec.movement.elements import why_not_movable
from ..tasks import PortableKernel, TaskEnvironment, TaskStage
from ..text import braces

__all__ = ["KERNELS", "MaxUnpool", "RegionPool"]

_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_BITS = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}


class MaxUnpool(PortableKernel):
    """max_unpool: fill with zeros, then store every value at its index, in order. Indices outside the result are ignored."""

    name: str = "pool/places"
    ops: tuple[str, ...] = ("max_unpool",)

    def supports(self, call: NodeCall) -> Support:
        """Return yes for every dtype with whole bytes, and at most three spatial dims."""
        spec = call.tensor(0).spec
        refused = why_not_movable(spec)
        if refused is not None or spec.dtype.bits > 64:
            return refused or Support.no(
                Reason.DTYPE_UNSUPPORTED, f"max_unpool of {spec.dtype.value} is not supported"
            )
        if call.tensor(1).spec.dtype not in (DType.INT64, DType.INT32):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"indices must be int32 or int64, got {call.tensor(1).spec.dtype.value}",
            )
        if len(call.attrs["output_size"]) > 3:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "more than 3 spatial dims are not supported")
        return Support.yes()

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return one stage with one plane per task; a single task if indices are over the whole tensor."""
        x, at, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
        n = len(call.attrs["output_size"])
        kind, index = _BITS[x.dtype.bits], f"{at.dtype.value}_t"
        lead, whole = sizes(x)[: x.rank - n], call.attrs["indices_over"] == "tensor"
        space = [(1,) * (3 - n) + sizes(s)[-n:] for s in (x, y)]
        strides = ", ".join(braces(strides_of(s, n)) for s in (x, at, y))
        channels, planes = lead[-1], math.prod(lead)
        lines = (
            f"static const pool::Unpool shape = {{{planes}, {channels}, {braces(space[0])}, {braces(space[1])},",
            f"    {strides}}};",
            f"pool::unpool(shape, {str(whole).lower()}, (const {kind} *)args[0], (const {index} *)args[1], ({kind} *)args[2], begin, end);",
        )
        return TaskStage(
            stem="max_unpool",
            lines=lines,
            about=f"max_unpool: {x}, {at} -> {y}",
            args=("in0", "in1", "out0"),
            tasks=1 if whole else max(planes, 1),
            parts=frozenset({"pool_regions"}),
            grain=1,
            bytes=sum(s.size_bytes or 0 for s in (x, at, y)),
            accumulates=x.dtype.value,
        )


class RegionPool(PortableKernel):
    """roi_align and max_roi_pool."""

    name: str = "pool/regions"
    ops: tuple[str, ...] = ("roi_align", "max_roi_pool")

    def supports(self, call: NodeCall) -> Support:
        """Return yes for floats."""
        spec = call.tensor(0).spec
        if spec.dtype not in _FLOATS or call.tensor(1).spec.dtype not in _FLOATS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"{call.op} of {spec.dtype.value} is not supported")
        if call.op == "roi_align" and call.tensor(2).spec.dtype not in (DType.INT64, DType.INT32):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"batch indices must be int32 or int64, got {call.tensor(2).spec.dtype.value}",
            )
        return Support.yes()

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return one stage with one region per task, on a GPU one result."""
        x, rois, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
        kinds = [C_TYPES[s.dtype] for s in (x, rois, y)]
        align = call.op == "roi_align"
        args: tuple[str, ...] = ("in0", "in1", *(("in2",) if align else ()), "out0")
        strides = ", ".join(braces(s.physical.strides) for s in (x, rois, y))
        scale = number(float(call.attrs["spatial_scale"]))
        regions, channels, *bins = sizes(y)
        places, tasks, span, kind = ("", ""), max(sizes(rois)[0], 1), "begin, end", "static const"
        span_of_bins = f"{{0, {math.prod(bins)}}}"
        split: tuple[str, ...] = ()
        if environment.thread_per_task:
            width = max(math.prod(bins), 1)
            tasks, span = regions * channels * width, "region, region + 1"
            split = (
                f"const int64_t bin = begin % {width}, channel = begin / {width} % {max(channels, 1)};",
                f"const int64_t region = begin / {width * max(channels, 1)};",
            )
            places = (f" + channel * {x.physical.strides[1]}", f" + channel * {y.physical.strides[1]}")
            channels, kind, span_of_bins = 1, "const", "{bin, bin + 1}"
        fields = f"{braces(sizes(x))}, {braces((regions, channels, *bins))}, {strides}, {scale}"
        operands = f"(const {kinds[0]} *)args[0]{places[0]}, (const {kinds[1]} *)args[1]"
        out = f"({kinds[2]} *)args[{len(args) - 1}]{places[1]}, {span}, {span_of_bins}"
        if align:
            images = call.tensor(2).spec
            flags = ", ".join(
                str(f).lower() for f in (call.attrs["mode"] == "max", bool(call.attrs["aligned"]))
            )
            step = images.physical.strides[0]
            run = (
                f"pool::align(shape, {call.attrs['sampling_ratio']}, {flags}, {operands}, "
                f"(const {images.dtype.value}_t *)args[2], {step}, {out});"
            )
        else:
            run = f"pool::max_regions(shape, {operands}, {out});"
        return TaskStage(
            stem=call.op,
            lines=(*split, f"{kind} pool::Regions shape = {{{fields}}};", run),
            about=f"{call.op}: {x}, {rois} -> {y}",
            args=args,
            tasks=tasks,
            parts=frozenset({"pool_regions"}),
            grain=1,
            bytes=sum(s.size_bytes or 0 for s in (x, rois, y)),
        )


KERNELS = (MaxUnpool(), RegionPool())
