"""PyTorch models become graphs that compute what the models compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.errors import InputError, ModelError
from xpuruntime.ir import interp
from xpuruntime.testing import models

torch = pytest.importorskip("torch")

from xpuruntime.frontends.torch import import_torch, save_ir, weights_of  # noqa: E402
from xpuruntime.testing.opinfo import to_numpy  # noqa: E402

nn, F = torch.nn, torch.nn.functional

TOLERANCE = 5e-5


def gap(got: Any, want: Any) -> float:
    want = to_numpy(want).astype(np.float64)
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def opaque(graph: ir.Graph) -> list[str]:
    return [f"{n.attrs['op_type']}: {n.attrs['reason']}" for n in graph if n.op == "opaque"]


def feeds_of(graph: ir.Graph, tensors: Any) -> dict[str, Any]:
    return {v.name: to_numpy(t) for v, t in zip(graph.inputs, tensors, strict=True)}


class OfFunction(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def same(function: Any, *tensors: Any, dynamic_shapes: Any = None, others: Any = ()) -> ir.Graph:
    """Extract, run, compare with PyTorch; also on other inputs than the example's. Gives the graph."""
    module = function if isinstance(function, nn.Module) else OfFunction(function).eval()
    graph, weights = import_torch(module, tensors, dynamic_shapes=dynamic_shapes)
    assert not opaque(graph)
    for given in (tensors, *others):
        with torch.no_grad():
            want = module(*given)
        got = interp.run(graph, feeds_of(graph, given), weights=weights)
        flat = [want] if isinstance(want, torch.Tensor) else list(want)
        for mine, theirs in zip(got.values(), flat, strict=True):
            assert mine.dtype == to_numpy(theirs).dtype
            assert mine.shape == tuple(theirs.shape)
            assert gap(mine, theirs) <= TOLERANCE
    return graph


# ── whole networks ──


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
    assert graph_of_none.weights == graph.weights
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
    with pytest.raises(ModelError, match=r"misses weights; got 0.weight, 0.bias, 1.weight, 1.bias"):
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


# ── states ──


class Cache(nn.Module):
    """Attention over what earlier calls have put into a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))
        self.register_buffer("seen", torch.zeros(16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, position: Any) -> Any:
        q, k = (m(x).view(1, -1, 2, 4).transpose(1, 2) for m in (self.q, self.k))
        self.keys.index_copy_(2, position, k)
        self.seen[position] = 1.0
        self.calls += 1
        mask = (self.seen > 0).view(1, 1, 1, 16)
        return F.scaled_dot_product_attention(q, self.keys, self.keys, attn_mask=mask), self.calls * 1.0


def test_buffers_that_change_are_states() -> None:
    torch.manual_seed(0)
    module = Cache().eval()
    steps = [(torch.randn(1, 3, 8), torch.tensor([0, 1, 2]))]
    steps += [(torch.randn(1, 3, 8), torch.tensor([i, i + 1, i + 2])) for i in (3, 6, 9)]
    graph, weights = import_torch(module, steps[0])
    assert not opaque(graph)
    assert [(s.name, s.init) for s in graph.states] == [(f"{n}.state", n) for n in ("keys", "seen", "calls")]
    assert not module.seen.any()  # extracting runs nothing on the model's own buffers
    assert any(n.op == "index_copy" for n in graph)
    states: dict[str, Any] = {}
    kept = {n: np.array(weights[n]) for n in weights}
    for x, position in steps:
        with torch.no_grad():
            want, calls = module(x, position)
        got = interp.run(graph, {"x": x.numpy(), "position": position.numpy()}, weights=kept, states=states)
        assert gap(got["output_0"], want) <= TOLERANCE
        assert got["output_1"] == calls
    assert states["calls.state"] == 4
    assert ir.parse(str(graph)) == graph


class Window(nn.Module):
    """A buffer written by slices and as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.arange(12.0).view(3, 4))

    def forward(self, x: Any) -> Any:
        shifted = torch.cat([self.last[1:], self.last[:1]])
        self.last.copy_(shifted)
        self.last[-1, 1:3] = x
        self.last[:, 0] += 1.0
        return self.last.sum(0)


def test_slices_of_a_buffer_and_whole_ones_are_states() -> None:
    module = Window().eval()
    graph, weights = import_torch(module, torch.randn(2))
    assert not opaque(graph)
    kept = {n: np.array(weights[n]) for n in weights}
    states: dict[str, Any] = {}
    for _ in range(4):
        x = torch.randn(2)
        want = module(x)
        assert (
            gap(interp.run(graph, {"x": x.numpy()}, weights=kept, states=states)["output"], want) <= TOLERANCE
        )


# ── dynamic shapes ──


