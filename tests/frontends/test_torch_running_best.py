"""Running maxima and minima, indices of triangles and distances, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction  # noqa: E402

import xpuruntime as xrt  # noqa: E402

nan, inf = float("nan"), float("inf")

OPERANDS = {
    "ties": torch.tensor([[1.0, 3.0, 3.0, -inf, inf, inf, 0.0], [2.0, 2.0, 1.0, -0.0, 0.0, -3.0, 5.0]]),
    "nan": torch.tensor([[1.0, nan, 3.0, nan, inf], [nan, 1.0, 2.0, 0.0, -inf]]),
    "one": torch.tensor([[4.0], [nan]]),
    "empty": torch.zeros(2, 0),
    "int": torch.tensor([[3, -1, 3, 7, 7], [0, 0, -9, 2, 1]], dtype=torch.int32),
    "bool": torch.tensor([[False, True, False], [True, False, True]]),
    "half": torch.tensor([[0.5, nan, 2.0], [4.0, 4.0, -1.0]], dtype=torch.float16),
    "long": torch.sin(torch.arange(2 * 137).view(2, 137) * 0.7),
}


def agree(function: Any, *args: Any) -> None:
    module = OfFunction(function).eval()
    with xrt.InferenceSession(module, engine="native", example_inputs=args, device="cpu") as session:
        got, want = list(session.run(list(args)).values()), module(*args)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("best", [torch.cummax, torch.cummin])
@pytest.mark.parametrize("name", OPERANDS)
def test_running_best(name: str, best: Any, dim: int) -> None:
    agree(lambda x: tuple(best(x, dim)), OPERANDS[name])


def test_running_best_of_a_scalar() -> None:
    agree(lambda x: tuple(torch.cummax(x, 0)), torch.tensor(3.0))


def test_running_best_of_an_open_size_is_refused() -> None:
    graph = xrt.extract_ir(
        OfFunction(lambda x: torch.cummax(x, 0).values), torch.ones(4), dynamic_shapes=({0: "n"},)
    )
    assert [n.attrs.get("reason") for n in graph.nodes if n.op == "opaque"] == [
        "dim 0 of its operand has a size that is not fixed"
    ]


def test_triangles_and_distances() -> None:
    agree(lambda x: x[:, *torch.tril_indices(4, 5, offset=-1)], torch.randn(2, 4, 5))
    agree(lambda x: x + torch.triu_indices(3, 3, dtype=torch.int32).sum(), torch.ones(1))
    agree(lambda a, b: torch.dist(a, b, 3.0), torch.randn(3, 4), torch.randn(4))
    agree(lambda a, b: torch.dist(a, b, 0.0), torch.randn(3), torch.zeros(3))


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.linalg.cholesky, torch.inverse])
def test_factorizations_keep_pytorch_s_check(function: Any) -> None:
    class Solved(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x) * 2

    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    with xrt.InferenceSession(Solved(), example_inputs=matrix, device="cpu") as session:
        torch.testing.assert_close(session.run([matrix])["output"], Solved()(matrix))
        with pytest.raises(xrt.XpuError, match=r"a matrix is (singular|not positive definite)"):
            session.run([torch.zeros(2, 2)])
