"""The mutations themselves: what they find in a model, what they change, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from support import mutate  # noqa: E402
from support.onnx_models import build_model, small_classifier  # noqa: E402

from xpuruntime import ir  # noqa: E402


def attention_graph(heads: int = 2) -> tuple[ir.Graph, dict[str, np.ndarray]]:
    """One causal head-split attention with a residual, as the IR's own ops say it."""
    random = np.random.default_rng(0)
    b = ir.GraphBuilder("attend")
    x = b.input("x", "float32[1, 6, 8]")
    arrays = {f"w{n}": random.standard_normal((8, 8)).astype(np.float32) for n in "qkvo"}
    q, k, v = (
        b.permute(
            b.view(b.linear(x, b.weight(f"w{n}", "float32[8, 8]")), size=[1, 6, heads, 4]), dims=[0, 2, 1, 3]
        )
        for n in "qkv"
    )
    y = b.attention(q, k, v, causal=True)
    y = b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[1, 6, 8])
    b.output("y", b.add(x, b.linear(y, b.weight("wo", "float32[8, 8]"))))
    return b.build(), arrays


def test_every_mutant_of_a_graph_differs_in_text_or_weights_and_the_graph_stays() -> None:
    graph, weights = attention_graph()
    before = str(graph), {k: v.copy() for k, v in weights.items()}
    found = list(mutate.mutants((graph, weights)))
    kinds = {m.kind for m in found}
    assert kinds == {
        "drop_residual", "drop_mask", "swap_heads", "change_weight", "swap_channels", "transpose_square",
    }  # fmt: skip
    for mutant in found:
        other, arrays = mutant.model
        ir.verify(other)
        assert other != graph or any(not np.array_equal(arrays[k], weights[k]) for k in weights), mutant
    assert (str(graph), list(weights)) == (before[0], list(before[1]))
    assert all(np.array_equal(weights[k], before[1][k]) for k in weights)


def test_heads_and_their_order_are_found() -> None:
    graph, weights = attention_graph()
    swaps = list(mutate.mutants((graph, weights), ["swap_heads"]))
    assert [m.where for m in swaps] == ["wq", "wk", "wv"]
    assert swaps[0].change == "of linear: heads 0 and 1 of 2 changed places"
    swapped = swaps[0].model[1]["wq"]
    assert np.array_equal(swapped[:4], weights["wq"][4:])
    assert np.array_equal(swapped[4:], weights["wq"][:4])
    assert swaps[0].model[1]["wk"] is weights["wk"]


def test_a_mutant_says_what_it_changed() -> None:
    model = small_classifier()
    text = [str(m) for m in mutate.mutants(model, per_kind=1)]
    assert (
        text
        == [
            "drop_bias at b1: of conv: every element is 0",
            "change_weight at w1: of conv: one element is larger by twice their spread",
            "swap_channels at w1: of conv: channels 0 and 1 of axis 0 changed places",
            "change_activation at relu: Relu is LeakyRelu",
            "change_padding at conv: pads [1, 1, 1, 1] are [0, 1, 2, 1]",
            "change_stride at conv: strides [1, 1] are [2, 2]",
        ][: len(text)]
    )
    assert len(text) >= 5
    for mutant in mutate.mutants(model):
        onnx.checker.check_model(mutant.model, full_check=True)
    assert model.SerializeToString() == small_classifier().SerializeToString()


def test_what_does_not_apply_says_why() -> None:
    reasons = mutate.not_applicable(small_classifier())
    assert reasons["drop_mask"] == "no softmax reads masked scores"
    assert reasons["drop_norm_statistic"] == "no norm reads stored statistics"
    assert reasons["drop_residual"] == "no two computed tensors of one shape are added"
    assert reasons["swap_heads"] == "no product is split into heads"
    assert not reasons.keys() & {m.kind for m in mutate.mutants(small_classifier())}


def test_what_is_zero_already_is_not_dropped() -> None:
    model = small_classifier()
    bias = next(t for t in model.graph.initializer if t.name == "b1")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(40, np.float32), "b1"))
    assert list(mutate.mutants(model, ["drop_bias"])) == []
    (site,) = (s for s in mutate.sites(model) if s.kind == "drop_bias")
    with pytest.raises(mutate.NotApplicableError, match="b1 is like that already"):
        site.make()


def test_a_stride_that_does_not_fit_is_passed_over() -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[1, 1]),
        helper.make_node("Add", ["c", "x"], ["y"], name="sum"),
    ]
    value = ("x", TensorProto.FLOAT, [1, 2, 8, 8]), ("y", TensorProto.FLOAT, [1, 2, 8, 8])
    model = build_model(nodes, [value[0]], [value[1]], {"w": np.ones((2, 2, 3, 3), np.float32)})
    (site,) = (s for s in mutate.sites(model) if s.kind == "change_stride")
    with pytest.raises(mutate.NotApplicableError, match="the shapes do not fit any more"):
        site.make()
    assert "change_stride" in mutate.not_applicable(model)


def test_few_of_each_kind_stand_evenly_apart() -> None:
    b = ir.GraphBuilder("chain")
    x = b.input("x", "float32[2]")
    for _ in range(9):
        x = b.relu(x)
    b.output("y", x)
    pair = (b.build(), {})
    assert [m.where for m in mutate.mutants(pair, per_kind=3)] == ["relu", "relu_4", "relu_8"]
    assert len(list(mutate.mutants(pair))) == 9


def test_what_is_no_model_or_no_kind() -> None:
    with pytest.raises(
        TypeError, match=r"mutate: str is no onnx.ModelProto, \(ir.Graph, weights\) or torch.nn.Module"
    ):
        mutate.sites("model.onnx")
    with pytest.raises(ValueError, match="no mutation is called 'drop_all'; there are drop_bias"):
        list(mutate.mutants(small_classifier(), ["drop_all"]))


@pytest.mark.parametrize(("low", "found"), [(0.0, 0), (-1e4, 1)])
def test_a_mask_that_hides_nothing_is_no_mask(low: float, found: int) -> None:
    """It is computed from constants, as exporters write it, so that only its value tells."""
    b = ir.GraphBuilder("scores")
    x = b.input("x", "float32[4, 4]")
    mask = b.expand(b.constant(np.array([0, 0, 0, low], np.float32)), size=[4, 4])
    b.output("p", b.softmax(b.add(b.matmul(x, x), mask), dim=-1))
    pair = (b.build(), {})
    assert len(list(mutate.mutants(pair, ["drop_mask"]))) == found

    pytest.importorskip("onnx")
    from xpuruntime.frontends.onnx_writer import to_onnx

    assert len(list(mutate.mutants(to_onnx(*pair), ["drop_mask"]))) == found
