"""Branches, loops and scans of PyTorch modules, natively and on ONNX Runtime, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from support.torch_oracle import OfFunction, opaque  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import xpuruntime as xrt  # noqa: E402


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        return while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, self.layer(a).tanh()), (torch.tensor(0), x)
        )


class UntilSmall(nn.Module):
    def forward(self, x: Any) -> Any:
        count = torch.zeros(1, dtype=torch.int64)
        return while_loop(lambda n, a: a.abs().sum() > 1, lambda n, a: (n + 1, a * 0.5), (count, x))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        inner = torch.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, (x,))
        return torch.cond(inner.sum() > 0, self.one, self.two, (inner,))


class Scanned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 3)

    def forward(self, x: Any, other: Any) -> Any:
        def step(state: Any, rows: Any) -> Any:
            x, other = rows
            state = self.cell(x, state) + other
            return state.clone(), state * 2

        return scan(step, torch.zeros(2, 3), (x, other))


def agree(module: nn.Module, *cases: tuple[Any, ...]) -> None:
    module = module.eval()
    assert not opaque(xrt.extract_ir(module, cases[0]))
    wanted = []
    with torch.no_grad():
        for tensors in cases:
            want = module(*tensors)
            wanted.append([want] if torch.is_tensor(want) else list(want))
    for engine in ("native", "onnxruntime"):
        with xrt.InferenceSession(module, example_inputs=cases[0], engine=engine) as session:
            assert [r.engine for r in session.plan.regions] == [engine]
            for tensors, want in zip(cases, wanted, strict=True):
                for mine, theirs in zip(session.run(list(tensors)).values(), want, strict=True):
                    assert mine.dtype == theirs.dtype
                    torch.testing.assert_close(mine, theirs)
    with torch.no_grad():  # the self-check left the module as it was
        again = module(*cases[0])
    assert torch.is_tensor(again) or torch.equal(again[1], wanted[0][1])


def test_a_counted_loop_with_weights() -> None:
    agree(Counted(), (torch.randn(3, 5),), (torch.randn(3, 5) * 9,))


def test_a_loop_that_its_values_end() -> None:
    agree(UntilSmall(), (torch.randn(3, 5),), (torch.zeros(3, 5),), (torch.full((3, 5), 1e4),))


def test_branches_with_weights_one_after_another() -> None:
    x = torch.ones(3, 5)
    agree(Branches(), (x,), (-x,), (x - 1.5 * torch.eye(3, 5),))


def test_a_scan_with_weights_and_stacked_results() -> None:
    agree(Scanned(), (torch.randn(6, 2, 4), torch.randn(6, 2, 3)))


def test_a_branch_in_a_loop() -> None:
    def forward(x: Any) -> Any:
        def step(i: Any, a: Any) -> Any:
            return i + 1, torch.cond(a.sum() > 0, lambda v: v - 3, lambda v: v * v, (a,))

        return while_loop(lambda i, a: i < 5, step, (torch.tensor(0), x))[1]

    agree(OfFunction(forward), (torch.ones(4),), (-torch.ones(4),))


def test_an_op_without_a_form_in_a_body_is_named() -> None:
    def forward(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: torch.linalg.eigvalsh(v), lambda v: v[0] * 1, (x,))

    assert opaque(xrt.extract_ir(OfFunction(forward).eval(), torch.eye(3))) == [
        "cond: its body has _linalg_eigh: the op is not in the table of ATen ops"
    ]
