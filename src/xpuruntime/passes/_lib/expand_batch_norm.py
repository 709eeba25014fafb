"""Expansion of batch normalization by the batch's statistics."""

from __future__ import annotations

import math
from typing import Any

from .expansion import Expansion

__all__ = ["expand_batch_norm_train"]


def expand_batch_norm_train(emit: Expansion) -> None:
    """Expand the op if its sizes are static. Statistics are computed in float32 at least."""
    spec = emit.spec(emit.input(0))
    if not all(isinstance(d, int) for d in spec.shape):
        return
    x = emit.wide(0)
    dims = [0, *range(2, spec.rank)]
    count = math.prod(int(spec.shape[d]) for d in dims)
    along = (1, spec.shape[1], *(1,) * (spec.rank - 2))
    mean = emit("mean", x, dim=dims, keepdim=True)
    centered = emit("sub", x, mean)
    var = emit("mean", emit("mul", centered, centered), dim=dims, keepdim=True)
    rstd = emit("rsqrt", emit("add", var, emit.node.attrs["eps"]))
    y = emit("mul", centered, rstd)
    for op, at in (("mul", 1), ("add", 2)):
        if emit.input(at) is not None:
            y = emit(op, y, emit("view", emit.wide(at), size=along))
    momentum = emit.node.attrs["momentum"]
    unbiased = emit("mul", var, count / max(count - 1, 1))
    results = [y, mean, rstd]
    for at, batch in ((3, mean), (4, unbiased)):
        batch = emit("view", batch, size=(spec.shape[1],))
        if emit.input(at) is not None:
            old = emit.wide(at)
            batch = _like(emit, batch, old)
            batch = emit("add", emit("mul", old, 1 - momentum), emit("mul", batch, momentum))
        results.append(batch)
    for old, new in zip(emit.node.outputs, results, strict=False):
        shape = emit.spec(old.name).shape
        value = new if emit.spec(new).shape == shape else emit("view", new, size=shape)
        emit.editor.forward(old.name, _like(emit, value, old.name))


def _like(emit: Expansion, value: Any, other: Any) -> str:
    dtype = emit.spec(other).dtype
    return value if emit.spec(value).dtype is dtype else emit("cast", value, dtype=dtype)
