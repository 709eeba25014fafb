"""Emission: calls, memory and recipes become a program. Equal functions are emitted once, under descriptive names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..codegen.target import CodegenTarget
from ..errors import BuildError
from ..faults import part
from ..kernels.kernel import VECTOR_BYTES, Built, Unit
from ..program.kinds import MAX_SIZE
from ..program.program import Binary, BufferAllocation, BufferKind, ExecutionPlan, KernelCall
from .calls import LoweredGraph, StageCall

__all__ = ["Code", "plan_of", "symbols_of"]

_NAME = re.compile(r"\bKERNEL\b")
_TOGETHER = frozenset({"(together)"})
"""Key of the binary without a limit: of all functions, or of those that report errors."""


class Code:
    """The functions of one target, each once, and the binaries that contain them. Entry points share it.

    Functions share a binary, or, on a target that limits the functions of one, those with equal parts of the prelude do. Such binaries
    compile side by side. Functions that report errors share one in any case, since a run reads the reports of one binary.

    first: index of the first of these binaries in the program.
    """

    def __init__(self, target: CodegenTarget, first: int = 0) -> None:
        self.target = target
        self._first = first
        self._binaries: list[Binary | _Functions] = []
        self._places: dict[str, int] = {}
        self._open: dict[frozenset[str], int] = {}
        self._common = -1
        self._apart: dict[str, tuple[int, Built]] = {}

    def add(self, stem: str, source: str, parts: frozenset[str], *, reports: bool = False) -> tuple[str, int]:
        """Add a function text named KERNEL. Return its symbol, and the index of its binary; -1 for the common one."""
        digest = hashlib.sha256(source.encode()).hexdigest()[:10]
        symbol = re.sub(r"\W", "_", f"{stem}_{digest}")
        if symbol not in self._places:
            self._places[symbol] = index = self._room_for(parts, reports)
            functions = self._binaries[index - self._first]
            assert isinstance(functions, _Functions)
            functions.texts[symbol] = _NAME.sub(symbol, source)
            functions.parts |= parts
        index = self._places[symbol]
        return symbol, -1 if index == self._common else index

    def _room_for(self, parts: frozenset[str], reports: bool) -> int:
        """Return the index of the binary that takes the next function with these parts."""
        limit = 0 if reports else self.target.most_functions(parts)
        key = parts if limit else _TOGETHER
        index = self._open.get(key, -1)
        if index >= 0:
            functions = self._binaries[index - self._first]
            assert isinstance(functions, _Functions)
            if not limit or len(functions.texts) < limit:
                return index
        self._open[key] = index = self._take(_Functions())
        if self._common < 0:
            self._common = index
        return index

    def add_apart(self, unit: Unit) -> tuple[int, Built]:
        """Compile a unit to a binary of its own, once. Return the binary's index and the built unit. Raises BuildError."""
        if unit.digest not in self._apart:
            built = unit.build(self.target)
            self._apart[unit.digest] = self._take(built.binary), built
        return self._apart[unit.digest]

    def _take(self, binary: Binary | _Functions) -> int:
        self._binaries.append(binary)
        return self._first + len(self._binaries) - 1

    @property
    def common(self) -> int:
        """Return the index of the common binary, which has the first function; -1 if there is none."""
        return self._common

    @property
    def waiting(self) -> int:
        """Return the number of binaries that are not assembled yet."""
        return sum(isinstance(b, _Functions) for b in self._binaries)

    def binaries(self) -> list[Binary]:
        """Return all binaries, assembled, in the order of their indices. Raises BuildError."""
        waiting = [(b.texts, frozenset(b.parts)) for b in self._binaries if isinstance(b, _Functions)]
        assembled = iter(self.target.assemble_each(waiting))
        return [b if isinstance(b, Binary) else next(assembled) for b in self._binaries]


@dataclass(slots=True)
class _Functions:
    """The functions of a binary that is not assembled yet, by symbol, and the parts of the prelude that they need."""

    texts: dict[str, str] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)


