"""Calibration: layers on grids of four bits that the loader finds again, with outputs nearer than plain rounding leaves them."""

from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.errors import InputError, ModelError
from xpuruntime.ir import interp
from xpuruntime.llm import Checkpoint, Generator, calibrated, decoder_graph, open_checkpoint
from xpuruntime.llm.calibrate import _compensated, _factor
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference


def kept(w: np.ndarray) -> np.ndarray:
    return int4_values(int4_groups(np.asarray(w, np.float32), 32), 32)


@pytest.mark.parametrize("k", [64, 160])
def test_what_rounding_loses_goes_where_inputs_go_together(k: int) -> None:
    """Inputs that a few causes make, as those of a trained model's layers: other inputs of the same causes make up for each error."""
    draw = np.random.default_rng(k)
    causes = draw.standard_normal((8, k))
    x, fresh = (
        (draw.standard_normal((512, 8)) @ causes + 0.3 * draw.standard_normal((512, k))).astype(np.float32) for _ in range(2)
    )  # fmt: skip
    w = draw.standard_normal((48, k)).astype(np.float32)
    made = _compensated(w, _factor((x.T @ x).astype(np.float64)), 32)
    lost, plain = (float(np.linalg.norm(fresh @ (a - w).T)) for a in (made, kept(w)))
    assert lost < 0.6 * plain
    assert np.linalg.norm(kept(made) - made) < 0.1 * np.linalg.norm(made - w)  # on grids that are found again


def test_inputs_that_know_nothing_of_each_other_change_nothing() -> None:
    w = np.random.default_rng(0).standard_normal((16, 96)).astype(np.float32)
    assert abs(_compensated(w, _factor(np.eye(96)), 32) - kept(w)).max() < 1e-6


@pytest.fixture(scope="module")
def models() -> tuple[Checkpoint, Checkpoint]:
    found = open_checkpoint(reference("llama", tie_word_embeddings=False))
    return found, calibrated(found, [prompt(700, seed=1), prompt(400, seed=2)], length=64)


def test_a_calibrated_model_is_nearer_than_a_rounded_one(models: tuple[Checkpoint, Checkpoint]) -> None:
    found, better = models
    tokens = prompt(48, seed=9)
    graph = decoder_graph(found.config, length=48, capacity=48, all_logits=True)
    feeds = {"tokens": np.array([tokens]), "positions": np.arange(48)[None], "last": np.array([47])}
    layers = [n for n, a in found.arrays.items() if ".layers." in n and a.ndim == 2]
    assert all((better.arrays[n] == a).all() for n, a in found.arrays.items() if n not in layers)

    def logits(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(interp.run(graph, feeds, weights=arrays, states={})["logits"])

    want = logits(dict(found.arrays))
    plain = {**found.arrays, **{n: kept(found.arrays[n]) for n in layers}}
    far = [float(np.linalg.norm(logits(dict(a)) - want)) for a in (better.arrays, plain)]
    assert far[0] < 0.97 * far[1]  # random inputs have little in common


def test_the_loader_finds_its_grids(models: tuple[Checkpoint, Checkpoint]) -> None:
    found, better = models
    kernels = {
        "weights": "int4",
        "rules": [{"op": "matmul", "node": "scores", "weights": "model"}],
    }
    tokens = prompt(10)
    with Generator(better, capacity=32, buckets=(16,)) as wide:
        want = wide.read(tokens)[0].copy()
    with Generator(better, capacity=32, buckets=(16,), policy={"version": 1, "kernel": kernels}) as four:
        got = four.read(tokens)[0].copy()
    with Generator(found, capacity=32, buckets=(16,)) as exact:
        off = exact.read(tokens)[0].copy()
    assert np.linalg.norm(got - want) < 0.1 * np.linalg.norm(off - want)


def test_too_little_text_is_refused() -> None:
    found = open_checkpoint(reference("llama"))
    with pytest.raises(InputError, match="needs 512 tokens or more; got 20"):
        calibrated(found, [prompt(20)])
    with pytest.raises(InputError, match="has no tokenizer"):
        calibrated(found, ["words"])


def test_what_is_no_model_no_token_or_no_group_is_refused() -> None:
    found = open_checkpoint(reference("llama"))
    with pytest.raises(ModelError, match=r"language model nowhere\] does not exist"):
        calibrated("nowhere", [prompt(20)])
    with pytest.raises(
        InputError, match=f"takes tokens from 0 to {found.config.vocab - 1}; got {found.config.vocab}"
    ):
        calibrated(found, [[0, found.config.vocab]])
    with pytest.raises(InputError, match="a group and a length of at least 1; got 0 and 512"):
        calibrated(found, [prompt(20)], group=0)
