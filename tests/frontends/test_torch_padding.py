"""Padded rows of ``nn.TransformerEncoder``: what PyTorch computes in eval mode without gradients, which its export does not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import xpuruntime as xrt  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from torch_oracle import nn, same  # noqa: E402

sys.path.pop(0)

MASKS = {
    "end": [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]],
    "start": [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]],
    "middle": [[0, 1, 0, 0, 1], [0, 0, 0, 0, 1]],
    "none": [[0] * 5, [0] * 5],
    "a whole sample": [[1] * 5, [0, 0, 0, 0, 1]],
}


class Encoder(nn.Module):
    """An encoder whose result is averaged over all rows, so that padded ones count."""

    def __init__(self, norm: nn.Module | None = None, **more: object) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=norm, **more)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.encoder(x, src_key_padding_mask=mask)
        return y, y.mean(1)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(x, x[:, :3], src_key_padding_mask=mask, memory_key_padding_mask=mask)


def _masks(name: str = "") -> list[torch.Tensor]:
    return [torch.tensor(rows, dtype=torch.bool) for key, rows in MASKS.items() if name in ("", key)]


def _module(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "transformer":
        return Whole().eval()
    norm = nn.LayerNorm(16) if kind == "norm" else None
    if norm is not None:
        nn.init.normal_(norm.bias)
    return Encoder(norm, **{"enable_nested_tensor": False} if kind == "never packed" else {}).eval()


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("kind", ["plain", "norm", "transformer", "never packed"])
def test_padded_rows_are_those_of_eval_mode(kind: str) -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    module = _module(kind)
    masks = (
        _masks()[:4] if kind == "never packed" else _masks()
    )  # PyTorch's layer gives NaN for a whole sample
    same(module, x, masks[3], others=[(x, mask) for mask in masks])
    assert not any("forward" in part.__dict__ for part in module.modules())


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_mask_of_floats_pads_where_it_is_not_0() -> None:
    x = torch.randn(2, 5, 16)
    finite = torch.tensor([[0, 0, 0, 0.5, -1], [0, 0, 0, 0, 0]])
    minus = torch.zeros(2, 5).masked_fill(_masks("end")[0], -torch.inf)
    same(_module("plain"), x, minus, others=[(x, finite)])


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_open_shapes_and_the_slow_path() -> None:
    x = torch.randn(3, 4, 16)
    mask = torch.arange(4) >= torch.tensor([[1], [4], [2]])
    shapes = {"x": {0: "b", 1: "t"}, "mask": {0: "b", 1: "t"}}
    longer = torch.randn(2, 7, 16), torch.arange(7) >= torch.tensor([[7], [3]])
    one = torch.randn(1, 1, 16), torch.zeros(1, 1, dtype=torch.bool)
    module = _module("plain")
    same(module, x, mask, dynamic_shapes=shapes, others=[longer, one])
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        same(module, x, mask)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_engines_agree_with_the_module(engine: str, tmp_path) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    module, x = _module("plain"), torch.randn(2, 5, 16)
    (mask,) = _masks("end")
    policy = xrt.ExecutionPolicy(self_check="always")
    options = {"device": "cpu", "engine": engine, "exec_policy": policy, "cache_dir": tmp_path}
    with xrt.InferenceSession(module, example_inputs=(x, mask), **options) as session, torch.no_grad():
        got = session.run([x, mask])
        for mine, theirs in zip(got.values(), module(x, mask), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_one_tensor_for_two_arguments_is_two_inputs() -> None:
    """``torch.export`` reads the second only."""
    x, y, z = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(2)).unbind()

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", z.clone())

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - 2 * b + self.held

    same(Held(), x, x, others=[(x, y)])
    module = Held()
    same(module, module.held, module.held, others=[(x, y)])
