"""Programs of kernels that only training has, with their operands, for the sanitizer. Sizes are odd and small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpuruntime import ir
from xpuruntime.types import DType

Case = tuple[str, ir.Graph, dict[str, Any]]
DTYPES = ("float32", "bfloat16")


class _Program:
    """A graph whose inputs are drawn when they are declared."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype, self.build = name, dtype, ir.GraphBuilder(name.replace(" ", "_"))
        self.feeds: dict[str, Any] = {}
        self._random = np.random.default_rng(len(name))

    def draw(self, *shape: int, dtype: str = "") -> str:
        """Declare an input of normally distributed values."""
        return self.give(self._random.standard_normal(shape).astype(DType(dtype or self.dtype).numpy))

    def positions(self, *shape: int, below: int) -> str:
        """Declare an input of positions; some of them occur more than once."""
        return self.give(self._random.integers(0, below, shape))

    def give(self, value: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = value
        return self.build.input(name, f"{DType.of(value.dtype).value}{list(value.shape)}")

    def case(self, *results: str) -> Case:
        for i, value in enumerate(results):
            self.build.output(f"y{i}", value)
        return f"{self.name} {self.dtype}", self.build.build(), self.feeds


def _attention(dtype: str, size: int, queries: int, keys: int, causal: bool) -> Case:
    p = _Program(f"attention in training {size} {queries} {keys}", dtype)
    q, k, v = p.draw(1, 4, queries, size), p.draw(1, 2, keys, size), p.draw(1, 2, keys, size)
    y, lse = p.build.attention_train(q, k, v, causal=causal)
    grad = p.draw(1, 4, queries, size)
    return p.case(y, *p.build.attention_backward(grad, q, k, v, y, lse, causal=causal))


def _layer_norm(dtype: str, rows: int, size: int) -> Case:
    p = _Program(f"layer norm's gradients {size}", dtype)
    x, weight, bias = p.draw(rows, size), p.draw(size), p.draw(size)
    y, mean, rstd = p.build.layer_norm(x, weight, bias, normalized_shape=[size], outputs=3)
    grad = p.draw(rows, size)
    gradients = p.build.layer_norm_backward(
        grad, x, mean, rstd, weight, bias, normalized_shape=[size], outputs=3
    )
    return p.case(y, *gradients)


def _residual(dtype: str, rows: int, size: int) -> Case:
    p = _Program(f"layer norm's gradients and a residual {size}", dtype)
    grad, x, weight = p.draw(rows, size), p.draw(rows, size, dtype="float32"), p.draw(size, dtype="float32")
    values = p.feeds[x]
    mean = p.give(values.mean(-1, keepdims=True))
    rstd = p.give((1 / np.sqrt(values.var(-1, keepdims=True) + 1e-5)).astype(np.float32))
    residual = p.draw(rows, size, dtype="float32")
    return p.case(
        *p.build.layer_norm_backward_add(
            grad, x, mean, rstd, weight, residual, normalized_shape=[size], narrow="bfloat16"
        )
    )


def _batch_norm(dtype: str) -> Case:
    p = _Program("batch norm in training", dtype)
    x, weight, bias, mean = p.draw(5, 7, 9, 3), p.draw(7), p.draw(7), p.draw(7)
    return p.case(*p.build.batch_norm_train(x, weight, bias, mean, p.build.mul(mean, mean), outputs=5))


def _rows_added() -> Case:
    p = _Program("rows added at positions", "float32")
    table, rows, at = p.draw(17, 129), p.draw(301, 129), p.positions(301, below=17)
    return p.case(p.build.index_put(table, rows, at, accumulate=True))


def _pools(dtype: str, kind: str) -> Case:
    p = _Program(f"{kind} pool's gradient", dtype)
    window = {"kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0], "dilation": [1, 1]}
    x = p.draw(2, 3, 13, 11)
    if kind == "max":
        _, at = p.build.max_pool(x, **window, outputs=2)
        return p.case(p.build.max_pool_backward(p.draw(2, 3, 7, 10), x, at, **window))
    return p.case(p.build.avg_pool_backward(p.draw(2, 3, 7, 10), x, **window))


def _convolution(dtype: str) -> Case:
    p = _Program("convolution's gradients", dtype)
    x, weight, grad = p.draw(2, 4, 13, 11), p.draw(6, 2, 3, 3), p.draw(2, 6, 7, 11)
    return p.case(
        *p.build.convolution_backward(
            grad, x, weight, stride=[2, 1], padding=[1, 1], dilation=[1, 1], groups=2
        )
    )


def _losses(dtype: str) -> Case:
    """Softmax of logits, its gradient and both products, as the fused head and loss compute them."""
    p = _Program("head and loss", dtype)
    x, weight, targets = p.draw(19, 72), p.draw(301, 72), p.positions(19, 1, below=301)
    logits = p.build.cast(p.build.linear(x, weight), dtype="float32")
    shares = p.build.softmax(logits, dim=1)
    hits = p.build.cast(p.build.eq(targets, p.give(np.arange(301)[None])), dtype="float32")
    grad = p.build.cast(p.build.sub(shares, hits), dtype=dtype)
    turned = p.build.permute(grad, dims=[1, 0])
    return p.case(p.build.matmul(grad, weight), p.build.matmul(turned, x))


def _long_rows(dtype: str) -> Case:
    """More rows than SMs, each too long for registers: blocks hold them in shared memory."""
    p = _Program("long rows", dtype)
    logits = p.build.cast(p.draw(150, 20_008), dtype="float32")
    powers = p.build.exp(p.build.sub(logits, p.build.amax(logits, dim=[-1], keepdim=True)))
    sums = p.build.sum(powers, dim=[-1], keepdim=True)
    return p.case(p.build.cast(p.build.div(powers, sums), dtype=dtype), p.build.log(sums))


def training_programs() -> Iterator[Case]:
    """Yield a program for each kind of kernel that forward and backward of training have beside those of inference."""
    yield _rows_added()
    for dtype in DTYPES:
        for size, queries, keys, causal in ((64, 70, 70, True), (128, 33, 97, False), (32, 130, 130, True)):
            yield _attention(dtype, size, queries, keys, causal)
        for rows, size in ((9, 771), (5, 33), (3, 1100)):
            yield _layer_norm(dtype, rows, size)
            yield _residual(dtype, rows, size)
        yield _batch_norm(dtype)
        for kind in ("max", "average"):
            yield _pools(dtype, kind)
        yield _convolution(dtype)
        yield _losses(dtype)
        yield _long_rows(dtype)