def test_sizes_are_sums_products_and_quotients() -> None:
    class Shapes(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            b, n = x.shape
            pairs = x.view(b * n)
            return (
                torch.cat([pairs, y]),
                F.conv1d(x.unsqueeze(1), torch.ones(1, 1, 3), stride=2),
                torch.arange(n, device=x.device) + b,
            )

    x, y = torch.randn(2, 8), torch.randn(5)
    others = [(torch.randn(4, 11), torch.randn(3)), (torch.randn(3, 6), torch.randn(1))]
    batch = torch.export.Dim("batch", max=64)
    shapes = {"x": {0: batch, 1: torch.export.Dim("n", min=5, max=512)}, "y": {0: "m"}}
    graph = same(Shapes().eval(), x, y, dynamic_shapes=shapes, others=others)
    assert [str(s) for s in graph.output_specs] == [
        "float32[batch*n + m]", "float32[batch, 1, ((n - 3)//2) + 1]", "int64[n]",
    ]  # fmt: skip
    ranges: Mapping[str, Any] = graph.metadata["ranges"]
    assert ranges["n"] == (5, 512)
    assert ranges["batch"][1] == 64
    assert graph.metadata["specialized"] == ()


def test_a_dim_that_the_model_fixes_is_reported() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.view(-1, 4).sum(0) if x.shape[0] == 2 else x

    graph = import_torch(
        Fixed().eval(), torch.randn(2, 4), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}}
    ).graph
    assert graph.metadata["specialized"] == ("x[0] = 2",)
    with pytest.raises(ModelError, match=r"does not allow the dynamic shapes asked for; got .*batch"):
        import_torch(Fixed().eval(), torch.randn(2, 4), dynamic_shapes={"x": {0: "batch"}})


def test_an_unnamed_dim_is_called_by_its_place() -> None:
    graph = import_torch(
        nn.ReLU(), torch.randn(2, 4), dynamic_shapes={"input": {1: torch.export.Dim.DYNAMIC}}
    ).graph
    assert str(graph.input_specs[0]) == "float32[2, input_1]"


# ── what cannot be taken whole, or at all ──


def test_what_has_no_row_is_opaque_with_its_reason() -> None:
    graph = import_torch(OfFunction(lambda x: torch.linalg.qr(x).R * 2).eval(), torch.randn(3, 3)).graph
    (node,) = (n for n in graph if n.op == "opaque")
    assert (node.attrs["domain"], node.attrs["op_type"]) == ("aten", "linalg_qr")
    assert node.attrs["reason"] == "the op has no row in the table of ATen ops"
    assert dict(node.attrs["attributes"]) == {"A": "%0", "mode": "reduced"}
    assert [v.spec is not None for v in node.outputs] == [True, True]
    assert graph.output_specs[0].shape == (3, 3)


def test_a_shape_that_depends_on_content_is_opaque_or_counted() -> None:
    found = import_torch(OfFunction(lambda x: torch.nonzero(x)).eval(), torch.randn(3)).graph
    (node,) = found.nodes
    assert node.op == "nonzero"
    assert str(node.spec) == f"int64[{node.attrs['count']}, 1]"
    masked = import_torch(OfFunction(lambda x: x[x > 0]).eval(), torch.randn(3)).graph
    assert opaque(masked) == ["index.Tensor: how many places a mask names is known only when it runs"]

    class Sized(nn.Module):
        def forward(self, x: Any) -> Any:
            n = x.sum().item()
            torch._check(n >= 0)
            torch._check(n < 100)
            return torch.zeros(n)

    graph = import_torch(Sized().eval(), torch.tensor([1, 2])).graph
    assert [text.partition(":")[0] for text in opaque(graph)] == ["full"]
    assert "content of a tensor" in opaque(graph)[0]


def test_a_branch_is_opaque_and_the_rest_is_not() -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)).relu()

    graph = import_torch(Branch().eval(), torch.randn(3)).graph
    assert opaque(graph) == ["cond: control flow"]
    assert "relu" in [n.op for n in graph]


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


# ── errors ──


def test_a_model_in_training_mode_is_refused_where_that_matters() -> None:
    x = torch.randn(4, 3)
    same(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), x)  # in training mode, and no different
    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), x)
    assert str(caught.value) == (
        "[extract_ir('Sequential')] is in training mode; got aten.dropout.default at 1 drops out. Call model.eval() first."
    )
    with pytest.raises(
        ModelError, match=r"got aten.batch_norm.default at 0 uses the statistics of the batch"
    ):
        xrt.extract_ir(nn.Sequential(nn.BatchNorm1d(3)), x)


def test_a_program_in_training_mode_moves_its_statistics() -> None:
    module = nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
    graph, weights = import_torch(program)
    assert "batch_norm_train" in [n.op for n in graph]
    states: dict[str, Any] = {}
    start = {n: np.array(weights[n]) for n in weights}
    got = interp.run(graph, {"input": x.numpy()}, weights=start, states=states)
    with torch.no_grad():
        want = module(x)
    assert gap(got["output"], want) <= TOLERANCE
    assert gap(states["running_mean.state"], module.running_mean) <= TOLERANCE
    assert states["num_batches_tracked.state"] == 1


