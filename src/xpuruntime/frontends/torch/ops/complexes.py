"""Lowerings of complex tensors as pairs of real tensors, as in rotary embeddings and Fourier transforms.

A complex input or weight is a value of a complex dtype, which these lowerings never see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....types import DimLike
from ...not_lowered import NotLowered
from . import create, elementwise, indexing, movement, reduce
from .complex_functions import FUNCTIONS, REAL, absolute, power, quotient, real_form
from .context import AtenLoweringContext, ComplexPair, OpLowering, TensorRef

__all__ = ["PAIR_CREATORS", "PAIR_LOWERINGS", "real_form"]

PairResults: TypeAlias = "str | ComplexPair | Sequence[str | ComplexPair | None]"
PairLowering: TypeAlias = "Callable[[AtenLoweringContext], PairResults]"


def _parts(n: AtenLoweringContext, name: str) -> tuple[Any, Any]:
    """Return real and imaginary part of an operand in the result's type; None for the imaginary part of a real operand."""
    n.read.add(name)
    value = n.args[name]
    kind = real_form(n.out()).dtype if n.out().dtype in REAL else None
    parts: tuple[Any, Any]
    if isinstance(value, ComplexPair):
        parts = value.value, value.imaginary
    elif isinstance(value, complex):
        parts = value.real, value.imag
    else:
        parts = n.operand(name), None
        if isinstance(parts[0], str) and n.spec(parts[0]).dtype.is_complex:
            raise NotLowered(f"its argument {name} is a complex tensor, not a pair of real ones")
    return parts if kind is None else (n.typed(parts[0], kind), n.typed(parts[1], kind))


def _mul(n: AtenLoweringContext) -> PairResults:
    (a, ai), (c, ci) = _parts(n, "self"), _parts(n, "other")
    b = n.b
    if ci is None:
        return ComplexPair(str(b.mul(a, c)), str(b.mul(ai, c)))
    if ai is None:
        return ComplexPair(str(b.mul(a, c)), str(b.mul(a, ci)))
    return ComplexPair(str(b.sub(b.mul(a, c), b.mul(ai, ci))), str(b.add(b.mul(a, ci), b.mul(ai, c))))


def _div(n: AtenLoweringContext) -> PairResults:
    (a, ai), (c, ci) = _parts(n, "self"), _parts(n, "other")
    if ci is not None:
        return quotient(n, a, 0.0 if ai is None else ai, c, ci)
    return ComplexPair(str(n.b.div(a, c)), str(n.b.div(ai, c)))


def _power(n: AtenLoweringContext) -> PairResults:
    return power(n, _parts(n, "self"), _parts(n, "exponent"))


def _variance(n: AtenLoweringContext, x: str, y: str) -> PairResults:
    """Lower a variance: the sum of those of the parts."""
    parts = []
    for part in (x, y):
        n.args = {**n.args, "self": TensorRef(part)}
        parts.append(reduce.LOWERINGS["var.correction"](n))
    return str(n.b.add(*parts))


def _product(op: str, second: str) -> PairLowering:
    """Return the lowering of a product of matrices, of which one may be real."""

    def lower(n: AtenLoweringContext) -> PairResults:
        (a, ai), (c, ci) = _parts(n, "self"), _parts(n, second)
        b = n.b
        if ci is None:
            return ComplexPair(str(b.call(op, a, c)), str(b.call(op, ai, c)))
        if ai is None:
            return ComplexPair(str(b.call(op, a, c)), str(b.call(op, a, ci)))
        return ComplexPair(
            str(b.sub(b.call(op, a, c), b.call(op, ai, ci))), str(b.add(b.call(op, a, ci), b.call(op, ai, c)))
        )

    return lower


