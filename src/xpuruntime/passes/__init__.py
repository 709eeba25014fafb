"""Passes: rewrites from graph to graph. ``PASSES`` lists them in the order in which they run.

    better = run_passes(graph)                               # all of them
    better = run_passes(graph, 1)                            # those of the basic level
    better = run_passes(graph, ["fold_constants", "cse"])    # by name, in the table's order
    better = run_passes(graph, "-fuse_conv")                 # all of them except one
    run_passes(graph, watch=lambda name, after: print(name, len(after)))

Every pass is a pure function ``run(graph, context) -> Graph`` in a file of its own. It keeps inputs, outputs, states and their
meaning; only the order of roundings may change. New nodes carry the sources of the nodes that they replace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import IrError
from ..faults import part
from ..ir import Graph, verify
from ..types import DType
from . import (
    align_products,
    cast_precision,
    concat_conv,
    concat_linear,
    cse,
    dead_code,
    decompose,
    einsum_products,
    expand_on_weights,
    expand_quantize,
    expand_random,
    fold_batch_norm,
    fold_constants,
    fold_pad,
    fuse_conv,
    fuse_gate,
    fuse_linear,
    fuse_norm_backward,
    fuse_norm_linear,
    fuse_pointwise,
    fuse_quantized,
    fuse_rope_append,
    fuse_rope_attention,
    in_place_state,
    inline_control,
    layout,
    narrow_operands,
    scatter_into_sum,
    simplify,
    sink_movement,
    split_transposed,
    unflatten,
    widen_products,
)
from . import recognize_activation as recognize_activation
from . import recognize_attention as recognize_attention
from . import recognize_causal as recognize_causal
from . import recognize_experts as recognize_experts
from . import recognize_mean as recognize_mean
from . import recognize_norm as recognize_norm
from . import recognize_rope as recognize_rope
from ._lib.selection import LEVELS, chosen_names
from .context import PassContext

__all__ = ["LEVELS", "PASSES", "GraphPass", "PassContext", "apply", "find_passes", "laid_out", "run_passes"]

Run: TypeAlias = Callable[[Graph, PassContext | None], Graph]


@dataclass(frozen=True, slots=True)
class GraphPass:
    """One rewrite: its name, its effect, the function, and the lowest level at which it runs (4: only by name).

    physical: whether it assigns memory layouts. The compiler runs it per target, after all others; ``run_passes`` skips it.
    """

    name: str
    meaning: str
    run: Run
    level: int
    physical: bool = False


BASIC, EXTENDED, ALL, NAMED = 1, 2, 3, 4  # NAMED: runs only by name


def _clean(graph: Graph, context: PassContext | None) -> Graph:
    """Clean up after the earlier passes."""
    for step in (fold_constants.run, simplify.run, cse.run, dead_code.run):
        graph = step(graph, context)
    return graph


def _laid_out(graph: Graph, context: PassContext | None) -> Graph:
    """Return the graph with the layout conversions that it needs."""
    return layout.assign_layouts(graph)[0]


# fmt: off
PASSES: tuple[GraphPass, ...] = (
    GraphPass("inline_control", "replace branches with constant conditions and short loops by their nodes", inline_control.run, BASIC),
    GraphPass("expand_random", "write random ops as arithmetic on random bits of a seed and the run's number", expand_random.run, BASIC),
    GraphPass("fuse_quantized", "compute products between DequantizeLinear and QuantizeLinear in integers", fuse_quantized.run, BASIC),
    GraphPass("expand_quantize", "write quantize_linear and dequantize_linear of 8-bit codes as elementwise ops", expand_quantize.run, EXTENDED),
    GraphPass("fold_constants", "replace nodes that read only constants by constants", fold_constants.run, BASIC),
    GraphPass("simplify", "remove no-ops; merge chains of views, casts and the like", simplify.run, BASIC),
    GraphPass("cse", "compute equal nodes once", cse.run, BASIC),
    GraphPass("dead_code", "remove unused nodes", dead_code.run, BASIC),
    GraphPass("concat_conv", "merge small convolutions of parts of the channels, and move norms before concatenations, on CUDA", concat_conv.run, EXTENDED),
    GraphPass("fold_batch_norm", "fold batch norms into the weights of adjacent layers", fold_batch_norm.run, BASIC),
    GraphPass("fold_pad", "pad with zeros in the convolutions that read the padded tensors, on CPUs", fold_pad.run, EXTENDED),
    GraphPass("einsum_products", "write einsum of two operands as a product of matrices, on CPUs only equations that no kernel computes in place", einsum_products.run, EXTENDED),
    GraphPass("split_transposed", "write transposed convolutions as convolutions whose results are interleaved, on CUDA", split_transposed.run, EXTENDED),
    GraphPass("recognize_activation", "replace written-out gelu, silu, hardswish ... by one op", recognize_activation.run, EXTENDED),
    GraphPass("recognize_mean", "replace pools of the whole input by means and maxima", recognize_mean.run, EXTENDED),
    GraphPass("recognize_experts", "replace products with gathered matrices by one op that reads the chosen ones", recognize_experts.run, EXTENDED),
    GraphPass("unflatten", "replace products over flattened dims by products of the values", unflatten.run, EXTENDED),
    GraphPass("recognize_norm", "replace written-out rms_norm, layer_norm, softmax by one op", recognize_norm.run, EXTENDED),
    GraphPass("recognize_rope", "replace written-out rotary embeddings by one op", recognize_rope.run, EXTENDED),
    GraphPass("recognize_attention", "replace softmax(q @ k.T) @ v by one op, with grouped heads", recognize_attention.run, EXTENDED),
    GraphPass("recognize_causal", "replace causal masks that are known by attention's causal attribute", recognize_causal.run, EXTENDED),
    GraphPass("expand_on_weights", "write ops on weights alone as arithmetic that runs once, when weights are loaded", expand_on_weights.run, EXTENDED),
    GraphPass("fuse_conv", "fuse convolutions with bias, residual and activation", fuse_conv.run, EXTENDED),
    GraphPass("fuse_linear", "turn products with weights into linear, and fuse bias, residual and activation", fuse_linear.run, EXTENDED),
    GraphPass("split_batch_norm", "replace other batch norms by a scale and a shift", fold_batch_norm.split, ALL),
    GraphPass("concat_linear", "merge linear layers of one input", concat_linear.run, ALL),
    GraphPass("align_products", "pad products of 16-bit values to whole vector loads, in training on CUDA", align_products.run, ALL),
    GraphPass("widen_products", "compute products of 16-bit gradients in float32 where they are converted to it", widen_products.run, ALL),
    GraphPass("fuse_gate", "fuse gate, up and their product into one layer, for few rows", fuse_gate.run, NAMED),
    GraphPass("fuse_norm_linear", "fuse a norm into the layer that reads it, for few rows", fuse_norm_linear.run, NAMED),
    GraphPass("fuse_rope_append", "fuse rotations and updates of the KV cache", fuse_rope_append.run, NAMED),
    GraphPass("fuse_rope_attention", "fuse rotations, updates of the KV cache and attention, if a kernel computes them", fuse_rope_attention.run, NAMED),
    GraphPass("decompose", "expand ops that no kernel computes", decompose.run, BASIC),
    GraphPass("scatter_into_sum", "add scattered values to the other operand of a sum instead of to zeros", scatter_into_sum.run, ALL),
    GraphPass("cast_precision", "store float32 values in a narrower type where the policy says so", cast_precision.run, BASIC),
    GraphPass("narrow_operands", "let kernels that compute in float32 read 16-bit operands without a conversion", narrow_operands.run, ALL),
    GraphPass("gate_products", "fuse gate, up and their product into one layer of 16-bit floats, for many rows on Hopper", fuse_gate.run_many, ALL),
    GraphPass("fuse_norm_backward", "add a residual to the gradient of a layer norm, and convert it, in one pass over memory", fuse_norm_backward.run, ALL),
    GraphPass("sink_movement", "move views and permutations behind elementwise ops, which then fuse with those before", sink_movement.run, ALL),
    GraphPass("clean_up", "run fold_constants, simplify, cse and dead_code again", _clean, EXTENDED),
    GraphPass("fuse_pointwise", "fuse elementwise nodes of one shape into one kernel", fuse_pointwise.run, ALL),
    GraphPass("in_place_state", "order reads of a state's old content before its update", in_place_state.run, BASIC),
    GraphPass("layout", "store values of convolutional networks channels-last, with conversions at the boundaries", _laid_out, BASIC, physical=True),
)
# fmt: on
"""Every pass, in execution order."""


def find_passes(which: Iterable[str] | str | int = 3, usual: int = 3) -> tuple[GraphPass, ...]:
    """Return passes in the table's order, by level (0 to 3, or its name), by names, or by names with a minus: those of the ``usual`` level
    without them. Raise IrError for a level or name that does not exist.
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
    """Return the graph after the passes.

    which:     a level from 0 (none) to 3 (all) or its name, or names of passes (the only way to those of level 4); see ``find_passes``.
    precision: float dtype in which float32 values are stored between kernels (``cast_precision``); None: the model's. Shorthand
               for ``PassContext.storage``.
    watch:     called with the name of each pass and the graph after it.
    check:     verify the graph after each pass; an IrError then names the pass and the earlier ones.
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
    """Return the graph after one pass. Errors are reported under its name, including an IrError of its own rewriting."""
    with part(f"pass {step.name}", bug_types=(IrError,)):
        return step.run(graph, context)


def laid_out(
    graph: Graph,
    alignment: int,
    agnostic: frozenset[str] = frozenset(),
    row_major_taps: int = 0,
    row_major_filters: int = 0,
) -> tuple[Graph, layout.Layouts]:
    """Return the result of pass ``layout`` for a target: the graph with conversions, and the layouts of its values."""
    with part("pass layout", bug_types=(IrError,)):
        return layout.assign_layouts(graph, alignment, agnostic, row_major_taps, row_major_filters)


def in_context(context: PassContext | None, precision: DType | None) -> PassContext:
    """Return the context, with one storage dtype for every node if ``precision`` is given."""
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


def __getattr__(name: str) -> Any:
    """Return ``PassContext`` for its name before 0.2."""
    if name == "Context":
        warnings.warn("passes.Context is now passes.PassContext", DeprecationWarning, stacklevel=2)
        return PassContext
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
