"""Rows for ``sample_token``: every combination of settings on logits that are spread, narrow, equal, coarse, far apart or no numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from xpuruntime.ir import Graph, GraphBuilder

__all__ = ["sampled_rows", "sampling_graph"]

_INF = np.inf
_SETTINGS: list[tuple[tuple[float, ...], int, int]] = [  # settings, top_k, counts
    ((0.0, 1, _INF, 1, 0, 0), 0, 0),
    ((0.0, 1, _INF, 1.5, 0.5, 0.25), 0, 1),
    ((1.0, 1, _INF, 1, 0, 0), 0, 0),
    ((0.7, 1, _INF, 1, 0, 0), 7, 0),
    ((1.3, 0.9, _INF, 1, 0, 0), 0, 0),
    ((1.0, 0.3, _INF, 1, 0, 0), 0, 1),
    ((2.0, 1, 2.5, 1, 0, 0), 0, 0),
    ((1.1, 0.8, 3.0, 1.2, 0.1, 0.1), 40, 1),
    ((0.05, 0.95, _INF, 1, 0, 0), 1, 0),
    ((9.0, 0.999, _INF, 0.8, -0.5, 0.0), 150, 1),
    ((1.0, 1e-6, _INF, 1, 0, 0), 0, 0),
    ((0.9, 0.5, _INF, 1, 0, 0), 100_000, 0),
]


def sampled_rows(vocab: int, dtype: str = "float32", seed: int = 0) -> dict[str, Any]:
    """The operands of ``sample_token`` by name."""
    rng = np.random.default_rng(seed)
    shapes = [
        rng.standard_normal(vocab) * 3,
        rng.standard_normal(vocab) * 0.01,
        np.zeros(vocab),
        np.round(rng.standard_normal(vocab) * 2),
        rng.standard_normal(vocab) * 30,
        np.where(rng.random(vocab) < 0.5, -np.inf, rng.standard_normal(vocab)),
        np.where(np.arange(vocab) == vocab // 2, np.nan, 1.0),
        np.full(vocab, -np.inf),
    ]
    rows = [(x, s) for x in shapes for s in _SETTINGS]
    counts = rng.integers(0, 6, (len(rows), vocab)) * (rng.random((len(rows), vocab)) < 0.3)
    counts[rng.random(counts.shape) < 0.02] = -(1 << 31)
    numbers = [(int(rng.integers(0, 2**63)), i, i % 3, s[1], s[2]) for i, (_, s) in enumerate(rows)]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return {
        "logits": np.stack([x for x, _ in rows]).astype(kind),
        "counts": counts.astype(np.int32),
        "settings": np.array([s[0] for _, s in rows], np.float32),
        "numbers": np.array(numbers, np.int64),
    }


def sampling_graph(rows: dict[str, Any]) -> Graph:
    """A graph of one ``sample_token``."""
    b = GraphBuilder("sampled")
    names = [b.input(n, f"{x.dtype.name}{list(x.shape)}") for n, x in rows.items()]
    token, counts = b.call("sample_token", *names)
    b.output("token", token)
    b.output("after", counts)
    return b.build()
