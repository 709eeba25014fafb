"""Samples as calls: an OpInfo's samples through its bridge, and a call as a graph."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .... import ir
from ....types import DType
from .bridge import Bridge, NotComparable
from .table import BRIDGES

__all__ = ["OpInfoCall", "calls", "graph_of", "names_for", "to_numpy"]


@dataclass(frozen=True)
class OpInfoCall:
    """One call of an op. ``want``: all of PyTorch's results; ``sample``: its origin."""

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any]
    want: tuple[NDArray[Any], ...]
    sample: str


def calls(name: str, dtype: str, limit: int | None = None) -> Iterator[OpInfoCall | NotComparable]:
    """Yield the samples of an OpInfo (all its variants that the bridge supports) in one dtype, as calls of our op.

    name: an entry of ``BRIDGES``. dtype: a torch dtype's name. limit: the most samples of each variant, spread over them.
    Yields an ``NotComparable`` for a sample that is no call of our op.
    """
    import torch

    kind = getattr(torch, dtype)
    bridge = BRIDGES[name]
    for info in _infos(bridge.info or name, bridge.variants):
        if not info.supports_dtype(kind, "cpu"):
            continue
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(info.sample_inputs("cpu", kind, requires_grad=False))
            if limit is not None and len(samples) > limit:
                samples = [samples[i * len(samples) // limit] for i in range(limit)]
            for sample in samples:
                try:
                    yield _call(bridge, info, sample)
                except NotComparable as reason:
                    yield reason


def _call(bridge: Bridge, info: Any, sample: Any) -> OpInfoCall:
    if any(isinstance(v, complex) for v in (*sample.args, *sample.kwargs.values())):
        raise NotComparable("a complex number as an operand")
    operands, attrs, *answer = bridge.adapt(sample)
    if answer:
        (results,) = answer
    elif bridge.answer is not None:
        results = bridge.answer(sample, operands, attrs)
    else:
        results = info.op(sample.input, *sample.args, **sample.kwargs)
    results = list(results) if isinstance(results, tuple | list) else [results]
    want = tuple(to_numpy(r) for r in results if r is not None)
    return OpInfoCall(
        bridge.op,
        tuple(to_numpy(o) for o in operands),
        {k: _attr(v) for k, v in attrs.items()},
        want,
        _shown(sample),
    )


def _attr(value: Any) -> Any:
    """Return an attribute's value in the form of our ops."""
    import torch

    if isinstance(value, torch.dtype):
        return DType(str(value).removeprefix("torch."))
    if isinstance(value, tuple | list):
        return [_attr(v) for v in value]
    return value


def to_numpy(value: Any) -> Any:
    """Return a torch tensor as an array of the same type, and any other value unchanged."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    dense = value.detach().resolve_conj().resolve_neg().contiguous()
    dtype = DType(str(value.dtype).removeprefix("torch."))
    if dtype.is_float and dtype not in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        bits = {8: torch.uint8, 16: torch.int16}[dtype.bits]
        return dense.view(bits).numpy().copy().view(dtype.numpy)
    return dense.numpy().copy()


@cache
def _infos(name: str, variants: tuple[str, ...]) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    infos = tuple(i for i in op_db if i.name == name and i.variant_test_name in variants)
    if not infos:
        raise LookupError(f"no OpInfo {name!r} with a variant of {variants}")
    return infos


def names_for(op: str) -> tuple[str, ...]:
    """Return the OpInfos on which an op is checked."""
    return tuple(name for name, bridge in BRIDGES.items() if bridge.op == op)


def graph_of(call: OpInfoCall) -> ir.Graph:
    """Return a graph of the one node; tensors are its inputs ``x0``, ``x1`` ..., results its outputs ``y0`` ..."""
    builder = ir.GraphBuilder(call.op)
    operands = []
    for i, operand in enumerate(call.operands):
        if isinstance(operand, np.ndarray):
            spec = f"{DType.of(operand.dtype).value}{list(operand.shape)}"
            operands.append(builder.input(f"x{i}", spec))
        else:
            operands.append(operand)
    results = builder.call(call.op, *operands, outputs=len(call.want), **call.attrs)
    for i, value in enumerate([results] if isinstance(results, str) else results):
        builder.output(f"y{i}", value)
    return builder.build()


def _shown(sample: Any) -> str:
    """Return the sample in one line: shapes and numbers."""

    def text(value: Any) -> str:
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"({', '.join(text(v) for v in value)})"
        return repr(value)

    parts = [text(v) for v in (sample.input, *sample.args)]
    return ", ".join(parts + [f"{k}={text(v)}" for k, v in sample.kwargs.items()])
