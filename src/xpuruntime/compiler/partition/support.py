"""``is_op_supported``: whether the native compiler supports an op or a node with its types, and the reason if not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...errors import IrError, KernelUnavailable, XpuError
from ...families import family_of_aten, family_of_onnx
from ...faults import is_fault
from ...ir import OPS, Graph, Node
from ...ir.graph import Output, Value
from ...ir.ops.control import CONTROL, bodies_of
from ...ir.shapes.symbols import specialize, substitute
from ...kernels import has_kernel, offers
from ...kernels.catalogue import failed
from ...kernels.kernel import NodeCall, Operand
from ...passes import run_passes
from ...passes.decompose import EXPANSIONS
from ...passes.layout import Layouts, assign_layouts
from ...policies import KernelPolicy, Policy
from ..demands import Demands
from ..lower import lower
from ..resolve import resolve_target

__all__ = ["call_of", "demand_kernels", "is_op_supported"]

_SAMPLE = 16  # size of symbolic dims in queries


def is_op_supported(op: Any, target: Any = "cpu") -> Support:
    """Return whether the native compiler supports an op on a target.

    op:     the IR's name of an op, or its ATen or ONNX name (``softmax``, ``aten.relu.default``, ``Conv``): whether some kernel lists it.
            A NodeCall (as ``partition`` passes it): whether this node can be lowered with its types and attributes; symbolic dims count as
            16. An IR node is queried by name.
    target: as in ``compile``.
    A no has a code and a reason. Raises BuildError for an unknown target.
    """
    where = resolve_target(target)
    if isinstance(op, NodeCall):
        return _cached_answer(op, where)
    if isinstance(op, Node):
        return _opaque(op) if op.op == "opaque" else _name(op.op, where)
    return _name(str(op), where)


def call_of(graph: Graph, node: Node) -> NodeCall | Support:
    """Return the node with the types of its operands and results, as kernels see it; a refusal if a type is unknown."""
    values = [*node.values, *(v.name for v in node.outputs)]
    unknown = next((v for v in values if graph.values[v].spec is None), None)
    if unknown is not None:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"the type of {unknown!r} is not known")
    inputs = tuple(
        Operand(i, graph.spec(i), i in graph.weight_names, graph.literal(i)) if isinstance(i, str) else i
        for i in node.inputs
    )
    return NodeCall(node, inputs, tuple(v.spec for v in node.outputs if v.spec is not None))


def _name(name: str, target: CodegenTarget) -> Support:
    op = _ir_name(name)
    if op is None:
        return Support.no(Reason.OP_UNSUPPORTED, f"{name} has no form in the IR")
    if has_kernel(op, target) or op in EXPANSIONS or op in ("constant", "fused"):
        return Support.yes()
    return Support.no(Reason.OP_UNSUPPORTED, f"no kernel for {target.name} lists {op}")


def _ir_name(name: str) -> str | None:
    if name in OPS:
        return name if name != "opaque" else None
    plain = name.removeprefix("aten.").removeprefix("aten::").partition(".")[0]
    if plain in OPS:
        return plain
    return next((op.name for op in OPS.values() if name in op.onnx or plain in op.aten), None)


def _opaque(node: Node) -> Support:
    domain, op = node.attrs["domain"], node.attrs["op_type"]
    family = family_of_aten(op) if domain in ("aten", "torch") else family_of_onnx(op, domain)
    return Support.no(Reason.OP_UNSUPPORTED, f"{op} ({family}) has no form in the IR: {node.attrs['reason']}")


_ANSWERS: dict[tuple[object, ...], Support] = {}
_MAX_ANSWERS = 4096
"""Maximum cached answers."""


def _cached_answer(call: NodeCall, target: CodegenTarget) -> Support:
    """Return the answer for a call, cached by op, types and attributes, because layers repeat."""
    operands = tuple(
        (o.spec, o.is_weight, o.const) if isinstance(o, Operand) else repr(o) for o in call.inputs
    )
    key = (call.op, call.attrs, operands, call.outputs, target.name, repr(target.config))
    if call.op == "opaque" or key not in _ANSWERS:
        if len(_ANSWERS) >= _MAX_ANSWERS:
            _ANSWERS.clear()
        answer = _call(call, target)
        if answer.code is Reason.INTERNAL_ERROR:
            return answer
        _ANSWERS[key] = answer
    return _ANSWERS[key]


def demand_kernels(call: NodeCall, policy: KernelPolicy, target: Any) -> None:
    """Raise KernelUnavailable if a rule forces a kernel that is not available for the node, before compilation."""
    try:
        _lowered(_alone(call), resolve_target(target), Policy(kernel=policy))
    except KernelUnavailable:
        raise
    except (XpuError, ValueError):
        return  # is_op_supported reports it


def _call(call: NodeCall, target: CodegenTarget) -> Support:
    """Run the passes and lowering on a graph of this one node; assemble nothing."""
    if call.op == "opaque":
        return _opaque(call.node)
    if lacking := _in_bodies(call, target):
        return lacking
    try:
        graph = _alone(call)
        if call.op not in CONTROL:  # a size as an attribute; symbols of bodies are unknown sizes
            graph = specialize(graph, dict.fromkeys(graph.symbols, _SAMPLE))
        if graph.symbols:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "its shape depends on the content of a tensor")
        _lowered(graph, target, Policy())
    except XpuError as error:
        return Support.no(Reason.OP_UNSUPPORTED, _why(error))
    except ValueError as error:  # the sample size is invalid for this op
        return Support.no(Reason.SHAPE_UNSUPPORTED, str(error))
    except Exception as error:
        if not is_fault(error):
            raise
        return failed(error)
    return Support.yes()


def _in_bodies(call: NodeCall, target: CodegenTarget) -> Support | None:
    """Return the refusal of a node in a branch or a body; None if there is none."""
    for body in bodies_of(call.node):
        for node in body.nodes:
            if node.op == "constant":
                continue
            inner = call_of(body, node)
            answer = inner if isinstance(inner, Support) else _cached_answer(inner, target)
            if not answer:
                return replace(answer, reason=f"{node.op} in its body: {answer.reason}")
    return None


def _lowered(graph: Graph, target: CodegenTarget, policy: Policy) -> None:
    """Run the steps of ``compile`` up to assembly."""
    context = Demands(policy, [target], "inference").context()
    graph = run_passes(graph, 3 if target.takes_fused else 1, context=context)
    layouts: Layouts = {}
    if target.takes_fused:
        graph, layouts = assign_layouts(
            graph,
            target.config.channel_alignment_bytes,
            target.any_layout,
            target.row_major_taps,
            target.row_major_filters,
        )
    lower(graph, layouts, target, policy.kernel, offers)


def _why(error: XpuError) -> str:
    decision = error.decision
    if decision is not None and decision.rejected:
        return f"{error.what}: " + "; ".join(f"{c.name}: {c.reason}" for c in decision.rejected)
    return f"{error.what}{'' if error.got is None or isinstance(error, IrError) else f' ({error.got})'}"


def _alone(call: NodeCall) -> Graph:
    """Return a graph of one node, with symbols replaced by a sample size."""
    from ...ir import Weight

    symbols = frozenset().union(*(t.spec.symbols for t in call.tensors), *(s.symbols for s in call.outputs))
    sizes = dict.fromkeys(symbols, _SAMPLE)
    constants = {t.name: t for t in call.tensors if t.const is not None}
    values = {t.name: Value(t.name, t.spec.substitute(sizes)) for t in call.tensors}
    outputs = tuple(
        Value(v.name, None if v.spec is None else v.spec.substitute(sizes)) for v in call.node.outputs
    )
    node = Node(call.op, call.node.inputs, substitute(call.attrs, sizes), outputs, call.node.sources)
    known = tuple(
        Node("constant", (), _constant_attrs(t.const), (values[t.name],)) for t in constants.values()
    )
    weights = {t.name for t in call.tensors if t.is_weight}
    return Graph(
        "one",
        tuple(v for n, v in values.items() if n not in weights and n not in constants),
        tuple(Output(v.name, v.name) for v in outputs),
        (*known, node),
        tuple(Weight(values[n]) for n in sorted(weights)),
    )


def _constant_attrs(value: Any) -> Any:
    from ...ir.attributes import Attrs

    return Attrs({"value": value})
