"""The part of a checkpoint that one rank of a tensor-parallel decoder has.

A rank has some of the heads and some of the feed-forward layer's inner elements. The layers into them (q, k, v, gate, up) are divided by rows,
those out of them (o, down) by columns, and their results are added over all ranks. The output layer is divided by words of the vocabulary if
their number allows it. Everything else is on every rank. All ranks run the same program; only their weights differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ...errors import BuildError
from ...protocols import Array
from ...types import TensorSpec
from ..checkpoint.config import DecoderConfig
from ..checkpoint.data import Checkpoint

__all__ = ["shard_config", "shard_of"]

Cut: TypeAlias = Callable[[Array], Array]
"""Returns a rank's part of an array, as a view where that is possible."""

_INTO = ("q", "k", "v", "gate", "up")
_OUT_OF = ("o", "down")


def shard_config(config: DecoderConfig, ranks: int, who: str, *, direct: bool = False) -> DecoderConfig:
    """Return the config of one rank. direct: whether the devices write to each other's memory. Raises BuildError for a model that cannot be divided, or not by this number."""
    for holds, what in (
        (config.encoder is not None, "an encoder"),
        (config.latent is not None, "latent attention"),
        (config.experts is not None, "experts"),
        (bool(config.slopes), "position biases (ALiBi)"),
        (config.buckets is not None, "learned position biases"),
        (config.row.qk_norm in ("whole", "each"), "norms over all heads"),
    ):
        if holds:
            do = "Leave parallel out, or use a family without it."
            raise BuildError(who, f"has {what}, which tensor parallelism does not support", got=config.family, do=do)  # fmt: skip
    fused = "qkv" in config.row.parts
    kv_fits = config.kv_heads % ranks == 0 or (ranks % config.kv_heads == 0 and not fused)
    if config.heads % ranks or config.inner % ranks or not kv_fits:
        got = f"{config.heads} heads, {config.kv_heads} key heads, {config.inner} inner elements"
        do = "Give a number that divides the heads and the inner elements."
        raise BuildError(who, f"cannot be divided over {ranks} devices", got=got, do=do)
    return replace(
        config,
        ranks=ranks,
        direct=direct,
        heads=config.heads // ranks,
        kv_heads=max(config.kv_heads // ranks, 1),
        inner=config.inner // ranks,
    )


def shard_of(checkpoint: Checkpoint, local: DecoderConfig, rank: int) -> Checkpoint:
    """Return the checkpoint of one rank. An array is cut when it is read, so a rank reads only its part of a mapped file.

    local: the rank's config, of ``shard_config``.
    """
    cuts, shapes = _cuts(checkpoint.config, local, rank), local.shapes()
    sources = {name: name for name in shapes}
    if checkpoint.config.tied and local.splits_vocab:
        sources[f"{local.end('head')}.weight"] = f"{local.end('embed')}.weight"
    specs = {
        name: TensorSpec(shapes[name], checkpoint.specs[source].dtype)
        for name, source in sources.items()
        if source in checkpoint.specs
    }
    arrays = _Parts(checkpoint.arrays, sources, cuts)
    return replace(checkpoint, config=local, arrays=arrays, specs=specs, files={}, formats={})


class _Parts(Mapping[str, Array]):
    """The arrays of a rank by name."""

    def __init__(
        self, arrays: Mapping[str, Array], sources: Mapping[str, str], cuts: Mapping[str, Cut]
    ) -> None:
        self._arrays, self._cuts = arrays, cuts
        self._sources = {name: source for name, source in sources.items() if source in arrays}

    def __getitem__(self, name: str) -> Array:
        array = self._arrays[self._sources[name]]
        cut = self._cuts.get(name)
        return array if cut is None else cut(array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _cuts(config: DecoderConfig, local: DecoderConfig, rank: int) -> dict[str, Cut]:
    """Return the cut of every weight that is divided, by name."""
    row, size = config.row, config.head_dim
    # The first key head of a rank. With more ranks than key heads, several ranks have the same one.
    first_kv = rank * config.kv_heads // local.ranks
    ranges = {
        "q": _range(rank * local.heads, local.heads, size),
        "k": _range(first_kv, local.kv_heads, size),
        "v": _range(first_kv, local.kv_heads, size),
        "gate": _range(rank, 1, local.inner),
        "up": _range(rank, 1, local.inner),
        "o": _range(rank * local.heads, local.heads, size),
        "down": _range(rank, 1, local.inner),
    }
    outputs: dict[str, Cut] = {part: partial(_sliced, ranges=(ranges[part],)) for part in _INTO}
    query_rows, key_rows = config.heads * size, config.kv_heads * size
    moved = [ranges["q"], _moved(ranges["k"], query_rows), _moved(ranges["v"], query_rows + key_rows)]
    if row.qkv_order == "groups":  # a group has the queries of one key head, its key and its value
        group = (config.heads // config.kv_heads + 2) * size
        moved = [_range(first_kv, local.kv_heads, group)]
    outputs["qkv"] = partial(_sliced, ranges=tuple(moved))
    halves = (ranges["gate"], _moved(ranges["up"], config.inner))
    outputs["gate_up"] = partial(_sliced, ranges=halves)
    cuts: dict[str, Cut] = {}
    for i in range(config.layers):
        for part, cut in outputs.items():
            if part in row.parts:
                name = f"{config.layer(i)}.{row.parts[part]}"
                cuts[f"{name}.weight"] = _transposing(cut) if row.transposed else cut
                cuts[f"{name}.bias"] = cut
        for part in _OUT_OF:
            name = f"{config.layer(i)}.{row.parts[part]}"
            cut = partial(_sliced, ranges=(ranges[part],))
            cuts[f"{name}.weight"] = cut if row.transposed else _transposing(cut)
            if rank:  # the bias is added once
                cuts[f"{name}.bias"] = np.zeros_like
    if local.splits_vocab:
        words = (_range(rank, 1, config.vocab // local.ranks),)
        cuts[f"{config.end('head')}.weight"] = partial(_sliced, ranges=words)
        cuts[f"{config.end('head')}.bias"] = partial(_sliced, ranges=words)
    return cuts


def _range(first: int, count: int, size: int) -> tuple[int, int]:
    return first * size, (first + count) * size


def _moved(part: tuple[int, int], by: int) -> tuple[int, int]:
    return part[0] + by, part[1] + by


def _sliced(array: Array, ranges: tuple[tuple[int, int], ...]) -> Array:
    """Return rows of an array."""
    parts = [array[start:end] for start, end in ranges]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _transposing(cut: Cut) -> Cut:
    """Return the cut along the second dim."""
    return lambda array: cut(array.T).T
