"""Recurrent layers with known weights: every gate, direction, length and remainder of vectors, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.one_kernel import Weight, build_kernel, check_kernel

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.kernels.cpu.rnn import CpuRecurrent

SIZES = [(3, 6, 19, 5), (1, 4, 16, 33), (19, 3, 5, 16)]  # samples, steps, inputs, units
GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def draw(seed: int, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def layer(
    op: str, sizes: tuple[int, ...], direction: str, first: bool, full: bool, dtype: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Operands and attributes; ``full``: with biases, lengths and first states."""
    batch, length, inputs, hidden = sizes
    d, g = (2 if direction == "bidirectional" else 1), GATES[op]
    x = draw(1, *((batch, length) if first else (length, batch)), inputs, dtype=dtype)
    state = (batch, d, hidden) if first else (d, batch, hidden)
    operands = [x, *(Weight(draw(n, d, g * hidden, n, dtype=dtype, scale=0.3)) for n in (inputs, hidden))]
    more: list[Any] = [None] * (5 if op == "lstm" else 3)
    if full or op == "gru":
        more[0] = Weight(draw(4, d, 2 * g * hidden, dtype=dtype))
    if full:
        more[1] = np.random.default_rng(5).integers(0, length + 1, batch).astype(np.int32)
        more[2] = draw(6, *state, dtype=dtype)
        if op == "lstm":
            more[3] = draw(7, *state, dtype=dtype)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "batch_first": first}
    attrs["activations"] = ["Relu"] * d if op == "rnn" and full else []
    return [*operands, *more], attrs | ({"linear_before_reset": True} if op == "gru" else {})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_packed_layers(op: str, direction: str) -> None:
    for at, sizes in enumerate(SIZES):
        operands, attrs = layer(op, sizes, direction, at % 2 == 0, at != 1, np.float32)
        check_kernel(CpuRecurrent(), op, operands, split=at, **attrs)


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"])
def test_packed_layers_on_every_level(target: str) -> None:
    for dtype in (np.float32, np.float64):
        operands, attrs = layer("lstm", (9, 3, 6, 13), "bidirectional", False, True, dtype)
        check_kernel(CpuRecurrent(), "lstm", operands, target=target, split=3, **attrs)


def test_what_is_unusual_takes_one_stage() -> None:
    operands, attrs = layer("lstm", SIZES[0], "forward", True, True, np.float32)
    target = cpu_target()
    count = {
        len(build_kernel(CpuRecurrent(), "lstm", operands, target, {}, {}, **attrs, **more).lowered.stages)
        for more in ({"clip": 1.0}, {"input_forget": True})
    }
    usual = build_kernel(CpuRecurrent(), "lstm", operands, target, {}, {}, **attrs).lowered
    assert count == {1}
    assert [s.stem for s in usual.stages] == ["lstm_inputs", "lstm_5"]
    computed = [o.array if isinstance(o, Weight) else o for o in operands]
    assert len(build_kernel(CpuRecurrent(), "lstm", computed, target, {}, {}, **attrs).lowered.stages) == 1
    check_kernel(CpuRecurrent(), "lstm", operands, **attrs, clip=0.7)
