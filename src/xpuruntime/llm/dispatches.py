"""dispatch_table: the number of kernel calls per token after each named fusion, counted by the null device.

    for row in dispatch_table(DecoderConfig.from_json(config)):
        print(row.after, row.dispatches)

The first row is the decoder as a framework exports it: norms, rotations and attention are decomposed into plain operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codegen.target import CodegenTarget
from ..compiler.entrance import targets_of
from ..ir import Graph
from ..kernels import has_kernel
from ..passes import PASSES, PassContext, decompose
from ..passes.trace import dispatches
from ..policies import Resolved
from ..policies.entrances import demanded
from ..printable import logger
from ..program.program import CompiledProgram
from ..program.recipe_check import recipe_bytes
from ..runtime import DeviceBuffer, Executor, NullBackend, Weights
from ..runtime.execution.demands import SETTLED
from ..types import DType
from .build import DECODE, build_program, check_capacity, with_source
from .checkpoint.config import DecoderConfig
from .decoder import decoder_graph
from .resolve import computed_in

__all__ = ["Dispatches", "dispatch_table", "recorded", "written_out"]

_log = logger("xpuruntime.session")

_DECOMPOSED = frozenset(["rms_norm", "rope", "attention"])
_BARE = ("fold_constants", "simplify", "cse", "dead_code", "in_place_state")
_FUSIONS: tuple[tuple[str, ...], ...] = (
    ("recognize_norm",),
    ("recognize_rope",),
    ("recognize_attention",),
    ("recognize_activation",),
    ("fuse_linear",),
    ("concat_linear",),
    ("fuse_gate",),
    ("fuse_norm_linear",),
    ("fuse_rope_append",),
    ("fuse_rope_attention",),
)
"""Fusions in the order of the table's rows. The passes run in the pipeline's order."""
_RECOGNIZED = _FUSIONS[:3]
_FIRST = ("norms, rotations and attention in plain operations", "norms, rotations and attention whole")
_MAKES = {"fuse_rope_attention": "rope_attention"}
"""Fusion -> its op. A target without a kernel for the op gets no row."""


@dataclass(frozen=True, slots=True)
class Dispatches:
    """One row: the last fusion, its effect, the program's calls for one token, and the nodes that they compute."""

    after: str
    meaning: str
    dispatches: int
    nodes: int


def written_out(graph: Graph) -> Graph:
    """Return the graph with norms, rotations and attention as plain operations, and with keys and values repeated for grouped heads."""
    return decompose.run(graph, PassContext(has_kernel=lambda op: op not in _DECOMPOSED))


def dispatch_table(
    config: DecoderConfig,
    *,
    capacity: int = 2048,
    target: str | None = None,
    dtype: DType | None = None,
    fusions: Sequence[Sequence[str]] = _FUSIONS,
    policy: Any = None,
) -> list[Dispatches]:
    """Return a row for the plain decoder and one for each fusion. A row counts the calls of a compiled program on the null device.

    target: such as ``cuda:sm_90``; the device is not needed. Default: the policy's, else ``cpu``.
    dtype:  default: the policy's precision, else float32. For narrower types the first row keeps norms, rotations and attention as single
            ops: decomposed, they would contain casts that no pass recognizes.
    Raises the errors of ``compile``, and BuildError for a capacity that the model does not support.
    """
    notes: list[str] = []
    demands = demanded("Generator", {}, policy)
    (codegen_target,) = targets_of(target, demands, notes)
    dtype, demands = computed_in(dtype, DType.FLOAT32, demands, notes)
    if notes:
        _log.warning("dispatches: %s", "; ".join(notes))
    check_capacity(config, capacity, "dispatches")
    config = with_source(config, None, "dispatches")
    meanings = {p.name: p.meaning for p in PASSES}
    graph = decoder_graph(config, length=1, capacity=capacity, dtype=dtype)
    keeps_composites = dtype is not DType.FLOAT32
    if not keeps_composites:
        graph = written_out(graph)
    rows, enabled = [], list(_BARE)
    for added in ((), *fusions):
        if any(n in _MAKES and not has_kernel(_MAKES[n], codegen_target) for n in added) or (
            keeps_composites and added in _RECOGNIZED
        ):
            continue
        enabled += added
        names = [p.name for p in PASSES if p.name in enabled]
        program, last_graph = _built(graph, [*names, "clean_up"], codegen_target, demands)
        name = ", ".join(added) or ("as it is built" if keeps_composites else "written out")
        meaning = "; ".join(meanings[n] for n in added) or _FIRST[keeps_composites]
        rows.append(Dispatches(name, meaning, recorded(program), dispatches(last_graph)))
    return rows


def _built(
    graph: Graph, passes: Sequence[str], target: CodegenTarget, policy: Resolved
) -> tuple[CompiledProgram, Graph]:
    """Return the program, and the graph after the last pass."""
    graphs: list[Graph] = []
    program = build_program(
        {DECODE: graph},
        target=target,
        policy=policy,
        passes=passes,
        watch=lambda _, after: graphs.append(after),
    )
    return program, graphs[-1]


def recorded(program: CompiledProgram, entry: str = DECODE) -> int:
    """Return the number of calls of one run on the null device, which computes nothing. Weights are uninitialized memory."""
    device = NullBackend()
    buffers = {
        r.name: DeviceBuffer(device.allocate(recipe_bytes(r)), r.spec, device) for r in program.recipes
    }
    executor = Executor(program, device, entry=entry, contexts=1, policy=SETTLED)
    try:
        executor.bind(Weights(program, buffers))
        shapes = [[d for d in s.shape if isinstance(d, int)] for s in executor.entry.inputs]
        feeds = [np.zeros(n, s.dtype.numpy) for n, s in zip(shapes, executor.entry.inputs, strict=True)]
        executor.run_arrays(feeds)
        return int(executor.counters["dispatches"])
    finally:
        executor.close()
