"""Bridges of matrix products, einsum and attention."""

from __future__ import annotations

from typing import Any

from .bridge import Adapted, Bridge, NotComparable, only
from .pointwise import binary, unary, with_tensors

__all__ = ["BRIDGES"]

_F = "nn.functional."


def addmm(s: Any) -> Adapted:
    return [s.input, *s.args], only(dict(s.kwargs), "alpha", "beta")


def einsum(s: Any) -> Adapted:
    if str(s.input[0].dtype) in ("torch.int32", "torch.uint8", "torch.int8"):
        raise NotComparable("small integers, which PyTorch widens where it takes a sum")
    return list(s.input), {"equation": s.args[0]}


def attention(s: Any) -> Adapted:
    q, (k, v) = s.input, s.args[:2]
    kwargs = dict(s.kwargs)
    if q.dim() != 4 or kwargs.get("dropout_p"):
        raise NotComparable("another rank, or dropout")
    kwargs.pop("dropout_p", None)
    causal, mask = kwargs.pop("is_causal", False), kwargs.pop("attn_mask", None)
    kwargs.pop("enable_gqa", None)
    return [q, k, v, mask], {"causal": causal, **only(kwargs, "scale")}


def solve_triangular(s: Any) -> Adapted:
    kwargs = dict(s.kwargs)
    if not kwargs.pop("left", True):
        raise NotComparable("unknowns on the left")
    return [s.input, *s.args], only(kwargs, "upper", "unitriangular")


BRIDGES: dict[str, Bridge] = {name: Bridge(name, binary) for name in ("mm", "bmm", "matmul")} | {
    f"{_F}linear": Bridge("linear", with_tensors("weight", "bias")),
    "addmm": Bridge("addmm", addmm, variants=("", "decomposed")),
    "einsum": Bridge("einsum", einsum),
    "linalg.det": Bridge("det", unary, variants=("", "singular")),
    "linalg.solve_triangular": Bridge("solve_triangular", solve_triangular),
    f"{_F}scaled_dot_product_attention": Bridge("attention", attention),
}
