"""Buffers that change become states of the graph, dynamic shapes its symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import ModelError
from xpuruntime.ir import interp

torch = pytest.importorskip("torch")

from support.torch_oracle import TOLERANCE, gap, opaque, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional


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
    with pytest.raises(ModelError, match=r"does not allow the requested dynamic shapes; got .*batch"):
        import_torch(Fixed().eval(), torch.randn(2, 4), dynamic_shapes={"x": {0: "batch"}})


def test_an_unnamed_dim_is_called_by_its_place() -> None:
    graph = import_torch(
        nn.ReLU(), torch.randn(2, 4), dynamic_shapes={"input": {1: torch.export.Dim.DYNAMIC}}
    ).graph
    assert str(graph.input_specs[0]) == "float32[2, input_1]"
