"""``flex_attention`` and ``torch.func.vmap`` of PyTorch models, against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from support.torch_oracle import OfFunction, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402

SWITCH = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
LENGTH = 7
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1, 2, 2])
SLOPES = torch.tensor([0.5, 0.25, -0.5, 1.0])


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let PyTorch compute its reference without compiling it."""
    if not hasattr(flex, SWITCH):
        pytest.skip("this PyTorch always compiles flex_attention")
    monkeypatch.setattr(flex, SWITCH, True)
    yield
    assert getattr(flex, SWITCH) is True, "an export must restore what it replaces"


def mask(mask_mod: Any, rows: int = LENGTH, columns: int = LENGTH) -> Any:
    return flex.create_block_mask(mask_mod, None, None, rows, columns, device="cpu")


def plain(q: Any, k: Any, v: Any) -> Any:
    return flex.flex_attention(q, k, v, enable_gqa=True)


def of_documents(q: Any, k: Any, v: Any) -> Any:
    def within(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i >= j) & (DOCUMENTS[i] == DOCUMENTS[j])

    return flex.flex_attention(q, k, v, block_mask=mask(within), enable_gqa=True, scale=0.3)


def with_rows_that_see_nothing(q: Any, k: Any, v: Any) -> Any:
    return flex.flex_attention(q, k, v, block_mask=mask(lambda b, h, i, j: j < i), enable_gqa=True)


def biased_with_sums(q: Any, k: Any, v: Any) -> Any:
    def biased(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + SLOPES[h] * (j - i)

    return flex.flex_attention(q, k, v, score_mod=biased, enable_gqa=True, return_lse=True)


def capped_and_causal(q: Any, k: Any, v: Any) -> Any:
    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 2 * torch.tanh(score / 2)

    causal = mask(lambda b, h, i, j: i > j)
    return flex.flex_attention(q, k, v, score_mod=capped, block_mask=causal, enable_gqa=True)


@pytest.mark.parametrize(
    "function",
    [plain, of_documents, with_rows_that_see_nothing, biased_with_sums, capped_and_causal],
    ids=lambda f: f.__name__,
)
def test_functions_of_scores_and_masks(function: Any) -> None:
    q, k, v = torch.randn(2, 4, LENGTH, 8), torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, LENGTH, 8)
    same(function, q, k, v, others=((-3 * q, k, v),))


def test_scores_that_are_only_masked_are_one_attention() -> None:
    graph = same(of_documents, torch.randn(1, 2, LENGTH, 8), *torch.randn(2, 1, 2, LENGTH, 8).unbind())
    ops = {n.op for n in graph}
    assert "attention" in ops
    assert "matmul" not in ops


def test_open_batch() -> None:
    q, k, v = torch.randn(2, 4, LENGTH, 8), torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, LENGTH, 8)
    shapes = ({0: "batch"},) * 3

    def biased(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + SLOPES[h] * (j - i), enable_gqa=True
        )

    class Three(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return biased(q, k, v)

    more = tuple(torch.cat([t, -t[:1]]) for t in (q, k, v))
    same(Three().eval(), q, k, v, dynamic_shapes=shapes, others=(more,))


@pytest.mark.parametrize("function", [of_documents, biased_with_sums], ids=lambda f: f.__name__)
def test_sessions(function: Any) -> None:
    inputs = (torch.randn(2, 4, LENGTH, 8), torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, LENGTH, 8))
    module = OfFunction(function).eval()
    wanted = module(*inputs)
    with xrt.InferenceSession(module, device="cpu", engine="native", example_inputs=inputs) as session:
        names = [i.name for i in session.input_info]
        outputs = session.run(dict(zip(names, inputs, strict=True)))
    for output, want in zip(
        outputs.values(), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(torch.as_tensor(output), want)


def test_writes_inside_of_vmap() -> None:
    def written(x: Any, y: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            z = a.new_zeros(6)
            z[1:] = a * b
            return z.mul_(2)

        return torch.func.vmap(one, in_dims=(0, 1))(x, y)

    same(written, torch.randn(3, 5), torch.randn(5, 3))


def test_numbers_inside_of_vmap() -> None:
    same(torch.func.vmap(lambda a: 20 * torch.tanh(a / 20).to(torch.float16) + a.sum()), torch.randn(3, 5))
