"""Backward ops of ATen are nodes like any other."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import same  # noqa: E402

nn, F = torch.nn, torch.nn.functional


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "shapes", "arguments"),
    [
        (aten.convolution_backward, [(2, 4, 5, 5), (2, 6, 5, 5), (4, 3, 3, 3)], [[4], [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True] * 3]),
        (aten.avg_pool2d_backward, [(2, 3, 2, 2), (2, 3, 4, 4)], [[2, 2], [2, 2], [0, 0], False, True, None]),
        (aten._adaptive_avg_pool2d_backward, [(2, 3, 2, 2), (2, 3, 4, 6)], []),
    ],
    ids=lambda v: v.__name__ if hasattr(v, "__name__") else "",
)  # fmt: skip
def test_gradients_of_layers(op: Any, shapes: Any, arguments: Any) -> None:
    class Gradient(nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return op(*tensors, *arguments)

    graph = same(Gradient().eval(), *(torch.randn(s) for s in shapes))
    assert len(graph) == 1


def test_gradients_of_norms_embeddings_and_max_pools() -> None:
    class Gradients(nn.Module):
        def forward(self, x: Any, grad: Any, weight: Any, bias: Any) -> Any:
            _, mean, rstd = aten.native_layer_norm(x, [6], weight, bias, 1e-5)
            layer = aten.native_layer_norm_backward(
                grad, x, [6], mean, rstd, weight, bias, [True, True, True]
            )
            pooled, places = aten.max_pool2d_with_indices(x, [2, 2])
            pool = aten.max_pool2d_with_indices_backward(
                pooled, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places
            )
            _, mean, rstd = aten.native_group_norm(x, weight[:4], None, 2, 4, 36, 2, 1e-5)
            group = aten.native_group_norm_backward(
                grad, x, mean, rstd, weight[:4], 2, 4, 36, 2, [True, True, True]
            )
            table = aten.embedding_dense_backward(grad[0, 0], torch.tensor([1, 0, 1, 2, 4, 4]), 5, -1, False)
            return (*layer, pool, *group, table)

    x = torch.randn(2, 4, 6, 6)
    graph = same(Gradients().eval(), x, torch.randn_like(x), torch.randn(6), torch.randn(6))
    assert {n.op for n in graph if n.op.endswith("_backward")} == {
        "layer_norm_backward", "max_pool_backward", "group_norm_backward", "embedding_backward",
    }  # fmt: skip
