"""cudnn_batch_norms: batch norms of a joint graph become cuDNN's where it computes them. The graphs are traced with tensors without data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import cudnn_reference  # noqa: F401  - registers the ops on the host
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from xpuruntime.pytorch.compiled import cudnn_batch_norms as replacing
from xpuruntime.pytorch.compiled import cudnn_ops
from xpuruntime.pytorch.compiled.cudnn_batch_norms import cudnn_batch_norms
from xpuruntime.pytorch.cudnn import norms
from xpuruntime.pytorch.cudnn.norms import can_run, reserved_bytes

_ATEN = torch.ops.aten


def norm(grad: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
    y, own, root, new_mean, new_variance = _ATEN._native_batch_norm_legit_functional(
        x, weight, bias, mean, variance, True, 0.1, 1e-5
    )
    mask = [True, True, True]
    return (
        y,
        new_mean,
        new_variance,
        *_ATEN.native_batch_norm_backward(grad, x, weight, mean, variance, own, root, True, 1e-5, mask),
    )


def traced(dtype: torch.dtype, channels_last: bool) -> torch.fx.GraphModule:
    with FakeTensorMode():
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = [
            torch.empty(2, 8, 5, 5, device="cuda", dtype=dtype).to(memory_format=layout) for _ in range(2)
        ]
        numbers = [torch.empty(8, device="cuda") for _ in range(4)]
        return make_fx(norm, tracing_mode="fake")(*images, *numbers)


def called(module: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in module.graph.nodes if n.op == "call_function" and "norm" in str(n.target)]


def test_a_norm_and_its_gradient_become_those_of_cudnn() -> None:
    module = traced(torch.float16, channels_last=True)
    (before,) = (n for n in module.graph.nodes if n.op == "output")
    shapes = [tuple(n.meta["val"].shape) for n in before.args[0]]
    cudnn_batch_norms(module)
    module.graph.lint()
    assert called(module) == ["aten.cudnn_batch_norm.default", "aten.cudnn_batch_norm_backward.default"]
    (after,) = (n for n in module.graph.nodes if n.op == "output")
    assert [tuple(n.meta["val"].shape) for n in after.args[0]] == shapes
    forward, backward = (n for n in module.graph.nodes if "cudnn" in str(n.target))
    running = list(after.args[0][1:3])
    assert all(n.target is _ATEN.clone.default for n in running)  # the buffers themselves stay as they were
    assert list(forward.args[3:5]) == running
    assert backward.args[8].args == (forward, 3)  # what cuDNN reserved


def test_a_program_that_turns_cudnn_off_has_none() -> None:
    module = traced(torch.float16, channels_last=True)
    with torch.backends.cudnn.flags(enabled=False):
        cudnn_batch_norms(module)
    assert not any("cudnn" in name for name in called(module))


@pytest.mark.parametrize(
    ("dtype", "channels_last"), [(torch.float32, True), (torch.bfloat16, True), (torch.float16, False)]
)
def test_others_stay(dtype: torch.dtype, channels_last: bool) -> None:
    module = traced(dtype, channels_last)
    cudnn_batch_norms(module)
    assert not any("cudnn" in name for name in called(module))


# ── with the ReLU after it ──


@pytest.fixture
def cudnn_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuDNN answer that it computes every norm with its ReLU, on machines without it, too."""
    monkeypatch.setattr(replacing, "can_run", lambda *_: True)
    monkeypatch.setattr(cudnn_ops, "reserved_bytes", lambda *_: 1)


Step = Callable[..., tuple[Any, ...]]


