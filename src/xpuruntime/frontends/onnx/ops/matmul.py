"""Lowerings of matrix products, plain and quantized."""

from __future__ import annotations

from .context import OnnxLoweringContext, OpLowering, Results
from .elementwise import same

__all__ = ["LOWERINGS", "gemm"]


def gemm(n: OnnxLoweringContext) -> Results:
    """Lower Gemm to ``linear`` if it is one (a fully connected layer as exporters write it), else to ``addmm``."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    bias = n.opt(2)
    plain = alpha == beta == 1.0 and not n.attr("transA", 0) and n.attr("transB", 0)
    if plain and (bias is None or n.spec(2).shape == n.spec(1).shape[:1]):
        return str(n.b.linear(n.x, n.input(1), bias))
    x = n.b.permute(n.x, dims=[1, 0]) if n.attr("transA", 0) else n.x
    matrix = n.b.permute(n.input(1), dims=[1, 0]) if n.attr("transB", 0) else n.input(1)
    if bias is None:
        product = str(n.b.mm(x, matrix))
        return product if alpha == 1.0 else str(n.b.mul(product, n.like(alpha)))
    return str(n.b.addmm(bias, x, matrix, alpha=alpha, beta=beta))


LOWERINGS: dict[str, OpLowering] = {
    "Det": same("det"),
    "Einsum": lambda n: str(n.b.call("einsum", *n.inputs, equation=n.attr("equation"))),
    "Gemm": gemm,
    "MatMul": same("matmul"),
    "MatMulInteger": same("matmul_integer"),
    "QLinearMatMul": same("qlinear_matmul"),
}
