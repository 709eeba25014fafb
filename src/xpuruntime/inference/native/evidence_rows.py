"""Evidence of a program's run: a row per kernel call, with the code that was called, and what became of every other node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...engines.attribution import SourceGraph, explain_unnamed
from ...evidence import CalledCode
from ...program.program import ExecutionPlan, KernelCall
from ...protocols import EvidenceRow, ModelSource
from ...runtime.execution.called_code import CalledFunction
from ...runtime.execution.executor import Executor
from ...types import DType

__all__ = ["binaries_of", "explained_nodes", "rows_of"]


def rows_of(
    executor: Executor, device: str, times: Sequence[float] | None, spreads: Sequence[float] | None
) -> list[EvidenceRow]:
    """Return the row of each call. times: microseconds of each call, if they were measured; spreads: of the measured runs."""
    plan = executor.plan
    types = {b.name: b.spec.dtype for b in plan.buffers}
    chosen, functions = executor.implementations, executor.called_functions()
    return [
        replace(
            _row(call, types, None if times is None else times[i], device, chosen[i], functions[i]),
            spread_us=None if spreads is None else spreads[i],
        )
        for i, call in enumerate(plan.calls)
    ]


def binaries_of(executor: Executor) -> tuple[CalledCode, ...]:
    """Return the executable code of the loaded binaries."""
    binaries = executor.program.binaries
    return tuple(
        CalledCode(binaries[i].target, digest, binaries[i].target, expected)
        for i, digest, expected in executor.text_digests()
    )


def explained_nodes(plan: ExecutionPlan, model: ModelSource) -> dict[str, str]:
    """Return what became of the model's nodes that no call names. Nodes of a program are those of its calls."""
    rows = [(call.nodes, f"{call.kernel}: {call.symbol}") for call in plan.calls if call.nodes]
    outputs = [s.name for s in model.outputs]
    return explain_unnamed(SourceGraph(model), outputs, rows, "compiling or loading")


def _row(
    call: KernelCall,
    types: Mapping[str, DType],
    time_us: float | None,
    device: str,
    chosen: str,
    function: CalledFunction | None,
) -> EvidenceRow:
    """Return the evidence row of one call. chosen: the algorithm that a library reports for it."""
    precision = types[call.outputs[0]].value if call.outputs else ""
    kernel = f"{call.kernel}: {call.symbol}" + (f" ({chosen})" if chosen else "")
    operands = _operands(call, types) if call.kernel.partition("/")[0] in ("conv", "matmul") else ("", "")
    code = None
    if function is not None and function.name:
        code = CalledCode(function.name, function.digest, function.planned, function.expected)
    return EvidenceRow(
        call.nodes,
        "+".join(call.ops),
        device,
        kernel,
        precision,
        time_us,
        (),
        *operands,
        code=code,
        flops=call.flops,
        bytes=call.bytes,
    )


_CODES = re.compile("int[48]")
"""Names of functions that read codes of a few bits have this in them."""


def _operands(call: KernelCall, types: Mapping[str, DType]) -> tuple[str, str]:
    """Return element types of activations and weights of a product; empty for a call that only packs or widens weights."""
    kernel = call.kernel.partition("/")[2]
    if len(call.inputs) < 2 or call.symbol.startswith(("pack_int8", "floats_of_")):
        return "", ""
    activations, weights = (types[name] for name in call.inputs[:2])
    if kernel.endswith("_by_int8") and (codes := _CODES.search(call.symbol)):
        return "int8", codes[0]
    if kernel.startswith(("int4_weights", "stored_weights")) and (codes := _CODES.search(call.symbol)):
        return activations.value, codes[0]
    if kernel == "int8":  # packed in 16 bits where the processor has no products of bytes
        return activations.value, weights.value if weights.bits == 8 and weights.is_signed else "int8"
    # Floats that are packed or widened are bytes to the plan; codes of int8 are int8.
    packed = (
        activations.is_float and weights.is_integer and (kernel != "int8_weights" or weights is DType.UINT8)
    )
    return activations.value, (activations if packed else weights).value
