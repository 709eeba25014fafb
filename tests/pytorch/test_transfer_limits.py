"""``transfer_limits``: a training step that copies or makes the host wait is an error with its operator, its line and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import xpuruntime.pytorch as xrt_torch  # noqa: E402
from xpuruntime.errors import PolicyError  # noqa: E402

STRICT = {"h2d": "io_only", "d2h": "io_only", "sync": "none"}


def policy(**transfers: str) -> dict[str, Any]:
    return {"version": 1, "execution": {"transfers": transfers or STRICT}}


def step(model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_a_step_without_transfers_runs_as_before(kind: str) -> None:
    results = []
    for limited in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        for _ in range(2):
            if limited:
                with xrt_torch.transfer_limits(policy()):
                    step(model, optimizer, torch.ones(4, 8))
            else:
                step(model, optimizer, torch.ones(4, 8))
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


X = torch.arange(6.0)
BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "item": (lambda: X.sum().item(), "sync"),
    "if": (lambda: 1 if X.sum() > 0 else 2, "sync"),
    "nonzero": (lambda: X.nonzero(), "sync"),
    "mask": (lambda: X[X > 2], "sync"),
    "mask assignment": (lambda: X.clone().__setitem__(X > 2, X[:3]), "sync"),
    "counts": (lambda: X.repeat_interleave(torch.arange(6)), "sync"),
    "unique": (lambda: X.unique(), "sync"),
    "equal": (lambda: torch.equal(X, X), "sync"),
    "to": (lambda: X.to("meta"), "h2d"),
    "copy": (lambda: torch.empty(6, device="meta").copy_(X), "h2d"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_limit_is_named_with_its_line_and_a_remedy(name: str) -> None:
    call, field = BROKEN[name]
    with pytest.raises(PolicyError, match=rf"transfers\.{field}: \w+ is not satisfied") as raised, xrt_torch.transfer_limits(policy()):  # fmt: skip
        call()
    text = str(raised.value)
    assert "test_transfer_limits.py" in text
    assert "aten." in text
    assert f"{field}: any" in text
    call()  # the limits end with the block
    others = {f: w for f, w in STRICT.items() if f != field}
    with xrt_torch.transfer_limits(policy(**others)):
        call()


def test_a_copy_to_the_host_waits_unless_it_is_told_not_to() -> None:
    """``meta`` stands for a device. What a limit permits goes on to PyTorch, which has no such copy."""
    away = X.to("meta")
    copies: tuple[Callable[[bool], Any], ...] = (
        lambda free: away.to("cpu", non_blocking=free),
        lambda free: torch.empty(6).copy_(away, non_blocking=free),
        lambda free: torch.empty(6).copy_(away, free),
    )
    for copy in copies:
        with pytest.raises(PolicyError, match=r"transfers\.d2h"), xrt_torch.transfer_limits(policy()):
            copy(False)
        with pytest.raises(PolicyError, match=r"transfers\.sync.*for which the host waits"), xrt_torch.transfer_limits(policy(sync="none")):  # fmt: skip
            copy(False)
        with pytest.raises(NotImplementedError), xrt_torch.transfer_limits(policy(sync="none")):
            copy(True)


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_a_wait_in_a_closure_of_an_optimizer_is_the_user_s(kind: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        loss.item()
        return loss

    with pytest.raises(PolicyError, match=r"transfers\.sync") as raised, xrt_torch.transfer_limits(policy()):
        optimizer.step(closure)
    assert "loss.item()" in str(raised.value)


def test_sizes_that_the_host_knows_need_no_wait() -> None:
    with xrt_torch.transfer_limits(policy()):
        assert X.repeat_interleave(torch.arange(6), output_size=15).shape == (15,)
        assert X.repeat_interleave(2).shape == (12,)
        assert X[torch.tensor([1, 2])].shape == (2,)


def test_a_wait_in_backward_is_found() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * float(gradient.sum())

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(PolicyError, match="sync: none"), xrt_torch.transfer_limits(policy()):
        Reads.apply(x).sum().backward()


def test_the_policy_of_the_loop_holds_by_default() -> None:
    with xrt_torch.set_kernel_policy(policy(sync="none")):
        with pytest.raises(PolicyError, match="training step"), xrt_torch.transfer_limits():
            X.sum().item()
        X.sum().item()  # outside of the step
    with xrt_torch.transfer_limits():
        X.sum().item()
