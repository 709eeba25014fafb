"""Opening of a decoder on the devices that a policy divides it over: ``execution: {parallel: {tensor: 2}}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DeviceUnavailable
from ...ir.ops.collective import PEER_BYTES
from ...policies import ExecutionPolicy
from ...program.program import CompiledProgram
from ...runtime import Communicator, Weights, load_weights
from ...runtime.collectives.peer_boxes import reach_each_other
from ...runtime.collectives.rank_threads import RankThreads
from ...runtime.device import cuda
from ...runtime.weights.kept import KeptWeights
from ...targets import DeviceId
from ..checkpoint.data import Checkpoint
from ..decoder import RANK_TABLE
from ..programs import DecoderPrograms
from ..steps import Steps
from .ranked_steps import RankedSteps
from .shards import shard_config, shard_of

__all__ = ["RankWeights", "open_steps", "rank_devices", "shards_of", "tensor_ranks"]


def tensor_ranks(execution: ExecutionPolicy) -> int:
    """Return the number of devices that linear layers are divided over."""
    return int((execution.parallel or {}).get("tensor", 1))


def rank_devices(device: Any, ranks: int) -> tuple[str, ...]:
    """Return the device of each rank: GPUs from the named one on, or the CPU for all. Raises DeviceUnavailable."""
    first = DeviceId.parse(device)
    if ranks == 1 or first.kind != "cuda":
        return (str(first),) * ranks
    last, available = first.index + ranks - 1, len(cuda().devices)
    if last >= available:
        got = f"this machine has {available} CUDA devices, counted from 0"
        do = f"Give parallel: {{tensor: {max(available - first.index, 1)}}} or less."
        raise DeviceUnavailable("Generator", f"needs {first} to cuda:{last} for parallel: {{tensor: {ranks}}}", got=got, do=do)  # fmt: skip
    return tuple(f"cuda:{first.index + rank}" for rank in range(ranks))


def shards_of(checkpoint: Checkpoint, devices: Sequence[str]) -> tuple[Checkpoint, ...]:
    """Return the checkpoint of each rank. Raises BuildError for a model that cannot be divided."""
    ranks, who = len(devices), f"language model {checkpoint.name}"
    if ranks == 1:
        return (checkpoint,)
    local = shard_config(checkpoint.config, ranks, who, direct=reach_each_other(devices))
    return tuple(shard_of(checkpoint, local, rank) for rank in range(ranks))


class RankWeights:
    """The weights of one rank, from its part of the checkpoint."""

    def __init__(self, programs: DecoderPrograms, shard: Checkpoint, device: str, rank: int = 0) -> None:
        self._programs, self._shard, self.device, self._rank = programs, shard, device, rank
        self.config = shard.config
        self.weights: Weights
        self.kept: KeptWeights

    def load(self, program: CompiledProgram, say: Callable[[str], object]) -> Weights:
        """Load the weights of the first program."""

        def progress(done: int, total: int) -> None:
            if self._rank == 0:
                say(f"loading weights: {done / max(total, 1):.0%}")

        self.weights, self.kept = self._programs.weights(
            program, self.device, progress, rank=self._rank, arrays=self._shard.arrays
        )
        return self.weights

    def further(self, *entries: str) -> tuple[CompiledProgram, Weights]:
        """Return the program of more entry points, and its weights, which are those of the first program."""
        opened = self._programs.opened.get(entries)
        program = self._programs.get(entries) if opened is None else opened.program
        weights = load_weights(self._shard.arrays, program, self.device, shared=[self.weights])
        return program, weights


def open_steps(
    program: CompiledProgram, parts: Sequence[RankWeights], say: Callable[[str], object], **options: Any
) -> Steps:
    """Return the steps of a program on all ranks. ``options``: those of ``Steps``."""
    first, *others = parts
    if not others:
        weights = first.load(program, say)
        return Steps(program, weights, device=first.device, further=first.further, **options)
    ranks = RankThreads(Communicator.local([p.device for p in parts]))
    try:
        boxes = ranks.open_boxes(PEER_BYTES) if first.config.direct else None
        loaded = ranks.run(lambda rank: parts[rank].load(program, say))
        followers = [
            Steps(
                program,
                loaded[rank],
                device=part.device,
                further=part.further,
                communicator=ranks.communicators[rank],
                **options,
            )
            for rank, part in enumerate(others, start=1)
        ]
        steps = RankedSteps(
            program,
            loaded[0],
            ranks=ranks,
            others=followers,
            device=first.device,
            further=first.further,
            **options,
        )
        if boxes is not None:
            for rank, each in enumerate((steps, *followers)):
                each.states.write(RANK_TABLE, boxes.table(rank))
        return steps
    except BaseException:
        ranks.close()
        raise
