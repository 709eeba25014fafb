"""Lowerings of ops that create values, and of random draws."""

from __future__ import annotations

from ....ir import MAX_CONST_ELEMENTS
from ....types import Dim
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
    return str(n.b.arange(start=n["start"], end=n["end"], step=n["step"], dtype=n.dtype()))


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
        n.ignore("size")
        return str(n.b.call(op, size=n.out().shape, dtype=n.dtype()))

    return lower


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
    "randn": _random("randn"),
    "new_empty_strided": _zeros,
    "randperm": _randperm,
    "scalar_tensor": _scalar,
    "tril_indices": _triangle("tril_indices"),
    "triu_indices": _triangle("triu_indices"),
    "zeros_like": _zeros,
    **dict.fromkeys(_WINDOWS, _computed),
}
