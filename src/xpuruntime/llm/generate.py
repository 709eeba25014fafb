"""Generator: text generation from prompts, token by token, on the native engine.

    model = Generator("Qwen2.5-0.5B-Instruct", capacity=4096)
    print(model.generate("The sea is", max_new_tokens=64).text)
    for piece in model.stream("The sea is", temperature=0.7, top_p=0.9, seed=1):
        print(piece.text, end="", flush=True)

A prompt is read in pieces of the prefill lengths, then one token at a time. All entry points write one KV cache in place; a step
allocates nothing on the device. A batch of prompts continues together, each as if alone. Calls from several threads take turns.
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
    capacity: positions of the KV cache: prompt and answer together. By default 2,048, or what the model knows if that is less.
    batch:    texts that go on together, each with a cache of its own. One text alone costs little more for it while decoding.
    dtype:    what is computed in; by default the checkpoint's own.
    buckets:  prefill lengths. device: where it runs, ``"cpu"`` or ``"cuda:0"``; by default the policy's, else ``"cpu"``.
    policy, target: as for ``compile``; by default code for that device. The policy's precision is that of ``dtype`` where that is not given.
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
        self._turn = threading.Lock()
        self._holder: int | None = None  # the thread whose text this is

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

        Other options as ``stream``. Raises InputError.
        """
        if _several(prompt):
            if on_piece is not None:
                raise InputError("generate", "supports on_piece for a single prompt only", got=len(prompt))
            return self.generate_batch(prompt, **options)  # type: ignore[arg-type]
        (done,) = self._answers([self.tokens(prompt)], on_piece, self._options(**options))  # type: ignore[arg-type]
        return done

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Completion]:
        """Generate one answer per prompt, each as if alone, ``batch`` of them at a time. Prompts may differ in length. Options as
        ``stream``.
        """
        texts, settings = [self.tokens(p) for p in prompts], self._options(**options)
        size = self.steps.batch
        groups = [texts[i : i + size] for i in range(0, len(texts), size)]
        return [done for group in groups for done in self._answers(group, None, settings)]

    def _answers(
        self, texts: list[list[int]], on_piece: Callable[[str], object] | None, settings: _GenerationOptions
    ) -> list[Completion]:
        begun = first = time.perf_counter()
        answers: list[list[int]] = [[] for _ in texts]
        parts: list[list[str]] = [[] for _ in texts]
        finish, ended = [""] * len(texts), [begun] * len(texts)
        started = False
        for row, piece in self._run(texts, settings):
            if not started:
                first, started = time.perf_counter(), True
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
            Completion(tuple(m), "".join(p), len(t), f, first - begun, e - first)
            for m, p, t, f, e in zip(answers, parts, texts, finish, ended, strict=True)
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

        stops: tokens that end the answer; by default the model's own. A seed makes what is drawn the same every time.
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
        """Yield pieces of every text with the text's number. Other threads wait until the generation ends."""
        me = threading.get_ident()
        if self._holder == me:  # waiting for oneself would be for ever
            do = "Read it to its end, or call its close()."
            raise InputError(
                f"language model {self.checkpoint.name}", "has another active stream on this thread", do=do
            )
        with self._turn:
            self._holder = me
            try:
                yield from self._pieces(texts, settings)
            finally:
                self._holder = None

    def _pieces(self, texts: list[list[int]], settings: _GenerationOptions) -> Iterator[tuple[int, Piece]]:
        rows = range(len(texts))
        random = [settings.sampling.generator() for _ in rows]
        shown = [None if self.checkpoint.text is None else TextStream(self.checkpoint.text) for _ in rows]
        # What enters the cache next, and where: a finished text does not advance.
        tokens, places = [t[-1] for t in texts], [len(t) - 1 for t in texts]
        live = set(rows)
        self.steps.read(texts)
        for step in range(1, settings.most + 1):
            for row in sorted(live):
                token = self._next(row, settings.sampling, random[row])
                at = len(texts[row]) + step - 1  # position of this token
                finish = "stop" if token in settings.ends else "length" if step == settings.most else ""
                finish = finish or ("capacity" if at >= self.capacity else "")
                piece = _piece(token, finish, shown[row])
                tokens[row], places[row] = (token, at) if not finish else (tokens[row], places[row])
                if finish:
                    live.discard(row)
                yield row, piece
            if not live:
                return
            self.steps.step(tokens, places)

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
    named = device if device is not None else execution.target
    wanted = "cpu" if named in (None, "auto") else named
    if target is not None or reaches(DeviceId.parse(wanted)):
        return wanted
    for other in execution.allow_fallback or ():
        if reaches(fallback := DeviceId.parse(other)):
            why = reaches(DeviceId.parse(wanted)).reason
            notes.append(f"device {wanted} cannot be had ({why}); {fallback} is used instead")
            return str(fallback)
    return wanted  # own_target says why it cannot be had


def computed_in(
    dtype: DType | str | None, own: DType, demands: Resolved, notes: list[str]
) -> tuple[DType, Resolved]:
    """Return the dtype to compute in (the argument, else the policy's precision, else the checkpoint's own) and the remaining demands.

    Raises PrecisionUnavailable.
    """
    named = demands.policy.execution.precision
    if dtype is not None:
        return DType(dtype), demands.without("precision")
    if named in (None, "model"):
        return own, demands
    wanted = DType.of(named)
    if wanted in _COMPUTED:
        return wanted, demands.without("precision")
    if demands.policy.execution.allow_fallback:
        notes.append(f"precision {wanted.value} cannot be had; {own.value} is used instead")
        return own, demands.without("precision")
    do = INSTEAD_OF_INT8 if wanted.is_integer else f"Name one of {', '.join(d.value for d in _COMPUTED)}."
    raise PrecisionUnavailable("Generator", f"precision {wanted.value} cannot be had", got=named, do=do)


_COMPUTED = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


@dataclass(frozen=True, slots=True)
class _GenerationOptions:
    """Options of a generation: the maximum number of tokens, the sampling, and the tokens that end a text."""

    most: int
    sampling: Sampling
    ends: frozenset[int]


def _piece(token: int, finish: str, shown: TextStream | None) -> Piece:
    text = "" if shown is None or finish == "stop" else shown.add(token)
    return Piece(token, text + shown.end() if finish and shown is not None else text, finish)


def _several(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Return True for a list of prompts: of texts, of lists of tokens, or of conversations."""
    return not isinstance(prompt, str) and bool(len(prompt)) and isinstance(prompt[0], str | Sequence)


def generate(model: Any, prompt: Prompt | Sequence[Prompt], **options: Any) -> Completion | list[Completion]:
    """Generate the answer of a model to a prompt, or one to each of a list of prompts.

    model: a checkpoint's folder, a GGUF file, a transformers model, or a Generator (keep one for several answers).

    Options: those of ``Generator`` (capacity, batch, dtype, buckets, policy, device, target, threads) and of ``Generator.stream``.
    """
    own = {
        k: options.pop(k)
        for k in ("capacity", "batch", "dtype", "buckets", "policy", "device", "target", "threads")
        if k in options
    }
    if isinstance(model, Generator):
        if own:
            raise InputError("generate", "takes these options only when it opens a model", got=", ".join(own))
        return model.generate(prompt, **options)
    with Generator(model, **own) as generator:
        return generator.generate(prompt, **options)
