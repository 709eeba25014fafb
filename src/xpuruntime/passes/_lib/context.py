"""What a pass may know besides the graph: plain predicates that the compiler hands in, so that passes need not know policies or kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...decisions import Support
from ...ir import Graph, Node, Weight
from ...types import DType

__all__ = ["PassContext"]


def _yes(graph: Graph, nodes: Sequence[Node]) -> Support:
    return Support.yes()


def _any_op(op: str, graph: Graph, nodes: Sequence[Node]) -> Support:
    return Support.yes()


def _any_node(graph: Graph, node: Node) -> Support:
    return Support.yes()


def _always(op: str) -> bool:
    return True


def _as_is(node: Node) -> DType | None:
    return None


def _unseen(weight: Weight) -> NDArray[Any] | None:
    return None


@dataclass(frozen=True, slots=True)
class PassContext:
    """Constraints on rewrites; the defaults allow everything.

    may_fuse:   whether these nodes of this graph may become one; a policy's ``use`` on a member blocks a fusion. Whoever wants to report a
                refusal does so in the predicate: it sees every group that a pass would have fused.
    may_become: whether a node of this op may take the place of these: a kernel that a policy forces or prefers for one of them must compute it.
    has_kernel: whether something computes the op as it is; ``decompose`` expands the others.
    computes:   whether a kernel computes this node, which the graph does not have yet: some fused ops have kernels for few shapes only.
    peek:       a weight's elements where somebody can tell; ``recognize_rope`` compares the halves of its tables, ``recognize_causal`` reads
                masks. None: not known.
    few_rows:   rows up to which a decoder's layer pays as one kernel with its norm or gate.
    storage:    the float dtype in which a node's result is kept, None: as the model says. ``cast_precision`` asks it.
    """

    may_fuse: Callable[[Graph, Sequence[Node]], Support] = _yes
    may_become: Callable[[str, Graph, Sequence[Node]], Support] = _any_op
    has_kernel: Callable[[str], bool] = _always
    computes: Callable[[Graph, Node], Support] = _any_node
    few_rows: int = 8
    storage: Callable[[Node], DType | None] = _as_is
    peek: Callable[[Weight], NDArray[Any] | None] = _unseen
