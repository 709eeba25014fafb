"""The export of a program as an ONNX graph for viewers: one node per kernel call, typed values, weights as nodes with their recipe.

Each write of a buffer becomes a new value. A buffer inside another one is read through a ``View`` node. The ops are of the domain
``xpuruntime``, which no engine runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...frontends.onnx.proto import dtype_table
from ...program.program import BufferAllocation, BufferKind, CompiledProgram, ExecutionPlan, KernelCall
from ...storage.store import write_atomic
from ...types import DType, TensorSpec

__all__ = ["DOMAIN", "program_to_onnx", "write_program_onnx"]

DOMAIN = "xpuruntime"
_OPSET, _IR_VERSION = 17, 8


def write_program_onnx(program: CompiledProgram, path: str | os.PathLike[str], entry: str = "") -> None:
    """Write ``program_to_onnx`` to a file atomically. Raise the same errors, and StoreError."""
    write_atomic(Path(path), program_to_onnx(program, entry).SerializeToString(deterministic=True))


def program_to_onnx(program: CompiledProgram, entry: str = "") -> Any:
    """Return an ``onnx.ModelProto`` of an entry point's first plan. Raise InputError for an unknown entry point, ModelError without onnx."""
    try:
        import onnx
        from onnx import helper
    except ImportError as error:
        who, do = f"program {program.name!r}", "Run: pip install 'xpuruntime[onnx]'"
        raise ModelError(
            who, "writing ONNX needs the Python package 'onnx'", got=str(error), do=do
        ) from error
    point = program.entry(entry)
    graph_builder = _ProgramGraph(
        program, point.plans[0], {dtype: number for number, dtype in dtype_table(onnx).items()}
    )
    states = [s.name for s in program.states if s.name in graph_builder.buffers]
    inputs = [graph_builder.write(n) for n in (*point.input_buffers, *states)]
    for call in graph_builder.plan.calls:
        graph_builder.call(call)
    outputs = [graph_builder.leave(n, inputs) for n in point.output_buffers]
    outputs += [v for n in states if (v := graph_builder.read(n)) not in (*inputs, *outputs)]
    inner = [n for n in graph_builder.specs if n not in inputs and n not in outputs]
    graph = helper.make_graph(
        graph_builder.nodes,
        f"{program.name}:{point.name}",
        [graph_builder.info(n) for n in inputs],
        [graph_builder.info(n) for n in outputs],
        value_info=[graph_builder.info(n) for n in inner],
        doc_string=f"target {graph_builder.plan.target}, {len(graph_builder.plan.calls)} calls, arena of {graph_builder.plan.arena_bytes} bytes",
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, producer_name="xpuruntime", opset_imports=opsets, ir_version=_IR_VERSION)


class _ProgramGraph:
    """A graph builder. ``content`` maps a root buffer to the (buffer, value) pairs that were written there and are not overwritten."""

    def __init__(self, program: CompiledProgram, plan: ExecutionPlan, types: Mapping[DType, int]) -> None:
        self.plan, self.types = plan, types
        self.buffers = {b.name: b for b in plan.buffers}
        self.recipes = {r.name: r for r in program.recipes}
        self.nodes: list[Any] = []
        self.specs: dict[str, TensorSpec] = {}
        self.content: dict[str, list[tuple[BufferAllocation, str]]] = {}
        self.views: dict[tuple[str, ...], str] = {}

    def write(self, buffer: str) -> str:
        """Return a new value for a write of a buffer."""
        b = self.buffers[buffer]
        older = self.content.get(b.root, [])
        value = self._value(buffer)
        self.content[b.root] = [(o, v) for o, v in older if not _covers(b, o)] + [(b, value)]
        return value

    def read(self, buffer: str) -> str:
        """Return the current value of a buffer: the one written to it, or a view of the values written to its memory."""
        b = self.buffers[buffer]
        if b.kind is BufferKind.WEIGHT and b.root not in self.content:
            self._weight(b.root)
        visible = [(o, v) for o, v in self.content.get(b.root, []) if _overlap(o, b)]
        if len(visible) == 1:
            written, value = visible[0]
            if _covers(b, written) and _covers(written, b) and written.spec == b.spec:
                return value
        return self._view(buffer, [v for _, v in visible])

    def leave(self, buffer: str, inputs: Sequence[str]) -> str:
        """Return the value of an output. ONNX does not allow a graph input there, so an input is read through a view."""
        value = self.read(buffer)
        return self._view(f"{buffer}.out", [value], self.buffers[buffer]) if value in inputs else value

    def _view(self, name: str, sources: Sequence[str], of: BufferAllocation | None = None) -> str:
        key = (name, *sources)
        if key not in self.views:
            b = of or self.buffers[name]
            self.views[key] = value = self._value(name, b.spec)
            self._node("View", sources, [value], value, root=b.root, offset=b.offset)
        return self.views[key]

    def _value(self, name: str, spec: TensorSpec | None = None) -> str:
        value, count = name, 1
        while value in self.specs:
            count += 1
            value = f"{name}#{count}"
        self.specs[value] = spec or self.buffers[name].spec
        return value

    def call(self, call: KernelCall) -> None:
        """Add the node of a kernel call."""
        inputs = [self.read(n) for n in call.inputs]
        outputs = [self.write(n) for n in call.outputs]
        facts: dict[str, Any] = {
            "kernel": call.kernel, "symbol": call.symbol, "library": call.library, "tasks": call.tasks, "grain": call.grain,
            "scratch_bytes": call.scratch_bytes, "flops": call.flops, "bytes": call.bytes, "nodes": list(call.nodes),
        }  # fmt: skip
        facts |= {f"param_{p.name}": p.value for p in call.params}
        self._node(
            "+".join(call.ops) or call.kernel,
            inputs,
            outputs,
            call.nodes[0] if call.nodes else call.symbol,
            **facts,
        )

    def _weight(self, buffer: str) -> None:
        recipe = self.recipes[buffer]
        steps = [
            f"{s.op}({', '.join([*s.inputs, *(f'{k}={v}' for k, v in s.attrs.items())])})"
            for s in recipe.steps
        ]
        self._node("Weight", [], [self.write(buffer)], buffer, source=recipe.source, steps=steps)

    def _node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], label: str, **facts: Any) -> None:
        from onnx import helper

        attributes = {k: v for k, v in facts.items() if v not in ("", [], None)}
        name = f"{len(self.nodes)}: {label}"
        self.nodes.append(
            helper.make_node(op, list(inputs), list(outputs), name=name, domain=DOMAIN, **attributes)
        )

    def info(self, value: str) -> Any:
        """Return the ONNX type of a value, with its memory layout as the doc string."""
        from onnx import helper

        spec = self.specs[value]
        shape = [int(d) for d in spec.shape if isinstance(d, int)]
        layout = "" if spec.layout is None else f"in memory {spec}"
        return helper.make_tensor_value_info(value, self.types[spec.dtype], shape, layout)


def _covers(a: BufferAllocation, b: BufferAllocation) -> bool:
    return a.offset <= b.offset and b.offset + b.size_bytes <= a.offset + a.size_bytes


def _overlap(a: BufferAllocation, b: BufferAllocation) -> bool:
    if not b.size_bytes:
        return _covers(a, b)
    return a.offset < b.offset + b.size_bytes and b.offset < a.offset + a.size_bytes
