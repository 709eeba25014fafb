"""torch.compile with the backend xpuruntime: what forward keeps for backward, against the partition of PyTorch's own compiler."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from support.training_cases import rms

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch.compiled import compiled_graphs, xpuruntime_backend
from xpuruntime.pytorch.compiled.report import forget_graphs
from xpuruntime.testing.conformance.models import from_transformers

INDUCTOR_PARTITION = "aot_eager_decomp_partition"
"""PyTorch's name for inductor's decompositions and partition, run by eager operators."""
SHARE = {"gpt2": 0.45, "bert": 0.55, "llama": 0.5}
"""Family -> bound on our bytes over inductor's, in bfloat16 by autocast; 0.39, 0.50 and 0.45 were measured on the host."""
SHARE_ON_CUDA = {"gpt2": 0.55, "bert": 0.58, "llama": 0.55}
"""Attention's kernels keep more for backward there, on both sides; 0.553 was measured for bert, whose norms' results are kept."""


def kept_bytes(
    run: Any, net: torch.nn.Module, inputs: tuple[Any, ...], low: bool
) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the bytes that a step keeps for backward, without parameters and inputs, and the gradients."""
    known = {
        t.untyped_storage().data_ptr() for t in (*net.parameters(), *inputs) if isinstance(t, torch.Tensor)
    }
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    net.zero_grad()
    autocast = torch.autocast(next(net.parameters()).device.type, torch.bfloat16, enabled=low)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), autocast:
        outputs = run(*inputs)
    outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
    sum(o.float().square().mean() for o in outputs if o.is_floating_point()).backward()
    return sum(kept.values()), {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("family", SHARE)
def test_forward_keeps_less_than_inductors(family: str, device: str) -> None:
    torch.compiler.reset()
    forget_graphs()
    torch.manual_seed(0)
    net, inputs = from_transformers.build(family, 2)
    net = net.eval().to(device)
    inputs = tuple(i.to(device) if isinstance(i, torch.Tensor) else i for i in inputs)
    theirs, _ = kept_bytes(torch.compile(net, backend=INDUCTOR_PARTITION), net, inputs, True)
    torch.compiler.reset()
    mine, gradients = kept_bytes(torch.compile(net, backend=xpuruntime_backend), net, inputs, True)
    assert mine <= (SHARE_ON_CUDA if device == "cuda" else SHARE)[family] * theirs
    (forward,) = (g for g in compiled_graphs() if g.phase == "train_forward")
    assert 0 < sum(forward.saved.values()) <= mine
    _, exact = kept_bytes(wide := copy.deepcopy(net).double(), wide, inputs, False)
    _, eager = kept_bytes(twin := copy.deepcopy(net), twin, inputs, True)
    largest = max(rms(g) for g in exact.values())
    for name, true in exact.items():
        assert rms(gradients[name] - true) <= max(3 * rms(eager[name] - true), 1e-3 * largest), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_computes_norms_from_their_statistics(dtype: torch.dtype, device: str) -> None:
    """Forward keeps the operand and two numbers per row of a norm, and neither its result nor that of the activation."""
    torch.compiler.reset()
    forget_graphs()
    torch.manual_seed(0)
    rows, size = 40, 24
    net = torch.nn.Sequential(  # in 16 bits the norm's result is more than a quarter of what the layers compute
        torch.nn.Linear(size, size), torch.nn.LayerNorm(size), torch.nn.Linear(size, 2 * size), torch.nn.GELU(), torch.nn.Linear(2 * size, 3)
    ).to(device, dtype)  # fmt: skip
    x = torch.randn(rows, size, device=device, dtype=dtype)
    run = torch.compile(net, backend=xpuruntime_backend, fullgraph=True)
    with xrt_torch.record() as record:
        _, mine = kept_bytes(run, net, (x,), False)
    _, exact = kept_bytes(wide := copy.deepcopy(net).double(), wide, (x.double(),), False)
    _, eager = kept_bytes(twin := copy.deepcopy(net), twin, (x,), False)
    for name, true in exact.items():
        assert rms(mine[name] - true) <= 2.5 * rms(eager[name] - true) + 1e-8, name
    forward, backward = compiled_graphs()
    assert forward.left == backward.left == {}
    values = rows * size + rows * 2 * size  # the norm's operand, and the activation's
    statistics = 2 * rows * 4
    assert sum(forward.saved.values()) <= values * dtype.itemsize + statistics
    if dtype is torch.bfloat16 and device == "cpu":
        return  # PyTorch's statistics have 16 bits there, from which the norm would be less exact
    assert not any("layer_norm_" in k and "backward" not in k for k in record.kernels("train_backward"))


@pytest.mark.parametrize(("rows", "kept"), [(1024, True), (2, False)])
def test_weights_in_16_bits_are_kept_where_they_are_small(rows: int, kept: bool, device: str) -> None:
    """Next to what the layers compute of many rows; with few rows backward converts them again."""
    torch.compiler.reset()
    forget_graphs()
    size = 48
    net = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.GELU(), torch.nn.Linear(size, size)).to(
        device
    )
    x = torch.randn(rows, size, device=device, requires_grad=True)
    _, gradients = kept_bytes(torch.compile(net, backend=xpuruntime_backend), net, (x,), True)
    assert all(g.isfinite().all() for g in gradients.values())
    (forward,) = (g for g in compiled_graphs() if g.phase == "train_forward")
    assert (2 * size * size in forward.saved.values()) == kept


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("wide", "kept"), [(8, True), (1, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_of_norms_in_16_bits_are_kept_where_they_are_small(
    wide: int, kept: bool, dtype: torch.dtype, device: str
) -> None:
    """Next to what the layers compute; else backward computes them again. In float32, autocast makes the 16 bits."""
    torch.compiler.reset()
    forget_graphs()
    torch.manual_seed(0)
    rows, size, low = 40, 24, dtype is torch.float32
    net = torch.nn.Sequential(
        torch.nn.Linear(size, size, bias=False), torch.nn.LayerNorm(size), torch.nn.Linear(size, wide * size), torch.nn.Linear(wide * size, 3)
    ).to(device, dtype)  # fmt: skip
    x = torch.randn(rows, size, device=device, dtype=dtype)
    run = torch.compile(net, backend=xpuruntime_backend, fullgraph=True)
    _, mine = kept_bytes(run, net, (x,), low)
    _, exact = kept_bytes(wider := copy.deepcopy(net).double(), wider, (x.double(),), False)
    _, eager = kept_bytes(twin := copy.deepcopy(net), twin, (x,), low)
    for name, true in exact.items():
        assert rms(mine[name] - true) <= 2.5 * rms(eager[name] - true) + 1e-8, name
    (forward,) = (g for g in compiled_graphs() if g.phase == "train_forward")
    # Of this size are: the first layer's result, its operand in 16 bits, a narrow second layer's result, and the norm's.
    of_this_size = [b for b in forward.saved.values() if b == rows * size * 2]
    assert len(of_this_size) == 1 + low + (wide == 1) + kept, forward.saved


class ReadsBeforeItWrites(torch.nn.Module):
    """Backward needs what forward computed from buffers before it wrote to them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(4)
        self.register_buffer("steps", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, factor = self.norm.running_mean * 3 + 1, self.steps.view(3, 1)[:1] + 1
        self.steps.add_(1)
        return (torch.relu(self.norm(x)) * mean.view(1, -1, 1, 1)).sum() * factor.sum()


def test_backward_reads_buffers_as_they_were_before_forward_wrote_them() -> None:
    torch.manual_seed(0)
    x, found = torch.randn(2, 4, 3, 3), []
    for compiled in (False, True):
        torch.compiler.reset()
        net = ReadsBeforeItWrites()
        run = torch.compile(net, backend=xpuruntime_backend) if compiled else net
        for _ in range(2):
            net.zero_grad()
            operand = x.clone().requires_grad_()
            run(operand).backward()
        found.append([operand.grad, *(p.grad for p in net.parameters()), *net.buffers()])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
