"""Formulas as programs, one for each signature: compiled under a policy at the first call, or read from the store."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..decisions import Decision, Reason, Support
from ..errors import BuildError, InternalError, IrError, RunError, UnavailableError
from ..inference.ops.prepare import held_demands, program_of, store_of
from ..ir import Graph
from ..policies.entrances import demanded
from ..printable import logger
from ..runtime.device import Device
from ..runtime.execution.demands import SETTLED
from ..runtime.execution.executor import Executor
from ..targets import DeviceId
from ..types import DType, TensorSpec
from .formulas.formula import Formula
from .library_kernels import LibraryKernel, library_choice
from .numbered_policies import NumberedPolicy
from .step_record import note

if TYPE_CHECKING:
    import torch

__all__ = ["BACKWARD", "FORWARD", "FormulaCall", "Prepared", "clear", "in_place", "prepared_graph", "run"]

_log = logger("xpuruntime.pytorch")

FORWARD, BACKWARD = "train_forward", "train_backward"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A formula for one signature: an executor, a library's kernel, or the reason why PyTorch's own operator runs.

    kernels: ``family/kernel: function`` of each call, in order.
    """

    op: str
    phase: str
    executor: Executor | None
    support: Support
    kernels: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    library: LibraryKernel | None = None


_PREPARING = threading.RLock()
_prepared: dict[tuple[Any, ...], Prepared] = {}
_DEVICES: dict[tuple[str, int | None], DeviceId] = {}


def clear() -> None:
    """Drop every program in memory. Those in the store stay, and so do those of captured graphs."""
    _prepared.clear()


@dataclass(frozen=True, slots=True, eq=False)
class FormulaCall:
    """One call of one direction of an op.

    family:     its op family in policies.
    phase:      ``FORWARD`` or ``BACKWARD``.
    operands:   tensors of one device, in the formula's order; None for one that is missing.
    attributes: the formula's numbers and words in order, with lists as tuples.
    numbered:   the policy that it runs under.
    """

    formula: Formula
    family: str
    phase: str
    operands: Sequence[torch.Tensor | None]
    attributes: tuple[Any, ...]
    numbered: NumberedPolicy

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return what a program depends on."""
        return (
            self.formula.name,
            self.phase,
            self.attributes,
            self.numbered.number,
            *(None if t is None else (t.shape, t.dtype, t.device) for t in self.operands),
        )


def run(call: FormulaCall) -> list[torch.Tensor] | None:
    """Return the results of a call, or None if PyTorch's own operator must compute it.

    The work is queued on PyTorch's current stream. Raises KernelUnavailable and its kin if the policy forces a kernel that cannot be had.
    """
    signature = call.signature
    prepared = _prepared.get(signature)
    if prepared is None:
        prepared = _prepare(signature, call)
    note(prepared)
    if prepared.library is not None:
        return prepared.library.run(call.operands, call.attributes)
    executor = prepared.executor
    if executor is None:
        return None
    tensors = {
        name: in_place(t)
        for name, t in zip(call.formula.operands, call.operands, strict=True)
        if t is not None
    }
    results = executor.run_tensors(tensors)
    if results is None:
        raise RunError(
            f"pytorch.ops.{call.formula.name}",
            "cannot read its tensors in place",
            got=", ".join(f"{n}: {tuple(t.shape)} {t.dtype} on {t.device}" for n, t in tensors.items()),
            do="Give dense tensors of PyTorch 2.10 or later on one device.",
        )
    return list(results.values())


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as programs read it: dense, without a negation that is pending."""
    tensor = tensor.resolve_neg() if tensor.is_neg() else tensor
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _prepare(signature: tuple[Any, ...], call: FormulaCall) -> Prepared:
    """Prepare a signature once, whichever thread calls first."""
    with _PREPARING:
        prepared = _prepared.get(signature)
        if prepared is None:
            prepared = _prepared[signature] = _compiled(call)
        return prepared


