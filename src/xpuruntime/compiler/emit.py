"""emit: calls, memory and recipes as one program. Equal functions become one; their names say what they do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..codegen.target import CodegenTarget
from ..program.program import Binary, ExecutionPlan, KernelCall
from .calls import Call, Lowering

__all__ = ["Code", "plan_of", "symbols_of"]

_NAME = re.compile(r"\bKERNEL\b")


class Code:
    """The functions of one target's binary, each once; several entry points add to it."""

    def __init__(self, target: CodegenTarget) -> None:
        self.target = target
        self._functions: dict[str, str] = {}
        self._parts: set[str] = set()

    def add(self, stem: str, source: str, parts: frozenset[str]) -> str:
        """The symbol of a function text that is called KERNEL."""
        digest = hashlib.sha256(source.encode()).hexdigest()[:10]
        symbol = re.sub(r"\W", "_", f"{stem}_{digest}")
        self._functions.setdefault(symbol, _NAME.sub(symbol, source))
        self._parts |= parts
        return symbol

    def binary(self) -> Binary | None:
        """Everything assembled; None when no call is generated code."""
        return self.target.assemble(self._functions, frozenset(self._parts)) if self._functions else None


def plan_of(lowering: Lowering, code: Code, binary: int) -> ExecutionPlan:
    """The execution plan of one entry point on one target; its functions go into ``code``."""
    buffers, arena = lowering.memory.done([c.use for c in lowering.calls])

    def named(name: str) -> str:
        return lowering.renamed.get(name, name)

    calls = tuple(_call(c, code, named) for c in lowering.calls)
    buffers = tuple(replace(b, name=named(b.name), root=named(b.root)) for b in buffers)
    used = {n for c in calls for n in (*c.inputs, *c.outputs)} | {*lowering.inputs, *lowering.outputs}
    used |= {s.name for s in lowering.graph.states}
    used |= {b.root for b in buffers if b.name in used}
    return ExecutionPlan(
        target=code.target.name,
        binary=binary if any(not c.library for c in calls) else -1,
        calls=calls,
        buffers=tuple(b for b in buffers if b.name in used),
        arena_bytes=arena,
        batch=max(1, code.target.config.max_dispatches_per_batch),
    )


def _call(call: Call, code: Code, named: Callable[[str], str]) -> KernelCall:
    stage = call.stage
    symbol = stage.stem if stage.library else code.add(stage.stem, stage.source, stage.parts)
    return KernelCall(
        kernel=call.kernel,
        symbol=symbol,
        inputs=tuple(map(named, call.inputs)),
        outputs=tuple(map(named, call.outputs)),
        params=stage.params,
        tasks=stage.tasks,
        grain=stage.grain,
        scratch_bytes=stage.scratch_bytes,
        library=stage.library,
        options=stage.options,
        nodes=call.nodes,
        ops=call.ops,
        flops=stage.flops,
        bytes=stage.bytes,
    )


def symbols_of(plans: Sequence[ExecutionPlan]) -> tuple[str, ...]:
    """Every generated function that plans call, in order, each once."""
    return tuple(dict.fromkeys(c.symbol for p in plans for c in p.calls if not c.library))
