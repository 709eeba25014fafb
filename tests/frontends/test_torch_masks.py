"""Boolean masks as indices, against PyTorch: what they select and what is written through them, for some, all and no elements."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402


def rows_written(x: Any, v: Any) -> Any:
    y, mask = x.clone(), x[:, 0, 0] > 0
    y[mask] = v[mask] * 3
    return y


def rows_added(x: Any, v: Any) -> Any:
    y, mask = x.clone(), x[:, 0, 0] > 0
    y[mask] += v[mask].sum(1, keepdim=True)
    return y


def elements_written(x: Any, v: Any) -> Any:
    y = x.clone()
    y[x > 0] = v[x > 0]
    return y


CASES = [
    lambda x, v: x[x > 0] * 2,
    lambda x, v: x[x[:, 0, 0] > 0] @ v[0].T,
    lambda x, v: x[:, x[0, :, 0] > 0],
    lambda x, v: x[..., v[0, 0] > 0],
    lambda x, v: x[:, x[0] > 0].sum(1),
    lambda x, v: (lambda y: y[y[:, 1, 1] > 0])(x[x[:, 0, 0] > 0]),
    elements_written,
    rows_written,
    rows_added,
    lambda x, v: torch.index_put(x, (x > 0,), v[x > 0], accumulate=True),
    lambda x, v: torch.index_put(x, (x > 0,), torch.tensor(2.0), accumulate=True),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_mask_selects_and_writes_what_it_does_in_pytorch(case: int) -> None:
    generator = torch.Generator().manual_seed(case)
    x, v = (torch.randn(4, 3, 5, generator=generator) for _ in range(2))
    same(CASES[case], x, v, others=[(torch.ones(4, 3, 5), v), (-torch.ones(4, 3, 5), v)])


def test_a_session_selects_rows_natively() -> None:
    model = OfFunction(lambda x: x[x[:, 0] > 0].exp()).eval()
    session = xrt.InferenceSession(
        model, example_inputs=torch.randn(4, 3), engine="native", dynamic_shapes={"x": {0: "rows"}}
    )
    for x in (torch.randn(7, 3), torch.ones(2, 3), -torch.ones(5, 3)):
        (y,) = session.run({"x": x}).values()
        assert torch.allclose(y, x[x[:, 0] > 0].exp())
