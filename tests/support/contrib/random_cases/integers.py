"""Random cases of ops on codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Case
from .draw import Draw, case, draws, trimmed, window


def operand(d: Draw, shape: tuple[int, ...], dt: Any) -> list[Any]:
    """Return codes, their scale and their zero point."""
    return [d.codes(*shape, dtype=dt), d.scale(), d.zero(dt)]


@draws("QLinearAdd", "QLinearMul")
def _qbin(d: Draw, n: str) -> Case:
    dt = d.byte()
    s = d.shape()
    ops = [*operand(d, s, dt), *operand(d, d.like(s), dt), d.scale(), d.zero(dt)]
    return case(n, trimmed(ops), weights=(1, 2, 4, 5, 6, 7) if d.chance(0.8) else ())


@draws(
    "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearGlobalAveragePool", "QLinearAveragePool"
)
def _quna(d: Draw, n: str) -> Case:
    dt = d.byte()
    at = {}
    s = d.shape()
    if "Pool" in n:
        s = (
            (d.dim(), d.some(), d.pick(4, 5, 7), d.pick(4, 5, 7))[: d.pick(3, 4, 4)]
            if d.chance()
            else (d.dim(), d.some(), 5, 7)
        )
    if n == "QLinearLeakyRelu" and d.chance(0.7):
        at["alpha"] = d.pick(0.0, 0.2, -0.5, 1.5)
    if n == "QLinearSoftmax":
        at["opset"] = d.pick(13, 13, 12, 11)
        if d.chance(0.8):
            at["axis"] = d.pick(*range(-len(s), len(s)))
    last = False
    if "Pool" in n and d.chance(0.4):
        at["channels_last"] = d.pick(0, 1)
        last = at["channels_last"]
    if n == "QLinearAveragePool":
        kernel = [d.pick(1, 2, 3) for _ in range(len(s) - 2)]
        at |= window(d, kernel, pool=True)
        at.pop("dilations", None)
        if d.chance(0.3):
            at["count_include_pad"] = d.pick(0, 1)
        if d.chance(0.3):
            at["ceil_mode"] = d.pick(0, 1)
    if last:
        s = (s[0], *s[2:], s[1])
    zp = d.zero(dt)
    sc = d.scale()
    if n == "QLinearSoftmax":
        sc, zp = np.float32(1 / 256), np.asarray(0 if dt is np.uint8 else -128, dt)
    return case(n, trimmed([*operand(d, s, dt), sc, zp]), at, weights=(1, 2, 3, 4) if d.chance(0.8) else ())


@draws("QLinearConcat")
def _qcat(d: Draw, n: str) -> Case:
    dt = d.byte()
    r = d.pick(1, 2, 3)
    s = list(d.shape(r))
    axis = d.pick(*range(-r, r))
    ops = [d.scale(), d.zero(dt)]
    for _ in range(d.pick(1, 2, 3)):
        t = list(s)
        t[axis] = d.dim()
        ops += operand(d, t, dt)
    return case(
        n,
        trimmed(ops),
        {"axis": axis},
        weights=tuple(i for i in range(len(ops)) if i < 2 or (i - 2) % 3) if d.chance(0.8) else (),
    )


@draws("QLinearWhere")
def _qwhere(d: Draw, n: str) -> Case:
    dt = d.byte()
    s = d.shape()
    ops = [
        d.random.random(d.like(s)) > 0.5,
        d.codes(*s, dtype=dt),
        d.scale(),
        d.zero(dt),
        d.codes(*d.like(s), dtype=dt),
        d.scale(),
        d.zero(dt),
        d.scale(),
        d.zero(dt),
    ]
    return case(n, ops, weights=(2, 3, 5, 6, 7, 8))


@draws("QGemm")
def _qgemm(d: Draw, n: str) -> Case:
    m, k, p = d.dim(), d.dim(), d.dim()
    a, b = d.byte(), d.byte()
    at = {x: d.pick(0, 1) for x in ("transA", "transB") if d.chance(0.6)}
    if d.chance(0.4):
        at["alpha"] = d.pick(0.5, 2.0, -1.0)
    cols = d.chance(0.4)
    out = d.byte()
    bs = d.scale(p) if cols else d.scale()
    bz = d.zero(b, p) if cols else d.zero(b)
    ops = [
        d.codes(*((k, m) if at.get("transA") else (m, k)), dtype=a),
        d.scale(),
        d.zero(a),
        d.codes(*((p, k) if at.get("transB") else (k, p)), dtype=b),
        bs,
        bz,
    ]
    ops.append(
        d.random.integers(-5000, 5000, d.pick((p,), (1, p), (m, p), (m, 1), (1,), ())).astype(np.int32)
        if d.chance()
        else None
    )
    if d.chance(0.7):
        ops += [np.float32(d.pick(0.1, 0.5)), d.zero(out) if d.chance(0.8) else None]
    return case(n, trimmed(ops), at, weights=(1, 2, 4, 5, 6, 7, 8))


@draws("MatMulIntegerToFloat")
def _mitf(d: Draw, n: str) -> Case:
    m, k, p = d.dim(), d.dim(), d.dim()
    a, b = d.byte(), d.byte()
    cols = d.chance(0.4)
    batch = d.shape(d.pick(0, 1))
    cols = cols and not batch
    ops = [
        d.codes(*batch, m, k, dtype=a),
        d.codes(*(batch if d.chance(0.3) else ()), k, p, dtype=b),
        d.scale(),
        d.scale(p) if cols else d.scale(),
        d.zero(a) if d.chance() else None,
        (d.zero(b, p) if cols else d.zero(b)) if d.chance() else None,
        d.floats(p) if d.chance() else None,
    ]
    return case(n, trimmed(ops), weights=(2, 3, 4, 5, 6) if d.chance(0.8) else ())


@draws("DynamicQuantizeMatMul")
def _dqmm(d: Draw, n: str) -> Case:
    d.special = False
    m, k, p = d.dim(), max(d.dim(), 1), d.dim()
    b = d.byte()
    cols = d.chance(0.4)
    ops = [
        d.floats(*d.shape(d.pick(0, 1)), m, k),
        d.codes(k, p, dtype=b),
        d.scale(p) if cols else d.scale(),
        (d.zero(b, p) if cols else d.zero(b)) if d.chance() else None,
        d.floats(p) if d.chance() else None,
    ]
    return case(n, trimmed(ops), weights=(1, 2, 3, 4) if d.chance(0.8) else ())


@draws("QuantizeLinear", "DequantizeLinear")
def _ql(d: Draw, n: str) -> Case:
    s = d.shape()
    dt = d.pick(np.uint8, np.int8, np.uint16, np.int16, np.int32 if n[0] == "D" else np.int8)
    axis = d.pick(*range(-len(s), len(s)))
    cols = d.chance(0.4)
    at = {"axis": axis} if cols or d.chance(0.3) else {}
    sc = d.scale(s[axis]) if cols else d.scale()
    zp = (d.zero(dt, s[axis]) if cols else d.zero(dt).reshape(sc.shape)) if d.chance(0.7) else None
    if dt is np.int32 and zp is not None:
        zp = np.zeros_like(zp)
    x = d.floats(*s, scale=d.pick(1, 10)) if n[0] == "Q" else d.codes(*s, dtype=dt)
    return case(n, trimmed([x, sc, zp]), at, weights=(1, 2) if d.chance(0.6) else ())


@draws("QLinearConv")
def _qconv(d: Draw, n: str) -> Case:
    r = d.pick(1, 2, 2)
    g = d.pick(1, 1, 2)
    c, m = g * d.pick(1, 2, 3), g * d.pick(1, 2, 3)
    a, b = d.pick((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
    kernel = [d.pick(1, 2, 3) for _ in range(r)]
    space = [d.pick(5, 7, 8) for _ in range(r)]
    at = window(d, kernel)
    if g > 1:
        at["group"] = g
    last = d.chance(0.4)
    if last or d.chance(0.2):
        at["channels_last"] = int(last)
    s = (d.dim(), *space, c) if last else (d.dim(), c, *space)
    cols = d.chance()
    ops = [
        d.codes(*s, dtype=a),
        d.scale(),
        d.zero(a),
        d.codes(m, c // g, *kernel, dtype=b),
        d.scale(m) if cols else d.scale(),
        (np.zeros(m, b) if d.chance(0.8) else d.zero(b, m)) if cols else d.zero(b),
        np.float32(0.4),
        d.zero(a),
    ]
    if d.chance():
        ops.append(d.random.integers(-5000, 5000, m).astype(np.int32))
    return case(n, ops, at, weights=tuple(range(1, 9)))


@draws("NhwcMaxPool")
def _nmp(d: Draw, n: str) -> Case:
    r = d.pick(1, 2, 2, 3)
    kernel = [d.pick(1, 2, 3) for _ in range(r)]
    at = window(d, kernel, pool=True)
    if d.chance(0.3):
        at["ceil_mode"] = d.pick(0, 1)
    return case(n, [d.codes(d.dim(), *[d.pick(5, 7, 8) for _ in range(r)], d.some(), dtype=d.byte())], at)


@draws("DynamicQuantizeLSTM")
def _dql(d: Draw, n: str) -> Case:
    h, i, length, b = d.some(), d.some(), d.some(), d.some()
    dirs = d.pick("forward", "reverse", "bidirectional")
    k = 2 if dirs[0] == "b" else 1
    dt = d.byte()
    cols = d.chance(0.4)

    def sc() -> np.ndarray:
        return (np.abs(d.random.standard_normal((k, 4 * h) if cols else k)) / 90).astype(np.float32)

    def zp() -> np.ndarray:
        return np.zeros((k, 4 * h), dt) if cols else d.codes(k, dtype=dt)

    def f(*s: int) -> np.ndarray:
        return d.floats(*s, fine=True)

    at = {"hidden_size": h}
    if k == 2 or d.chance():
        at["direction"] = dirs
    if d.chance(0.3):
        at["clip"] = d.pick(0.5, 3.0)
    if d.chance(0.3):
        at["input_forget"] = d.pick(0, 1)
    if d.chance(0.3):
        at["activations"] = ["Sigmoid", "Tanh", d.pick("Tanh", "Relu")] * k
    ops = [
        f(length, b, i),
        d.codes(k, i, 4 * h, dtype=dt),
        d.codes(k, h, 4 * h, dtype=dt),
        f(k, 8 * h) if d.chance() else None,
        d.random.integers(1, length + 1, b).astype(np.int32) if d.chance(0.4) else None,
        f(k, b, h) if d.chance() else None,
        f(k, b, h) if d.chance() else None,
        f(k, 3 * h) if d.chance(0.3) else None,
        sc(),
        zp(),
        sc(),
        zp(),
    ]
    return case(n, ops, at, d.pick((0, 1, 2), (0,), (1, 2)), weights=(1, 2, 3, 7, 8, 9, 10, 11))


@draws("QEmbedLayerNormalization")
def _qembed(d: Draw, n: str) -> Case:
    b, length, h = d.dim(), d.some(), d.some()
    seg = d.chance()
    dt = d.byte()

    def ids(k: int) -> np.ndarray:
        return d.random.integers(0, k, (b, length)).astype(np.int32)

    ops = [
        ids(9),
        ids(2) if seg else None,
        d.codes(9, h, dtype=dt),
        d.codes(length + 2, h, dtype=dt),
        d.codes(2, h, dtype=dt) if seg else None,
        d.codes(h, dtype=dt),
        d.codes(h, dtype=dt),
        d.random.integers(0, 2, (b, length)).astype(np.int32) if d.chance() else None,
    ]
    sc = [np.float32(0.02)] * 5
    zp = [d.zero(dt) for _ in range(5)]
    if not seg:
        sc[2] = None
        zp[2] = None
    return case(
        n,
        [*ops, *sc, *zp],
        {"epsilon": 1e-5} if d.chance() else {},
        (0, 1),
        weights=tuple(range(2, 7)) + tuple(range(8, 18)),
    )


@draws("MatMulInteger16")
def _mi16(d: Draw, n: str) -> Case:
    m, k, p = d.dim(), d.dim(), d.dim()
    return case(n, [d.codes(m, k, dtype=np.int16), d.codes(k, p, dtype=np.int16)])


@draws("CDist")
def _cdist(d: Draw, n: str) -> Case:
    d.special = False
    k = max(d.dim(), 1)
    return case(
        n,
        [d.floats(d.dim(), k), d.floats(d.dim(), k)],
        {"metric": d.pick("euclidean", "sqeuclidean")} if d.chance(0.8) else {},
    )


@draws("ExpandDims")
def _expd(d: Draw, n: str) -> Case:
    s = d.shape()
    return case(
        n, [d.floats(*s), np.asarray(d.pick(*range(-len(s) - 2, len(s) + 2)), np.int32)], weights=(1,)
    )


@draws("Trilu")
def _trilu(d: Draw, n: str) -> Case:
    s = (*d.shape(), d.dim(), d.dim())
    k = [np.asarray(d.pick(-3, -1, 0, 2), np.int64)] if d.chance() else []
    return case(n, [d.floats(*s), *k], {"upper": d.pick(0, 1)} if d.chance(0.8) else {}, weights=(1,))


@draws("GridSample")
def _grid(d: Draw, n: str) -> Case:
    d.special = False
    batch = d.some()
    at = {
        "mode": d.pick("bilinear", "nearest", "bicubic"),
        "padding_mode": d.pick("zeros", "border", "reflection"),
        "align_corners": d.pick(0, 1),
    }
    return case(n, [d.floats(batch, d.some(), 5, 4), d.floats(batch, 3, d.some(), 2)], at)


@draws("GatherND")
def _gnd(d: Draw, n: str) -> Case:
    s = d.shape()
    k = d.pick(*range(1, len(s) + 1))
    s = tuple(max(x, 1) for x in s)
    idx = np.stack([d.random.integers(-s[i], s[i], (4,)) for i in range(k)], -1).astype(
        d.pick(np.int64, np.int32)
    )
    return case(n, [d.floats(*s), idx])


@draws("Pad")
def _pad(d: Draw, n: str) -> Case:
    s = d.shape(d.pick(1, 2, 3))
    pads = [d.pick(0, 1, 2, -1) if x > 2 else d.pick(0, 0, 1) for x in s * 2]
    mode = d.pick("constant", "constant", "reflect", "edge", "wrap")
    return case(
        n,
        trimmed(
            [
                d.floats(*s),
                np.array(pads, np.int64).reshape(d.pick((-1,), (1, -1))),
                np.float32(0.5) if d.chance() else None,
            ]
        ),
        {"mode": mode} if mode != "constant" or d.chance() else {},
        weights=(1, 2),
    )


@draws("Range")
def _rng(d: Draw, n: str) -> Case:
    dt = d.pick(np.int32, np.int64, np.float32, np.float64, np.int16)
    v = [d.pick(0, 2, -3), d.pick(11, -7, 3), d.pick(1, 2, -2, 3)]
    ops = [np.asarray(x if np.issubdtype(dt, np.integer) else x * 0.7, dt) for x in v]
    return case(n, ops[: d.pick(2, 3)], weights=(0, 1, 2))
