"""build_program: a decoder's prefill and decode as entry points of one program over one KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from ..compiler import compile as compile_graph
from ..errors import BuildError
from ..ir import Graph
from ..passes import PASSES
from ..policies import ExecutionPolicy
from ..printable import logger
from ..program.program import CompiledProgram
from ..targets import DeviceId
from ..types import DType, TensorSpec
from .checkpoint.config import DecoderConfig
from .decoder import decoder_graph
from .encoder import encoder_graph

__all__ = [
    "BUCKETS",
    "DECODE",
    "ENCODE",
    "FIRST",
    "FUSIONS",
    "LONG_ROWS",
    "SAMPLE",
    "VERIFY",
    "build_program",
    "cache_words",
    "check_capacity",
    "decoder_graphs",
    "encode_name",
    "encoder_lengths",
    "entry_graph",
    "entry_lengths",
    "first_name",
    "fixed_tokens",
    "long_entries",
    "phase_of",
    "prefill_name",
    "verify_name",
    "with_source",
]

_log = logger("xpuruntime.session")

BUCKETS = (16, 128)
"""Prefill lengths. A prompt is processed in chunks of these lengths; the last chunk is padded."""
LONG_ROWS = (512, 1024)
"""Tokens of all texts in a chunk of a long prompt on a GPU: fewer leave it idle."""
FIXED_ROWS = 512
"""The time of a chunk on a GPU apart from its tokens, in tokens of all texts: of Qwen2.5-1.5B's sizes on an H200, chunks of 16, 128 and 1,024 tokens take
0.92, 1.13 and 1 times as long as this says (``decoder_breakdown.py chunks``, scaled to all layers)."""
DECODE = "decode"
ENCODE = "encode"
"""Entry points ``encode_N`` read up to N tokens with the encoder of an encoder-decoder."""
FIRST = "first"
"""Entry points ``first_N`` prefill the first N tokens of texts: keys are those of the N tokens, and attention is causal without a mask."""
_MIN_FIRST = 256
"""Fewest tokens of such an entry point. For fewer, attention is a small part of the time."""
SAMPLE = "sample"
"""The entry point that decodes, too, and ends with sampling. Only the tokens leave the device."""
VERIFY = "verify"
"""Entry points ``verify_N`` read N tokens and return the logits of each, for speculative decoding."""

FUSIONS: tuple[str, ...] = tuple(p.name for p in PASSES)
"""Every pass, including those that no level enables because they only help decoders."""


def prefill_name(length: int) -> str:
    """Return the name of the entry point that prefills ``length`` tokens."""
    return f"prefill_{length}"


def first_name(length: int) -> str:
    """Return the name of the entry point that prefills the first ``length`` tokens of texts."""
    return f"{FIRST}_{length}"


def encode_name(length: int) -> str:
    """Return the name of the entry point that encodes up to ``length`` tokens, or frames of audio."""
    return f"{ENCODE}_{length}"


def with_source(config: DecoderConfig, capacity: int | None, who: str) -> DecoderConfig:
    """Return the config for texts of up to ``capacity`` tokens that its encoder reads. Default: 512, or the model's maximum if that is less.

    Raises BuildError for a capacity that is out of range, or for a model without an encoder.
    """
    encoder = config.encoder
    if encoder is None or encoder.features:
        if capacity is not None:
            why = "has no encoder" if encoder is None else "encodes audio of one length"
            raise BuildError(
                who, f"{why}, so that it has no source_capacity", got=capacity, do="Leave it out."
            )
        return config
    _check_whole(who, source_capacity=[min(512, encoder.max_positions) if capacity is None else capacity])
    capacity = min(512, encoder.max_positions) if capacity is None else capacity
    if not 1 <= capacity <= encoder.max_positions:
        do = f"Give 1 to {encoder.max_positions}."
        raise BuildError(who, "has a source_capacity that is out of range", got=capacity, do=do)
    return replace(config, encoder=replace(encoder, max_positions=capacity))


def cache_words(execution: ExecutionPolicy) -> dict[str, DType]:
    """Return the words of graphs whose keys and values are stored in the type of a policy; none for the type that is computed in."""
    return {"cache": DType.FLOAT8_E4M3FN} if execution.kv_cache == "fp8" else {}


def verify_name(length: int) -> str:
    """Return the name of the entry point that returns the logits of ``length`` tokens."""
    return f"{VERIFY}_{length}"


def phase_of(entry: str) -> str:
    """Return the phase of an entry point, as a policy names it."""
    kind = entry.partition("_")[0]
    return {VERIFY: DECODE, ENCODE: "prefill", FIRST: "prefill"}.get(kind, kind)


def check_capacity(config: DecoderConfig, capacity: int, who: str) -> None:
    """Raise BuildError for an empty cache, or for more positions than the model supports."""
    if not 1 <= capacity <= config.max_positions:
        do = f"Give 1 to {config.max_positions}."
        raise BuildError(who, "has a capacity that is out of range", got=capacity, do=do)


def _check_whole(who: str, **words: Any) -> None:
    """Raise BuildError for a word whose values are not a sequence of whole numbers."""
    for word, values in words.items():
        if (
            isinstance(values, str | bytes)
            or not isinstance(values, Sequence)
            or not all(isinstance(n, Integral) and not isinstance(n, bool) for n in values)
        ):
            do = "Give a list of whole numbers." if word == "buckets" else "Give a whole number."
            raise BuildError(who, f"has invalid {word}", got=repr(values), do=do)


def entry_lengths(
    config: DecoderConfig, *, capacity: int, batch: int, buckets: Sequence[int], name: str
) -> dict[str, int]:
    """Return the number of tokens of each entry point that every program has. Raises BuildError for an invalid capacity, batch or list of
    buckets.
    """
    who = f"language model {name}"
    _check_whole(who, capacity=[capacity], batch=[batch], buckets=buckets)
    check_capacity(config, capacity, who)
    original = config.rotary.original
    if config.rotary.kind == "longrope" and capacity > original:
        _log.warning(
            "%s: capacity %d uses the long factors of rotary positions; results of texts of up to %d tokens differ from those of"
            " a capacity of %d",
            *(who, capacity, original, original),
        )  # fmt: skip
    if batch < 1:
        raise BuildError(who, "needs a batch of at least 1", got=batch, do="Give 1 or more.")
    lengths = sorted({min(b, capacity) for b in buckets})
    if not lengths or lengths[0] < 1:
        do = f"Give lengths such as {BUCKETS}."
        raise BuildError(who, "needs prefill lengths of 1 or more", got=list(buckets)[:20], do=do)
    if config.encoder is None:
        first = {first_name(n): n for n in lengths if n >= _MIN_FIRST and _is_causal(config, n)}
        return {DECODE: 1, **{prefill_name(n): n for n in lengths}, **first}
    # The prompts of the decoder have few tokens.
    encoders = {encode_name(n): n for n in encoder_lengths(config.encoder, buckets)}
    return {DECODE: 1, prefill_name(lengths[0]): lengths[0], **encoders}


def long_entries(config: DecoderConfig, *, capacity: int, batch: int, device: DeviceId) -> list[str]:
    """Return the entry points for long prompts on a GPU, which are made when a prompt first needs them."""
    if device.kind != "cuda" or config.encoder is not None:
        return []
    lengths = sorted({min(rows // batch // 64 * 64, capacity) for rows in LONG_ROWS})
    longest = lengths[-1]
    lengths = [n for n in lengths if n > max(BUCKETS) and (n == longest or 4 * n <= 3 * longest)]
    first = [first_name(n) for n in lengths if n >= _MIN_FIRST and _is_causal(config, n)]
    return [*map(prefill_name, lengths), *first]


def fixed_tokens(device: DeviceId, batch: int) -> int:
    """Return the time of a chunk apart from its tokens, in tokens of each text; 0 on a CPU, where short chunks take less time."""
    return -(-FIXED_ROWS // batch) if device.kind == "cuda" else 0


def _is_causal(config: DecoderConfig, length: int) -> bool:
    """Return whether each of the first ``length`` tokens sees all tokens up to itself, by scores without a bias."""
    windows = [w for w in config.windows if 0 < w < length]
    return not (windows or config.slopes or config.buckets or config.latent)


def encoder_lengths(encoder: DecoderConfig, buckets: Sequence[int]) -> list[int]:
    """Return the lengths that the encoder is compiled for: those of prefill, and its capacity."""
    longest = encoder.max_positions
    return [longest] if encoder.features else sorted({*(b for b in buckets if b < longest), longest})


def decoder_graphs(
    config: DecoderConfig,
    *,
    capacity: int,
    batch: int = 1,
    buckets: Sequence[int] = BUCKETS,
    dtype: DType | None = None,
    stored: Mapping[str, TensorSpec] | None = None,
    files: Mapping[str, str] | None = None,
    sampling: bool = False,
    cache: DType | None = None,
    name: str = "decoder",
) -> dict[str, Graph]:
    """Return one graph per entry point; ``sampling`` adds ``SAMPLE``. Raises BuildError for an invalid capacity, batch or list of buckets."""
    entries = entry_lengths(config, capacity=capacity, batch=batch, buckets=buckets, name=name)
    words = {
        "capacity": capacity,
        "batch": batch,
        "dtype": dtype,
        "stored": stored,
        "files": files,
        "cache": cache,
        "name": name,
    }
    return {
        entry: entry_graph(entry, config, **words)
        for entry in (DECODE, *([SAMPLE] if sampling else []), *(e for e in entries if e != DECODE))
    }


def entry_graph(entry: str, config: DecoderConfig, **words: Any) -> Graph:
    """Return the graph of one entry point by its name. ``words``: as for ``decoder_graph``."""
    kind, _, length = entry.partition("_")
    if kind == ENCODE:
        return encoder_graph(
            config, length=int(length), **{k: v for k, v in words.items() if k not in ("capacity", "cache")}
        )
    return decoder_graph(
        config,
        length=int(length or 1),
        all_logits=kind == VERIFY,
        sampling=kind == SAMPLE,
        first=kind == FIRST,
        **words,
    )


def build_program(
    graphs: Mapping[str, Graph],
    *,
    target: Any = None,
    policy: Any = None,
    passes: Sequence[str] | int | None = FUSIONS,
    watch: Callable[[str, Graph], None] | None = None,
) -> CompiledProgram:
    """Compile the program. Policy rules of a phase apply to the entry points of that phase (``phase_of``), and those of ``decode`` to
    ``sample``, too.

    Raises the errors of ``compile``.
    """
    phases = {entry: phase_of(entry) for entry in graphs}
    return compile_graph(dict(graphs), target=target, policy=policy, passes=passes, watch=watch, phase=phases)
