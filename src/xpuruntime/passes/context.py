"""Predicates that the compiler passes in, so that passes depend on neither policies nor kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..decisions import Support
from ..ir import Graph, Node, Weight
from ..types import DType

__all__ = ["PassContext"]


def _yes(graph: Graph, nodes: Sequence[Node]) -> Support:
    return Support.yes()


def _any_op(op: str, graph: Graph, nodes: Sequence[Node]) -> Support:
    return Support.yes()


def _any_layer(graph: Graph, node: Node, weights: Collection[str]) -> Support:
    return Support.yes()


def _any_node(graph: Graph, node: Node) -> Support:
    return Support.yes()


def _always(op: str) -> bool:
    return True


def _free(graph: Graph, node: Node) -> bool:
    return False


def _as_is(node: Node) -> DType | None:
    return None


def _unseen(weight: Weight) -> NDArray[Any] | None:
    return None


@dataclass(frozen=True, slots=True)
class PassContext:
    """Constraints on rewrites; the defaults allow everything.

    may_fuse:   whether these nodes of this graph may become one; a policy's ``use`` on a member prevents a fusion. The predicate sees
                every group that a pass would fuse, so it can also record refusals.
    may_become: whether a node of this op may replace these: a kernel that a policy forces or prefers for one of them must compute it.
    has_kernel: whether a kernel computes the op; ``decompose`` expands the others.
    expands:    whether ``decompose`` expands this node although kernels list its op: its expansion is a policy's ``naive``.
                None: where ``has_kernel`` says no.
    computes:   whether a kernel computes this node, which is not in the graph yet: some fused ops have kernels for few shapes only.
    repays:     whether the kernel of this fused layer, which is not in the graph yet, is faster than those of its parts; the named values are weights.
    peek:       a weight's elements, or None if they are not available; ``recognize_rope`` compares the halves of its tables,
                ``recognize_causal`` reads masks.
    few_rows:   maximum rows for which a decoder's layer is fused with its norm or gate.
    few_rows_16_bits: the same for products of 16-bit floats.
    gates_many_rows: whether a decoder's layer of 16-bit floats is fused with its gate for more rows, too, where that repays.
    product_multiple: extents of 16-bit products that ``align_products`` pads to; 1: it pads nothing.
    wide_products: whether ``widen_products`` computes gradients of weights in the dtype that they are converted to.
    joins_readers: whether ``fuse_pointwise`` also merges elementwise nodes that only read the same value.
    library_ops: whether einsum and transposed convolutions are written as products and convolutions, which have the fast kernels.
    uneven_padding: whether convolutions pad each end by itself as fast as both alike; ``fold_pad`` needs it.
    strided_einsum: whether a kernel computes einsum as a batch of products of strided matrices; ``einsum_products`` rewrites the others.
    at_load:    the values of a graph that weight recipes compute once, when weights are loaded; ``expand_on_weights`` needs it.
    is_forced:  whether a policy names the kernel of a node, which therefore runs.
    storage:    the float dtype in which ``cast_precision`` stores a node's result; None: the model's.
    """

    may_fuse: Callable[[Graph, Sequence[Node]], Support] = _yes
    may_become: Callable[[str, Graph, Sequence[Node]], Support] = _any_op
    has_kernel: Callable[[str], bool] = _always
    expands: Callable[[Graph, Node], bool] | None = None
    computes: Callable[[Graph, Node], Support] = _any_node
    repays: Callable[[Graph, Node, Collection[str]], Support] = _any_layer
    few_rows: int = 8
    few_rows_16_bits: int = 8
    gates_many_rows: bool = False
    product_multiple: int = 1
    wide_products: bool = False
    joins_readers: bool = False
    library_ops: bool = False
    uneven_padding: bool = False
    strided_einsum: bool = False
    at_load: Callable[[Graph], Container[str]] | None = None
    is_forced: Callable[[Graph, Node], bool] = _free
    storage: Callable[[Node], DType | None] = _as_is
    peek: Callable[[Weight], NDArray[Any] | None] = _unseen