def _sum(op: str) -> PairLowering:
    """Return the lowering of ``self + alpha * other``, or of the difference."""

    def lower(n: AtenLoweringContext) -> PairResults:
        if n.args.get("alpha", 1) != 1:
            raise NotLowered("alpha other than 1 is not supported for complex operands")
        n.ignore("alpha")
        (a, ai), (c, ci) = _parts(n, "self"), _parts(n, "other")
        real = str(n.b.call(op, a, c))
        if ai is not None and ci is not None:
            return ComplexPair(real, str(n.b.call(op, ai, ci)))
        imaginary = ai if ci is None else ci if op == "add" else str(n.b.neg(ci))
        shape = real_form(n.out()).shape
        wide = imaginary if n.spec(imaginary).shape == shape else str(n.b.expand(imaginary, size=shape))
        return ComplexPair(real, wide)

    return lower


def _each(lower: OpLowering) -> PairLowering:
    """Return a lowering that applies a linear or data-moving lowering to the real and the imaginary parts."""

    def lowering(n: AtenLoweringContext) -> PairResults:
        specs = [None if spec is None else real_form(spec) for spec in n.results]
        parts = []
        for part in (_real_part, _imaginary_part):
            args = {name: _of_pairs(value, part) for name, value in n.args.items()}
            context = AtenLoweringContext(n.b, n.op, args, specs, n.has_readers, frozenset())
            results = lower(context)
            n.read |= context.read
            parts.append([results] if isinstance(results, str) else list(results))
        return [
            None if real is None or imaginary is None else ComplexPair(real, imaginary)
            for real, imaginary in zip(*parts, strict=True)
        ]

    return lowering


def _real_part(pair: ComplexPair) -> TensorRef:
    return TensorRef(pair.value)


def _imaginary_part(pair: ComplexPair) -> TensorRef:
    return TensorRef(pair.imaginary)


def _of_pairs(value: Any, part: Callable[[ComplexPair], TensorRef]) -> Any:
    """Return an argument with one part of its pairs. Raise NotLowered if pairs and real tensors are mixed."""
    if isinstance(value, ComplexPair):
        return part(value)
    if isinstance(value, list) and any(isinstance(v, ComplexPair) for v in value):
        if not all(isinstance(v, ComplexPair) for v in value):
            raise NotLowered("it mixes real and complex tensors")
        return [part(v) for v in value]
    return value


def _written(lower: OpLowering, argument: str) -> PairLowering:
    """Return the lowering of a write into a complex tensor; real values have no imaginary part."""
    each = _each(lower)

    def lowering(n: AtenLoweringContext) -> PairResults:
        if not isinstance(n.args["self"], ComplexPair):
            raise NotLowered("it writes complex numbers to a real tensor")
        real, imaginary = _parts(n, argument)
        if not isinstance(real, str):
            raise NotLowered("it writes a number to a complex tensor")
        if imaginary is None:
            imaginary = n.b.full(size=n.spec(real).shape, value=0.0, dtype=n.spec(real).dtype)
        n.args = {**n.args, argument: ComplexPair(real, str(imaginary))}
        return each(n)

    return lowering


def _where(n: AtenLoweringContext) -> PairResults:
    if not all(isinstance(n.args[name], ComplexPair) for name in ("self", "other")):
        raise NotLowered("it mixes a real and a complex tensor")
    return _each(elementwise.LOWERINGS["where.self"])(n)


def _of_first(function: Callable[[AtenLoweringContext, str, str], PairResults]) -> PairLowering:
    """Return the lowering of a function of the first argument's real and imaginary part."""

    def lower(n: AtenLoweringContext) -> PairResults:
        name = next(iter(n.args))
        n.read.add(name)
        pair = n.args[name]
        return function(n, pair.value, pair.imaginary)

    return lower


def _vector_norm(n: AtenLoweringContext, x: str, y: str) -> PairResults:
    """Lower a norm as that of the magnitudes."""
    n.args = {**n.args, "self": TensorRef(str(absolute(n, x, y)))}
    return reduce.LOWERINGS["linalg_vector_norm"](n)


def _any_part(op: str, join: str) -> PairLowering:
    """Return the lowering of a test of both parts."""
    return _of_first(lambda n, x, y: str(n.b.call(join, n.b.call(op, x), n.b.call(op, y))))


