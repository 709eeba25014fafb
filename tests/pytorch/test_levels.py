"""Regions of a compiled graph: gradients of weights are computed where their operands are, views are no copies, and memory is free after the last reader."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from xpuruntime.pytorch.compiled.boxed import boxed
from xpuruntime.pytorch.compiled.levels import levels, views_at_readers
from xpuruntime.pytorch.compiled.linear_layers import linear_layers
from xpuruntime.pytorch.compiled.regions import divided
from xpuruntime.pytorch.numbered_policies import numbered_policy

_ATEN = torch.ops.aten


def chain() -> tuple[GraphModule, dict[str, Node]]:
    """Return a graph with two nodes of PyTorch on its path, a weight's conversion for each part, and one result per part."""
    graph = Graph()
    x, first, second = (graph.placeholder(n) for n in ("x", "first", "second"))
    nodes: dict[str, Node] = {}

    def call(name: str, op: Any, *args: Any) -> Node:
        nodes[name] = graph.call_function(op, args)
        nodes[name].name = name
        return nodes[name]

    late = call("late_conversion", _ATEN.neg.default, second)
    early = call("early_conversion", _ATEN.neg.default, first)
    a = call("a", _ATEN.mul.Tensor, x, early)
    gradient = call("gradient", _ATEN.exp.default, a)
    b = call("b_of_pytorch", _ATEN.sin.default, a)
    c = call("c", _ATEN.mul.Tensor, b, late)
    d = call("d_of_pytorch", _ATEN.sin.default, c)
    graph.output((gradient, call("e", _ATEN.neg.default, d)))
    return GraphModule(torch.nn.Module(), graph), nodes


def test_a_node_runs_as_soon_as_its_operands_exist() -> None:
    module, nodes = chain()
    found = levels(module, {"b_of_pytorch", "d_of_pytorch"})
    assert {n.name: at for n, at in found.items()} == {
        "early_conversion": 0, "a": 0, "gradient": 0,
        "late_conversion": 1, "c": 1, "e": 2,
    }  # fmt: skip
    assert nodes["b_of_pytorch"] not in found


def test_regions_compute_what_the_graph_does() -> None:
    module, _ = chain()
    inputs = [torch.rand(3, 4) for _ in range(3)]
    expected = module(*inputs)
    whole, names = divided(module, dict.fromkeys(("b_of_pytorch", "d_of_pytorch"), "in this test"))
    assert len(names) == 3
    for a, b in zip(whole(*inputs), expected, strict=True):
        assert torch.equal(a, b)


def test_views_are_made_by_their_readers() -> None:
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low, high = torch.split(x * 2, 2, dim=1)
        return torch.sin(low), torch.sin(high.t()) + 1, low.t()

    x = torch.rand(3, 4)
    module = make_fx(parts)(x)
    expected = parts(x)
    pytorch = {n.name for n in module.graph.nodes if "sin" in str(n.target)}
    before = levels(module, pytorch)
    after = views_at_readers(module, before)
    module.graph.lint()
    for a, b in zip(module(x), expected, strict=True):
        assert torch.equal(a, b)
    inside = [str(n.target) for n in after]
    assert inside == ["aten.mul.Tensor", "aten.add.Tensor"]  # splits and transposes are PyTorch's
    assert sum(n.target is operator.getitem for n in module.graph.nodes) == 2


def test_a_view_in_two_regions_is_made_in_both() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        doubled = (x * 2).t()
        return torch.sin(doubled + 1) + doubled

    x = torch.rand(3, 4)
    module = make_fx(step)(x)
    expected = step(x)
    left = {n.name: "in this test" for n in module.graph.nodes if "sin" in str(n.target)}
    whole, names = divided(module, left)
    assert len(names) == 2
    assert torch.equal(whole(x), expected)
    (first,) = (n for n in whole.graph.nodes if n.target == names[0])
    outputs = next(n for n in whole.get_submodule(names[0]).graph.nodes if n.op == "output").args[0]
    assert not any("t.default" in str(o.target) for o in outputs)
    assert first.op == "call_module"


def test_results_of_one_node_are_in_its_region() -> None:
    """A norm that is computed again for readers of two regions."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value, mean, root = _ATEN.native_layer_norm(x, [4], None, None, 1e-5)
        return torch.sin(y + root) + mean * value

    x, y = torch.rand(3, 4), torch.rand(3, 4)
    module = make_fx(step)(x, y)
    left = {n.name: "in this test" for n in module.graph.nodes if "sin" in str(n.target)}
    at = {n.name: level for n, level in levels(module, left).items()}
    assert {at[n.name] for n in module.graph.nodes if "norm" in n.name or n.target is operator.getitem} == {0}
    whole, names = divided(module, left)
    for name in names:
        (out,) = (n for n in whole.get_submodule(name).graph.nodes if n.op == "output")
        results = out.args[0] if isinstance(out.args[0], tuple) else out.args
        assert all(isinstance(n.meta["val"], torch.Tensor) for n in results)
    assert torch.equal(whole(x, y), step(x, y))


def test_arguments_are_free_after_their_last_reader() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    seen: list[bool] = []
    doubled = graph.call_function(torch.neg, (x,))
    looked = graph.call_function(lambda t: (seen.append(kept() is None), t)[1], (doubled,))
    graph.output((graph.call_function(torch.add, (looked, y)),))
    run = boxed(GraphModule(torch.nn.Module(), graph), numbered_policy)
    arguments = [torch.rand(4), torch.rand(4)]
    expected = -arguments[0] + arguments[1]
    kept = weakref.ref(arguments[0])
    (result,) = run(arguments)
    assert torch.equal(result, expected)
    assert arguments == []
    assert seen == [True]


def test_a_matrix_transposed_twice_is_read_as_it_is() -> None:
    """The gradient of a linear layer's operand reads the weight, not a copy of its transpose."""
    x, w = torch.rand(3, 5), torch.rand(5, 4)
    module = make_fx(lambda x, w: x.mm(w.t().t()), tracing_mode="fake")(x, w)
    linear_layers(module)
    assert [str(n.target) for n in module.graph.nodes if n.op == "call_function"] == ["aten.mm.default"]
    assert torch.equal(module(x, w), x.mm(w))
