"""Lowerings of ops that create values, and of random draws."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....ir import MAX_CONST_ELEMENTS
from ....types import Dim, DType, TensorSpec
from ...not_lowered import NotLowered
from .context import IGNORED_ARGUMENTS, AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _filled(n: AtenLoweringContext, value: object) -> Results:
    n.ignore("size", "stride", "physical_layout", "self")
    if not isinstance(value, bool | int | float):
        raise NotLowered("its fill value is known only at run time")
    spec = n.out()
    kind = bool if spec.dtype.value == "bool" else int if spec.dtype.is_integer else float
    if spec.dtype.is_complex:
        raise NotLowered("complex fill values are not supported")
    return str(n.b.full(size=spec.shape, value=kind(value), dtype=n.dtype()))


def _full(argument: str) -> OpLowering:
    return lambda n: _filled(n, n[argument])


def _zeros(n: AtenLoweringContext) -> Results:
    """Lower zeros and uninitialized tensors, for which any content is right."""
    return _filled(n, 0)


def _scalar(n: AtenLoweringContext) -> Results:
    if isinstance(n["s"], Dim):
        return n.cast(n.scalar(n["s"]), n.dtype())
    return _filled(n, n["s"])


def _arange(n: AtenLoweringContext) -> Results:
    """Lower arange. PyTorch itself computes fractional bounds in an integer type, for which it has rules of its own."""
    if n.dtype().is_integer and any(isinstance(n[k], float) for k in ("start", "end", "step")):
        import torch

        values = torch.arange(n["start"], n["end"], n["step"], dtype=getattr(torch, n.dtype().value))
        if values.numel() > MAX_CONST_ELEMENTS:
            raise NotLowered("a long range with fractional bounds in an integer type is not supported")
        return str(n.b.constant(values.numpy()))
    start, step = n["start"], n["step"]
    if isinstance(step, Dim):  # the first number of each row
        (count,) = n.out().shape
        numbers = n.b.arange(start=start, end=start + count * step, dtype=n.dtype())
        n.ignore("end")
        return str(n.b.select(n.b.view(numbers, size=[count, step]), dim=1, index=0))
    return str(n.b.arange(start=start, end=n["end"], step=step, dtype=n.dtype()))


def _triangle(name: str) -> OpLowering:
    """Return the lowering of the indices of a triangle, as PyTorch gives them."""

    def lower(n: AtenLoweringContext) -> Results:
        import torch

        rows, columns, offset = n["row"], n["col"], n["offset"]
        if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(offset, int)):
            raise NotLowered("the sizes of its triangle are not fixed")
        if 2 * rows * columns > MAX_CONST_ELEMENTS:
            raise NotLowered("a large triangle of indices is not supported")
        places = getattr(torch, name)(rows, columns, offset, dtype=getattr(torch, n.dtype().value))
        return str(n.b.constant(places.numpy()))

    return lower


def _computed(n: AtenLoweringContext) -> Results:
    """Lower a window or a list of frequencies, whose numbers fix it, as a constant that PyTorch computes."""
    import torch

    numbers = {name: n[name] for name in n.args if name not in IGNORED_ARGUMENTS and name != "dtype"}
    if any(isinstance(number, Dim) for number in numbers.values()):
        raise NotLowered("its size is not fixed")
    if any(isinstance(d, Dim) or d > MAX_CONST_ELEMENTS for d in n.out().shape):
        raise NotLowered("a window of many elements is not supported")
    packet, _, overload = n.op.partition(".")
    call = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return str(n.b.constant(call(**numbers, dtype=getattr(torch, n.dtype().value), device="cpu").numpy()))


_WINDOWS = (
    *(f"{name}_window{kind}" for name in ("bartlett", "blackman", "hann") for kind in ("", ".periodic")),
    *(f"hamming_window{kind}" for kind in ("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta")),
    *(f"kaiser_window{kind}" for kind in ("", ".periodic", ".beta")),
    "fft_fftfreq",
    "fft_rfftfreq",
)


def _eye(n: AtenLoweringContext) -> Results:
    columns = n["m"] if "m" in n.args else n["n"]
    return str(n.b.eye(rows=n["n"], columns=columns, dtype=n.dtype()))


def _random(op: str) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("size", "self")
        return str(n.b.call(op, size=n.out().shape, dtype=n.dtype()))

    return lower


def _normal(n: AtenLoweringContext) -> Results:
    """Lower normal with numbers or tensors as mean and deviation."""
    n.ignore("self", "size", "dtype")
    spec, (mean, std) = n.out(), (n.operand(name) for name in ("mean", "std"))
    if not isinstance(mean, str) and not isinstance(std, str):
        return str(n.b.randn(size=spec.shape, dtype=spec.dtype, mean=float(mean or 0), std=float(std or 0)))
    y = n.b.mul(n.b.randn(size=spec.shape, dtype=spec.dtype), n.typed(std, spec.dtype))
    return str(n.b.add(y, n.typed(mean, spec.dtype)))


def _uniform(n: AtenLoweringContext) -> Results:
    n.ignore("self")
    bounds = {"low": float(n["from"]), "high": float(n["to"])}
    return str(n.b.rand(size=n.out().shape, dtype=n.out().dtype, **bounds))


def _randint(n: AtenLoweringContext) -> Results:
    """Lower integers of a range: the floor of a uniform float64, whose 53 bits make each of them equally likely but for 2**-53."""
    n.ignore("self", "size", "dtype")
    low, high = (n["low"] if "low" in n.args else 0), n["high"]
    if not isinstance(low, int) or not isinstance(high, int):
        raise NotLowered("its range is known only at run time")
    y = n.b.floor(n.b.mul(n.b.rand(size=n.out().shape, dtype=DType.FLOAT64), float(high - low)))
    whole = n.b.cast(y, dtype=DType.INT64)
    return n.cast(str(n.b.add(whole, low)), n.out().dtype)


def _of_uniform(formula: Callable[[AtenLoweringContext, str], str]) -> OpLowering:
    """Return the lowering of a draw that is a function of a uniform number in (0, 1)."""

    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("self")
        return n.cast(formula(n, _open_uniform(n, n.out())), n.out().dtype)

    return lower


def _open_uniform(n: AtenLoweringContext, like: TensorSpec) -> str:
    """Return uniform numbers in (0, 1): half a step is added to each, which rounds the largest ones to 1 or above."""
    wide = DType.FLOAT64 if like.dtype is DType.FLOAT64 else DType.FLOAT32
    bits = 53 if wide is DType.FLOAT64 else 24
    number = n.b.add(n.b.rand(size=like.shape, dtype=wide), 2.0 ** -(bits + 1))
    return str(n.b.minimum(number, 1 - 2.0**-bits))


def _exponential(n: AtenLoweringContext, u: str) -> str:
    return str(n.b.div(n.b.neg(n.b.log(u)), float(n["lambd"])))


def _geometric(n: AtenLoweringContext, u: str) -> str:
    return str(n.b.ceil(n.b.div(n.b.log(u), math.log1p(-float(n["p"])))))


def _cauchy(n: AtenLoweringContext, u: str) -> str:
    angle = n.b.tan(n.b.mul(n.b.sub(u, 0.5), math.pi))
    return str(n.b.add(n.b.mul(angle, float(n["sigma"])), float(n["median"])))


def _log_normal(n: AtenLoweringContext) -> Results:
    n.ignore("self")
    kind = {"mean": float(n["mean"]), "std": float(n["std"])}
    return str(n.b.exp(n.b.randn(size=n.out().shape, dtype=n.out().dtype, **kind)))


def _bernoulli_p(n: AtenLoweringContext) -> Results:
    spec, p = n.out(), n.operand("p")
    wide = DType.FLOAT64 if spec.dtype is DType.FLOAT64 else DType.FLOAT32
    n.ignore("self")
    if isinstance(p, str):
        p = n.cast(p, wide)
        p = p if n.spec(p).shape == spec.shape else str(n.b.expand(p, size=spec.shape))
    else:
        p = str(n.b.full(size=spec.shape, value=float(p or 0), dtype=wide))
    return n.cast(str(n.b.bernoulli(p)), spec.dtype)


def _multinomial(n: AtenLoweringContext) -> Results:
    """Lower multinomial. Without replacement: classes in the order of probability / exponential number."""
    samples, spec = n["num_samples"], n.spec()
    weights = n.cast(n.x, spec.dtype if spec.dtype is DType.FLOAT64 else DType.FLOAT32)
    if n["replacement"]:
        return str(n.b.multinomial(n.b.log(weights), samples=samples))
    race = n.b.div(weights, n.b.neg(n.b.log(_open_uniform(n, spec))))
    return str(n.b.topk(race, k=samples, dim=-1, largest=True, sorted=True)[1])


def _randperm(n: AtenLoweringContext) -> Results:
    return n.cast(str(n.b.randperm(n=n["n"])), n.dtype())


def _dropout(n: AtenLoweringContext) -> Results:
    """Lower dropout; outside training it is the operand itself."""
    p, train = float(n["p"]), n["train"]
    masked = n.op == "native_dropout"
    if not train or (p == 0.0 and not masked):
        if masked and n.has_readers(1):
            raise NotLowered("its mask is read although it drops nothing")
        return [n.x, None] if masked else n.x
    outputs = n.b.dropout(n.x, p=p, train=True, outputs=n.needed(2) if masked else 1)
    return outputs if isinstance(outputs, str) else list(outputs)


LOWERINGS: dict[str, OpLowering] = {
    "arange.start_step": _arange,
    "bernoulli": lambda n: str(n.b.bernoulli(n.x)),
    "bernoulli.Tensor": _bernoulli_p,
    "bernoulli.p": _bernoulli_p,
    "cauchy": _of_uniform(_cauchy),
    "exponential": _of_uniform(_exponential),
    "geometric": _of_uniform(_geometric),
    "log_normal": _log_normal,
    "multinomial": _multinomial,
    **dict.fromkeys(
        ("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float"), _normal
    ),
    "normal_functional": _normal,
    **dict.fromkeys(("randint", "randint.low", "randint_like", "randint_like.low_dtype"), _randint),
    "uniform": _uniform,
    "dropout": _dropout,
    "empty.memory_format": _zeros,
    "empty_like": _zeros,
    "empty_permuted": _zeros,
    "empty_strided": _zeros,
    "eye": _eye,
    "eye.m": _eye,
    "fill.Scalar": _full("value"),
    "full": _full("fill_value"),
    "full_like": _full("fill_value"),
    "native_dropout": _dropout,
    "rand": _random("rand"),
    "rand_like": _random("rand"),
    "randn": _random("randn"),
    "randn_like": _random("randn"),
    "new_empty_strided": _zeros,
    "randperm": _randperm,
    "scalar_tensor": _scalar,
    "tril_indices": _triangle("tril_indices"),
    "triu_indices": _triangle("triu_indices"),
    "zeros_like": _zeros,
    **dict.fromkeys(_WINDOWS, _computed),
}