def _as_real(n: AtenLoweringContext, x: str, y: str) -> PairResults:
    last = n.spec(x).rank
    return str(n.b.cat(n.b.unsqueeze(x, dims=[last]), n.b.unsqueeze(y, dims=[last]), dim=last))


def _polar(n: AtenLoweringContext) -> PairResults:
    size, angle = n.t("abs"), n.t("angle")
    return ComplexPair(str(n.b.mul(size, n.b.cos(angle))), str(n.b.mul(size, n.b.sin(angle))))


def _complex(n: AtenLoweringContext) -> PairResults:
    spec = real_form(n.out())
    parts = (n.cast(n.t(name), spec.dtype) for name in ("real", "imag"))
    real, imaginary = (
        p if n.spec(p).shape == spec.shape else str(n.b.expand(p, size=spec.shape)) for p in parts
    )
    return ComplexPair(real, imaginary)


def _as_complex(n: AtenLoweringContext) -> PairResults:
    return _parts_of(n, n.x)


_SCALES: tuple[Callable[[int], float], ...] = (lambda n: 1.0, lambda n: 1 / math.sqrt(n), lambda n: 1 / n)
"""Scale factor of a transform by its number of elements, indexed by ATen's normalization mode."""


def _fft(n: AtenLoweringContext, x: str, *, forward: bool) -> str:
    """Add the transforms, one dim after the other, of pairs in the last dim. Inverse ones divide by the length."""
    for dim in n["dim"]:
        x = str(n.b.dft(x, dim=dim % (n.spec(x).rank - 1), inverse=not forward))
    return x


def _scaled(n: AtenLoweringContext, x: str, sizes: Sequence[DimLike], *, forward: bool) -> str:
    count = math.prod(_fixed(d) for d in sizes)
    scale = _SCALES[n["normalization"]](count) * (1 if forward else count)
    return x if scale == 1 else str(n.b.mul(x, scale))


def _fixed(size: DimLike) -> int:
    """Return the size. Raise NotLowered for a transform of symbolic or zero length."""
    if not isinstance(size, int) or not size:
        raise NotLowered(f"a transform over a dim of {size} elements is not supported")
    return size


def _parts_of(n: AtenLoweringContext, x: str) -> ComplexPair:
    return ComplexPair(*(str(n.b.select(x, dim=-1, index=i)) for i in (0, 1)))


def _r2c(n: AtenLoweringContext) -> PairResults:
    """Lower _fft_r2c: onesided (if requested) along the last of its dims, then complex along the others."""
    x, shape, (*other_dims, last) = n.x, n.spec().shape, n["dim"]
    sizes = [shape[d] for d in n["dim"]]
    x = n.cast(x, real_form(n.out()).dtype)
    y = n.b.unsqueeze(x, dims=[len(shape)])
    y = str(n.b.dft(y, dim=last % len(shape), onesided=bool(n["onesided"])))
    for dim in other_dims:
        y = str(n.b.dft(y, dim=dim % len(shape)))
    return _of_real(n, _parts_of(n, _scaled(n, y, sizes, forward=True)), sizes)


def _of_real(n: AtenLoweringContext, spectrum: ComplexPair, sizes: Sequence[DimLike]) -> ComplexPair:
    """Return the spectrum of a real operand, whose imaginary part is exactly 0 where it must be, as PyTorch's is."""
    imaginary = n.b.where(_is_own_mirror(n, sizes), 0.0, spectrum.imaginary)
    return ComplexPair(spectrum.value, str(imaginary))


def _is_own_mirror(n: AtenLoweringContext, sizes: Sequence[DimLike]) -> str:
    """Add a mask of the frequencies 0 and size / 2, which are real for real operands: rounding errors there would decide the sign of an angle of pi."""
    shape, mask = n.out().shape, ""
    for dim, size in zip(n["dim"], sizes, strict=True):
        length = _fixed(size)
        bins = np.arange(_fixed(shape[dim]))
        row = ((2 * bins) % length == 0).reshape(
            [-1 if i == dim % len(shape) else 1 for i in range(len(shape))]
        )
        own = str(n.b.constant(row))
        mask = str(n.b.logical_and(mask, own)) if mask else own
    return mask


