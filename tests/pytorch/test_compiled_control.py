"""torch.compile(backend="xpuruntime") of branches and loops: PyTorch runs them, the code around them is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from xpuruntime.pytorch.compiled import compiled_graphs
from xpuruntime.pytorch.compiled.report import forget_graphs


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(x + 1)
        return torch.cond(x.sum() > 0, self.one, self.two, (x,)).relu() * 2


class Plain(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v - 1, (x,)) * 2


class Loop(nn.Module):
    def forward(self, x: Any) -> Any:
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 - 1), (torch.tensor(0), x))[1].tanh()


class Scanned(nn.Module):
    def forward(self, x: Any) -> Any:
        return scan(lambda s, v: (s + v, s * v), torch.zeros(5), x)[1].tanh()


@pytest.mark.parametrize("module", [Plain, Branches, Loop, Scanned])
def test_results(module: type[nn.Module]) -> None:
    torch.compiler.reset()
    forget_graphs()
    net = module().eval()
    compiled = torch.compile(net, backend="xpuruntime", fullgraph=True)
    with torch.no_grad():
        for x in (torch.randn(3, 5), torch.ones(3, 5), -torch.ones(3, 5) * 2):
            torch.testing.assert_close(compiled(x), net(x))
    reasons = [reason for graph in compiled_graphs() for reason in graph.left.values()]
    assert any("control flow" in reason for reason in reasons)
    assert any(graph.regions for graph in compiled_graphs())


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch reads it of its own values
def test_gradients_through_a_branch() -> None:
    torch.compiler.reset()
    net = Branches()
    compiled = torch.compile(net, backend="xpuruntime")
    for x in (torch.ones(3, 5), -torch.ones(3, 5) * 2):
        found = []
        for run in (net, compiled):
            net.zero_grad()
            leaf = x.clone().requires_grad_()
            run(leaf).square().sum().backward()
            found.append([leaf.grad, *(p.grad for p in net.parameters() if p.grad is not None)])
        for wanted, got in zip(*found, strict=True):
            torch.testing.assert_close(got, wanted)
