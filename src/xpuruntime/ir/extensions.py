"""Operators of PyTorch extensions in a graph, and what to do about parts of a module that no session computes."""

from __future__ import annotations

from collections.abc import Iterator

from .graph import Graph, Node
from .ops import OPS
from .ops.control import CONTROL, bodies_of

__all__ = [
    "ATEN",
    "CONTROL_OPERATORS",
    "EXPORTED_DRAWS",
    "LEFT_TO_PYTORCH",
    "PYTORCH_DRAWS",
    "draws_numbers",
    "is_complex_tensor",
    "of_an_extension",
    "pytorch_draw",
    "unexported_draw",
]

ATEN = frozenset({"aten", "torch"})
"""The domains of opaque nodes with PyTorch's own ops."""
CONTROL_OPERATORS = ("cond", "while_loop", "map_impl", "scan", "associative_scan")
"""PyTorch's operators with bodies."""
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
LEFT_TO_PYTORCH = "Use torch.compile(module, backend='xpuruntime'), which leaves it to PyTorch"


def of_an_extension(graph: Graph, node: Node) -> bool:
    """Return True for an operator of a PyTorch extension, of which only the extension has a form."""
    return node.op == "opaque" and node.attrs["domain"] not in ATEN and "torch" in graph.metadata


def is_complex_tensor(node: Node) -> bool:
    """Return whether PyTorch makes one complex tensor of two real ones in the node."""
    return node.op == "opaque" and (node.attrs["domain"], node.attrs["op_type"]) == ("aten", "complex")


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
