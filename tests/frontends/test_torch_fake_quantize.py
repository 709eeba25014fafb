"""Fake quantization of PyTorch, as models trained for quantization have it: by numbers, by tensors and per channel."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import same  # noqa: E402

SCALE = torch.tensor([0.05, 0.02, 0.11, 0.07])
ZERO = torch.tensor([0, 3, -2, 1], dtype=torch.int32)
ON, OFF = torch.ones(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)


def by_tensors(x: Any, enabled: Any) -> Any:
    return torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, SCALE[:1], ZERO[1:2], enabled, 0, 255
    )[0]


FORMS: dict[str, Any] = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALE[0], ZERO[1], 0, 255),
    "enabled": lambda x: by_tensors(x, ON),
    "disabled": lambda x: by_tensors(x[0, 0], OFF),
    "rows": lambda x: torch.fake_quantize_per_channel_affine(x, SCALE, ZERO, 0, -128, 127),
    "columns": lambda x: torch.fake_quantize_per_channel_affine(x.t(), SCALE, ZERO, 1, -8, 7),
    "float zero points": lambda x: torch.fake_quantize_per_channel_affine(x, SCALE, ZERO + 0.5, 0, -128, 127),
}


@pytest.mark.parametrize("form", FORMS)
def test_fake_quantization(form: str) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)) * 3
    same(FORMS[form], x, others=[(x * 100,), (x * 0,)])
