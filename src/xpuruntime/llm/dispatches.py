"""dispatch_table: the number of calls per token after each named fusion, counted by the null device.

    for row in dispatch_table(DecoderConfig.from_json(config)):
        print(row.after, row.dispatches)

The first row is the decoder as a framework hands it over: norms, rotations and attention written out in plain operations.
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
from .build import DECODE, build_program, check_capacity
from .checkpoint.config import DecoderConfig
from .decoder import decoder_graph
from .generate import computed_in

__all__ = ["Dispatches", "dispatch_table", "recorded", "written_out"]

_log = logger("xpuruntime.session")

_WRITTEN = frozenset(["rms_norm", "rope", "attention"])
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
"""Fusions in the order in which rows add them; passes run in the pipeline's order."""
_RECOGNIZED = _FUSIONS[:3]
_FIRST = ("norms, rotations and attention in plain operations", "norms, rotations and attention whole")
_MAKES = {"fuse_rope_attention": "rope_attention"}
"""Ops that some targets compute: without a kernel for them, there is no row."""


@dataclass(frozen=True, slots=True)
class Dispatches:
    """One row: the last fusion, its effect, the program's calls for one token, and the nodes that they compute."""

    after: str
    meaning: str
    dispatches: int
    nodes: int


def written_out(graph: Graph) -> Graph:
    """Return the graph with norms, rotations and attention as plain operations, keys and values repeated for groups of heads."""
    return decompose.run(graph, PassContext(has_kernel=lambda op: op not in _WRITTEN))


def dispatch_table(
    config: DecoderConfig,
    *,
    capacity: int = 2048,
    target: str | None = None,
    dtype: DType | None = None,
    fusions: Sequence[Sequence[str]] = _FUSIONS,
    policy: Any = None,
) -> list[Dispatches]:
    """Return a row for the plain decoder and one for each fusion. Each row is a compiled program whose calls the null device counts.
    target: no device is needed (``cuda:sm_90``); by default the policy's, else ``cpu``. dtype: by default the policy's, else float32.
    For narrower types the first row is the decoder as built, with whole norms, rotations and attention: written out they would have
    casts between, which no pass recognizes.

    Raises as ``compile``, and BuildError for a capacity that the model cannot have.
    """
    notes: list[str] = []
    demands = demanded("Generator", {}, policy)
    (to,) = targets_of(target, demands, notes)
    dtype, demands = computed_in(dtype, DType.FLOAT32, demands, notes)
    if notes:
        _log.warning("dispatches: %s", "; ".join(notes))
    check_capacity(config, capacity, "dispatches")
    meanings = {p.name: p.meaning for p in PASSES}
    graph = decoder_graph(config, length=1, capacity=capacity, dtype=dtype)
    whole = dtype is not DType.FLOAT32
    if not whole:
        graph = written_out(graph)
    rows, chosen = [], list(_BARE)
    for added in ((), *fusions):
        if any(n in _MAKES and not has_kernel(_MAKES[n], to) for n in added) or (
            whole and added in _RECOGNIZED
        ):
            continue
        chosen += added
        names = [p.name for p in PASSES if p.name in chosen]
        program, after = _built(graph, [*names, "clean_up"], to, demands)
        name = ", ".join(added) or ("as it is built" if whole else "written out")
        meaning = "; ".join(meanings[n] for n in added) or _FIRST[whole]
        rows.append(Dispatches(name, meaning, recorded(program), dispatches(after)))
    return rows


def _built(
    graph: Graph, passes: Sequence[str], target: CodegenTarget, policy: Resolved
) -> tuple[CompiledProgram, Graph]:
    """Return the program, and the graph after the last pass."""
    seen: list[Graph] = []
    program = build_program(
        {DECODE: graph},
        target=target,
        policy=policy,
        passes=passes,
        watch=lambda _, after: seen.append(after),
    )
    return program, seen[-1]


def recorded(program: CompiledProgram, entry: str = DECODE) -> int:
    """Return the calls of one run as the null device counts them. It computes nothing, and weights are memory that is never read."""
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
