"""The first call of a signature: a graph of one op, its program from the compiler or the store, and its executor in the core's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import __version__, _core
from ...errors import InputError, IrError, StoreError
from ...faults import contained
from ...ir import Graph
from ...ir.build import GraphBuilder
from ...policies import Resolved
from ...policies.entrances import refuse
from ...printable import logger
from ...program.program import CompiledProgram
from ...runtime.device import Device
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.memory.arrays import dlpack_words
from ...storage.store import Store, digest
from ...targets import DeviceId
from ...types import DType, TensorSpec
from .explained import Explained
from .op_table import ROWS
from .policy_scope import effective_demands
from .tensor_layout import DenseBlock, TensorFacts, dense_block, facts_of

__all__ = ["device_of", "graph_of", "held_demands", "prepare", "program_of", "store_of"]

_log = logger("xpuruntime.ops")
_HOST, _CUDA = 1, 2  # DLPack's kDLCPU and kDLCUDA


@contained("ops")
def prepare(
    table: _core.Ops, op: str, request: Any, attributes: tuple[Any, ...], operands: tuple[Any, ...]
) -> Explained:
    """Add the call's signature to the table: an executor, or the operands that must be copied before a program can read them.

    Raises InputError, PolicyError, KernelUnavailable, BuildError.
    """
    facts = [None if o is None else _facts(op, i, o) for i, o in enumerate(operands)]
    held = [None if f is None else dense_block(f) for f in facts]
    copies = sum(
        1 << i for i, (f, b) in enumerate(zip(facts, held, strict=True)) if f is not None and b is None
    )
    number = ROWS[op].number
    if copies:
        explained = Explained(op, (), "", (), (), "copied", copies)
        table.put(
            number,
            request,
            attributes,
            operands,
            None,
            None,
            (),
            (),
            (2, 32),
            DType.FLOAT32.numpy,
            copies,
            explained,
        )
        return explained
    device = device_of(op, facts)
    graph = graph_of(op, attributes, facts, held)
    demands = held_demands(op, effective_demands(request), device, {f.dtype for f in facts if f is not None})
    program, origin = program_of(graph, device, demands)
    executor = Executor(program, Device(device), policy=SETTLED, store=store_of(demands))
    fixed = executor.bind(None)
    explained = _explained(op, executor, [f for f in facts if f is not None], origin)
    result = program.output_specs[0]
    words = dlpack_words(result.dtype)
    assert words is not None, "a result has the operands' dtype"
    inputs = [i for i, f in enumerate(facts) if f is not None]
    shape = [int(d) for d in result.shape if isinstance(d, int)]
    table.put(
        number,
        request,
        attributes,
        operands,
        executor.core,
        fixed,
        inputs,
        shape,
        words,
        result.dtype.numpy,
        0,
        explained,
    )
    return explained


def held_demands(op: str, demands: Resolved, device: DeviceId, dtypes: set[DType]) -> Resolved:
    """Return the demands for the compiler, after checking those on device and precision against the operands. Raises UnavailableError."""
    execution = demands.policy.execution
    target = "auto" if execution.target is None else execution.target
    notes: list[str] = []
    if target != "auto" and DeviceId.parse(target) != device:
        if device.kind not in {DeviceId.parse(d).kind for d in execution.allow_fallback or ()}:
            why, do = f"the operands are on {device}", f"Move them to {target}, or drop target."
            raise refuse("ops", "target", demands, why, do)
        notes.append(f"the operands are on {device}, not on {target}; it runs on {device}")
    if execution.precision not in (None, "model"):
        wanted, floats = DType.of(execution.precision), {d for d in dtypes if d.is_float}
        if wanted.is_integer and execution.allow_fallback:
            notes.append(f"precision {wanted.value} is unavailable; the operands' own is used")
        elif floats - {wanted} or wanted.is_integer:
            why = f"the operands' dtypes are {', '.join(sorted(d.value for d in dtypes))}"
            raise refuse("ops", "precision", demands, why, "Convert the operands, or drop precision.")
    if notes:
        _log.warning("ops.%s: %s", op, "; ".join(notes))
    return demands.without("target", "precision", "allow_fallback")


def store_of(demands: Resolved) -> Store:
    """Return where the programs of a policy are kept."""
    return Store.unless_off(demands.policy.execution.caching)


def program_of(
    graph: Graph,
    device: DeviceId,
    demands: Resolved,
    phase: str = "inference",
    passes: Sequence[str] | None = None,
) -> tuple[CompiledProgram, str]:
    """Return the program of a graph for a device of this machine, and its origin: ``store`` or ``compiled``.

    phase: of the policy's rules. passes: by name; None: those of the policy's level.
    """
    from ...compiler import compile as compile_graph
    from ...kernels.user.kernel import named_digests
    from ..native.engine import compiler_facts
    from ..native.targets import own_target, target_of

    target = target_of(device)
    policy = demands.policy
    settles = ("caching", "engine_order", "engine_options")  # they do not change the program
    remaining = demands.without(*settles)
    store = store_of(demands)
    ingredients = {
        "op": graph.digest,
        "target": target,
        "policy": remaining.policy.to_dict(),
        "version": __version__,
        **({} if phase == "inference" else {"phase": phase}),
        **({} if passes is None else {"passes": list(passes)}),
        **compiler_facts(),
        **({"user_kernels": users} if (users := named_digests(policy.kernel)) else {}),
    }
    stored = store.recall("artifact", digest(ingredients), CompiledProgram.from_bytes)
    if stored is not None:
        return stored, "store"
    program = compile_graph(graph, target=own_target(device), policy=remaining, phase=phase, passes=passes)
    try:
        store.put("artifact", ingredients, program.to_bytes())
    except StoreError as error:  # a full disk must not stop an op
        _log.warning("%s The op runs; the next process compiles it again.", error)
    return program, "compiled"


def device_of(op: str, facts: list[TensorFacts | None]) -> DeviceId:
    """Return the device of all operands. Raises InputError."""
    places = {f.device for f in facts if f is not None}
    if not places:
        raise InputError(f"ops.{op}", "needs its operands", got="None", do="Hand in tensors.")
    if len(places) > 1:
        shown = ", ".join(sorted(f"DLPack device {d}" for d in places))
        raise InputError(
            f"ops.{op}", "operands are on different devices", got=shown, do="Move them to one first."
        )
    kind, index = places.pop()
    if kind == _HOST:
        return DeviceId("cpu")
    if kind == _CUDA:
        return DeviceId("cuda", index)
    raise InputError(
        f"ops.{op}",
        "computes on cpu and cuda",
        got=f"a tensor on DLPack device type {kind}",
        do="Move it first.",
    )


def _facts(op: str, position: int, operand: Any) -> TensorFacts:
    facts = facts_of(operand)
    if facts is None:
        name = ROWS[op].operands[position]
        raise InputError(
            f"ops.{op}",
            f"{name} has an unsupported dtype",
            got=_described(operand),
            do="Convert it to a supported dtype.",
        )
    return facts


def _described(operand: Any) -> str:
    return f"{type(operand).__name__} of {getattr(operand, 'dtype', '?')}"


def graph_of(
    op: str, attributes: tuple[Any, ...], facts: list[TensorFacts | None], held: list[DenseBlock | None]
) -> Graph:
    """Return a graph of one node over the operands in place. Raises InputError for invalid operands or attributes."""
    row = ROWS[op]
    builder = GraphBuilder(op)
    try:
        values = [
            None if f is None or b is None else b.input(builder, name, f)
            for name, f, b in zip(row.operands, facts, held, strict=True)
        ]
        shown = [None if f is None or b is None else (f, b) for f, b in zip(facts, held, strict=True)]
        builder.output("result", row.node(builder, values, attributes, shown))
        return builder.build()
    except (IrError, TypeError, ValueError) as error:
        what, got, do = (
            (error.what, error.got, error.do) if isinstance(error, IrError) else (str(error), None, "")
        )
        raise InputError(f"ops.{op}", what, got=got, do=do) from error


def _explained(op: str, executor: Executor, facts: list[TensorFacts], origin: str) -> Explained:
    calls = zip(executor.plan.calls, executor.implementations, strict=True)
    kernels = tuple(f"{c.kernel}: {c.symbol}" + (f" ({how})" if how else "") for c, how in calls)
    operands = tuple(str(TensorSpec(f.shape, f.dtype)) for f in facts)
    return Explained(op, operands, executor.plan.target, kernels, executor.program.decisions, origin)
