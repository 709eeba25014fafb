"""The check of passes detects what a wrong pass would do: results of passes, broken in one place each, compute something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.graph_equivalence import difference

from xpuruntime import ir
from xpuruntime.passes import run_passes

pytest.importorskip("torch")

from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.testing.conformance.seeded import networks as models
from xpuruntime.testing.conformance.seeded.export import export_onnx

MODELS = Path(__file__).parents[2] / "build" / "models"


def _changed(node: ir.Node, inputs: tuple | None = None, **attrs: object) -> ir.Node:
    return ir.Node(
        node.op,
        node.inputs if inputs is None else inputs,
        node.attrs.replace(**attrs),
        node.outputs,
        node.sources,
    )


def _eps(node: ir.Node) -> ir.Node | None:
    """A batch norm folded with another eps."""
    return (
        _changed(node, (node.inputs[0], 0.01))
        if node.op == "add" and node.name.startswith("bn_var")
        else None
    )


def _residual(node: ir.Node) -> ir.Node | None:
    """A residual that was dropped."""
    fused = node.op in ("fused_convolution", "fused_linear") and len(node.inputs) > 3
    return _changed(node, (*node.inputs[:3], None)) if fused else None


def _activation(node: ir.Node) -> ir.Node | None:
    """An activation that was dropped, or taken for another."""
    return _changed(node, act="none") if node.attrs.get("act", "none") != "none" else None


def _bias(node: ir.Node) -> ir.Node | None:
    """A bias that was dropped."""
    layer = node.op in ("convolution", "fused_convolution", "linear", "fused_linear") and len(node.inputs) > 2
    bias = str(node.inputs[2]) if layer and node.inputs[2] else ""
    if (
        not bias or "key" in bias or "k_proj" in bias or bias.startswith("val_")
    ):  # softmax sees no bias of keys; val_: zeros
        return None
    return _changed(node, (*node.inputs[:2], None, *node.inputs[3:]))


def _shift(node: ir.Node) -> ir.Node | None:
    """The mean of a batch norm, scaled but not subtracted."""
    return _changed(node, (node.inputs[0], 0.0)) if node.op == "sub" and node.name.startswith("sub") else None


def _scale(node: ir.Node) -> ir.Node | None:
    """Attention with another scale, or without its mask."""
    return _changed(node, scale=node.attrs["scale"] * 1.01) if node.op == "attention" else None


def _mask(node: ir.Node) -> ir.Node | None:
    return _changed(node, node.inputs[:3]) if node.op == "attention" and len(node.inputs) > 3 else None


def _norm(node: ir.Node) -> ir.Node | None:
    """A norm with another eps."""
    return _changed(node, eps=1e-2) if node.op in ("rms_norm", "layer_norm") else None


def _tables(node: ir.Node) -> ir.Node | None:
    """Rotary tables that changed places."""
    return _changed(node, (node.inputs[0], node.inputs[2], node.inputs[1])) if node.op == "rope" else None


def _gate(node: ir.Node) -> ir.Node | None:
    """Gate and up that changed places."""
    return _changed(node, node.inputs[::-1]) if node.op == "silu_mul" else None


MUTATIONS = {
    "resnet18": (_eps, _residual, _activation, _bias, _shift),
    "efficientnet_b0": (_eps, _residual, _activation, _bias),
    "densenet121": (_eps, _activation),
    "bert": (_residual, _activation, _bias, _scale, _mask, _norm),
    "qwen2": (_residual, _bias, _scale, _mask, _norm, _tables, _gate),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_seen(name: str) -> None:
    pytest.importorskip("transformers")
    graph, weights = import_onnx(export_onnx(name, MODELS / f"{name}.onnx"))
    feeds = models.inputs(name, 1, seed=5)
    after = run_passes(graph)
    assert difference(graph, after, feeds, weights, tolerance=1e-5) == ""
    for mutate in MUTATIONS[name]:
        places = [i for i, n in enumerate(after.nodes) if mutate(n) is not None]
        assert places, f"{mutate.__name__} has nothing to break"
        for i in {places[0], places[len(places) // 2], places[-1]}:
            broken = after.replace(nodes=(*after.nodes[:i], mutate(after.nodes[i]), *after.nodes[i + 1 :]))
            ir.verify(broken)
            assert difference(graph, broken, feeds, weights, tolerance=1e-5), (
                f"{mutate.__name__} at {after.nodes[i]}"
            )
