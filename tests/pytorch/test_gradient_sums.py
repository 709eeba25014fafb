"""gradient_sums: in a joint graph on CUDA, a product adds an image's other gradient. The graphs are traced with tensors without data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from xpuruntime.compiler import compile as compile_program
from xpuruntime.frontends.torch.fx_module import import_fx
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.pytorch.compiled.gradient_sums import gradient_sums
from xpuruntime.pytorch.compiled.regions import divided

_ATEN = torch.ops.aten
_LAST = torch.channels_last
PLAIN: dict[str, Any] = {"window": 1, "stride": 1, "padding": 0, "groups": 1}


def image(*size: int, dtype: torch.dtype, device: str = "cuda") -> torch.Tensor:
    return torch.empty(*size, device=device, dtype=dtype).to(memory_format=_LAST)


def summed(g: Any, x: Any, w: Any, other: Any, layout: dict[str, Any], first: bool = True) -> tuple[Any, ...]:
    pairs = [[layout[k]] * 2 for k in ("stride", "padding")]
    dx, dw, _ = _ATEN.convolution_backward(
        g, x, w, [0], *pairs, [1, 1], False, [0, 0], layout["groups"], [True, True, False]
    )
    return _ATEN.add(*((dx, other) if first else (other, dx))), dw


def graph_of(
    dtype: torch.dtype = torch.float16,
    size: tuple[int, ...] = (2, 6, 8, 5, 7),
    compute: Any = summed,
    memory: torch.memory_format = _LAST,
    **more: Any,
) -> torch.fx.GraphModule:
    batch, channels, out, height, width = size
    layout = PLAIN | more
    window, padding, stride = (layout[k] for k in ("window", "padding", "stride"))
    outs = [(n + 2 * padding - window) // stride + 1 for n in (height, width)]
    with FakeTensorMode():
        operands = [
            image(batch, out, *outs, dtype=dtype),
            image(batch, channels, height, width, dtype=dtype),
            image(out, channels // layout["groups"], window, window, dtype=dtype),
            image(batch, channels, height, width, dtype=dtype),
        ]
        module = make_fx(lambda *o: compute(*o, layout), tracing_mode="fake")(*operands)
        for node in module.graph.nodes:  # PyTorch builds without cuDNN trace another layout
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.dim() == 4 and node.op == "call_function":
                node.meta["val"] = torch.empty_like(value, memory_format=memory)
    return module


def called(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", [(2, 6, 8, 5, 7), (1, 1, 1, 1, 1), (3, 5, 1, 1, 4), (1, 16, 3, 9, 2)])
def test_the_product_adds_the_other_gradient(size: tuple[int, ...], first: bool, dtype: torch.dtype) -> None:
    module = graph_of(dtype, size, lambda *o: summed(*o, first=first))
    wanted_by = graph_of(dtype, size)
    gradient_sums(module)
    module.graph.lint()
    assert "aten.addmm.default" in called(module)
    assert "aten.add.Tensor" not in called(module)
    draw = torch.Generator().manual_seed(3)
    operands = [
        torch.randint(-3, 4, n.meta["val"].shape, generator=draw).to(dtype).to(memory_format=_LAST)
        for n in module.graph.nodes
        if n.op == "placeholder"
    ]
    for wanted, got in zip(wanted_by(*operands), module(*operands), strict=True):
        assert torch.equal(got, wanted)
        assert got.shape == wanted.shape
    total = module(*operands)[0]
    assert total.is_contiguous(memory_format=_LAST)


def test_infinities_and_nan_arrive() -> None:
    module = graph_of()
    gradient_sums(module)
    shapes = [n.meta["val"].shape for n in module.graph.nodes if n.op == "placeholder"]
    operands = [torch.ones(shape).half().to(memory_format=_LAST) for shape in shapes]
    operands[0][0, 0, 0, 0], operands[3][1, 2, 3, 4] = torch.inf, torch.nan
    got = module(*operands)[0]
    assert torch.isinf(got[0, :, 0, 0]).all()
    assert int(torch.isinf(got).sum()) == 6
    assert int(torch.isnan(got).sum()) == 1


def read_twice(*operands: Any) -> tuple[Any, ...]:
    g, x, w, other, layout = operands
    dx, dw, _ = _ATEN.convolution_backward(
        g, x, w, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], layout["groups"], [True, True, False]
    )
    return _ATEN.add(dx, other), _ATEN.mul(dx, 2), dw


def scaled(*operands: Any) -> tuple[Any, ...]:
    g, x, w, other, layout = operands
    dx, dw, _ = _ATEN.convolution_backward(
        g, x, w, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], layout["groups"], [True, True, False]
    )
    return _ATEN.add(dx, other, alpha=2), dw


def doubled(*operands: Any) -> tuple[Any, ...]:
    g, x, w, _, layout = operands
    dx, dw, _ = _ATEN.convolution_backward(
        g, x, w, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], layout["groups"], [True, True, False]
    )
    return _ATEN.add(dx, dx), dw


def a_row(*operands: Any) -> tuple[Any, ...]:
    return summed(*operands[:3], _ATEN.slice(operands[3], 3, 0, 1), operands[4])


OTHERS: dict[str, dict[str, Any]] = {
    "strided": {"stride": 2}, "3 by 3": {"window": 3, "padding": 1}, "padded": {"padding": 1}, "of groups": {"groups": 2},
    "float32": {"dtype": torch.float32}, "read twice": {"compute": read_twice}, "scaled": {"compute": scaled}, "doubled": {"compute": doubled},
    "a row": {"compute": a_row}, "dense": {"memory": torch.contiguous_format},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    module = graph_of(**OTHERS[name])
    before = called(module)
    gradient_sums(module)
    assert called(module) == before


def test_both_gradients_of_a_sum_may_be_products() -> None:
    def both(g: Any, x: Any, w: Any, other: Any, layout: dict[str, Any]) -> tuple[Any, ...]:
        parts = [summed(n, x, w, other, layout) for n in (g, _ATEN.mul(g, 2))]
        return _ATEN.add(parts[0][0], parts[1][0]), parts[0][1], parts[1][1]

    module = graph_of(compute=both)
    gradient_sums(module)
    module.graph.lint()
    assert called(module).count("aten.addmm.default") == 2


def test_a_program_computes_the_sum_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda _: True)
    module = graph_of(size=(16, 64, 32, 14, 14))
    gradient_sums(module)
    left = {n.name: "" for n in module.graph.nodes if "convolution" in f"{n.name}{n.args}"}
    whole, (region,) = divided(module, left)
    graph = import_fx(whole.get_submodule(region), "sum")
    (call,) = compile_program(graph, target="cuda:h100-sxm").entries[0].plans[0].calls[-1:]
    assert call.kernel == "matmul/cublasLt"
    assert call.options["residual"]


class Block(torch.nn.Module):
    """A residual block with 1 by 1 convolutions."""

    def __init__(self, channels: int, inner: int, out: int) -> None:
        super().__init__()
        sizes = [(channels, inner, 1), (inner, inner, 3), (inner, out, 1)]
        self.convs = torch.nn.ModuleList(
            torch.nn.Conv2d(a, b, k, padding=k // 2, bias=False) for a, b, k in sizes
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(b) for _, b, _ in sizes)
        self.across = torch.nn.Conv2d(channels, out, 1) if channels != out else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        y = x
        for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
            y = torch.relu(norm(conv(y)))
        return torch.relu(self.norms[2](self.convs[2](y)) + self.across(x))


def gradients(net: torch.nn.Module, run: Any, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float64):
        loss = (run(x).to(torch.promote_types(dtype, torch.float32)) * 0.1).square().mean()
    loss.backward()
    return [p.grad.double() for p in net.parameters()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA device")
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_on_cuda_trains_with_gradients_near_float64(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[Any] = []
    real = gradient_sums.__globals__["_replace"]
    monkeypatch.setitem(gradient_sums.__globals__, "_replace", lambda *a: (replaced.append(a), real(*a)))
    torch.manual_seed(0)
    sizes = [(12, 8, 32), (32, 8, 32), (32, 16, 32), (32, 8, 20)]
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 12, 3), torch.nn.MaxPool2d(3, 2, 1), *(Block(*s) for s in sizes)
    ).cuda()
    x = torch.randn(4, 3, 21, 17, device="cuda")
    nets = [copy.deepcopy(net) for _ in range(3)]
    exact = gradients(nets[0].double(), nets[0], x.double(), torch.float64)
    eager = gradients(nets[1], nets[1], x, dtype)
    ours = gradients(nets[2], torch.compile(nets[2], backend="xpuruntime"), x, dtype)
    assert len(replaced) == len(sizes)
    for wanted, theirs, got in zip(exact, eager, ours, strict=True):
        error = (got - wanted).norm()
        assert error <= 2 * (theirs - wanted).norm() + 1e-3 * wanted.norm()
