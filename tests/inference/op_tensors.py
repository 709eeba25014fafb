"""What tests of single ops share: tensors, what counts as equal, and a store of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

RANDOM = torch.Generator().manual_seed(5)


@pytest.fixture(autouse=True, scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Few processes compile these: a fixed folder for a module's tests, so that equal programs are compiled once."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XPU_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
    yield
    patch.undo()


def some(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=RANDOM).to(dtype)


def close(got: Any, want: Any, limit: float = 1e-5) -> None:
    assert type(got) is type(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    a, b = got.double(), want.double()
    assert torch.equal(a.isnan(), b.isnan())
    a, b = a.nan_to_num(), b.nan_to_num()
    assert (a - b).abs().max() <= limit * max(float(b.abs().max()), 1.0) if b.numel() else True
