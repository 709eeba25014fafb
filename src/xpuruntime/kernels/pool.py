"""Pools on CPUs: windows, adaptive windows and whole planes reduced per channel, in any layout (``templates/pool.h``).

``pool/generated`` computes maxima (with places where they are asked for), means and p-norms; ``pool/places`` puts values back where
maxima came from; ``pool/regions`` pools regions of interest.
"""

from __future__ import annotations

from ..codegen.isa import IsaLevel
from ..codegen.points import number
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..ir.ops._shapes import pads
from ..types import DType
from .conv_shape import C_TYPES, ConvShape, braces, function, strides_of
from .kernel import Kernel, Lowered, NodeCall, Stage
from .pool_places import Places, Regions

__all__ = [
    "KERNELS", "Generated", "divisor_of", "places_text", "pool_shape", "reducer_of", "window_ends", "windows_text",
]  # fmt: skip

_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_GRAIN_BYTES = 1 << 16
"""Operands that are worth a thread of their own: they take some microseconds to read."""

_MAX = {"max_pool", "adaptive_max_pool"}
_ADAPTIVE = {"adaptive_max_pool", "adaptive_avg_pool"}


class Generated:
    """Windows that are clipped to the input, vectors over channels where these lie side by side."""

    name: str = "pool/generated"
    ops: tuple[str, ...] = ("max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Up to three space dims; means and maxima of numbers (maxima of bool too), norms of floats."""
        spec = call.tensor(0).spec
        is_bool = spec.dtype is DType.BOOL and call.op in _MAX
        if not is_bool and spec.dtype not in (_FLOATS if call.op == "lp_pool" else C_TYPES):
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"{call.op} of {spec.dtype.value}")
        space = _space_dims(call)
        if space > 3:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"{space} space dims; it has at most 3")
        if call.op == "lp_pool" and not call.attrs["p"] > 0:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"a norm of power {call.attrs['p']}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        double = call.outputs[0].dtype is DType.FLOAT64
        return Lowered(
            (_stage(call, target),),
            accumulates="float64" if double else "float32" if call.outputs[0].dtype.is_float else "int64",
        )


def _space_dims(call: NodeCall) -> int:
    return len(call.attrs["output_size" if call.op in _ADAPTIVE else "kernel_size"])


def pool_shape(call: NodeCall) -> ConvShape:
    """The windows' sizes and the operands' strides."""
    x, y = call.tensor(0).spec, call.outputs[0]
    if call.op not in _ADAPTIVE:
        return ConvShape.window(x, y, call.attrs["kernel_size"], call)
    return ConvShape.adaptive(x, y, _space_dims(call))


def window_ends(call: NodeCall, shape: ConvShape) -> tuple[list[int], list[int]]:
    """Where the input ends, less what negative padding crops, and where what counts in an average's divisor does."""
    ends: tuple[int, ...] = (0, 0, 0)
    if call.op not in _ADAPTIVE:
        ends = (*(0,) * (3 - shape.rank), *pads(call.attrs["padding"], shape.rank)[1])
    limit = [n + min(e, 0) for n, e in zip(shape.size, ends, strict=True)]
    return limit, [n + e for n, e in zip(shape.size, ends, strict=True)]


def divisor_of(call: NodeCall) -> tuple[bool, float]:
    """Of a mean: whether padding counts, and the divisor where it is given, else 0."""
    mean = call.op == "avg_pool"
    return mean and bool(call.attrs["count_include_pad"]), float((call.attrs["divisor"] if mean else 0) or 0)


def windows_text(call: NodeCall, shape: ConvShape) -> str:
    """An initialiser of ``pool::Windows``."""
    limit, counted = window_ends(call, shape)
    padding, divisor = divisor_of(call)
    flags = [str(f).lower() for f in (call.op in _ADAPTIVE, padding)]
    power = call.attrs["p"] if call.op == "lp_pool" else 0.0
    numbers = [number(float(v)) for v in (divisor, power)]
    return f"{{{braces(limit)}, {braces(counted)}, {', '.join([*flags, *numbers])}}}"


def reducer_of(call: NodeCall, dtype: DType) -> tuple[str, str]:
    """The type of pool.h that reduces, and its part."""
    if call.op in _MAX:
        return "Max", "pool"
    if call.op == "lp_pool":
        power = float(call.attrs["p"])
        return {1.0: ("Norm1", "pool"), 2.0: ("Norm2", "pool")}.get(power, ("NormP", "pool_power"))
    return ("FloatMean" if dtype.is_float else "Mean"), "pool"


def _stage(call: NodeCall, target: CodegenTarget) -> Stage:
    isa: IsaLevel = target.isa  # type: ignore[attr-defined]
    dtype = call.outputs[0].dtype
    shape = pool_shape(call)
    kind = "uint8_t" if dtype is DType.BOOL else C_TYPES[dtype]
    reducer, part = reducer_of(call, dtype)
    item = 4 if dtype in (DType.FLOAT16, DType.BFLOAT16) else max(dtype.bits // 8, 1)
    beside = shape.x[1] == 1 and shape.y[1] == 1 and reducer != "Mean"
    lanes = isa.lanes(item) if beside else 1
    rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.channels, 4 * isa.lanes(item))
    blocks = -(-shape.channels // channels) if channels else 1
    lines = [
        f"static const conv::Shape shape = {shape.text()};",
        f"static const pool::Windows windows = {windows_text(call, shape)};",
        f"static const pool::Tasks tasks = {{{rows}, {channels}, {blocks}}};",
    ]
    args: tuple[str, ...] = ("in0", "out0")
    common = f"shape, windows, tasks, {{}}(const {kind} *)args[0], ({kind} *)args[1], "
    if len(call.outputs) > 1:
        args = (*args, "out1")
        lines.append(f"static const pool::Places places = {places_text(call, shape)};")
        run = f"run_with_places<{kind}, {lanes}>({common.format('places, ')}(int64_t *)args[2], begin, end);"
    else:
        run = f"run<pool::{reducer}, {kind}, {lanes}>({common.format('')}begin, end);"
    lines.append(f"pool::{run}")
    size = shape.bytes(call)
    return Stage(
        stem=call.op,
        source=function("\n".join(f"  {line}" for line in lines), shape.about(call)),
        args=args,
        tasks=tasks,
        grain=max(1, _GRAIN_BYTES * tasks // max(size, 1)),
        parts=frozenset({part}),
        flops=shape.pixels * shape.channels * shape.taps,
        bytes=size,
    )


def places_text(call: NodeCall, shape: ConvShape) -> str:
    """An initialiser of ``pool::Places``."""
    over = call.attrs.get("indices_over", "plane")
    d, h, w = shape.size
    steps = (1, d, d * h) if over == "tensor_column_major" else (h * w, w, 1)
    strides = strides_of(call.outputs[1], shape.rank)
    whole = str(over != "plane").lower()
    return f"{{{braces(strides)}, {d * h * w}, {', '.join(str(s) for s in steps)}, {whole}}}"


KERNELS: tuple[Kernel, ...] = (Generated(), Places(), Regions())
