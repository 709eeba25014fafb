"""Fourier transforms."""

from __future__ import annotations

from .context import Results, Row, Site

__all__ = ["ROWS"]

_NORMALIZATIONS = ("none", "by_root", "by_n")


def _fft(op: str, **attrs: str) -> Row:
    def row(n: Site) -> Results:
        given = {ours: n[theirs] for ours, theirs in attrs.items()}
        normalization = _NORMALIZATIONS[n["normalization"]]
        return str(n.b.call(op, n.x, dims=n["dim"], normalization=normalization, **given))

    return row


ROWS: dict[str, Row] = {
    "_fft_c2c": _fft("fft_c2c", forward="forward"),
    "_fft_c2r": _fft("fft_c2r", last_size="last_dim_size"),
    "_fft_r2c": _fft("fft_r2c", onesided="onesided"),
}
