"""Causal masks of whole graphs: written-out attention in narrow types, and exported language models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.graph_equivalence import difference

from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.passes import run_passes
from xpuruntime.types import DType

LOWEST = float(np.finfo(np.float32).min)


def _positions(b: GraphBuilder, length: int) -> Any:
    """Keys next to queries, as exporters write it."""
    places = b.arange(end=length, dtype=DType.INT64)
    return b.le(b.view(places, size=[1, length]), b.view(places, size=[length, 1]))


@pytest.mark.parametrize("precision", [None, DType.FLOAT16, DType.BFLOAT16])
def test_masks_in_narrow_types_after_all_passes(precision: DType | None) -> None:
    """Written-out attention: the mask is put in by a where, or added, before values are kept narrower."""

    def written(hide: Callable[[GraphBuilder, Any, Any], Any]) -> Graph:
        b = GraphBuilder("written")
        q = b.input("q", "float32[2, 4, 80, 8]")
        k, v = (b.input(n, "float32[2, 4, 80, 8]") for n in "kv")
        scores = b.mul(b.matmul(q, b.permute(k, dims=[0, 1, 3, 2])), 0.3)
        b.output("y", b.matmul(b.softmax(hide(b, scores, _positions(b, 80)), dim=3), v))
        return b.build()

    for hide in (
        lambda b, scores, keep: b.where(keep, scores, -math.inf),
        lambda b, scores, keep: b.where(keep, scores, LOWEST),
        lambda b, scores, keep: b.add(scores, b.where(keep, 0.0, LOWEST)),
    ):
        graph = written(hide)
        after = run_passes(graph, precision=precision, check=True)
        (node,) = (n for n in after if n.op == "attention")
        assert node.attrs["causal"]
        assert len(node.inputs) == 3
        assert node.spec.dtype is (precision or DType.FLOAT32)
        assert difference(graph, after) == ""


def _exported(name: str, attention: str) -> tuple[Graph, Any]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from xpuruntime.frontends.torch import import_torch

    sizes: dict[str, dict[str, Any]] = {
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 96},
        "Gemma": {
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "intermediate_size": 32, "vocab_size": 32,
        },
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        **sizes[name], attn_implementation=attention, use_cache=False
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config).eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids).last_hidden_state

    ids = torch.arange(80).reshape(1, 80) % 32
    found = import_torch(Hidden().eval(), (ids,))
    return found[0], (found[1], ids.numpy())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["GPT2", "Gemma"])
def test_language_models_arrive_causal(name: str, attention: str) -> None:
    graph, (weights, ids) = _exported(name, attention)
    after = run_passes(graph, check=True)
    nodes = [n for n in after if n.op == "attention"]
    assert [(len(n.inputs), n.attrs["causal"], n.attrs["causal_offset"]) for n in nodes] == [(3, True, 0)] * 2
    feeds = {graph.inputs[0].name: ids}
    assert difference(graph, after, feeds, weights, tolerance=1e-4) == ""