def _compiled(call: FormulaCall) -> Prepared:
    name, families = call.formula.name, (call.family,)
    try:
        specs = [None if t is None else _spec(t) for t in call.operands]
        graph = call.formula.graph(specs, call.attributes)
    except (IrError, _Unsupported) as error:
        return _refused(name, families, call.phase, call.numbered, error)
    device = next(t for t in call.operands if t is not None).device
    kernels = call.numbered.policy.kernel
    choice = library_choice(name, graph, call.operands, call.attributes, kernels, call.phase)
    if choice is None:
        return prepared_graph(name, families, call.phase, graph, device, call.numbered)
    library = choice.kernel
    if library is None or choice.before:
        prepared = prepared_graph(name, families, call.phase, graph, device, call.numbered)
        first = tuple(f"{call.family}/{word}:" for word in choice.before)
        if library is None or any(kernel.startswith(first) for kernel in prepared.kernels):
            return replace(prepared, decisions=(*prepared.decisions, choice.decision))
    kernel = f"{call.family}/{library.word}: {library.function}"
    return Prepared(name, call.phase, None, Support.yes(), (kernel,), (choice.decision,), library)


def prepared_graph(
    name: str,
    families: Collection[str],
    phase: str,
    graph: Graph,
    device: torch.device,
    numbered: NumberedPolicy,
) -> Prepared:
    """Return a graph of these op families as a program under a policy, or the reason why PyTorch's own operators must run.

    Raises KernelUnavailable and its kin if the policy forces a kernel that cannot be had; InternalError for a fault of our compiler.
    """
    try:
        device_id = _device(device)
        dtypes = {v.spec.dtype for v in graph.inputs if v.spec is not None}
        demands = held_demands(f"{name} ({phase})", demanded("ops", {}, numbered.policy), device_id, dtypes)
        # Level 0 has no passes, but an op without a kernel must be expanded.
        passes = ["decompose"] if demands.policy.execution.optimization_level == 0 else None
        program, _ = program_of(graph, device_id, demands, phase, passes)
        # A training step has many programs, each of which runs once: their arenas share PyTorch's memory, in the order of its stream.
        executor = Executor(
            program,
            Device(device_id),
            policy=SETTLED,
            borrows_arena=device_id.kind != "cpu",
            store=store_of(demands),
        )
        executor.bind(None)
    except (UnavailableError, BuildError, IrError, _Unsupported) as error:
        return _refused(name, families, phase, numbered, error)
    calls = zip(executor.plan.calls, executor.implementations, strict=True)
    kernels = tuple(f"{c.kernel}: {c.symbol}" + (f" ({how})" if how else "") for c, how in calls)
    return Prepared(name, phase, executor, Support.yes(), kernels, executor.program.decisions)


def _refused(
    name: str, families: Collection[str], phase: str, numbered: NumberedPolicy, error: Exception
) -> Prepared:
    if isinstance(error, InternalError) or any(map(numbered.forces, families)):
        raise error
    _log.info("%s (%s) runs on PyTorch's own operators: %s", name, phase, error)
    return Prepared(name, phase, None, Support.no(Reason.OP_UNSUPPORTED, str(error)))


class _Unsupported(Exception):
    """A tensor that no program reads."""


def _spec(tensor: torch.Tensor) -> TensorSpec:
    try:
        dtype = DType.of(str(tensor.dtype).removeprefix("torch."))
    except ValueError as error:
        raise _Unsupported(f"no program reads {tensor.dtype}") from error
    return TensorSpec(tuple(tensor.shape), dtype)


def _device(device: torch.device) -> DeviceId:
    key = device.type, device.index
    device_id = _DEVICES.get(key)
    if device_id is None:
        if device.type not in ("cpu", "cuda"):
            raise _Unsupported(f"programs run on cpu and cuda, not on {device}")
        device_id = _DEVICES[key] = DeviceId(device.type, device.index or 0)
    return device_id