def _c2c(n: AtenLoweringContext, x: str, y: str) -> PairResults:
    if not n["dim"]:
        n.ignore("normalization", "forward")
        return ComplexPair(x, y)
    sizes, forward = [n.spec(x).shape[d] for d in n["dim"]], bool(n["forward"])
    spectrum = _fft(n, str(_as_real(n, x, y)), forward=forward)
    parts = _parts_of(n, _scaled(n, spectrum, sizes, forward=forward))
    zeros = any(node.name == y and node.op == "full" and node.attrs["value"] == 0 for node in n.b.nodes)
    return _of_real(n, parts, sizes) if zeros else parts


def _c2r(n: AtenLoweringContext, x: str, y: str) -> PairResults:
    """Lower _fft_c2r: the last of its dims expands from half of the frequencies to ``last_dim_size`` real numbers."""
    shape, (*other_dims, last), length = n.spec(x).shape, n["dim"], _fixed(n["last_dim_size"])
    sizes = [*(shape[d] for d in other_dims), length]
    spectrum = str(_as_real(n, x, y))
    for dim in other_dims:
        spectrum = str(n.b.dft(spectrum, dim=dim % len(shape), inverse=True))
    spectrum = n.b.dft(spectrum, dim=last % len(shape), length=length, inverse=True, onesided=True)
    return _scaled(n, str(n.b.select(spectrum, dim=-1, index=0)), sizes, forward=False)


def _to_complex(n: AtenLoweringContext) -> PairResults:
    """Lower a cast of a real tensor to a complex pair; other casts belong to the other table."""
    if n.out().dtype not in REAL or n.spec().dtype.is_complex:
        return elementwise.LOWERINGS["_to_copy"](n)
    kind = real_form(n.out()).dtype
    n.ignore("dtype")
    return ComplexPair(n.cast(n.x, kind), str(n.b.full(size=n.spec().shape, value=0.0, dtype=kind)))


def _filled(name: str, argument: str = "") -> PairLowering:
    """Return the lowering of an op that fills a tensor with the number of an argument, or with zeros."""

    def lower(n: AtenLoweringContext) -> PairResults:
        if n.out().dtype not in REAL:
            return create.LOWERINGS[name](n)
        n.ignore("size", "stride", "physical_layout", "self", "dtype")
        value = n[argument] if argument else 0
        if not isinstance(value, bool | int | float | complex):
            raise NotLowered("its fill value is known only at run time")
        spec, number = real_form(n.out()), complex(value)
        return ComplexPair(
            *(str(n.b.full(size=spec.shape, value=v, dtype=spec.dtype)) for v in (number.real, number.imag))
        )

    return lower


def _equal(op: str, join: str) -> PairLowering:
    """Return the lowering of a comparison of both parts."""

    def lower(n: AtenLoweringContext) -> PairResults:
        (a, ai), (c, ci) = _parts(n, "self"), _parts(n, "other")
        parts = n.b.call(op, a, c), n.b.call(op, 0.0 if ai is None else ai, 0.0 if ci is None else ci)
        return str(n.b.call(join, *parts))

    return lower


def _padded(n: AtenLoweringContext) -> PairResults:
    if n["value"] != 0:
        raise NotLowered("padding of complex tensors with a value other than 0 is not supported")
    return _each(movement.LOWERINGS["constant_pad_nd"])(n)


