"""cudnn_pools: max pools of a joint graph become cuDNN's where it computes them. The graphs are traced with tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import cudnn_reference  # noqa: F401  - registers the ops on the host
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from xpuruntime.pytorch.compiled import cudnn_pools as replacing
from xpuruntime.pytorch.compiled.cudnn_ops import IMAGE_POOL, IMAGE_POOL_BACKWARD
from xpuruntime.pytorch.compiled.cudnn_pools import cudnn_pools
from xpuruntime.pytorch.cudnn import norms, pools
from xpuruntime.pytorch.cudnn.pools import can_run

_ATEN = torch.ops.aten
WINDOWS = {
    "3 by 3, stride 2": ([3, 3], [2, 2], [1, 1], [1, 1], False),
    "2 by 3, stride of its own": ([2, 3], [], [0, 1], [1, 1], False),
    "windows apart": ([2, 2], [3, 4], [0, 0], [1, 1], False),
    "one value": ([1, 1], [1, 1], [0, 0], [1, 1], False),
}
OTHERS = {
    "dilated": ([2, 2], [2, 2], [0, 0], [2, 2], False),
    "rounded up": ([2, 2], [2, 2], [0, 0], [1, 1], True),
}


@pytest.fixture
def cudnn_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuDNN answer that it computes every pool, on machines without it, too."""
    monkeypatch.setattr(replacing, "can_run", lambda *_: True)


def graph_of(
    arguments: Any, dtype: torch.dtype = torch.float16, returns_places: bool = False
) -> torch.fx.GraphModule:
    def pool(x: Any, grad: Any) -> Any:
        y, places = _ATEN.max_pool2d_with_indices(x, *arguments)
        dx = _ATEN.max_pool2d_with_indices_backward(grad, x, *arguments, places)
        return (y, dx, places) if returns_places else (y, dx)

    with FakeTensorMode():
        x = torch.empty(2, 4, 9, 11, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        y = _ATEN.max_pool2d_with_indices(x, *arguments)[0]
        return make_fx(pool, tracing_mode="fake")(x, torch.empty_like(y))


def called(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if "pool" in str(n.target)]


def drawn(size: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    """Return images with many equal values, as float16 and a ReLU make them."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, size, generator=draw).half().to(memory_format=torch.channels_last)


@pytest.mark.usefixtures("cudnn_computes_all")
@pytest.mark.parametrize("name", WINDOWS)
def test_a_pool_and_its_gradient_become_those_of_cudnn(name: str) -> None:
    plain, module = graph_of(WINDOWS[name]), graph_of(WINDOWS[name])
    cudnn_pools(module)
    module.graph.lint()
    assert called(module) == [
        "xpuruntime.max_pool_image.default",
        "xpuruntime.max_pool_image_backward.default",
    ]
    x = drawn((2, 4, 9, 11))
    (pooled,) = (n for n in module.graph.nodes if n.target is IMAGE_POOL)
    grad = drawn(tuple(pooled.meta["val"].shape), 2)
    for wanted, got in zip(plain(x, grad), module(x, grad), strict=True):
        assert torch.equal(got, wanted)
        assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("cudnn_computes_all")
@pytest.mark.parametrize(
    ("arguments", "dtype", "returns_places"),
    [
        (OTHERS["dilated"], torch.float16, False),
        (OTHERS["rounded up"], torch.float16, False),
        (WINDOWS["windows apart"], torch.float32, False),
        (WINDOWS["windows apart"], torch.float16, True),
    ],
)
def test_others_stay(arguments: Any, dtype: torch.dtype, returns_places: bool) -> None:
    module = graph_of(arguments, dtype, returns_places)
    before = called(module)
    cudnn_pools(module)
    assert called(module) == before


@pytest.mark.usefixtures("cudnn_computes_all")
def test_a_program_that_turns_cudnn_off_has_none() -> None:
    module = graph_of(WINDOWS["windows apart"])
    with torch.backends.cudnn.flags(enabled=False):
        cudnn_pools(module)
    assert "xpuruntime" not in " ".join(called(module))


def test_sizes_that_are_not_known_have_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with dynamic sizes is compiled for each of them later; its symbols cannot be hashed."""
    monkeypatch.setattr(pools, "_plan", lambda *_: None)
    monkeypatch.setattr(norms, "_plan", lambda *_: None)
    symbol = ShapeEnv().create_unbacked_symint()
    device, window = torch.device("cuda", 0), (2, 2, 0, 0, 2, 2)
    assert can_run((2, 8, 4, 4), (2, 8, 2, 2), window)
    assert norms.can_run((2, 8, 4, 4), False, device)
    assert not can_run((symbol, 8, 4, 4), (symbol, 8, 2, 2), window)
    assert not norms.can_run((symbol, 8, 4, 4), False, device)


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA device")


@on_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", [(2, 4, 9, 11), (3, 64, 17, 8), (1, 5, 6, 6)])
def test_cudnn_pools_as_pytorch_does(name: str, size: tuple[int, ...]) -> None:
    kernel, stride, padding, *_ = WINDOWS[name]
    window = (*kernel, *padding, *(stride or kernel))
    x = drawn(size)
    y = IMAGE_POOL(x, window)
    assert can_run(x.shape, y.shape, window)
    got = IMAGE_POOL(x.cuda(), window)
    assert torch.equal(got.cpu(), y)
    grad = drawn(tuple(y.shape), 2)
    dx = IMAGE_POOL_BACKWARD(grad.cuda(), x.cuda(), got, window)
    assert torch.equal(dx.cpu(), IMAGE_POOL_BACKWARD(grad, x, y, window))


@on_cuda
@pytest.mark.gpu
def test_cudnn_keeps_nan() -> None:
    x = drawn((1, 8, 6, 6))
    x[0, 3, 2, 2] = float("nan")
    x[0, 4, 2, 2] = float("-inf")
    window = (3, 3, 1, 1, 2, 2)
    assert torch.equal(IMAGE_POOL(x.cuda(), window).cpu().isnan(), IMAGE_POOL(x, window).isnan())