def plan_of(lowering: LoweredGraph, code: Code) -> ExecutionPlan:
    """Return the execution plan of one entry point on one target, and add its functions to ``code``. Raises BuildError."""
    with part("memory planning"):
        buffers, arena = lowering.memory.done([c.use for c in lowering.calls])
    if arena > MAX_SIZE:
        raise BuildError(
            f"compile {lowering.graph.name}",
            "the model's buffers exceed the size limit of a program",
            got=f"{arena:,} bytes; at most {MAX_SIZE:,}",
            do="Use a smaller model or batch.",
        )

    def named(name: str) -> str:
        return lowering.renamed.get(name, name)

    aligned = _aligned(buffers)
    calls = tuple(_emitted(c, code, named, aligned) for c in lowering.calls)
    buffers = tuple(replace(b, name=named(b.name), root=named(b.root)) for b in buffers)
    # A submission holds the backend's threads, which the bodies of control flow need, too.
    controls = any(c.library == "control" for c in calls)
    used = {n for c in calls for n in (*c.inputs, *c.outputs)} | {*lowering.inputs, *lowering.outputs}
    used |= {s.name for s in lowering.graph.states}
    used |= {b.root for b in buffers if b.name in used}
    return ExecutionPlan(
        target=code.target.name,
        binary=code.common if any(not c.library and c.binary < 0 for c in calls) else -1,
        calls=calls,
        buffers=tuple(b for b in buffers if b.name in used),
        arena_bytes=arena,
        batch=1 if controls else max(1, code.target.config.max_dispatches_per_batch),
    )


def _aligned(buffers: Sequence[BufferAllocation]) -> frozenset[str]:
    """Return the buffers that begin at multiples of ``VECTOR_BYTES`` in every run: their memory is the runtime's. A caller's may begin anywhere."""
    callers = {b.name for b in buffers if b.kind in (BufferKind.INPUT, BufferKind.OUTPUT)}
    return frozenset(b.name for b in buffers if b.root not in callers and b.offset % VECTOR_BYTES == 0)


def _emitted(call: StageCall, code: Code, named: Callable[[str], str], aligned: frozenset[str]) -> KernelCall:
    """Emit a call. Failures are reported as its kernel's."""
    with part(emitted_part(call.kernel, call.nodes)):
        return _call(call, code, named, aligned)


def emitted_part(kernel: str, nodes: Sequence[str]) -> str:
    """Return a kernel's name for reports, with the model nodes that it computes."""
    return f"kernel {kernel} for {', '.join(nodes[:3]) or 'no node of the model'}"


def _call(call: StageCall, code: Code, named: Callable[[str], str], aligned: frozenset[str]) -> KernelCall:
    stage = call.stage
    index, built = -1, None
    if stage.unit is not None:
        index, built = _apart(call, stage.unit, code)
        symbol = built.symbol
    else:
        symbol = stage.stem
        if not stage.library:
            source = _source(call, aligned)
            symbol, index = code.add(stage.stem, source, stage.parts, reports=stage.scratch_bytes > 0)
    return KernelCall(
        kernel=call.kernel,
        symbol=symbol,
        inputs=tuple(map(named, call.inputs)),
        outputs=tuple(map(named, call.outputs)),
        params=stage.params if built is None else (*stage.params, *built.params),
        tasks=stage.tasks,
        grain=stage.grain,
        scratch_bytes=stage.scratch_bytes,
        library=stage.library,
        options=stage.options if built is None else {**stage.options, **built.options},
        nodes=call.nodes,
        ops=call.ops,
        flops=stage.flops,
        bytes=stage.bytes,
        binary=index,
    )


def _source(call: StageCall, aligned: frozenset[str]) -> str:
    """Return the text of a call's function: without the code for unaligned memory, which takes half of its compile time, where no run needs it."""
    stage = call.stage
    buffers = (*call.inputs, *call.outputs)
    if stage.aligned_source and all(buffers[at] in aligned for at in stage.aligned_args):
        return stage.aligned_source
    return stage.source


def _apart(call: StageCall, unit: Unit, code: Code) -> tuple[int, Built]:
    """Return the binary of a unit. A failure names the node and the reason for the kernel's choice."""
    try:
        return code.add_apart(unit)
    except BuildError as error:
        node = ", ".join(call.nodes[:3]) + (" ..." if len(call.nodes) > 3 else "")
        raise BuildError(
            f"kernel {call.kernel} for node {node} ({'+'.join(call.ops)}) on {code.target.name}",
            f"{error.what} (chosen because {call.because})",
            got=error.got,
            do=error.do,
        ) from error


def symbols_of(plans: Sequence[ExecutionPlan]) -> tuple[str, ...]:
    """Return every generated function that plans call, in order, each once."""
    return tuple(dict.fromkeys(c.symbol for p in plans for c in p.calls if not c.library))
