"""Portable kernels: the text of one task, for ops in which models spend little time.

A task is one element or one line of the result. It reads and writes by the prelude's scalar ``load<1>`` and ``store<1>``, so every dtype and
layout works. A ``TaskStage`` has the body without the function around it; ``cpu/tasks.py`` and ``cuda/tasks.py`` add that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...codegen.loops.boxes import Box, element_bytes
from ...codegen.loops.points import STORAGE, for_tasks, storage
from ...decisions import Support
from ...types import TensorSpec
from ..kernel import NodeCall, Operand, operand_ref
from ..spec.support import refuse

__all__ = [
    "OpTemplate",
    "PortableKernel",
    "TaskEnvironment",
    "TaskStage",
    "TaskText",
    "TemplateKernel",
    "result",
    "task_stage",
    "whole",
]


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """Where tasks run.

    thread_per_task: each task is one GPU thread; otherwise one CPU thread loops over many tasks.
    vector_bytes:    size of a vector register, 0 without vectors.
    """

    thread_per_task: bool
    vector_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TaskText:
    """The text of one task.

    head:          lines before the loop over tasks (tables).
    body:          lines of one task, whose index is ``task``.
    per:           elements that a task computes.
    scratch_bytes: memory of one thread that the text uses as ``scratch``.
    """

    body: Sequence[str]
    tasks: int
    head: Sequence[str] = ()
    per: int = 1
    scratch_bytes: int = 0
    parts: frozenset[str] = frozenset()
    stem: str = ""
    flops: int = 0


@dataclass(frozen=True, slots=True)
class TaskStage:
    """One stage, without the function around it.

    lines:         the body, which computes tasks ``begin`` to ``end`` from ``args``, an array of addresses, and ``scratch``.
    per:           elements that a task computes.
    grain:         minimum tasks per thread; 0: derived from ``per``.
    scratch_bytes: thread-private memory that the body uses as ``scratch``, without the status.
    """

    stem: str
    lines: tuple[str, ...]
    args: tuple[str, ...]
    tasks: int
    about: str = ""
    per: int = 1
    grain: int = 0
    scratch_bytes: int = 0
    parts: frozenset[str] = frozenset()
    flops: int = 0
    bytes: int = 0
    accumulates: str = "float32"

    @property
    def reports(self) -> bool:
        """True if the body may report a value that it cannot compute with (``fail`` of templates/movement.h)."""
        return any("fail(" in line or "index_in(" in line for line in self.lines)


class PortableKernel(ABC):
    """A kernel whose text compiles on every C-style target. Each target's package wraps it in a ``Kernel``."""

    name: str
    ops: tuple[str, ...]

    @abstractmethod
    def supports(self, call: NodeCall) -> Support:
        """Return whether the kernel computes this node."""

    @abstractmethod
    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return the node as one stage."""


@dataclass(frozen=True, slots=True)
class OpTemplate:
    """One op of a ``TemplateKernel``.

    why_not:     returns the refusal of a node, or None.
    thread_text: the text for GPU threads, if it differs.
    packed:      whether the text reads and writes types below a byte, which are packed.
    """

    text: Callable[[NodeCall], TaskText]
    why_not: Callable[[NodeCall], Support | None] = field(default=lambda call: None)
    thread_text: Callable[[NodeCall], TaskText] | None = None
    packed: bool = False


class TemplateKernel(PortableKernel):
    """A kernel of several ops, each an ``OpTemplate``."""

    def __init__(self, name: str, templates: Mapping[str, OpTemplate]) -> None:
        self.name = name
        self.ops = tuple(templates)
        self._templates = templates

    def supports(self, call: NodeCall) -> Support:
        """Return the template's answer. Elements must be numbers and not complex, and have whole bytes unless the template packs them."""
        template = self._templates[call.op]
        for spec in (*call.outputs, *(t.spec for t in call.tensors)):
            unit = spec.dtype.bits if template.packed else element_bytes(spec.dtype)
            if not unit or spec.dtype.is_complex:
                return refuse(spec.dtype, f"{call.op} on values")
        refused = template.why_not(call)
        return Support.yes() if refused is None else refused

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return the template's text as a stage."""
        template = self._templates[call.op]
        text = template.text
        if environment.thread_per_task and template.thread_text is not None:
            text = template.thread_text
        return task_stage(call, text(call))


def task_stage(call: NodeCall, text: TaskText, accumulates: str = "float32") -> TaskStage:
    """Return a text as a stage over all operands and results of the node."""
    lines = [*_arguments(call), *text.head, for_tasks(text.body)]
    return TaskStage(
        stem=text.stem or call.op,
        lines=tuple(line for part in lines for line in part.splitlines()),
        args=_names(call),
        tasks=text.tasks,
        per=text.per,
        scratch_bytes=text.scratch_bytes,
        parts=frozenset({"movement"}) | text.parts,
        flops=text.flops,
        bytes=sum(s.size_bytes or 0 for s in (*call.outputs, *(t.spec for t in call.tensors))),
        accumulates=accumulates,
    )


def _names(call: NodeCall) -> tuple[str, ...]:
    inputs = (operand_ref("in", i) for i, v in enumerate(call.inputs) if isinstance(v, Operand))
    return (*inputs, *(operand_ref("out", i) for i in range(len(call.outputs))))


def _arguments(call: NodeCall) -> list[str]:
    """Return lines that declare every argument. Elements that only move have an integer type of their size."""
    specs: dict[str, TensorSpec] = {
        operand_ref("in", i): v.spec for i, v in enumerate(call.inputs) if isinstance(v, Operand)
    }
    specs |= {operand_ref("out", i): s for i, s in enumerate(call.outputs)}
    lines = []
    for at, name in enumerate(_names(call)):
        dtype = specs[name].dtype
        const = "" if name.startswith("out") else "const "
        kind = storage(dtype) if dtype in STORAGE else f"uint{8 * max(element_bytes(dtype), 1)}_t"
        lines.append(f"[[maybe_unused]] {const}{kind} *const {name} = ({const}{kind} *)args[{at}];")
    return lines


def whole(call: NodeCall, position: int) -> Box:
    """Return an operand's box."""
    return Box.of(operand_ref("in", position), call.tensor(position).spec)


def result(call: NodeCall, position: int = 0) -> Box:
    """Return a result's box."""
    return Box.of(operand_ref("out", position), call.outputs[position])
