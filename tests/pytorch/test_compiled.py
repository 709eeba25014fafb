"""torch.compile with the backend xpuruntime: gradients of networks, regions, reasons, and policies that change."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from support.training_cases import rms
from torch._dynamo.convert_frame import compile_lock
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import xpuruntime as xrt
import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import KernelUnavailable
from xpuruntime.pytorch.compiled import backend, by_size, compiled_graphs, xpuruntime_backend
from xpuruntime.pytorch.compiled.left_to_pytorch import left_operators
from xpuruntime.pytorch.compiled.regions import reasons_against
from xpuruntime.pytorch.compiled.report import forget_graphs
from xpuruntime.pytorch.numbered_policies import numbered_policy


class Block(torch.nn.Module):
    """A transformer block without PyTorch's fused attention."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(11, size)
        self.norm = torch.nn.LayerNorm(size)
        self.qkv = torch.nn.Linear(size, 3 * size)
        self.out = torch.nn.Linear(size, size)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(size), torch.nn.Linear(size, 4 * size), torch.nn.GELU(), torch.nn.Linear(4 * size, size)
        )  # fmt: skip

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        q, k, v = (t.view(*t.shape[:2], 4, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Dropout(0.25),
        torch.nn.Flatten(), torch.nn.Linear(72, 4),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    forget_graphs()


def gradients(run: object, net: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    net.zero_grad()
    y = run(x)  # type: ignore[operator]
    y.square().mean().backward()
    return [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]


def test_a_transformer_block_is_one_region_each_way(device: str) -> None:
    net = Block().to(device)
    tokens = torch.randint(0, 11, (2, 6), device=device)
    exact = gradients(net.double(), net, tokens)
    net = net.float()
    eager = gradients(net, net, tokens)
    with xrt_torch.record() as record:
        mine = gradients(torch.compile(net, backend=xpuruntime_backend, fullgraph=True), net, tokens)
    forward, backward = compiled_graphs()
    assert (forward.phase, backward.phase) == ("train_forward", "train_backward")
    assert (forward.regions, backward.regions) == (1, 1)
    assert forward.left == backward.left == {}
    assert record.kernels("train_forward")
    assert record.kernels("train_backward")
    for a, b, true in zip(mine, eager, exact, strict=True):
        assert rms(a - true) <= max(2 * rms(b - true), 1e-7 * rms(true))


def test_a_policy_breaks_no_graph_at_unflatten(device: str) -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (2, 3)).sum(1)

    x = torch.randn(4, 6, device=device)
    with xrt_torch.set_kernel_policy(attention="naive"):
        y = torch.compile(halves, backend=xpuruntime_backend, fullgraph=True)(x)
    assert torch.equal(y, x[:, :3] + x[:, 3:])


def test_calls_after_a_graph_break_are_no_graphs_of_their_own() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return F.gelu(x) + F.softplus(x)

    def body(x: torch.Tensor) -> torch.Tensor:
        a, b = (part(t) for t in x.chunk(2))  # a break in a generator leaves the whole frame to Python
        return F.silu(a) * b

    x = torch.randn(6)
    with xrt_torch.set_kernel_policy(attention="naive"):
        y = torch.compile(body, backend=xpuruntime_backend)(x)
    assert torch.allclose(y, body(x))
    assert [g.taken for g in compiled_graphs()] == [3]


def test_what_stays_with_pytorch_has_a_reason(device: str) -> None:
    net = convolutions().to(device)
    twin = copy.deepcopy(net)
    x = torch.randn(2, 3, 8, 8, device=device)
    plain = gradients(net, net, x)
    ours = (
        {"norm": "generated", "pool": "generated"} if device == "cuda" else {}
    )  # else the library's are faster
    with xrt_torch.set_kernel_policy(**ours):
        mine = gradients(torch.compile(twin, backend=xpuruntime_backend), twin, x)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert torch.allclose(net[1].running_var, twin[1].running_var)
    forward, backward = compiled_graphs()
    assert any("random numbers" in reason for reason in forward.left.values())
    words = ("pool", "norm") if device == "cuda" else ("convolution", "pool", "norm")
    assert [node for g in (forward, backward) for node in g.left for word in words if word in node] == []
    assert all(reason.strip() for g in (forward, backward) for reason in g.left.values())


def test_gradients_of_convolutions_stay_with_the_library_on_cuda() -> None:
    def gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        layout = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        results = torch.ops.aten.convolution_backward(grad, x, weight, None, *layout, (True, True, False))
        return [results[0] * 2, results[1]]

    sizes = ((2, 4, 6, 6), (2, 3, 6, 6), (4, 3, 3, 3))
    traced = make_fx(gradients, tracing_mode="fake")(*(torch.zeros(s) for s in sizes))
    targets = {"cpu:x86-64-v3": "cpu", "cuda:sm_90": "cuda"}
    left = {
        target: reasons_against(
            traced,
            "gradients",
            target,
            left_operators(torch.device(kind), "train_backward", numbered_policy()),
        )
        for target, kind in targets.items()
    }
    assert left["cpu:x86-64-v3"] == {}
    assert "im2col" in left["cuda:sm_90"]["convolution_backward"]
    assert not any("mul" in node for node in left["cuda:sm_90"])


def test_without_gradients_there_is_one_graph(device: str) -> None:
    net = Block().to(device)
    tokens = torch.randint(0, 11, (2, 6), device=device)
    with torch.no_grad():
        y = torch.compile(net, backend=xpuruntime_backend)(tokens)
        assert torch.allclose(y, net(tokens), atol=1e-5)
    (graph,) = compiled_graphs()
    assert graph.phase == "inference"


def test_a_compiled_module_follows_a_policy_that_changes() -> None:
    net = torch.nn.Linear(8, 8)
    compiled = torch.compile(net, backend=xpuruntime_backend)
    x = torch.randn(4, 8)
    plain = gradients(compiled, net, x)
    with xrt_torch.set_kernel_policy(matmul="generated"), xrt_torch.record() as record:
        mine = gradients(compiled, net, x)
    decisions = [d for p in record.prepared for d in p.decisions if d.question == "kernel matmul"]
    assert len(decisions) == 2
    assert all(d.chosen is not None and d.chosen.code is xrt.Reason.PREFERRED for d in decisions)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    rule = {"version": 1, "kernel": {"rules": [{"op": "matmul", "use": "cublasLt"}]}}
    with xrt_torch.set_kernel_policy(rule), pytest.raises(KernelUnavailable, match="forces 'cublasLt'"):
        gradients(compiled, net, x)


def test_dynamic_sizes_are_compiled_one_by_one(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_size, "MAX_SIZES", 2)
    net = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.LayerNorm(24), torch.nn.GELU()).to(device)
    compiled = torch.compile(net, backend=xpuruntime_backend, dynamic=True, fullgraph=True)
    for rows, graphs in ((3, 2), (5, 4), (3, 4), (7, 6), (9, 6)):
        x = torch.randn(rows, 8, device=device)
        for a, b in zip(gradients(compiled, net, x), gradients(net, net, x), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
        assert len(compiled_graphs()) == graphs
    first, *_, last = compiled_graphs()
    assert (first.regions, dict(first.left)) == (1, {})
    assert last.regions == 0
    assert all(
        "the graph has dynamic sizes, and is already compiled" in reason for reason in last.left.values()
    )


def test_the_backend_has_its_name() -> None:
    net = torch.nn.Linear(4, 4)
    assert "xpuruntime" in torch.compiler.list_backends()
    assert torch.compile(net, backend="xpuruntime")(torch.ones(2, 4)).shape == (2, 4)
    assert compiled_graphs()


def test_a_region_that_only_makes_constants(device: str) -> None:
    torch.compiler.reset()
    table = torch.nn.EmbeddingBag(10, 4, mode="max").to(device)
    words = torch.tensor([[1, 2, 2], [3, 9, 0]], device=device)
    found = []
    for run in (table, torch.compile(table, backend="xpuruntime")):
        table.zero_grad()
        y = run(words)
        y.square().sum().backward()
        found.append((y.detach(), table.weight.grad.clone()))
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


def test_random_numbers_are_drawn_in_the_order_of_eager(device: str) -> None:
    """The first and the last draw read what one region makes; the draw between them reads no region."""

    def draws(x: torch.Tensor) -> list[torch.Tensor]:
        kept = torch.bernoulli(torch.full((4, 6), 0.4, device=device))
        return [x * kept, x * torch.rand_like(x), x * torch.empty(6, device=device).uniform_(1, 2)]

    x = torch.linspace(-1, 1, 24, device=device).view(4, 6)
    results = []
    for run in (draws, torch.compile(draws, backend=xpuruntime_backend)):
        torch.manual_seed(0)
        results.append([*run(x), torch.rand(3)])
    for plain, mine in zip(*results, strict=True):
        assert torch.allclose(mine, plain, atol=1e-6)


def test_an_operator_that_could_draw_runs_in_a_region_beside_two_draws() -> None:
    net = torch.nn.Linear(8, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.rrelu(net(F.dropout(x, 0.1)), training=False), 0.2)

    x = torch.randn(4, 8, requires_grad=True)
    results = []
    for f in (run, torch.compile(run, backend=xpuruntime_backend)):
        torch.manual_seed(0)
        y = f(x)
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, net.weight])])
    for plain, mine in zip(*results, strict=True):
        assert torch.allclose(mine, plain, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_and_batch_norm_inside_a_checkpoint(dynamic: bool) -> None:
    """Backward draws the numbers of forward again, and reads the statistics from before forward updated them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 9), torch.nn.Dropout(0.25), torch.nn.BatchNorm1d(9), torch.nn.GELU()
    )

    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(net, x, use_reentrant=False)  # type: ignore[no-any-return]

    x = torch.randn(6, 5)
    plain = gradients(net, net, x)
    mine = gradients(torch.compile(run, backend=xpuruntime_backend, dynamic=dynamic), net, x)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_compiled_functions_run_while_another_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    other = torch.compile(torch.nn.Linear(3, 3), backend=xpuruntime_backend)
    other(torch.ones(2, 3))
    errors: list[Exception] = []

    def in_another_thread() -> None:
        def call() -> None:
            try:
                other(torch.ones(2, 3))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(60)

    def traced(module: torch.fx.GraphModule, **options: object) -> object:
        def run(*args: object) -> object:
            in_another_thread()
            return module(*args)

        return make_fx(run, **options)

    monkeypatch.setattr(by_size, "make_fx", traced)
    torch.compile(torch.nn.Tanh(), backend=xpuruntime_backend, dynamic=True)(torch.ones(5))
    assert errors == []


def test_backward_is_compiled_under_the_lock_of_pytorchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []
    divided = backend.divided

    def probed(*arguments: object) -> object:
        thread = threading.Thread(target=lambda: free.append(compile_lock.acquire(blocking=False)))
        thread.start()
        thread.join(60)
        return divided(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "divided", probed)
    x = torch.ones(5, requires_grad=True)
    torch.compile(torch.nn.Tanh(), backend=xpuruntime_backend)(x).sum().backward()
    assert free == [False, False]