_MOVED = {
    name: (movement.LOWERINGS | indexing.LOWERINGS)[name]
    for name in (
        "_unsafe_view", "alias", "cat", "clone", "contiguous", "detach", "expand", "flip", "gather", "index.Tensor", "index_select",
        "lift_fresh_copy", "permute", "repeat", "reshape", "roll", "select.int", "slice.Tensor", "split.Tensor", "split_with_sizes",
        "squeeze", "squeeze.dim", "squeeze.dims", "stack", "t", "transpose.int", "unbind.int", "unsqueeze", "view", "view_copy",
    )
}  # fmt: skip
_LINEAR = {
    "_to_copy": elementwise.LOWERINGS["_to_copy"],
    "cumsum": reduce.LOWERINGS["cumsum"],
    "neg": elementwise.LOWERINGS["neg"],
    "sum": reduce.LOWERINGS["sum"],
    "sum.dim_IntList": reduce.LOWERINGS["sum.dim_IntList"],
    "mean": reduce.LOWERINGS["mean"],
    "mean.dim": reduce.LOWERINGS["mean.dim"],
}

_FILLED = {
    "empty.memory_format": "", "empty_like": "", "empty_permuted": "", "empty_strided": "", "fill.Scalar": "value", "full": "fill_value",
    "full_like": "fill_value", "new_empty_strided": "", "scalar_tensor": "s", "zeros_like": "",
}  # fmt: skip
"""ATen name -> the argument with the number that it fills a tensor with; zeros without one."""

PAIR_CREATORS: Mapping[str, PairLowering] = {
    name: _filled(name, value) for name, value in _FILLED.items()
} | {
    "_fft_r2c": _r2c,
    "_to_copy": _to_complex,
    "complex": _complex,
    "polar": _polar,
    "view_as_complex": _as_complex,
}
"""ATen name of an op that creates a pair -> its lowering."""

PAIR_LOWERINGS: Mapping[str, PairLowering] = (
    {name: _each(row) for name, row in {**_MOVED, **_LINEAR}.items()}
    | {name: _filled(name, value) for name, value in _FILLED.items()}
    | {
        "copy": _written(elementwise.LOWERINGS["copy"], "src"),
        "index_put": _written(indexing.LOWERINGS["index_put"], "values"),
        "select_scatter": _written(movement.LOWERINGS["select_scatter"], "src"),
        "slice_scatter": _written(movement.LOWERINGS["slice_scatter"], "src"),
    }
    | {op: _product(op, "other" if op == "matmul" else "mat2") for op in ("bmm", "matmul", "mm")}
    | {name: _of_first(function) for name, function in FUNCTIONS.items()}
    | {f"pow.{form}": _power for form in ("Tensor_Scalar", "Scalar", "Tensor_Tensor")}
    | {f"eq.{form}": _equal("eq", "logical_and") for form in ("Tensor", "Scalar")}
    | {f"ne.{form}": _equal("ne", "logical_or") for form in ("Tensor", "Scalar")}
    | {f"mul.{form}": _mul for form in ("Tensor", "Scalar")}
    | {f"div.{form}": _div for form in ("Tensor", "Scalar")}
    | {f"{op}.{form}": _sum(op) for op in ("add", "sub") for form in ("Tensor", "Scalar")}
    | {name: _of_first(lambda n, x, y: ComplexPair(x, str(n.b.neg(y)))) for name in ("_conj", "_conj_physical", "conj", "conj_physical")}
    | {name: _of_first(lambda n, x, y: ComplexPair(x, y)) for name in ("resolve_conj", "resolve_neg")}
    | {
        "_fft_c2c": _of_first(_c2c),
        "_fft_c2r": _of_first(_c2r),
        "abs": _of_first(absolute),
        "angle": _of_first(lambda n, x, y: str(n.b.atan2(y, x))),
        "constant_pad_nd": _padded,
        "isinf": _any_part("isinf", "logical_or"),
        "isnan": _any_part("isnan", "logical_or"),
        "linalg_vector_norm": _of_first(_vector_norm),
        "var.correction": _of_first(_variance),
        "imag": _of_first(lambda n, x, y: y),
        "real": _of_first(lambda n, x, y: x),
        "view_as_real": _of_first(_as_real),
        "where.self": _where,
    }
)  # fmt: skip
"""ATen name -> its lowering if an operand is a pair."""
