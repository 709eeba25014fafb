"""Lowerings of Fourier transforms of complex dtypes."""

from __future__ import annotations

from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_NORMALIZATIONS = ("none", "by_root", "by_n")


def _fft(op: str, **attrs: str) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        values = {ir_name: n[aten_name] for ir_name, aten_name in attrs.items()}
        normalization = _NORMALIZATIONS[n["normalization"]]
        return str(n.b.call(op, n.x, dims=n["dim"], normalization=normalization, **values))

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "_fft_c2c": _fft("fft_c2c", forward="forward"),
    "_fft_c2r": _fft("fft_c2r", last_size="last_dim_size"),
    "_fft_r2c": _fft("fft_r2c", onesided="onesided"),
}
