"""Nodes that draw random numbers, and which of them PyTorch or ONNX Runtime may draw."""

from __future__ import annotations

from collections.abc import Iterator

from .graph import Node
from .ops import OPS
from .ops.control import CONTROL, bodies_of

__all__ = ["EXPORTED_DRAWS", "PYTORCH_DRAWS", "draws_numbers", "pytorch_draw", "unexported_draw"]

PYTORCH_DRAWS = frozenset(
    {
        "bernoulli.Tensor",
        "bernoulli.p",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal.Tensor_Tensor",
        "normal.Tensor_float",
        "normal.float_Tensor",
        "normal.float_float",
        "normal_functional",
        "rand_like",
        "randint",
        "randint.low",
        "randint_like",
        "randint_like.low_dtype",
        "randn_like",
        "randperm",
        "uniform",
    }
)
"""ATen ops that draw random numbers and that are not written to ONNX: ONNX Runtime starts the generators of neighboring nodes at neighboring
seeds, so their numbers are not independent. A session leaves them to PyTorch unless the native engine is named."""
EXPORTED_DRAWS = frozenset({"bernoulli", "dropout", "native_dropout", "rand", "randn"})
"""ATen ops that draw random numbers and that are written to ONNX."""


def draws_numbers(node: Node) -> bool:
    """Return True for a random op; False for dropout without effect."""
    return OPS[node.op].random and bool(node.op != "dropout" or (node.attrs["train"] and node.attrs["p"]))


def pytorch_draw(node: Node) -> str:
    """Return the ATen op of a draw that PyTorch evaluates; an empty text for any other node."""
    if node.op != "opaque" or node.attrs["domain"] != "aten":
        return ""
    op: str = node.attrs["op_type"]
    return op if op in PYTORCH_DRAWS or op in EXPORTED_DRAWS else ""


def unexported_draw(node: Node) -> str:
    """Return the name of a random op that is not written to ONNX: the node's, or that of a node of PyTorch in its bodies. Else an empty text."""
    if node.op in CONTROL:
        return next(filter(None, map(_draw_of_pytorch, _inner(node))), "")
    if node.op == "opaque":
        op = pytorch_draw(node)
        return op if op in PYTORCH_DRAWS else ""
    if node.op in ("random_bits", "randperm"):
        return node.op
    op = _draw_of_pytorch(node)
    return op if op in PYTORCH_DRAWS else ""


def _inner(node: Node) -> Iterator[Node]:
    for body in bodies_of(node):
        for inner in body.nodes:
            yield inner
            yield from _inner(inner)


def _draw_of_pytorch(node: Node) -> str:
    if not draws_numbers(node):
        return ""
    return next((s.op.removeprefix("aten.") for s in node.sources if s.op.startswith("aten.")), "")