def step(
    activation: Callable[[Any, Any], Any],
    masked: Callable[[Any, Any], Any] | None = None,
    more: Callable[..., tuple[Any, ...]] = lambda *_: (),
) -> Step:
    """Return a norm, what follows it, and their gradients. ``masked``: ReLU's gradient from its result and ``grad``."""

    def run(grad: Any, x: Any, z: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        y, own, root, new_mean, new_variance = _ATEN._native_batch_norm_legit_functional(
            x, weight, bias, mean, variance, True, 0.1, 1e-5
        )
        first = more(new_mean, y)
        result = activation(y, z)
        passed = (masked or where_positive)(result, grad)
        mask = [True, True, True]
        gradients = _ATEN.native_batch_norm_backward(
            passed, x, weight, mean, variance, own, root, True, 1e-5, mask
        )
        return (result, new_mean, new_variance, *gradients, *first)

    return run


def where_positive(result: Any, grad: Any) -> Any:
    zero = _ATEN.scalar_tensor(0, dtype=grad.dtype, device=grad.device)
    return _ATEN.where(_ATEN.le(_ATEN.detach(result), 0), zero, grad)


def with_addend(y: Any, z: Any) -> Any:
    return _ATEN.relu(y + z)


def alone(y: Any, z: Any) -> Any:
    return _ATEN.relu(y)


def graph_of(function: Step, size: tuple[int, ...] = (2, 8, 5, 5)) -> torch.fx.GraphModule:
    with FakeTensorMode():
        images = [
            torch.empty(size, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
            for _ in range(3)
        ]
        numbers = [torch.empty(size[1], device="cuda") for _ in range(4)]
        return make_fx(function, tracing_mode="fake")(*images, *numbers)


def on_cpu(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph with its constants on the host."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": "cpu"}
    module.recompile()
    return module


def operands(size: tuple[int, ...], device: str = "cpu") -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    images = [
        torch.randn(size, generator=draw).half().to(memory_format=torch.channels_last) for _ in range(3)
    ]
    numbers = [torch.rand(size[1], generator=draw) + 0.5 for _ in range(4)]
    numbers[1] -= 1.0
    return [t.to(device) for t in (*images, *numbers)]


@pytest.mark.usefixtures("cudnn_computes_all")
@pytest.mark.parametrize("size", [(2, 8, 5, 5), (1, 3, 7, 4), (5, 1, 1, 2)])
@pytest.mark.parametrize("activation", [alone, with_addend, lambda y, z: _ATEN.relu(z + y)])
@pytest.mark.parametrize(
    "masked", [where_positive, lambda result, grad: _ATEN.threshold_backward(grad, result, 0)]
)
def test_a_relu_and_an_addition_join_the_norm(size: Any, activation: Any, masked: Any) -> None:
    function = step(activation, masked)
    plain, module = graph_of(function, size), graph_of(function, size)
    cudnn_batch_norms(module)
    module.graph.lint()
    assert called(module) == [
        "xpuruntime.batch_norm_relu.default",
        "xpuruntime.batch_norm_relu_backward.default",
    ]
    assert not any("relu" in str(n.target) and "norm" not in str(n.target) for n in module.graph.nodes)
    values = operands(size)
    before = [v.clone() for v in values]
    wanted, got = on_cpu(plain)(*values), on_cpu(module)(*values)
    for w, g in zip(wanted, got, strict=True):
        assert g.dtype is w.dtype
        torch.testing.assert_close(g, w, rtol=4e-3, atol=4e-3)
    assert all(torch.equal(a, b) for a, b in zip(values[:5], before[:5], strict=True))
    assert all(a is b for a, b in zip(values[5:], got[1:3], strict=True))  # PyTorch copies them to themselves


@pytest.mark.usefixtures("cudnn_computes_all")
def test_running_statistics_that_something_else_reads_stay() -> None:
    function = step(alone)

    def reading(*args: Any) -> tuple[Any, ...]:
        return (*function(*args), args[5] * 2)

    module = graph_of(reading)
    cudnn_batch_norms(module)
    values = operands((2, 8, 5, 5))
    before = [v.clone() for v in values]
    results = on_cpu(module)(*values)
    assert all(torch.equal(a, b) for a, b in zip(values[:6], before[:6], strict=True))
    assert torch.equal(results[-1], before[5] * 2)
    assert not torch.equal(results[1], before[5])


@pytest.mark.usefixtures("cudnn_computes_all")
def test_the_addend_receives_the_gradient_of_the_relu() -> None:
    def function(*args: Any) -> tuple[Any, ...]:
        grads: list[Any] = []

        def masked(result: Any, grad: Any) -> Any:
            grads.append(where_positive(result, grad))
            return grads[0]

        return (*step(with_addend, masked)(*args), grads[0] * 2)

    plain, module = graph_of(function), graph_of(function)
    cudnn_batch_norms(module)
    (backward,) = (n for n in module.graph.nodes if "relu_backward" in str(n.target))
    assert backward.args[-1] is True
    values = operands((2, 8, 5, 5))
    for w, g in zip(on_cpu(plain)(*values), on_cpu(module)(*values), strict=True):
        torch.testing.assert_close(g, w, rtol=4e-3, atol=4e-3)


OTHERS = {
    "the norm is read elsewhere": step(alone, more=lambda mean, y: (y * 2,)),
    "the addend is scaled": step(lambda y, z: _ATEN.relu(_ATEN.add(y, z, alpha=2))),
    "the addend is broadcast": step(lambda y, z: _ATEN.relu(y + _ATEN.slice(z, 0, 0, 1))),
    "the addend is not channels-last": step(lambda y, z: _ATEN.relu(y + _ATEN.clone(z, memory_format=torch.contiguous_format))),
    "the norm is its own addend": step(lambda y, z: _ATEN.relu(y + y)),
    "another activation": step(lambda y, z: _ATEN.sigmoid(y)),
    "the mask is of other values": step(alone, lambda result, grad: where_positive(grad, grad)),
    "the gradient is 1 elsewhere": step(
        alone, lambda result, grad: _ATEN.where(_ATEN.le(result, 0), _ATEN.full([], 1.0, dtype=grad.dtype, device=grad.device), grad)
    ),
    "the mask is below 1": step(
        alone, lambda result, grad: _ATEN.where(_ATEN.le(result, 1), _ATEN.scalar_tensor(0, dtype=grad.dtype, device=grad.device), grad)
    ),
    "the gradient is not masked": step(alone, lambda result, grad: grad),
    "a statistic is read before the ReLU": step(lambda y, z: _ATEN.relu(y), more=lambda mean, y: (mean + 1,)),
}  # fmt: skip


@pytest.mark.usefixtures("cudnn_computes_all")
@pytest.mark.parametrize("name", OTHERS)
def test_other_readers_keep_the_norm_alone(name: str) -> None:
    plain, module = graph_of(OTHERS[name]), graph_of(OTHERS[name])
    cudnn_batch_norms(module)
    module.graph.lint()
    assert called(module) == ["aten.cudnn_batch_norm.default", "aten.cudnn_batch_norm_backward.default"]
    names = [n.name for n in plain.graph.nodes if "relu" in n.name or "where" in n.name]
    assert [n.name for n in module.graph.nodes if "relu" in n.name or "where" in n.name] == names


@pytest.mark.usefixtures("cudnn_computes_all")
@pytest.mark.parametrize("strided", range(4))
def test_parameters_and_statistics_with_gaps_keep_pytorchs_norm(strided: int) -> None:
    """cuDNN reads and writes them as consecutive numbers."""
    with FakeTensorMode():
        images = [
            torch.empty(2, 8, 5, 5, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
            for _ in range(3)
        ]
        numbers = [torch.empty_strided((8,), (2 if i == strided else 1,), device="cuda") for i in range(4)]
        module = make_fx(step(alone), tracing_mode="fake")(*images, *numbers)
    cudnn_batch_norms(module)
    assert not any("cudnn" in name or "xpuruntime" in name for name in called(module))


def test_the_norm_stays_alone_without_a_cudnn_that_computes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "can_run", lambda *_: False)
    module = graph_of(step(alone))
    cudnn_batch_norms(module)
    assert called(module)[0] == "aten.cudnn_batch_norm.default"


@pytest.mark.parametrize(
    ("shape", "holds"), [((2, 8, 5, 5), True), ((2, 6, 5, 5), False), ((880802, 8, 1, 1), False)]
)
def test_the_sizes_that_cudnn_documents(
    shape: tuple[int, ...], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "_plan", lambda *_: None)
    assert can_run(shape, False, torch.device("cuda", 0)) is holds


# ── on a device ──

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA device")
SIZES = [(2, 8, 5, 5), (3, 64, 7, 9), (1, 12, 2, 1), (4, 256, 14, 14), (2, 1024, 3, 3)]


@on_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_addend", [False, True])
def test_cudnn_computes_norm_and_relu(size: Any, has_addend: bool) -> None:
    grad, x, z, weight, bias, mean, variance = operands(size, "cuda")
    addend = z if has_addend else None
    device = torch.device("cuda", 0)
    assert can_run(size, has_addend, device)
    on_host = [None if t is None else t.cpu() for t in (x, addend, weight, bias, mean, variance)]
    got = cudnn_ops.NORM_RELU(x, addend, weight, bias, mean, variance, 0.1, 1e-5)
    wanted = cudnn_ops.NORM_RELU(*on_host, 0.1, 1e-5)
    for g, w in zip((*got[:3], mean, variance), (*wanted[:3], *on_host[4:]), strict=True):
        torch.testing.assert_close(g.cpu(), w, rtol=2e-3, atol=2e-3)
    assert got[3].numel() == max(reserved_bytes(size, has_addend, device), 1)
    parts = cudnn_ops.NORM_RELU_BACKWARD(grad, x, got[0], weight, bias, *got[1:4], 1e-5, has_addend)
    host = [t.cpu() for t in (grad, x, got[0], weight, bias, *got[1:4])]
    expected = cudnn_ops.NORM_RELU_BACKWARD(*host, 1e-5, has_addend)
    for g, w in zip(parts, expected, strict=True):
        scale = float(w.float().abs().max())
        torch.testing.assert_close(g.cpu().float(), w.float(), rtol=4e-3, atol=4e-3 * max(scale, 1))


@on_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_cudnn_passes_a_value_that_is_not_finite_on(value: float) -> None:
    _, x, z, weight, bias, mean, variance = operands((2, 64, 6, 6), "cuda")
    x[1, 3, 2, 2] = value
    y = cudnn_ops.NORM_RELU(x, None, weight, bias, mean, variance, 0.1, 1e-5)[0]
    assert y[:, 3].isnan().all()  # as F.relu(F.batch_norm(...)): its mean is not finite
    assert y[:, :3].isfinite().all()
    x, z = operands((2, 64, 6, 6), "cuda")[1:3]
    z[1, 3, 2, 2] = value
    got = cudnn_ops.NORM_RELU(x, z, weight, bias, mean, variance, 0.1, 1e-5)[0][1, 3, 2, 2]
    assert got.isnan() if value != value else got == value


@on_cuda
@pytest.mark.gpu
def test_cudnn_and_the_graph_around_it_train_a_network() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    rest = [torch.nn.MaxPool2d(3, 2, 1), torch.nn.Flatten(), torch.nn.Linear(8 * 25, 3)]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *layers, *rest).cuda()
    x = torch.randn(4, 3, 12, 12, device="cuda")
    found = []
    for compiled in (False, True):
        mine = copy.deepcopy(net)
        run = torch.compile(mine, backend="xpuruntime") if compiled else mine
        for _ in range(2):  # the second step reads the running statistics that the first one left
            mine.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = run(x).square().mean()
            loss.backward()
        found.append([loss.detach(), *(p.grad for p in mine.parameters()), *mine.buffers()])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=3e-2, atol=3e-3)
