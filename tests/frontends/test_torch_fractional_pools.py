"""Fractional max pools with given samples on the native engine, against PyTorch: values, indices, ties and NaN."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from support.torch_oracle import run_natively, same  # noqa: E402


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("size", "out", "kernel"), [((31, 40), (13, 17), 2), ((9, 50), (4, 20), (3, 4)), ((5, 5), (1, 5), (2, 1))]
)
def test_planes(size: tuple[int, int], out: tuple[int, int], kernel: object, dtype: str) -> None:
    """The windows' bounds are rounded in the samples' type, which decides where they begin."""
    draw = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    x, samples = torch.randn(20, 15, *size, generator=draw).to(kind), torch.rand(20, 15, 2, generator=draw)

    def pool(x: object, r: object) -> object:
        return F.fractional_max_pool2d(x, kernel, out, return_indices=True, _random_samples=r)

    for got, want in zip(run_natively([pool], x, samples.to(kind)), pool(x, samples.to(kind)), strict=True):
        assert torch.equal(got, want)


def test_a_single_image_volumes_and_ratios() -> None:
    same(
        lambda x, r: F.fractional_max_pool2d(x, 2, output_ratio=(0.5, 0.6), _random_samples=r),
        torch.randn(3, 11, 9),
        torch.rand(1, 3, 2),
    )
    same(
        lambda x, r: F.fractional_max_pool3d(x, (2, 1, 3), (3, 4, 2), return_indices=True, _random_samples=r),
        torch.randn(2, 3, 7, 8, 9),
        torch.rand(2, 3, 3),
    )
    samples = torch.rand(2, 3, 2)
    same(torch.nn.FractionalMaxPool2d(2, output_size=3, _random_samples=samples).eval(), torch.randn(2, 3, 11, 9))  # fmt: skip


def test_ties_and_nan() -> None:
    x = torch.randint(0, 3, (4, 3, 9, 9), generator=torch.Generator().manual_seed(0)).float()
    x[x == 0] = float("nan")
    samples = torch.rand(4, 3, 2)

    def pool(x: object, r: object) -> object:
        return F.fractional_max_pool2d(x, 3, 4, return_indices=True, _random_samples=r)

    values, indices = run_natively([pool], x, samples)
    want, want_indices = pool(x, samples)
    torch.testing.assert_close(values, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(indices, want_indices)


def test_any_batch() -> None:
    n = torch.export.Dim("n", min=2)
    others = [(torch.randn(5, 3, 9, 9), torch.rand(5, 3, 2))]
    same(
        lambda x, r: F.fractional_max_pool2d(x, 3, 4, _random_samples=r),
        torch.randn(2, 3, 9, 9),
        torch.rand(2, 3, 2),
        dynamic_shapes=({0: n}, ({0: n},)),
        others=others,
    )
