"""Passes: rewrites from graph to graph, in one readable order. ``PASSES`` is the documentation of what happens, and when.

    better = run_passes(graph)                               # all of them
    better = run_passes(graph, 1)                            # those of the basic level
    better = run_passes(graph, ["fold_constants", "cse"])    # by name, in the table's order
    better = run_passes(graph, "-fuse_conv")                 # all of them but one
    run_passes(graph, watch=lambda name, after: print(name, len(after)))

Every pass is a pure function ``run(graph, context) -> Graph``; one file each. It keeps inputs, outputs, states and what they mean;
sums may be rounded in another order, no more. Nodes that it makes carry the sources of those that they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..errors import IrError
from ..faults import part
from ..ir import Graph, verify
from ..types import DType
from . import (
    cast_precision,
    concat_linear,
    cse,
    dead_code,
    decompose,
    fold_batch_norm,
    fold_constants,
    fuse_conv,
    fuse_gate,
    fuse_linear,
    fuse_norm_linear,
    fuse_pointwise,
    fuse_rope_append,
    fuse_rope_attention,
    in_place_state,
    layout,
    simplify,
    unflatten,
)
from . import recognize_activation as recognize_activation
from . import recognize_attention as recognize_attention
from . import recognize_causal as recognize_causal
from . import recognize_mean as recognize_mean
from . import recognize_norm as recognize_norm
from . import recognize_rope as recognize_rope
from ._lib.context import PassContext
from ._lib.selection import LEVELS, chosen_names

__all__ = ["LEVELS", "PASSES", "GraphPass", "PassContext", "apply", "find_passes", "laid_out", "run_passes"]

Run: TypeAlias = Callable[[Graph, PassContext | None], Graph]


@dataclass(frozen=True, slots=True)
class GraphPass:
    """One rewrite: its name, what it does, the function, and the lowest level at which it runs (4: only by name).

    physical: it says where values lie in memory. The compiler does it for each target, after all others; ``run_passes`` leaves it out.
    """

    name: str
    meaning: str
    run: Run
    level: int
    physical: bool = False


BASIC, EXTENDED, ALL, NAMED = 1, 2, 3, 4  # passes of the last run only when named


def _clean(graph: Graph, context: PassContext | None) -> Graph:
    """Leftovers of the passes before."""
    for step in (fold_constants.run, simplify.run, cse.run, dead_code.run):
        graph = step(graph, context)
    return graph


def _laid_out(graph: Graph, context: PassContext | None) -> Graph:
    """The graph with the conversions between layouts that it needs."""
    return layout.assign_layouts(graph)[0]


# fmt: off
PASSES: tuple[GraphPass, ...] = (
    GraphPass("fold_constants", "nodes that read constants alone become constants", fold_constants.run, BASIC),
    GraphPass("simplify", "what does nothing goes; chains of views, casts and the like become one", simplify.run, BASIC),
    GraphPass("cse", "equal nodes are computed once", cse.run, BASIC),
    GraphPass("dead_code", "what nothing reads goes", dead_code.run, BASIC),
    GraphPass("fold_batch_norm", "batch norms go into the weights of the layers beside them", fold_batch_norm.run, BASIC),
    GraphPass("recognize_activation", "written-out gelu, silu, hardswish ... are one op", recognize_activation.run, EXTENDED),
    GraphPass("recognize_mean", "pools of the whole input are means and maxima", recognize_mean.run, EXTENDED),
    GraphPass("unflatten", "products over flattened dims are products of the values", unflatten.run, EXTENDED),
    GraphPass("recognize_norm", "written-out rms_norm, layer_norm, softmax are one op", recognize_norm.run, EXTENDED),
    GraphPass("recognize_rope", "written-out rotary embeddings are one op", recognize_rope.run, EXTENDED),
    GraphPass("recognize_attention", "softmax(q @ k.T) @ v is one op, grouped heads as they are", recognize_attention.run, EXTENDED),
    GraphPass("recognize_causal", "causal masks that are known are attention's own", recognize_causal.run, EXTENDED),
    GraphPass("fuse_conv", "convolution with bias, residual and activation", fuse_conv.run, EXTENDED),
    GraphPass("fuse_linear", "products with weights are linear, with bias, residual and activation", fuse_linear.run, EXTENDED),
    GraphPass("split_batch_norm", "other batch norms become a scale and a shift", fold_batch_norm.split, ALL),
    GraphPass("concat_linear", "linear layers of one input become one", concat_linear.run, ALL),
    GraphPass("fuse_gate", "gate, up and their product are one layer, for few rows", fuse_gate.run, NAMED),
    GraphPass("fuse_norm_linear", "a norm and the layer that reads it are one, for few rows", fuse_norm_linear.run, NAMED),
    GraphPass("fuse_rope_append", "rotations and updates of the KV cache are one", fuse_rope_append.run, NAMED),
    GraphPass("fuse_rope_attention", "rotations, updates of the KV cache and attention are one, where a kernel computes them", fuse_rope_attention.run, NAMED),
    GraphPass("decompose", "ops that no kernel computes are written out", decompose.run, BASIC),
    GraphPass("cast_precision", "float32 values are kept narrower where the policy says so", cast_precision.run, BASIC),
    GraphPass("clean_up", "fold_constants, simplify, cse and dead_code once more", _clean, EXTENDED),
    GraphPass("fuse_pointwise", "elementwise nodes of one shape become one kernel", fuse_pointwise.run, ALL),
    GraphPass("in_place_state", "old contents of states are read before they change", in_place_state.run, BASIC),
    GraphPass("layout", "values of convolutional networks lie channels-last; conversions stand at the borders", _laid_out, BASIC, physical=True),
)
# fmt: on
"""Every pass, in the order in which they run."""


def find_passes(which: Iterable[str] | str | int = 3, usual: int = 3) -> tuple[GraphPass, ...]:
    """Passes in the table's order, by level (0 to 3, or its name), by names, or by names with a minus: those of the ``usual`` level without
    them. Raises IrError for a level or name that does not exist.
    """
    names = chosen_names(which, [(p.name, p.level) for p in PASSES], usual)
    return tuple(p for p in PASSES if p.name in names)


def run_passes(
    graph: Graph,
    which: Iterable[str] | str | int = 3,
    *,
    context: PassContext | None = None,
    precision: DType | None = None,
    watch: Callable[[str, Graph], None] | None = None,
    check: bool = False,
) -> Graph:
    """The graph after the passes.

    which:     a level from 0 (none) to 3 (all) or its name, or names of passes (the only way to those of level 4); ``find_passes`` says all.
    precision: float dtype in which float32 values are kept between kernels (``cast_precision``); None: as the model says. Shorthand
               for ``PassContext.storage``.
    watch:     called with each pass's name and the graph after it.
    check:     verify the graph after each pass; an IrError then names the pass and those before it.
    """
    context = in_context(context, precision)
    done: list[str] = []
    for step in find_passes(which):
        if step.physical:
            continue
        graph = apply(step, graph, context)
        done.append(step.name)
        if check:
            _verify(graph, done)
        if watch is not None:
            watch(step.name, graph)
    return graph


def apply(step: GraphPass, graph: Graph, context: PassContext | None) -> Graph:
    """The graph after one pass. What goes wrong in it is reported under its name; an IrError of its own rewriting, too."""
    with part(f"pass {step.name}", ours=(IrError,)):
        return step.run(graph, context)


def laid_out(
    graph: Graph, alignment: int, agnostic: frozenset[str] = frozenset()
) -> tuple[Graph, layout.Layouts]:
    """What the pass ``layout`` does for a target: the graph with its conversions, and where values lie in memory."""
    with part("pass layout", ours=(IrError,)):
        return layout.assign_layouts(graph, alignment, agnostic)


def in_context(context: PassContext | None, precision: DType | None) -> PassContext:
    """The context, with one storage dtype for every node when ``precision`` names one."""
    context = context or PassContext()
    return context if precision is None else replace(context, storage=lambda node: precision)


def _verify(graph: Graph, done: list[str]) -> None:
    try:
        verify(graph)
    except IrError as error:
        raise IrError(
            f"pass {done[-1]}",
            f"broke the graph: {error}",
            got=f"after {', '.join(done[:-1]) or 'no other pass'}",
        ) from error
