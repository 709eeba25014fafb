"""Draws against the exact distribution: 20,000 with fixed seeds, and errors that must be noticed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.native import compile_native
from support.sampled_rows import sampling_graph

from xpuruntime.ir.interp import sampling as reference_sampling
from xpuruntime.ir.interp.sampling import philox, sample_token, uniform
from xpuruntime.llm import Sampling
from xpuruntime.llm.sampling import pick, probabilities
from xpuruntime.runtime import Executor

DRAWS = 20_000
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3},
    "top_k": {"temperature": 0.9, "top_k": 12},
    "top_p": {"temperature": 1.1, "top_p": 0.8},
    "min_p": {"temperature": 1.6, "min_p": 0.1},
    "all": {
        "temperature": 1.2,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.2,
    },
}
LOGITS = (np.random.default_rng(0).standard_normal(60) * 2).astype(np.float32)
COUNTS = np.array([1, 2, 5, 0, 4, *[0] * 55], np.int32)


def exact(sampling: Sampling) -> Any:
    """The distribution as its definition says it, in float64 and by a full sort."""
    x = LOGITS.astype(np.float64)
    x = np.where(
        COUNTS != 0, np.where(x < 0, x * sampling.repetition_penalty, x / sampling.repetition_penalty), x
    )
    x -= sampling.presence_penalty * (COUNTS >> 1 > 0) + sampling.frequency_penalty * (COUNTS >> 1)
    p = np.exp(x / sampling.temperature)
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= sampling.top_p]] = 0
    p[p < sampling.min_p * p.max()] = 0
    return p / p.sum()


def p_value(counts: Any, p: Any) -> float:
    """The probability of a larger chi-square; 0 if a token was drawn that cannot be."""
    if counts[p == 0].any():
        return 0.0
    rows = sorted(zip((p * counts.sum())[p > 0], counts[p > 0], strict=True))
    expected, observed = [0.0], [0.0]
    for e, o in rows:  # rare tokens are counted together
        if expected[-1] >= 8:
            expected.append(0.0)
            observed.append(0.0)
        expected[-1] += e
        observed[-1] += o
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    # Wilson and Hilferty's normal approximation, 1931
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def drawn(sampling: Sampling) -> Any:
    x = sampling.processed(LOGITS, COUNTS)
    return np.bincount([pick(x, sampling, 11, step) for step in range(DRAWS)], minlength=LOGITS.size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    sampling = Sampling(**SETTINGS[name])
    np.testing.assert_allclose(probabilities(LOGITS, sampling, COUNTS), exact(sampling), atol=1e-6)
    assert p_value(drawn(sampling), exact(sampling)) > 0.001


def test_an_error_in_top_p_is_noticed() -> None:
    """One token too many or too few; a distribution that is not normalized again; a temperature that is a little off."""
    sampling = Sampling(**SETTINGS["top_p"])
    p, counts = exact(sampling), drawn(sampling)
    assert p_value(counts, p) > 0.001
    full = exact(Sampling(1.1))
    more, fewer = p > 0, p > 0
    more[np.argmax(np.where(more, 0, full))] = True
    fewer[np.argmin(np.where(fewer, full, 1))] = False
    for kept in (more, fewer):
        wrong = np.where(kept, full, 0)
        assert p_value(counts, wrong / wrong.sum()) < 1e-6
    for temperature in (1.0, 1.2):
        assert p_value(counts, exact(Sampling(temperature, top_p=0.8))) < 1e-6


def compiled_draws(sampling: Sampling) -> Any:
    """Tokens of the compiled kernel, 500 rows at a time."""
    rows = 500
    graph = sampling_graph(_rows(sampling, rows, 0))
    program = compile_native(graph, _rows(sampling, rows, 0))
    counts = np.zeros(LOGITS.size, np.int64)
    with Executor(program) as executor:
        for first in range(0, DRAWS, rows):
            token, _ = executor.run_arrays(list(_rows(sampling, rows, first).values()))
            counts += np.bincount(token, minlength=LOGITS.size)
    return counts


def _rows(sampling: Sampling, rows: int, first: int) -> dict[str, Any]:
    numbers = [(11, first + i, 0, sampling.top_k, 1) for i in range(rows)]
    return {
        "logits": np.stack([LOGITS] * rows),
        "counts": np.stack([COUNTS] * rows),
        "settings": np.array([sampling.settings] * rows, np.float32),
        "numbers": np.array(numbers, np.int64),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_kernel_draws_what_the_host_draws(name: str) -> None:
    """20,000 draws of compiled code: the same tokens, so the same chi-square."""
    sampling = Sampling(**SETTINGS[name])
    counts = compiled_draws(sampling)
    assert counts.tolist() == drawn(sampling).tolist()
    assert p_value(counts, exact(sampling)) > 0.001


def test_a_sampler_with_an_error_in_top_p_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nucleus ends one token too early, or one too late."""
    sampling = Sampling(**SETTINGS["top_p"])
    right = reference_sampling._nucleus
    for step in (-1, 1):

        def wrong(d: Any, weights: Any, top_p: float, step: int = step) -> Any:
            order = np.sort(d)
            return order[np.searchsorted(order, right(d, weights, top_p)) + step]

        with monkeypatch.context() as patch:
            patch.setattr(reference_sampling, "_nucleus", wrong)
            counts = drawn(sampling)
        assert p_value(counts, exact(sampling)) < 1e-6


def test_random_numbers_are_those_of_the_paper() -> None:
    """Known answers of Philox4x32-10 (Random123), and that numbers of texts, steps and answers differ."""
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 0xFFFFFFFF
    assert philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    numbers = {
        uniform(seed, step, sample) for seed in (0, 1, 2**40) for step in range(50) for sample in range(3)
    }
    assert len(numbers) == 450
    assert all(0 <= n < 1 for n in numbers)


def test_the_op_counts_what_it_selects() -> None:
    rows = np.stack([LOGITS] * 4)
    settings = np.array([[0, 1, np.inf, 1, 0, 0], [1.2, 0.9, np.inf, 1, 0, 9.0]] * 2, np.float32)
    numbers = np.array([[1, 0, 0, 0, 1], [1, 0, 0, 5, 1], [1, 0, 0, 0, 0], [2, 0, 0, 5, 0]], np.int64)
    counts = np.stack([COUNTS] * 4)
    tokens, after = sample_token(rows, counts, settings, numbers)
    assert tokens[0] == tokens[2] == LOGITS.argmax()
    change = after - counts
    assert change[:2].sum() == 4
    assert change[0, tokens[0]] == change[1, tokens[1]] == 2
    assert not change[2:].any()
    rows[1, 3] = np.nan
    assert sample_token(rows, counts, settings, numbers)[0].tolist() == [tokens[0], -1, *tokens[2:]]


def test_tokens_that_are_equally_likely_are_kept_together() -> None:
    flat = np.zeros(9, np.float32)
    for words in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        assert probabilities(flat, Sampling(1.0, **words)).tolist() == [1 / 9] * 9
