"""Recurrent layers on CUDA: the kernels' texts on a CPU, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check

from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.rnn import recurrent_tile_config
from xpuruntime.testing.emulation.cuda_host import cuda_host

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
FORMS: dict[str, dict[str, Any]] = {
    "both directions": {"direction": "bidirectional"},
    "reverse, samples first": {"direction": "reverse", "batch_first": True},
    "clipped": {"direction": "bidirectional", "clip": 0.3},
    "own activations": {"activations": {"lstm": ["Relu", "Affine", "Tanh"], "gru": ["HardSigmoid", "Softsign"], "rnn": ["Relu"]}},
    "float64": {"kind": "float64"},
    "float16": {"kind": "float16"},
}  # fmt: skip


def layer(
    op: str,
    sizes: tuple[int, int, int, int],
    kind: str = "float32",
    full: bool = True,
    limit: float | None = None,
    **attrs: Any,
) -> None:
    """Compare a layer of (length, batch, inputs, units) with the interpreter. full: with biases and states."""
    length, batch, inputs, hidden = sizes
    draw, b = np.random.default_rng(0), GraphBuilder(op)
    d, rows, first = (
        1 + (attrs.get("direction") == "bidirectional"),
        GATES[op] * hidden,
        attrs.get("batch_first"),
    )
    feeds: dict[str, Any] = {}
    weights: dict[str, Any] = {}

    def given(name: str, *shape: int, known: bool = True, scale: float = 0.4) -> str:
        (weights if known else feeds)[name] = (draw.standard_normal(shape) * scale).astype(kind)
        return str((b.weight if known else b.input)(name, f"{kind}{list(shape)}"))

    x = given("x", *((batch, length) if first else (length, batch)), inputs, known=False, scale=1)
    state = (batch, d, hidden) if first else (d, batch, hidden)
    operands: list[Any] = [x, given("w", d, rows, inputs), given("r", d, rows, hidden)]
    if full:
        operands += [given("b", d, 2 * rows), None, given("h0", *state, known=False)]
        if op == "lstm":
            operands += [given("c0", *state, known=False), given("p", d, 3 * hidden)]
    if isinstance(chosen := attrs.get("activations"), dict):
        attrs["activations"] = list(chosen[op]) * d
    made = b.call(op, *operands, hidden_size=hidden, outputs=3 if op == "lstm" else 2, **attrs)
    for name, value in zip("yhc", made, strict=False):
        b.output(name, value)
    check(b.build(), feeds, weights=weights, target=cuda_host(), tolerance=limit)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_a_layer(op: str, form: str) -> None:
    layer(op, (3, 2, 5, 9), **FORMS[form])


@pytest.mark.parametrize("op", GATES)
def test_a_layer_without_biases_and_states(op: str) -> None:
    layer(op, (4, 1, 1, 3), full=False)


@pytest.mark.parametrize("before", [False, True])
def test_a_gru_may_reset_before_or_after_the_product(before: bool) -> None:
    layer("gru", (3, 3, 4, 33), direction="bidirectional", linear_before_reset=before)


def test_samples_that_do_not_fill_a_block() -> None:
    cut = recurrent_tile_config(140, 2, 4 * 5, 5, 4)
    assert cut is not None
    assert cut.samples == 2
    layer("lstm", (2, 399, 3, 5))
    assert recurrent_tile_config(399, 1, 4 * 5, 5, 4).samples == 3  # type: ignore[union-attr]


def test_a_state_that_shared_memory_does_not_hold() -> None:
    assert recurrent_tile_config(1, 1, 4 * 2000, 2000, 4) is None
    layer("rnn", (2, 1, 3, 3100), full=False, limit=1e-4)  # one thread adds 3100 products up in a row
