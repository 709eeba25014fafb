"""PyTorch models become graphs that compute what the models compute: whole networks, names, sources, and what is taken in parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.errors import ModelError
from xpuruntime.ir import interp
from xpuruntime.testing.conformance.seeded import networks as models

torch = pytest.importorskip("torch")

from support.torch_oracle import TOLERANCE, OfFunction, feeds_of, gap, opaque, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch, save_ir, weights_of  # noqa: E402

nn, F = torch.nn, torch.nn.functional


# ── whole networks ──


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", models.MODELS)
def test_a_network_computes_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    net, example = models.build(name)
    graph, weights = import_torch(net, example, model_name=name)
    assert graph.name == name
    assert not opaque(graph)
    with torch.no_grad():
        want = net(*example)
    got = interp.run(graph, feeds_of(graph, example), weights=weights)
    assert list(got) == ["output"]
    assert gap(got["output"], want) <= TOLERANCE
    assert ir.parse(str(graph)) == graph
    assert ir.Graph.from_json(graph.to_json()) == graph
    assert {w.name for w in graph.weights} <= weights_of(net).keys()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "vit", "bert", "qwen2"])
def test_a_network_of_a_dynamic_batch_computes_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    net, example = models.build(name)
    shapes = [{0: "batch"}] * len(example)
    shapes_of = {"inputs": tuple(shapes)} if name in ("vit", "bert", "qwen2") else {"input": shapes[0]}
    graph, weights = import_torch(net, example, dynamic_shapes=shapes_of)
    assert not opaque(graph)
    assert str(graph.input_specs[0].shape[0]) == str(graph.output_specs[0].shape[0]) == "batch"
    for count in (1, 3):
        given = tuple(torch.from_numpy(a) for a in models.inputs(name, count, seed=count).values())
        with torch.no_grad():
            want = net(*given)
        got = interp.run(graph, feeds_of(graph, given), weights=weights)
        assert gap(got["output"], want) <= TOLERANCE


def test_a_model_on_the_meta_device_is_the_same_graph() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    real = transformers.Qwen2ForCausalLM(config).eval().to(torch.bfloat16)
    with torch.device("meta"):
        empty = transformers.Qwen2ForCausalLM(config).eval().to(torch.bfloat16)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    graph = xrt.extract_ir(real, {"input_ids": tokens})
    graph_of_none, weights = import_torch(empty, {"input_ids": tokens.to("meta")})
    assert not opaque(graph)
    assert [(n.op, n.spec) for n in graph_of_none] == [(n.op, n.spec) for n in graph]
    assert graph_of_none.weights == tuple(replace(w, data="") for w in graph.weights)
    assert [w.name for w in graph.weights if w.data] == ["model.rotary_emb.inv_freq"]
    assert [o.name for o in graph.outputs] == ["logits"]
    names = {w.name for w in graph.weights}
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names  # tied: one tensor, one weight
    with pytest.raises(
        ModelError,
        match=r"\[weight 'model.embed_tokens.weight'\] has no content: its tensor is on the meta device",
    ):
        weights["model.embed_tokens.weight"]


# ── names, weights, sources ──


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0, 3.0]), persistent=False)

    def forward(self, x: Any, *, options: dict[str, Any]) -> dict[str, Any]:
        y = self.second(self.first(x)) * self.scale
        return {"scores": y + torch.tensor([1.0, 2.0, 3.0, 4.0]), "more": (y.sum(), x, None, x.shape[0])}


def test_names_are_the_user_s_and_tied_weights_are_one() -> None:
    module = Named().eval()
    given = {"x": torch.randn(3, 4), "options": {"unread": torch.ones(2)}}
    graph, weights = import_torch(module, given)
    assert graph.name == "Named"
    assert [v.name for v in graph.inputs] == ["x", "options_unread"]
    assert [o.name for o in graph.outputs] == ["scores", "more.0", "more.1", "more.3"]
    assert [w.name for w in graph.weights] == ["first.weight", "scale"]
    assert np.shares_memory(weights["first.weight"], module.first.weight.detach().numpy())
    assert weights_of(module).keys() == {"first.weight", "second.weight", "scale"}
    got = interp.run(
        graph, {"x": given["x"].numpy(), "options_unread": np.ones(2, np.float32)}, weights=weights
    )
    with torch.no_grad():
        want = module(**given)
    assert gap(got["scores"], want["scores"]) <= TOLERANCE
    assert got["more.3"] == 3
    assert graph.spec("x").shape == (3, 4)


def test_every_node_says_where_it_comes_from() -> None:
    graph = xrt.extract_ir(Named().eval(), {"x": torch.randn(3, 4), "options": {"unread": torch.ones(2)}})
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    linear = next(n for n in graph if n.op == "linear")
    (source,) = linear.sources
    assert (source.op, source.module, source.name) == ("aten.linear", "first", linear.name)
    assert source.file == __file__
    assert "self.second(self.first(x))" in text[source.line - 1]
    add = next(n for n in graph if n.op == "add")
    assert add.sources[0].module == ""
    assert "torch.tensor([1.0, 2.0" in text[add.sources[0].line - 1]


def test_the_graph_and_its_weights_are_saved_beside_each_other(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(torch.bfloat16).eval()
    x = torch.randn(2, 4, dtype=torch.bfloat16)
    graph, weights = import_torch(module, x, model_name="two")
    saved = save_ir(graph, weights, tmp_path / "two_ir.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["two_ir.json", "two_ir.safetensors"]
    again = ir.Graph.load(tmp_path / "two_ir.json")
    assert again == saved
    assert {(w.file, w.key) for w in again.weights} == {
        ("two_ir.safetensors", n) for n in module.state_dict()
    }
    files = ir.open_weights(again, tmp_path)
    got = interp.run(again, feeds_of(again, [x]), weights=files)["output"]
    assert (got == interp.run(graph, feeds_of(graph, [x]), weights=weights)["output"]).all()
    with pytest.raises(ModelError, match=r"lacks weights; got 0.weight, 0.bias, 1.weight, 1.bias"):
        save_ir(graph, {}, tmp_path / "none.json")


def test_bfloat16_weights_are_the_module_s_own_memory() -> None:
    module = nn.Linear(4, 3).to(torch.bfloat16)
    array = weights_of(module)["weight"]
    assert array.dtype.name == "bfloat16"
    module.weight.data.fill_(2.0)
    assert (array == 2.0).all()


def test_an_exported_program_is_read_too() -> None:
    module = nn.Linear(4, 3).eval()
    program = torch.export.export(module, (torch.randn(2, 4),))
    graph, weights = import_torch(program)
    x = torch.randn(2, 4)
    assert (
        gap(interp.run(graph, {"input": x.numpy()}, weights=weights)["output"], module(x).detach())
        <= TOLERANCE
    )
    assert set(weights_of(program)) == {"weight", "bias"}


# ── what cannot be taken whole, or at all ──


def test_what_has_no_row_is_opaque_with_its_reason() -> None:
    graph = import_torch(OfFunction(lambda x: torch.linalg.qr(x).R * 2).eval(), torch.randn(3, 3)).graph
    (node,) = (n for n in graph if n.op == "opaque")
    assert (node.attrs["domain"], node.attrs["op_type"]) == ("aten", "linalg_qr")
    assert node.attrs["reason"] == "the op is not in the table of ATen ops"
    assert dict(node.attrs["attributes"]) == {"A": "%0", "mode": "reduced"}
    assert [v.spec is not None for v in node.outputs] == [True, True]
    assert graph.output_specs[0].shape == (3, 3)


def test_a_shape_that_depends_on_content_is_opaque_or_counted() -> None:
    found = import_torch(OfFunction(lambda x: torch.nonzero(x)).eval(), torch.randn(3)).graph
    (node,) = found.nodes
    assert node.op == "nonzero"
    assert str(node.spec) == f"int64[{node.attrs['count']}, 1]"
    masked = import_torch(OfFunction(lambda x: x[x > 0]).eval(), torch.randn(3)).graph
    assert not opaque(masked)
    assert [n.op for n in masked if n.op != "gt"] == ["compress"]

    class Sized(nn.Module):
        def forward(self, x: Any) -> Any:
            n = x.sum().item()
            torch._check(n >= 0)
            torch._check(n < 100)
            return torch.zeros(n)

    graph = import_torch(Sized().eval(), torch.tensor([1, 2])).graph
    assert [text.partition(":")[0] for text in opaque(graph)] == ["full"]
    assert "content of a tensor" in opaque(graph)[0]


def test_a_branch_is_one_node() -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)).relu()

    graph = import_torch(Branch().eval(), torch.randn(3)).graph
    assert not opaque(graph)
    assert [n.op for n in graph][-2:] == ["cond", "relu"]


def under_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y = x * 2
    return y + 1


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
    return y.float() + 1


@pytest.mark.parametrize("function", [under_gradients, under_autocast])
def test_a_block_under_another_mode_is_part_of_the_graph(function: Any) -> None:
    assert not opaque(same(function, torch.randn(3, 4)))


def test_a_composite_that_its_row_cannot_take_is_decomposed() -> None:
    q = torch.randn(2, 3, 4, 8)
    one = torch.randn(1, 1, 5, 8)

    class Broadcast(nn.Module):
        def forward(self, q: Any, k: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, k)

    assert "attention" not in [n.op for n in same(Broadcast().eval(), q, one)]
    assert "attention" in [n.op for n in same(Broadcast().eval(), q, torch.randn(2, 3, 5, 8))]


def test_grouped_heads_and_masks_stay_one_attention() -> None:
    class Grouped(nn.Module):
        def forward(self, q: Any, k: Any, m: Any) -> Any:
            a = F.scaled_dot_product_attention(q, k, k, attn_mask=m, enable_gqa=True, scale=0.3)
            return a, F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    mask = torch.rand(2, 1, 4, 5) > 0.4
    mask[0, 0, 1] = False  # a query that sees nothing
    graph = same(Grouped().eval(), torch.randn(2, 6, 4, 8), torch.randn(2, 2, 5, 8), mask)
    assert [n.op for n in graph] == ["attention", "attention"]


def test_composites_are_one_node() -> None:
    class Whole(nn.Module):
        def forward(self, x: Any) -> Any:
            y = F.layer_norm(x, (8,)) + F.rms_norm(x, (8,)) + F.group_norm(x, 2) + F.instance_norm(x)
            y = F.gelu(y, approximate="tanh") + F.silu(y) + F.hardswish(y) + F.mish(y) + F.softplus(y)
            y = F.pixel_shuffle(F.interpolate(y, scale_factor=2.0, mode="bilinear"), 2)
            return F.interpolate(y.softmax(-1), size=(5, 7), mode="nearest"), torch.einsum(
                "bchw,bdhw->bcd", y, y
            )

    graph = same(Whole().eval(), torch.randn(2, 4, 6, 8))
    ops = {n.op for n in graph}
    assert {
        "layer_norm",
        "rms_norm",
        "group_norm",
        "instance_norm",
        "gelu",
        "silu",
        "hardswish",
        "mish",
    } <= ops
    assert {"softplus", "resize", "depth_to_space", "softmax", "einsum"} <= ops
    assert not ops & {"exp", "var", "mean", "rsqrt", "sigmoid", "index"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.add(x, torch.arange(4), alpha=3),
        lambda x: torch.sub(torch.arange(4, dtype=torch.int8), x.to(torch.int32), alpha=100),
        lambda x: x.to(torch.bfloat16) * 0.1 + torch.tensor(3.7),
        lambda x: torch.arange(4) / 2 + torch.arange(4) // 3,
        lambda x: x.transpose(-1, -2).contiguous(memory_format=torch.contiguous_format).flatten(),
        lambda x: x.sum(-1, dtype=torch.float64).clamp(min=0.5),
        lambda x: torch.clamp(torch.arange(4), 0.5, 2.5),
        lambda x: x.masked_fill(x > 0.3, -float("inf")).softmax(-1),
        lambda x: torch.where(x > 0, x, 0.0).unbind(-1)[2],
        lambda x: x[:, 1:-1:2].repeat(2, 1) ** 2,
        lambda x: x[[2, 0]][:, torch.tensor([1, 1])],
        lambda x: torch.stack(x.chunk(2, -1)).std(0),
        lambda x: x.index_select(-1, torch.tensor([3, 0])).cumsum(0),
        lambda x: (x.topk(2).values + x.argmax(-1, keepdim=True)).roll(1),
        lambda x: torch.full((2,), 7) + torch.tensor(2.5).item(),
        lambda x: x.float().view(torch.int32) >> 3,
    ],
)
def test_types_numbers_and_dims_are_pytorch_s(function: Any) -> None:
    same(function, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("alpha", [1, 2, -3])
@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_alpha_scales_what_is_added_or_subtracted(name: str, alpha: int) -> None:
    function = getattr(torch, name)
    x, y = torch.arange(1, 7).reshape(2, 3), torch.arange(6).reshape(2, 3) * 3
    same(lambda x, y: function(x, y, alpha=alpha), x, y)
    same(lambda x, y: function(x, y, alpha=alpha), x / 2, y / 3)
    same(lambda x: function(x, 5, alpha=alpha), x / 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.lerp(x.T, y, 0.3),
        lambda x, y: torch.lerp(x.T, y, y.sigmoid()),
        lambda x, y: x.T.index_fill(0, torch.tensor([0, 2]), 2.0),
    ],
)
def test_strides_that_pytorch_s_decompositions_keep(function: Any) -> None:
    same(function, torch.randn(3, 5), torch.randn(5, 3))
