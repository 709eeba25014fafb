"""Generator: text generation from prompts, token by token, on the native engine.

    model = Generator("Qwen2.5-0.5B-Instruct", capacity=4096)
    print(model.generate("The sea is", max_new_tokens=64).text)
    for piece in model.stream("The sea is", temperature=0.7, top_p=0.9, seed=1):
        print(piece.text, end="", flush=True)

A prompt is prefilled in chunks of the prefill lengths; then tokens are decoded one at a time. All entry points update one KV cache in
place, and a step allocates no device memory. The prompts of a batch are decoded together, with the results of separate runs. Calls from
several threads are serialized.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from ..errors import InputError, PrecisionUnavailable
from ..faults import contained, foreign
from ..inference.native.targets import own_target, reaches
from ..policies import Resolved
from ..policies.entrances import INSTEAD_OF_INT8, demanded
from ..printable import logger
from ..program.program import CompiledProgram
from ..protocols import Array
from ..runtime import load_weights
from ..targets import DeviceId
from ..types import DType
from .answers import Completion, Piece, Prompt
from .build import BUCKETS, FUSIONS, build_program, decoder_graphs
from .checkpoint.reader import open_checkpoint
from .checkpoint.text import TextStream
from .sampling import Sampling, pick
from .steps import Steps

__all__ = ["Completion", "Generator", "Piece", "Prompt", "computed_in", "generate"]

_log = logger("xpuruntime.session")


class Generator:
    """A language model, ready to generate text.

    model:    a checkpoint's folder, a GGUF file, or a transformers model.
    capacity: size of the KV cache in tokens, for prompt and answer. Default: 2,048, or the model's maximum if that is less.
    batch:    number of texts that are decoded together, each with its own cache. A larger batch slows the decoding of one text little.
    dtype:    precision to compute in. Default: the policy's, else the checkpoint's.
    buckets:  prefill lengths.
    device:   ``"cpu"`` or ``"cuda:0"``. Default: the policy's device, else ``"cpu"``.
    policy, target: as for ``compile``. Default target: code for the device.
    threads:  as for ``Executor``.

    Raises ModelError, BuildError, PolicyError, UnavailableError.
    """

    @contained("Generator")
    def __init__(
        self,
        model: Any,
        *,
        capacity: int | None = None,
        batch: int = 1,
        dtype: DType | str | None = None,
        buckets: Sequence[int] = BUCKETS,
        policy: Any = None,
        device: Any = None,
        target: Any = None,
        threads: int | None = None,
    ) -> None:
        self.checkpoint = open_checkpoint(model)
        self.config = config = self.checkpoint.config
        demands = demanded("Generator", {}, policy)
        execution = demands.policy.execution
        notes: list[str] = []
        device = _device(device, target, demands, notes)
        self.dtype, demands = computed_in(dtype, config.dtype, demands, notes)
        if notes:
            _log.warning("Generator: %s", "; ".join(notes))
        self.capacity = capacity or min(config.max_positions, 2048)
        graphs = decoder_graphs(
            config,
            capacity=self.capacity,
            batch=batch,
            buckets=buckets,
            dtype=self.dtype,
            stored=self.checkpoint.specs,
            files=self.checkpoint.files,
            name=self.checkpoint.name,
        )
        self.program: CompiledProgram = build_program(
            graphs,
            target=target or own_target(DeviceId.parse(device)),
            policy=demands,
            passes=FUSIONS if execution.optimization_level is None else None,
        )
        self.weights = load_weights(self.checkpoint.arrays, self.program, device)
        self.steps = Steps(
            self.program,
            self.weights,
            batch=batch,
            vocab=config.vocab,
            dtype=self.dtype,
            device=device,
            threads=threads,
        )
        self.decode, self.prefill, self.states = self.steps.decode, self.steps.prefill, self.steps.states
        self._lock = threading.Lock()
        self._holder: int | None = None  # id of the thread that holds the lock

    # ── texts ──

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt as tokens. Raises InputError if it is empty, has unknown tokens, or needs a tokenizer that is missing."""
        who = f"language model {self.checkpoint.name}"
        text = self.checkpoint.text
        tokens: list[int]
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], Mapping)):
            if text is None:
                raise InputError(who, "has no tokenizer", do="Give tokens, or a folder with tokenizer.json.")
            tokens = text.encode(prompt) if isinstance(prompt, str) else text.chat(list(prompt))  # type: ignore[arg-type]
        else:
            tokens = [int(t) for t in prompt]  # type: ignore[arg-type]
        if not tokens:
            raise InputError(who, "needs a prompt of one token or more")
        bad = [t for t in tokens if not 0 <= t < self.config.vocab]
        if bad:
            raise InputError(who, f"takes tokens from 0 to {self.config.vocab - 1}", got=bad[0])
        if len(tokens) > self.capacity:
            do = f"Shorten the prompt, or give capacity={len(tokens)} or more."
            raise InputError(who, f"has a capacity of {self.capacity} tokens", got=len(tokens), do=do)
        return tokens

    @overload
    def generate(
        self, prompt: Prompt, *, on_piece: Callable[[str], object] | None = None, **options: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, on_piece: Callable[[str], object] | None = None, **options: Any
    ) -> list[Completion]: ...
    @contained("Generator.generate")
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        on_piece: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Generate the answer to a prompt, or one to each of a list of prompts. ``on_piece`` receives each piece of text of a single prompt.

        Other options are those of ``stream``. Raises InputError.
        """
        if _is_batch(prompt):
            if on_piece is not None:
                raise InputError("generate", "supports on_piece for a single prompt only", got=len(prompt))
            return self.generate_batch(prompt, **options)  # type: ignore[arg-type]
        (completion,) = self._answers([self.tokens(prompt)], on_piece, self._options(**options))  # type: ignore[arg-type]
        return completion

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Completion]:
        """Generate one answer per prompt, ``batch`` prompts at a time. Prompts may differ in length, and each answer is the same as that of
        a single prompt. Options are those of ``stream``.
        """
        texts, settings = [self.tokens(p) for p in prompts], self._options(**options)
        size = self.steps.batch
        groups = [texts[i : i + size] for i in range(0, len(texts), size)]
        return [completion for group in groups for completion in self._answers(group, None, settings)]

    def _answers(
        self, texts: list[list[int]], on_piece: Callable[[str], object] | None, settings: _GenerationOptions
    ) -> list[Completion]:
        start = first_token_time = time.perf_counter()
        answers: list[list[int]] = [[] for _ in texts]
        parts: list[list[str]] = [[] for _ in texts]
        finish, ended = [""] * len(texts), [start] * len(texts)
        started = False
        for row, piece in self._run(texts, settings):
            if not started:
                first_token_time, started = time.perf_counter(), True
            parts[row].append(piece.text)
            if on_piece is not None and piece.text:
                with foreign():
                    on_piece(piece.text)
            finish[row] = piece.finish
            if piece.finish != "stop":
                answers[row].append(piece.token)
            if piece.finish:
                ended[row] = time.perf_counter()
        return [
            Completion(tuple(tokens), "".join(p), len(t), f, first_token_time - start, e - first_token_time)
            for tokens, p, t, f, e in zip(answers, parts, texts, finish, ended, strict=True)
        ]

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stops: Sequence[int] | None = None,
    ) -> Iterator[Piece]:
        """Generate tokens one at a time. Greedy unless ``temperature`` is given.

        stops: tokens that end the answer. Default: the model's.
        seed:  seed of the random choices. Equal seeds give equal answers.
        Raises InputError.
        """
        settings = self._options(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stops=stops
        )  # fmt: skip
        return (piece for _, piece in self._run([self.tokens(prompt)], settings))

    def _options(
        self,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stops: Sequence[int] | None = None,
    ) -> _GenerationOptions:
        """Return the checked options of ``stream``."""
        sampling = Sampling(temperature, top_k, top_p, seed)
        if max_new_tokens < 1:
            raise InputError("generation", "needs max_new_tokens of at least 1", got=max_new_tokens)
        return _GenerationOptions(
            max_new_tokens, sampling, frozenset(self.config.stops if stops is None else stops)
        )

    def _run(self, texts: list[list[int]], settings: _GenerationOptions) -> Iterator[tuple[int, Piece]]:
        """Yield (index of a text, piece of its answer). Other threads wait until the generation ends."""
        me = threading.get_ident()
        if self._holder == me:  # waiting for the lock would be a deadlock
            do = "Read it to its end, or call its close()."
            raise InputError(
                f"language model {self.checkpoint.name}", "has another active stream on this thread", do=do
            )
        with self._lock:
            self._holder = me
            try:
                yield from self._pieces(texts, settings)
            finally:
                self._holder = None

    def _pieces(self, texts: list[list[int]], settings: _GenerationOptions) -> Iterator[tuple[int, Piece]]:
        rows = range(len(texts))
        random = [settings.sampling.generator() for _ in rows]
        streams = [None if self.checkpoint.text is None else TextStream(self.checkpoint.text) for _ in rows]
        # Token and position of the next cache row of each text. Those of a finished text no longer change.
        tokens, positions = [t[-1] for t in texts], [len(t) - 1 for t in texts]
        live = set(rows)
        self.steps.read(texts)
        for step in range(1, settings.max_tokens + 1):
            for row in sorted(live):
                token = self._next(row, settings.sampling, random[row])
                position = len(texts[row]) + step - 1  # position of this token
                finish = (
                    "stop"
                    if token in settings.stop_tokens
                    else "length"
                    if step == settings.max_tokens
                    else ""
                )
                finish = finish or ("capacity" if position >= self.capacity else "")
                piece = _piece(token, finish, streams[row])
                tokens[row], positions[row] = (
                    (token, position) if not finish else (tokens[row], positions[row])
                )
                if finish:
                    live.discard(row)
                yield row, piece
            if not live:
                return
            self.steps.step(tokens, positions)

    def _next(self, row: int, sampling: Sampling, random: np.random.Generator) -> int:
        """Return the token that follows a text."""
        if sampling.greedy:
            return int(self.steps.token[row])
        return pick(self.steps.logits[row], sampling, random)

    # ── steps ──

    def read(self, tokens: Sequence[int], start: int = 0) -> Array:
        """Prefill one text from position ``start``. Return the logits [1, vocab] of the next token (valid until the next step)."""
        return self.steps.read([tokens], start)[:1]

    def step(self, token: int, position: int) -> Array:
        """Decode one token of one text. Return the logits [1, vocab] of the next token (valid until the next step)."""
        return self.steps.step([token], [position])[:1]

    def close(self) -> None:
        """Free memory. Later calls raise RunError."""
        self.steps.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _device(device: Any, target: Any, demands: Resolved, notes: list[str]) -> Any:
    """Return the argument, else the policy's device, else the CPU. If it is unavailable, return the first available device of
    ``allow_fallback``.
    """
    execution = demands.policy.execution
    requested = device if device is not None else execution.target
    name = "cpu" if requested in (None, "auto") else requested
    if target is not None or reaches(DeviceId.parse(name)):
        return name
    for alternative in execution.allow_fallback or ():
        if reaches(fallback := DeviceId.parse(alternative)):
            why = reaches(DeviceId.parse(name)).reason
            notes.append(f"device {name} is unavailable ({why}); {fallback} is used instead")
            return str(fallback)
    return name  # own_target raises the error with the reason


def computed_in(
    dtype: DType | str | None, checkpoint_dtype: DType, demands: Resolved, notes: list[str]
) -> tuple[DType, Resolved]:
    """Return the dtype to compute in (the argument, else the policy's precision, else the checkpoint's own) and the remaining demands.

    Raises PrecisionUnavailable.
    """
    requested = demands.policy.execution.precision
    if dtype is not None:
        return DType(dtype), demands.without("precision")
    if requested in (None, "model"):
        return checkpoint_dtype, demands
    precision = DType.of(requested)
    if precision in _COMPUTED:
        return precision, demands.without("precision")
    if demands.policy.execution.allow_fallback:
        notes.append(
            f"precision {precision.value} is not supported; {checkpoint_dtype.value} is used instead"
        )
        return checkpoint_dtype, demands.without("precision")
    do = INSTEAD_OF_INT8 if precision.is_integer else f"Use one of {', '.join(d.value for d in _COMPUTED)}."
    raise PrecisionUnavailable(
        "Generator", f"precision {precision.value} is not supported", got=requested, do=do
    )


_COMPUTED = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


@dataclass(frozen=True, slots=True)
class _GenerationOptions:
    """Options of a generation: the maximum number of tokens, the sampling, and the tokens that end a text."""

    max_tokens: int
    sampling: Sampling
    stop_tokens: frozenset[int]


def _piece(token: int, finish: str, stream: TextStream | None) -> Piece:
    text = "" if stream is None or finish == "stop" else stream.add(token)
    return Piece(token, text + stream.end() if finish and stream is not None else text, finish)


def _is_batch(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Return True for a list of prompts, which are texts, lists of tokens, or conversations."""
    return not isinstance(prompt, str) and bool(len(prompt)) and isinstance(prompt[0], str | Sequence)


def generate(model: Any, prompt: Prompt | Sequence[Prompt], **options: Any) -> Completion | list[Completion]:
    """Generate the answer of a model to a prompt, or one answer to each of a list of prompts.

    model: a checkpoint's folder, a GGUF file, a transformers model, or a Generator (for several answers, which opens the model once).
    Options are those of ``Generator`` (capacity, batch, dtype, buckets, policy, device, target, threads) and of ``Generator.stream``.
    """
    opening_options = {
        k: options.pop(k)
        for k in ("capacity", "batch", "dtype", "buckets", "policy", "device", "target", "threads")
        if k in options
    }
    if isinstance(model, Generator):
        if opening_options:
            raise InputError(
                "generate", "accepts these options only if it opens the model", got=", ".join(opening_options)
            )
        return model.generate(prompt, **options)
    with Generator(model, **opening_options) as generator:
        return generator.generate(prompt, **options)
