"""set_kernel_policy: values, files, blocks, threads, tasks, existing modules, and demands that cannot be met."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import xpuruntime as xrt
import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import KernelUnavailable, PolicyError


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 8)
    )


def step(net: torch.nn.Module) -> list[torch.Tensor]:
    net.zero_grad()
    x = torch.ones(4, 16, device=next(net.parameters()).device).cumsum(1) / 10
    net(x).softmax(-1).square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def ops_of(net: torch.nn.Module) -> list[str]:
    with xrt_torch.record() as record:
        step(net)
    return record.ops()


def test_existing_modules_follow_a_policy_and_give_the_same_gradients(
    net: torch.nn.Module, device: str
) -> None:
    net = net.to(device)
    plain = step(net)
    families = {"matmul": "generated", "norm": "generated", "softmax": "generated"}
    with xrt_torch.set_kernel_policy(**families), xrt_torch.record() as record:
        mine = step(net)
    assert record.ops("train_forward") == ["linear", "layer_norm", "linear", "softmax"]
    assert record.ops("train_backward") == [
        "softmax_backward", "linear_backward", "layer_norm_backward", "linear_backward",
    ]  # fmt: skip
    assert any("matmul/generated" in k for k in record.kernels("train_backward"))
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert ops_of(net) == []


def test_only_named_families_are_routed(net: torch.nn.Module) -> None:
    with xrt_torch.set_kernel_policy(norm="generated"):
        assert ops_of(net) == ["layer_norm", "layer_norm_backward"]


def test_a_value_holds_until_it_is_undone(net: torch.nn.Module) -> None:
    scope = xrt_torch.set_kernel_policy(norm="generated")
    inner = xrt_torch.set_kernel_policy(softmax="generated")
    assert "layer_norm" in ops_of(net)
    assert "softmax" in ops_of(net)
    inner.undo()
    inner.undo()
    assert "softmax" not in ops_of(net)
    scope.undo()
    assert ops_of(net) == []
    assert xrt_torch.kernel_policy() == xrt.KernelPolicy()


def test_a_file_is_the_policy_that_inference_reads(net: torch.nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    rules = [{"op": "norm", "use": "generated", "phase": "train_forward", "reason": "ours"}]
    path.write_text(json.dumps({"version": 1, "kernel": {"rules": rules}}))
    with xrt_torch.set_kernel_policy(path), xrt_torch.record() as record:
        step(net)
    (forward,) = [p for p in record.prepared if p.phase == "train_forward"]
    (decision,) = [d for d in forward.decisions if d.question == "kernel norm"]
    assert decision.chosen is not None
    assert decision.chosen.code is xrt.Reason.FORCED
    assert xrt.load_policy(path).kernel.rules[0].reason == "ours"


def test_threads_start_without_the_policy_and_tasks_inherit_it(net: torch.nn.Module) -> None:
    seen: dict[str, list[str]] = {}
    with xrt_torch.set_kernel_policy(norm="generated"):
        thread = threading.Thread(target=lambda: seen.update(thread=ops_of(net)))
        thread.start()
        thread.join()

        async def one(name: str, **families: str) -> None:
            with xrt_torch.set_kernel_policy(**families):
                await asyncio.sleep(0)
                seen[name] = ops_of(net)
                await asyncio.sleep(0)

        async def both() -> None:
            await asyncio.gather(one("a", softmax="generated"), one("b"))

        asyncio.run(both())
    assert seen["thread"] == []
    assert "softmax" in seen["a"]
    assert "softmax" not in seen["b"]
    assert "layer_norm" in seen["b"]


def test_backward_uses_the_policy_of_forward(net: torch.nn.Module) -> None:
    with xrt_torch.set_kernel_policy(norm="generated"):
        y = net(torch.ones(4, 16)).sum()
    with xrt_torch.record() as record:
        y.backward()
    assert record.ops() == ["layer_norm_backward"]


def test_a_forced_kernel_that_is_not_there_is_an_error_and_a_preferred_one_is_recorded(
    net: torch.nn.Module,
) -> None:
    rule = {"version": 1, "kernel": {"rules": [{"op": "matmul", "use": "cublasLt"}]}}
    with xrt_torch.set_kernel_policy(rule), pytest.raises(KernelUnavailable, match="forces 'cublasLt'"):
        step(net)
    with xrt_torch.set_kernel_policy(matmul="cublasLt"), xrt_torch.record() as record:
        step(net)
    decision = next(d for p in record.prepared for d in p.decisions if d.question == "kernel matmul")
    assert any(c.name == "cublasLt" and c.code is xrt.Reason.NOT_APPLICABLE for c in decision.rejected)


@pytest.mark.parametrize(
    ("families", "text"),
    [
        ({"matmull": "cublasLt"}, "matmull: unknown key. Did you mean 'matmul'"),
        ({"matmul": "cublaslt2"}, "no such kernel of matmul; got 'cublaslt2'. Did you mean 'cublasLt'"),
    ],
)
def test_unknown_words_are_errors_at_once(families: dict[str, str], text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        xrt_torch.set_kernel_policy(**families)


def test_calls_that_no_op_takes_are_recorded() -> None:
    layer = torch.nn.Embedding(5, 4, max_norm=1.0)
    with xrt_torch.set_kernel_policy(embedding="generated"), xrt_torch.record() as record:
        layer(torch.tensor([1, 2]))
    assert record.ops() == []
    assert record.skipped == {"embedding (embedding)": 1}
    assert "no op of this package takes these arguments" in str(record)


def test_a_dtype_that_no_program_reads_stays_with_pytorch_with_a_reason(device: str) -> None:
    x = torch.randn(2, 4, dtype=torch.complex64, device=device)
    with xrt_torch.set_kernel_policy(matmul="generated"), xrt_torch.record() as record:
        x @ x.t()
    assert record.skipped == {"matmul (matmul)": 1}


def test_calls_inside_of_pytorchs_own_python_functions_are_routed(device: str) -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, device=device)
    x = torch.randn(2, 3, 8, device=device)
    plain, _ = attention(x, x, x, need_weights=False)
    families = {"matmul": "generated", "attention": ["flash", "naive"]}
    with torch.device(device), xrt_torch.set_kernel_policy(**families), xrt_torch.record() as record:
        mine, _ = attention(x, x, x, need_weights=False)
    assert record.ops() == ["linear", "attention", "linear"]
    assert torch.allclose(mine, plain, atol=1e-5)
    rule = {
        "version": 1,
        "kernel": {"rules": [{"op": "matmul", "use": "cublasLt" if device == "cpu" else "onednn"}]},
    }
    with xrt_torch.set_kernel_policy(rule), pytest.raises(KernelUnavailable):
        attention(x, x, x)
    with xrt_torch.set_kernel_policy(softmax="generated"), xrt_torch.record() as record:
        torch.nn.functional.gumbel_softmax(x)
        x.unflatten(1, (3, 1)).split(1)
    assert record.ops() == ["softmax"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_a_checkpoint_computes_again_follows_the_policy(
    net: torch.nn.Module, use_reentrant: bool, device: str
) -> None:
    net = net.to(device)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        net.zero_grad()
        checkpoint(net, x, use_reentrant=use_reentrant).square().sum().backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    x = torch.randn(4, 16, device=device, requires_grad=True)
    plain = run(x)
    with xrt_torch.set_kernel_policy(matmul="generated", norm="generated"), xrt_torch.record() as record:
        mine = run(x)
    assert record.ops("train_forward") == ["linear", "layer_norm", "linear"] * 2
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_mode_in_another_thread_has_the_policy_of_its_own() -> None:
    """Autograd carries modes to its threads of CUDA devices."""
    x, weight = torch.randn(2, 4), torch.randn(3, 4)
    with xrt_torch.set_kernel_policy(matmul="generated"):
        mode = torch.overrides._get_current_function_mode()
        torch.nn.functional.linear(x, weight)
    names: list[str] = []

    def work() -> None:
        with xrt_torch.record() as record:
            mode.__torch_function__(torch.nn.functional.linear, (), (x, weight))
        names.extend(record.ops())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert names == ["linear"]
