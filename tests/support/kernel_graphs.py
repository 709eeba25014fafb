"""Cases of one node as whole programs on a device: the compiler chooses layouts and kernels, the interpreter says what is right.

Where tests of a processor's kernels hand over layouts and splits, a named device (``device_under_test``) gets the same nodes and values.
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

__all__ = ["OneNode", "judge_graphs"]

OneNode = tuple[str, Graph, Mapping[str, Array], Mapping[str, Array]]
"""What to call it, the graph, its inputs and its weights."""


def judge_graphs(there: DeviceUnderTest, cases: Sequence[OneNode]) -> dict[int, str]:
    """Compile all, run all, compare; gives why some are refused, by place. Where the interpreter raises, the run must. Raises AssertionError."""
    assert there.target is not None
    refused: dict[int, str] = {}
    wrong: list[str] = []

    def prepare(item: tuple[int, OneNode], gathering: Batch) -> CompiledProgram | str:
        try:
            return compile_graph(item[1][1], target=gathering, weights=item[1][3])
        except XpuError as error:
            return why_refused(error)

    def programs(made: CompiledProgram | str) -> list[CompiledProgram]:
        return [] if isinstance(made, str) else [made]

    for (at, case), made, built in in_batches(
        list(enumerate(cases)), prepare, programs, there.target, size=150
    ):
        if isinstance(made, str):
            refused[at] = made
        elif said := _judged(there.device, case, built[0]):
            wrong.append(f"{case[0]}: {said}")
    assert not wrong, f"{len(wrong)} of {len(cases)} wrong\n" + "\n".join(wrong[:5])
    return refused


def _judged(device: Any, case: OneNode, program: CompiledProgram | BuildError) -> str:
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
            got = executor.run_arrays([feeds[s.name] for s in program.input_specs])
    except RunError as error:
        return "" if want is None else str(error)
    if want is None:
        return f"says nothing, the interpreter says: {refusal}"
    for output, ours in zip(graph.outputs, got, strict=True):
        if said := _differs(graph.nodes[0].op, ours, want[output.name]):
            return f"{output.name} {said}"
    return ""


def _differs(op: str, ours: Array, theirs: Array) -> str:
    kind = DType.of(theirs.dtype)
    if kind.is_float and kind.bits == 8 and ours.dtype == theirs.dtype:  # NaN is NaN, whatever its bits
        same = np.array_equal(ours.astype(np.float32), theirs.astype(np.float32), equal_nan=True)
        return "" if same else "differs"
    # Whole numbers that were interpolated in floats: sums of another order fall to the other side of a half now and then.
    loose = (0.0, 1.0) if op == "resize" and not kind.is_float else None
    return disagreement(ours, theirs, loose)
