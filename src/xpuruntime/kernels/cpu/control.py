"""Control flow on CPUs: one call that runs branches and bodies, which are entry points of the program.

The call is of the library ``control``: the runtime reads the condition or counts the iterations, and runs an entry point on the call's
own memory. ``options`` names the entry points and the roles of the buffers (``runtime.execution.control``).
"""

from __future__ import annotations

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...ir import Graph
from ...ir.ops.control import bodies_of
from ..kernel import Kernel, LoweredCall, NodeCall, Operand, Stage

__all__ = ["KERNELS", "HostControl"]


class HostControl(Kernel):
    """A branch or a loop whose bodies are compiled, controlled by the host, or the end of a run with a reason."""

    name = "control/host"
    ops = ("cond", "loop", "fail")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense operands and results of fixed sizes."""
        if any(not s.is_static for s in (*call.outputs, *(t.spec for t in call.tensors))):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a size is known only at run time")
        if any(body.symbols for body in bodies_of(call.node)):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a size in a body is known only at run time")
        if unknown := _unknown(call):
            return Support.no(Reason.SHAPE_UNSUPPORTED, unknown)
        if any(not s.is_dense for s in (*call.outputs, *(t.spec for t in call.tensors))):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "only dense operands and results are supported")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one call. A loop has a second buffer for each carried value: iterations read one and write the other."""
        attrs = call.attrs
        args = [f"in{i}" for i, o in enumerate(call.inputs) if isinstance(o, Operand)]
        results = [f"out{i}" for i in range(len(call.outputs))]
        bodies: tuple[Graph, ...] = bodies_of(call.node)
        options: dict[str, object] = {"op": call.op, "entries": [b.name for b in bodies]}
        temps: tuple[int, ...] = ()
        if call.op == "fail":
            options["reason"] = attrs["reason"]
        if call.op == "loop":
            limit_and_condition = (*call.inputs, None, None)[:2]
            temps = tuple(max(s.size_bytes or 0, 1) for s in call.outputs[: attrs["carried"]])
            options |= {
                "limited": limit_and_condition[0] is not None,
                "conditional": limit_and_condition[1] is not None,
                "carried": attrs["carried"],
                "trips": -1 if attrs["trips"] is None else attrs["trips"],
                "checked": attrs["checked"],
            }
        stage = Stage(
            stem=call.op,
            source="",
            args=(*args, *results, *(f"temp{i}" for i in range(len(temps)))),
            library="control",
            options=options,
            bytes=sum(s.size_bytes or 0 for s in (*call.outputs, *(t.spec for t in call.tensors))),
        )
        return LoweredCall((stage,), temps=temps)


def _unknown(call: NodeCall) -> str:
    """Return why only a run knows the sizes of the results; empty if they are known."""
    if call.op == "cond":
        results = [tuple(s.shape for s in body.output_specs) for body in bodies_of(call.node)]
        same = all(r == tuple(s.shape for s in call.outputs) for r in results)
        return "" if same else "the sizes of its results depend on the branch"
    if call.op == "fail":
        return ""
    attrs = call.attrs
    counted = attrs["trips"] is not None and not attrs["checked"] and (*call.inputs, None, None)[1] is None
    stacks = len(call.outputs) > attrs["carried"]
    return (
        "the number of iterations, which its results have as a size, is known only at run time"
        if stacks and not counted
        else ""
    )


KERNELS = (HostControl(),)