def test_a_changed_input_is_refused() -> None:
    class Changes(nn.Module):
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    with pytest.raises(ModelError, match=r"changes an input in place; got 'x'\. Clone it first"):
        xrt.extract_ir(Changes().eval(), torch.randn(2))


def test_a_changed_tensor_that_is_no_buffer_is_refused() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(2)

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    with pytest.raises(
        ModelError, match=r"changes a tensor in place that is neither a buffer nor made in forward"
    ):
        xrt.extract_ir(Holds().eval(), torch.randn(2))


def test_an_object_of_a_strange_type_is_refused() -> None:
    class Strange:
        def __init__(self, x: Any) -> None:
            self.x = x

    with pytest.raises(ModelError, match=r"an object that PyTorch cannot take apart into tensors; got Found"):
        xrt.extract_ir(OfFunction(Strange).eval(), torch.randn(2))


def test_an_input_that_is_no_tensor_is_fixed() -> None:
    class Options(nn.Module):
        def forward(self, x: Any, factor: float = 2.0, bias: Any = None) -> Any:
            return x * factor if bias is None else x * factor + bias

    graph = xrt.extract_ir(Options().eval(), (torch.randn(2), 3.0, None))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [n.inputs for n in graph] == [("x", 3.0)]


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "shapes", "arguments"),
    [
        (aten.convolution_backward, [(2, 4, 5, 5), (2, 6, 5, 5), (4, 3, 3, 3)], [[4], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True] * 3]),
        (aten.avg_pool2d_backward, [(2, 3, 2, 2), (2, 3, 4, 4)], [[2, 2], [2, 2], [0, 0], False, True, None]),
        (aten._adaptive_avg_pool2d_backward, [(2, 3, 2, 2), (2, 3, 4, 6)], []),
    ],
    ids=lambda v: v.__name__ if hasattr(v, "__name__") else "",
)  # fmt: skip
def test_gradients_of_layers(op: Any, shapes: Any, arguments: Any) -> None:
    class Gradient(nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return op(*tensors, *arguments)

    graph = same(Gradient().eval(), *(torch.randn(s) for s in shapes))
    assert len(graph) == 1


def test_gradients_of_norms_embeddings_and_max_pools() -> None:
    class Gradients(nn.Module):
        def forward(self, x: Any, grad: Any, weight: Any, bias: Any) -> Any:
            _, mean, rstd = aten.native_layer_norm(x, [6], weight, bias, 1e-5)
            layer = aten.native_layer_norm_backward(
                grad, x, [6], mean, rstd, weight, bias, [True, True, True]
            )
            pooled, places = aten.max_pool2d_with_indices(x, [2, 2])
            pool = aten.max_pool2d_with_indices_backward(
                pooled, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
            )
            _, mean, rstd = aten.native_group_norm(x, weight[:4], None, 2, 4, 36, 2, 1e-5)
            group = aten.native_group_norm_backward(
                grad, x, mean, rstd, weight[:4], 2, 4, 36, 2, [True, True, True]
            )
            table = aten.embedding_dense_backward(grad[0, 0], torch.tensor([1, 0, 1, 2, 4, 4]), 5, -1, False)
            return (*layer, pool, *group, table)

    x = torch.randn(2, 4, 6, 6)
    graph = same(Gradients().eval(), x, torch.randn_like(x), torch.randn(6), torch.randn(6))
    assert {n.op for n in graph if n.op.endswith("_backward")} == {
        "layer_norm_backward", "max_pool_backward", "group_norm_backward", "embedding_backward",
    }  # fmt: skip


def test_control_flow_on_content_says_what_to_do() -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(Branches().eval(), torch.randn(2), model_name="net")
    text = str(caught.value)
    assert text.startswith("[extract_ir('net')] branches on the content of a tensor; got ")
    assert "data-dependent" in text
    assert text.endswith("or export the part without it.")


def test_wrong_arguments_say_what_is_wanted() -> None:
    with pytest.raises(InputError, match=r"needs example inputs; got str. Give one tensor, a tuple"):
        xrt.extract_ir(nn.ReLU(), "x")
    with pytest.raises(ModelError, match=r"is not a PyTorch model; got str. Give an nn.Module"):
        xrt.extract_ir("model.pt", torch.ones(1))
    with pytest.raises(ModelError, match="is not a PyTorch model; got int"):
        weights_of(3)
    with pytest.raises(ModelError, match="cannot be exported; got"):
        xrt.extract_ir(nn.Linear(3, 2).eval(), torch.randn(2, 5))


def test_without_torch_the_error_says_how_to_get_it(bare_python: Any) -> None:
    print_error = "import xpuruntime as x\ntry:\n    x.extract_ir(None, None)\nexcept x.EngineUnavailable as e:\n    print(e)"
    assert bare_python(print_error) == (
        "[extract_ir] reading a PyTorch model needs PyTorch, which is not installed. Run: pip install 'xpuruntime[torch]'\n"
    )
