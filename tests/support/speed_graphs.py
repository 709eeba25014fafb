"""Graphs of one kernel each, large enough to measure memory bandwidth. They cover several shapes and dtypes of every kernel family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xpuruntime.ir import Graph, GraphBuilder

__all__ = ["speed_graphs"]

Build = Callable[..., Any]

_SQUARE = "[8192, 8192]"
_SHORT = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def _add(b: GraphBuilder, x: Any, y: Any) -> Any:
    return b.add(x, y)


def _bias_gelu(b: GraphBuilder, x: Any, y: Any) -> Any:
    return b.gelu(b.add(x, y))


def _pool(op: str, kernel: int, stride: int, padding: int) -> Build:
    sizes = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": 1}
    return lambda b, x: getattr(b, op)(x, **{name: [n, n] for name, n in sizes.items()})


def _last(pool: Build) -> Build:
    """Return a pool of channels-last images."""
    return lambda b, x: b.permute(pool(b, b.permute(x, dims=[0, 3, 1, 2])), dims=[0, 2, 3, 1])


def _sum(*dims: int) -> Build:
    return lambda b, x: b.sum(x, dim=list(dims) or None)


def _softmax(b: GraphBuilder, x: Any) -> Any:
    return b.softmax(x, dim=1)


# Name -> function that adds the ops, and the specs of its operands. A name ends in the dtype, or in the dtype and a size.
_ROWS: dict[str, tuple[Build, tuple[str, ...]]] = {
    "softmax bf16": (_softmax, (f"bfloat16{_SQUARE}",)),
    "softmax f32 1024": (_softmax, ("float32[65536, 1024]",)),
    "layer norm bf16": (
        lambda b, x, w, c: b.layer_norm(x, w, c, normalized_shape=[4096], eps=1e-5),
        ("bfloat16[16384, 4096]", "bfloat16[4096]", "bfloat16[4096]"),
    ),
    "rms norm bf16 1536": (
        lambda b, x, w: b.rms_norm(x, w, normalized_shape=[1536]),
        ("bfloat16[32768, 1536]", "bfloat16[1536]"),
    ),
    "transpose bf16": (lambda b, x: b.permute(x, dims=[1, 0]), (f"bfloat16{_SQUARE}",)),
    "heads bf16": (lambda b, x: b.permute(x, dims=[0, 2, 1, 3]), ("bfloat16[16, 2048, 16, 128]",)),
    "cat bf16": (lambda b, x, y: b.cat(x, y, dim=1), ("bfloat16[8192, 4096]", "bfloat16[8192, 4096]")),
    "sum rows f32": (_sum(1), (f"float32{_SQUARE}",)),
    "sum columns f32": (_sum(0), (f"float32{_SQUARE}",)),
    "sum columns f32 64": (_sum(0), ("float32[1048576, 64]",)),
    "sum columns f32 1000": (_sum(0), ("float32[65536, 1000]",)),
    "sum columns bf16": (_sum(0), (f"bfloat16{_SQUARE}",)),
    "sum columns bf16 768": (_sum(0), ("bfloat16[131072, 768]",)),
    "sum middle f32": (_sum(1), ("float32[16, 4096, 1024]",)),
    "sum batch and space f32": (_sum(0, 2, 3), ("float32[64, 256, 64, 64]",)),
    "sum all f32": (_sum(), (f"float32{_SQUARE}",)),
    "embedding bf16": (lambda b, t, i: b.embedding(t, i), ("bfloat16[151936, 1536]", "int64[32768]")),
    "embedding bf16 256": (lambda b, t, i: b.embedding(t, i), ("bfloat16[600000, 256]", "int64[196608]")),
    "embedding bf16 4096": (lambda b, t, i: b.embedding(t, i), ("bfloat16[64000, 4096]", "int64[16384]")),
    "embedding f32 768": (lambda b, t, i: b.embedding(t, i), ("float32[151936, 768]", "int64[32768]")),
    "max pool 3x3 f32": (_pool("max_pool", 3, 2, 1), ("float32[64, 64, 112, 112]",)),
    "max pool 2x2 f32": (_pool("max_pool", 2, 2, 0), ("float32[64, 64, 112, 112]",)),
    "avg pool 3x3 f32": (_pool("avg_pool", 3, 1, 1), ("float32[64, 64, 112, 112]",)),
    "max pool 3x3 bf16": (_pool("max_pool", 3, 2, 1), ("bfloat16[64, 128, 112, 112]",)),
    "max pool 3x3 channels last f32": (_last(_pool("max_pool", 3, 2, 1)), ("float32[64, 112, 112, 64]",)),
    "max pool 3x3 channels last bf16": (_last(_pool("max_pool", 3, 2, 1)), ("bfloat16[64, 112, 112, 128]",)),
    "avg pool 2x2 channels last f16": (_last(_pool("avg_pool", 2, 2, 0)), ("float16[64, 112, 112, 128]",)),
}

_POINTWISE: dict[str, tuple[Build, tuple[str, ...], str]] = {
    "add": (_add, (_SQUARE, _SQUARE), "bf16 f32"),
    "gelu": (lambda b, x: b.gelu(x), (_SQUARE,), "bf16 f16 f32"),
    "bias gelu": (_bias_gelu, (_SQUARE, "[8192]"), "bf16 f16 f32"),
    "tanh gelu": (lambda b, x: b.gelu(x, approximate="tanh"), (_SQUARE,), "bf16 f16 f32"),
    "sigmoid": (lambda b, x: b.sigmoid(x), (_SQUARE,), "bf16 f16 f32"),
    "silu mul": (lambda b, x, y: b.mul(b.silu(x), y), (_SQUARE, _SQUARE), "bf16 f16 f32"),
}
"""Name -> function that adds the ops, shapes of its operands, and dtypes."""


def speed_graphs() -> Iterator[tuple[str, Graph]]:
    """Yield pairs of name and graph. A graph has inputs ``x0``, ``x1`` ... and one output."""
    for name, (build, shapes, dtypes) in _POINTWISE.items():
        for short in dtypes.split():
            yield f"{name} {short}", _graph(build, *(f"{_SHORT[short]}{shape}" for shape in shapes))
    yield "cast f32 to bf16", _graph(lambda b, x: b.cast(x, dtype="bfloat16"), f"float32{_SQUARE}")
    for name, (build, specs) in _ROWS.items():
        yield name, _graph(build, *specs)


def _graph(build: Build, *specs: str) -> Graph:
    b = GraphBuilder("g")
    b.output("y0", build(b, *(b.input(f"x{i}", s) for i, s in enumerate(specs))))
    return b.build()
