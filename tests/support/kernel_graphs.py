"""Checks of one-node graphs as programs on a device. The compiler chooses layouts and kernels; the interpreter computes the expected outputs.

Tests of CPU kernels choose layouts and splits themselves. On a named device (``device_under_test``) they check the same nodes and values here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError, IrError, RunError, XpuError
from xpuruntime.ir import Graph, interp
from xpuruntime.program.program import CompiledProgram
from xpuruntime.protocols import Array
from xpuruntime.runtime import Executor
from xpuruntime.testing.conformance.native_batch import Batch, in_batches, why_refused
from xpuruntime.testing.conformance.opinfo.judge import disagreement
from xpuruntime.testing.conformance.subject import DeviceUnderTest
from xpuruntime.types import DType

__all__ = ["OneNode", "check_graphs"]

OneNode = tuple[str, Graph, Mapping[str, Array], Mapping[str, Array]]
"""A title, the graph, its inputs and its weights."""


def check_graphs(device: DeviceUnderTest, cases: Sequence[OneNode]) -> dict[int, str]:
    """Compile, run and compare all cases. Return the reasons of refused ones by index. If the interpreter raises, the run must raise, too.

    Raises AssertionError with the first wrong cases.
    """
    assert device.target is not None
    refused: dict[int, str] = {}
    wrong: list[str] = []

    def prepare(item: tuple[int, OneNode], gathering: Batch) -> CompiledProgram | str:
        try:
            return compile_graph(item[1][1], target=gathering, weights=item[1][3])
        except XpuError as error:
            return why_refused(error)

    def programs(prepared: CompiledProgram | str) -> list[CompiledProgram]:
        return [] if isinstance(prepared, str) else [prepared]

    for (at, case), prepared, built_programs in in_batches(
        list(enumerate(cases)), prepare, programs, device.target, size=150
    ):
        if isinstance(prepared, str):
            refused[at] = prepared
        elif difference := _run_case(device.device, case, built_programs[0]):
            wrong.append(f"{case[0]}: {difference}")
    assert not wrong, f"{len(wrong)} of {len(cases)} wrong\n" + "\n".join(wrong[:5])
    return refused


def _run_case(device: Any, case: OneNode, program: CompiledProgram | BuildError) -> str:
    _, graph, feeds, weights = case
    if isinstance(program, BuildError):
        return f"does not compile: {program}"
    try:
        want: Mapping[str, Array] | None = interp.run(graph, feeds, weights=weights)
    except IrError as error:
        want, refusal = None, str(error)
    try:
        with Executor(program, device) as executor:
            executor.bind(dict(weights))
            outputs = executor.run_arrays([feeds[s.name] for s in program.input_specs])
    except RunError as error:
        return "" if want is None else str(error)
    if want is None:
        return f"says nothing, the interpreter says: {refusal}"
    for output, actual in zip(graph.outputs, outputs, strict=True):
        if difference := _differs(graph.nodes[0].op, actual, want[output.name]):
            return f"{output.name} {difference}"
    return ""


def _differs(op: str, actual: Array, expected: Array) -> str:
    kind = DType.of(expected.dtype)
    if kind.is_float and kind.bits == 8 and actual.dtype == expected.dtype:  # the bits of NaNs may differ
        is_equal = np.array_equal(actual.astype(np.float32), expected.astype(np.float32), equal_nan=True)
        return "" if is_equal else "differs"
    # Integers are interpolated in floats. A sum in another order may round a half to the other side.
    loose = (0.0, 1.0) if op == "resize" and not kind.is_float else None
    return disagreement(actual, expected, loose)
