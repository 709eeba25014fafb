"""Random inputs of a test are those that it has alone, so that a sample of the tests changes none of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

RANDOM = np.random.default_rng(1)
FIRST = np.random.default_rng(1).integers(1 << 30, size=5).tolist()


@pytest.mark.parametrize("drawn_before", [0, 1, 2])
def test_a_generator_of_a_module_starts_again(drawn_before: int) -> None:
    assert RANDOM.integers(1 << 30, size=5).tolist() == FIRST


def test_a_generator_of_pytorch_starts_again(request: pytest.FixtureRequest) -> None:
    torch = pytest.importorskip("torch")
    shared = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    module = type(request.module)("with_a_generator")
    module.random = torch.Generator().manual_seed(3)
    (restart,) = [start for value, start in shared._generators(module) if value is module.random]
    first = torch.randn(4, generator=module.random)
    restart()
    assert torch.equal(torch.randn(4, generator=module.random), first)
