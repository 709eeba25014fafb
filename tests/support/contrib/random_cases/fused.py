"""Random cases of products, convolutions and norms."""

from __future__ import annotations

import numpy as np

from ..case import Case
from .draw import Draw, case, draws, window


@draws("Gelu", "FastGelu", "QuickGelu", "BiasGelu")
def _act(d: Draw, n: str) -> Case:
    s = d.shape()
    dt = d.pick(np.float32, np.float32, np.float16)
    ops = [d.floats(*s, dtype=dt, scale=d.pick(1, 3, 30))]
    if n == "BiasGelu" or (n == "FastGelu" and d.chance()):
        ops.append(d.floats(s[-1], dtype=dt))
    return case(n, ops, {"alpha": d.pick(1.702, 1.0, -0.5, 0.0)} if n == "QuickGelu" and d.chance() else {})


@draws("FusedMatMul", "TransposeMatMul")
def _mm(d: Draw, n: str) -> Case:
    m, k, p = d.dim(), d.dim(), d.dim()
    batch = d.shape(d.pick(0, 1, 2))
    at = {a: d.pick(0, 1) for a in ("transA", "transB") if d.chance(0.7)}
    if n == "FusedMatMul":
        at |= {a: d.pick(0, 1) for a in ("transBatchA", "transBatchB") if d.chance(0.3) and not d.empty}
    if d.chance():
        at["alpha"] = d.pick(0.5, -2.0, 0.0, 1.0)

    def side(r, c, t, tb, b):
        rows = (c, r) if t else (r, c)
        if tb and len(b):
            return (rows[0], *b, rows[1])
        return (*b, *rows)

    ba, bb = batch, batch if d.chance(0.6) else (batch[1:] if batch else batch)
    a = side(m, k, at.get("transA"), at.get("transBatchA"), ba)
    b = side(k, p, at.get("transB"), at.get("transBatchB"), bb)
    if d.chance(0.1):
        a = (k,)
    if d.chance(0.1):
        b = (k,)
    return case(n, [d.floats(*a), d.floats(*b)], at, weights=(1,) if d.chance(0.3) else ())


@draws("FusedGemm")
def _gemm(d: Draw, n: str) -> Case:
    m, k, p = d.dim(), d.some(), d.dim()
    at = {a: d.pick(0, 1) for a in ("transA", "transB") if d.chance(0.7)}
    for a in ("alpha", "beta"):
        if d.chance(0.4):
            at[a] = d.pick(0.5, -2.0, 0.0)
    if d.chance(0.9):
        at["activation"] = d.pick(
            "Relu",
            "LeakyRelu",
            "Sigmoid",
            "Tanh",
            "HardSigmoid",
            "Elu",
            "Clip",
            "Softplus",
            "Softsign",
            "ThresholdedRelu",
            "Selu",
            "",
        )
    for a in ("activation_alpha", "activation_beta", "activation_gamma"):
        if d.chance(0.6):
            at[a] = d.pick(0.1, 0.3, -0.5, 1.5)
    a = d.floats(*((k, m) if at.get("transA") else (m, k)))
    b = d.floats(*((p, k) if at.get("transB") else (k, p)))
    c = d.pick(None, (p,), (m, p), (1, p), (m, 1), (), (1,))
    return case(n, [a, b] + ([] if c is None else [d.floats(*c)]), at)


@draws("FusedConv")
def _fconv(d: Draw, n: str) -> Case:
    r = d.pick(1, 2, 2, 3)
    g = d.pick(1, 1, 2)
    c, m = g * d.pick(1, 2, 3), g * d.pick(1, 2, 3)
    kernel = [d.pick(1, 2, 3) for _ in range(r)]
    space = [d.pick(5, 7, 8) for _ in range(r)]
    at = window(d, kernel)
    if g > 1 or d.chance(0.3):
        at["group"] = g
    if d.chance(0.9):
        at["activation"] = d.pick(
            "Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Clip", "HardSwish", "Elu", "Foo"
        )
    if d.chance(0.7):
        at["activation_params"] = d.pick([0.2], [0.1, 0.4], [-0.5, 0.5, 3.0])
    ops = [d.floats(d.dim(), c, *space), d.floats(m, c // g, *kernel)]
    if d.chance():
        ops.append(d.floats(m))
    if d.chance(0.3):
        if len(ops) == 2:
            ops.append(None)
        ops.append("sum")
    w = (1, 2) if d.chance(0.6) else ()
    return case(n, ops, at, weights=w)


@draws("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip(d: Draw, n: str) -> Case:
    r = d.pick(2, 3, 3)
    s = d.shape(r)
    h = s[-1]
    dt = d.pick(np.float32, np.float32, np.float16)
    x = d.floats(*s, dtype=dt, scale=d.pick(1, 1e-4, 100))
    other = s if d.chance(0.6) else ((1, *s[1:]) if r == 3 and d.chance() else s[1:] if r == 3 else s)
    rms = "Simplified" in n
    ops = [x, d.floats(*other, dtype=dt), d.floats(h, dtype=dt)]
    ops += [None if d.chance(0.4) else d.floats(h, dtype=dt) for _ in range(1 if rms else 2)]
    while ops[-1] is None:
        ops.pop()
    return case(
        n,
        ops,
        {"epsilon": d.pick(1e-5, 1e-12, 0.1)} if d.chance() else {},
        d.pick((0,), (0, 3)),
        weights=(2, 3, 4) if d.chance() else (),
    )


@draws("SimplifiedLayerNormalization")
def _rms(d: Draw, n: str) -> Case:
    s = d.shape(d.pick(1, 2, 3, 4))
    axis = d.pick(*range(-len(s), len(s)))
    dt = d.pick(np.float32, np.float32, np.float16, np.float64)
    return case(
        n,
        [d.floats(*s, dtype=dt), d.floats(*s[axis if axis < 0 else axis - len(s) :], dtype=dt)],
        {
            **({"axis": axis} if d.chance(0.8) or axis not in (-1, len(s) - 1) else {}),
            **({"epsilon": d.pick(1e-5, 0.1)} if d.chance() else {}),
            **({"stash_type": 1} if d.chance(0.3) else {}),
        },
        domain="",
    )


@draws("EmbedLayerNormalization")
def _embed(d: Draw, n: str) -> Case:
    b, length, h = d.dim(), d.some(), d.some()

    def ids(k: int) -> np.ndarray:
        return d.random.integers(0, k, (b, length)).astype(np.int32)

    seg = d.chance()
    pos = d.chance(0.4)
    mask = d.chance(0.5)
    ops = [
        ids(9),
        ids(2) if seg else None,
        d.floats(9, h),
        d.floats(7 if pos else length + d.pick(0, 3), h),
        d.floats(2, h) if seg else None,
        d.floats(h),
        d.floats(h),
        d.random.integers(0, 2, (b, length)).astype(np.int32) if mask else None,
        (d.random.integers(0, 7, (d.pick(1, b), length)).astype(np.int32)) if pos else None,
    ]
    while ops[-1] is None:
        ops.pop()
    at = {"epsilon": d.pick(1e-5, 0.1)} if d.chance() else {}
    if d.chance(0.3):
        at["mask_index_type"] = d.pick(0, 1)
    out = d.pick((0,), (0, 1), (0, 2), (0, 1, 2))
    return case(n, ops, at, out, weights=(2, 3, 4, 5, 6))
