"""A small network of our own with every kind of kernel in it (convolution, norm, attention, products, rows), and what the interpreter says of it.

Needs NumPy and xpuruntime only, so that processes which start often start fast.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.program.program import CompiledProgram

__all__ = ["INPUTS", "compiled", "feeds", "network", "references", "right", "weights"]

INPUTS = 5
"""Different inputs, so that a run that got another's shows."""
_WEIGHTS = {
    "kernel": (16, 3, 3, 3), "gain": (64,), "q": (64, 64), "k": (64, 64), "v": (64, 64), "up": (256, 64), "down": (64, 256), "bias": (256,),
}  # fmt: skip


@cache
def network(size: int = 16) -> ir.Graph:
    """Images of ``size`` by ``size`` pixels -> 64 numbers for each of 4 tokens."""
    b = ir.GraphBuilder("small")
    w = {name: b.weight(name, f"float32{list(shape)}") for name, shape in _WEIGHTS.items()}
    x = b.input("x", f"float32[4, 3, {size}, {size}]")
    pixels = b.relu(
        b.convolution(x, w["kernel"], None, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    )
    pooled = b.mean(pixels, dim=(3,), keepdim=False)
    tokens = b.view(pooled, size=(4, 16 * size // 64, 64))
    normed = b.rms_norm(tokens, w["gain"], normalized_shape=(64,), eps=1e-5)
    q, k, v = (b.linear(normed, w[n], None) for n in "qkv")
    scores = b.softmax(b.mul(b.matmul(q, b.permute(k, dims=(0, 2, 1))), 0.125), dim=2)
    mixed = b.add(tokens, b.matmul(scores, v))
    b.output("y", b.linear(b.gelu(b.linear(mixed, w["up"], w["bias"])), w["down"], None))
    return b.build()


@cache
def weights() -> dict[str, Any]:
    """Seeded weights that hide nothing."""
    random = np.random.default_rng(7)
    return {n: (random.standard_normal(s) / s[-1] ** 0.5).astype(np.float32) for n, s in _WEIGHTS.items()}


def feeds(which: int, size: int = 16) -> dict[str, Any]:
    """One of the inputs."""
    random = np.random.default_rng(100 + which)
    return {"x": random.standard_normal((4, 3, size, size)).astype(np.float32)}


@cache
def references() -> list[Any]:
    """What must come out of each input."""
    return [ir.interp.run(network(), feeds(i), weights=weights())["y"] for i in range(INPUTS)]


def compiled(target: str) -> CompiledProgram:
    """The program for a target: ``cpu``, ``cuda`` (this machine's device), ``cuda:sm_90``."""
    return compile_graph(network(), target=target, weights=weights())


def right(which: int, y: Any) -> bool:
    """Whether an output is that of the input, to 2e-5 of its largest value."""
    want = references()[which]
    return bool(np.abs(np.asarray(y) - want).max() <= 2e-5 * np.abs(want).max())
