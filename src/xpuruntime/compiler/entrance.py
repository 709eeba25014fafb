"""Policy demands that ``compile`` resolves before lowering: targets, sizes and precision. An unmet demand raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..codegen.target import CodegenTarget
from ..errors import BuildError, DeviceUnavailable, PolicyError, PrecisionUnavailable
from ..ir import Graph, Node
from ..ir.family import family_of, is_view
from ..ir.shapes.fixed_sizes import fixed_sizes
from ..policies import Policy, Resolved
from ..policies.entrances import INSTEAD_OF_INT8
from ..policies.vocabulary import PHASES
from ..targets import DeviceId, TargetConfig
from ..types import DType
from .resolve import resolve_target

__all__ = ["check_phase", "check_static", "fixed_symbols", "phases_of", "settled_precision", "targets_of"]

_INTEGER_PRODUCTS = frozenset(
    {
        "convolution_integer",
        "matmul_integer",
        "qlinear_convolution",
        "qlinear_matmul",
        "quantized_convolution",
        "quantized_matmul",
    }
)
_COMPUTED = (DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def targets_of(
    target: str | TargetConfig | CodegenTarget | Sequence[str | TargetConfig | CodegenTarget] | None,
    resolved: Resolved,
    notes: list[str],
) -> list[CodegenTarget]:
    """Return the targets: the argument's, or the policy's, or the CPU.

    If one is unavailable, return the first available target of ``allow_fallback`` and add a note. Raises BuildError, DeviceUnavailable.
    """
    execution = resolved.policy.execution
    if target is None:
        target = _target_word(execution.target or "cpu")
    listed: list[Any] = [target]
    if isinstance(target, Sequence) and not isinstance(target, str | bytes):
        listed = list(target)
    if not listed:
        raise BuildError("compile", "needs a target", got=repr(target), do="Name cpu, cuda:sm_90 ...")
    try:
        return [resolve_target(t) for t in listed]
    except (BuildError, DeviceUnavailable) as error:
        for device in execution.allow_fallback or ():
            try:
                fallback = resolve_target(_target_word(device))
            except (BuildError, DeviceUnavailable):
                continue
            notes.append(f"{error.what}; code is generated for {fallback.name} instead")
            return [fallback]
        raise


def _target_word(device: str) -> str:
    """Return a device in the form that ``resolve_target`` takes."""
    parsed = DeviceId.parse(device)
    return "cpu" if parsed.kind in ("auto", "cpu") else str(parsed)


def fixed_symbols(graphs: Iterable[Graph], resolved: Resolved) -> dict[str, int]:
    """Return sizes of symbols from ``fixed_shapes``. Raises PolicyError for a key that no graph has."""
    fixed = resolved.policy.execution.fixed_shapes or {}
    specs = [s for g in graphs for s in g.input_specs]
    return fixed_sizes(specs, fixed, "compile") if fixed else {}


def _widest_codes(graph: Graph, node: Node) -> int:
    """Return the bits of the wider operand of a product if both are dequantized, else 0. ``fuse_quantized`` computes up to 8 in integers."""
    operands = node.inputs[1:3] if node.op == "addmm" else node.inputs[:2]
    makers = [_maker(graph, v) for v in operands]
    codes = [m.inputs[0] for m in makers if m is not None and m.op == "dequantize_linear"]
    return max(graph.spec(str(c)).dtype.bits for c in codes) if len(codes) == 2 else 0


def _maker(graph: Graph, value: object) -> Node | None:
    """Return the node that makes a value, looking through views."""
    node = graph.producer(value) if isinstance(value, str) else None
    while node is not None and is_view(node):
        node = graph.producer(str(node.inputs[0]))
    return node


def settled_precision(
    entrance: str, graphs: Iterable[Graph], policy: Policy, notes: list[str], *, pairs: bool = False
) -> tuple[Policy, bool]:
    """Return the policy with the precision that the passes must produce (``model`` if none), and whether they must change it.

    pairs: whether the targets compute products between DequantizeLinear and QuantizeLinear in integers.

    Raises PrecisionUnavailable if the graphs cannot be computed in it. With ``allow_fallback``, int8 falls back to the model's own precision.
    """
    requested = policy.execution.precision
    if requested in (None, "model"):
        return policy, False
    dtype = DType.of(requested)
    model_policy = Policy(kernel=policy.kernel, execution=replace(policy.execution, precision="model"))
    graphs = tuple(graphs)
    nodes = [n for g in graphs for n in g.nodes]
    if dtype.is_integer:
        products = [(g, n) for g in graphs for n in g.nodes if family_of(n) in ("conv", "matmul")]
        bits = [0 if n.op in _INTEGER_PRODUCTS else _widest_codes(g, n) if pairs else 0 for g, n in products]
        integer = [n.op in _INTEGER_PRODUCTS or 0 < b <= 8 for (_, n), b in zip(products, bits, strict=True)]
        if products and all(integer):
            return model_policy, False
        why = "the model is not quantized"
        if wide := sum(b > 8 for b in bits):
            why = f"no kernel multiplies operands of more than 8 bits in integers, and {wide} of {len(bits)} products have one"
        if policy.execution.allow_fallback:
            notes.append(f"precision {requested} is not available: {why}; the model keeps its own")
            return model_policy, False
        raise PrecisionUnavailable(
            entrance,
            f"precision {dtype.value} is not available: {why}",
            got=requested,
            do="Quantize with uint8 activations, or leave precision out." if wide else INSTEAD_OF_INT8,
        )
    if dtype not in _COMPUTED:
        raise PrecisionUnavailable(
            entrance,
            f"precision {dtype.value} is not available: no kernel computes in it",
            got=requested,
            do=f"Name one of {', '.join(d.value for d in _COMPUTED)}.",
        )
    specs = [v.spec for n in nodes for v in n.outputs if v.spec is not None]
    floats = {s.dtype for s in specs if s.dtype.is_float and s.dtype.bits >= 16}
    if floats <= {dtype}:
        return model_policy, False
    if DType.FLOAT32 not in floats:
        shown = ", ".join(sorted(d.value for d in floats))
        raise PrecisionUnavailable(
            entrance,
            f"precision {dtype.value} is not available: only float32 models can be computed in another precision",
            got=f"a model in {shown}",
            do="Convert the model first, or leave precision out.",
        )
    return policy, True


def check_static(entrance: str, graphs: Iterable[Graph], resolved: Resolved) -> None:
    """Raise PolicyError if dims are symbolic under ``static_shape: true``."""
    symbols = sorted({s for g in graphs for s in g.symbols})
    if symbols and resolved.policy.execution.static_shape:
        raise PolicyError(
            entrance,
            "static_shape=True needs a size for every symbolic dim of the inputs",
            got=f"no size for {', '.join(symbols)}",
            do=f"Add fixed_shapes={{{', '.join(f'{s!r}: SIZE' for s in symbols)}}}.",
        )


def check_phase(entrance: str, phase: str) -> None:
    """Raise PolicyError for an unknown phase."""
    if not isinstance(phase, str) or phase not in PHASES:
        raise PolicyError(entrance, "no such phase", got=repr(phase), do=f"Known: {', '.join(PHASES)}.")


def phases_of(phase: str | Mapping[str, str], entries: Iterable[str]) -> dict[str, str]:
    """Return the phase of each entry point."""
    return {e: phase if isinstance(phase, str) else phase.get(e, "inference") for e in entries}
