"""Generator: text generation from prompts, token by token, on the native engine.

    model = Generator("Qwen2.5-0.5B-Instruct", capacity=4096)
    print(model.generate("The sea is", max_new_tokens=64).text)
    for piece in model.stream("The sea is", temperature=0.7, top_p=0.9, seed=1):
        print(piece.text, end="", flush=True)

A prompt is prefilled in chunks of the prefill lengths; then tokens are decoded one at a time. All entry points update one KV cache in
place, and a step allocates no device memory. The prompts of a batch are decoded together; their results are those of separate runs up to rounding. Calls from
several threads are serialized.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy as np

from ..arguments import check_argument, check_count, check_several
from ..compiler.resolve import resolve_target
from ..errors import (
    InputError,
    PolicyError,
    PrecisionUnavailable,
)
from ..faults import contained, foreign
from ..inference.native.executor_evidence import Observations
from ..inference.native.targets import own_target, reaches
from ..ir.interp.sampling import NO_TOKEN
from ..kernels.catalogue import kernels_of
from ..policies import Resolved
from ..policies.entrances import INSTEAD_OF_INT8, demanded
from ..policies.vocabulary import WEIGHT_KERNELS
from ..printable import logger
from ..profiler.receipt import Receipt
from ..program.plan import Plan
from ..program.program import CompiledProgram
from ..progress import shown
from ..protocols import Array
from ..storage.store import Store
from ..targets import DeviceId
from ..types import DType
from .answers import Completion, Piece, Prompt, Source
from .build import BUCKETS, cache_words, entry_lengths, with_source
from .checkpoint.data import Checkpoint
from .checkpoint.reader import open_checkpoint
from .decoding.answer import AnswerState, checked_token
from .decoding.beams import beam_search
from .decoding.sources import source_rows
from .decoding.texts import AnswerTexts
from .decoding.words import GenerationOptions, speculation_of
from .parallel.opening import RankWeights, open_steps, rank_devices, shards_of, tensor_ranks
from .programs import DecoderPrograms
from .report import plan_of, receipt_of
from .speculation import Drafter, DraftModel, Drafts, PromptLookup, speculated

__all__ = ["Completion", "Generator", "Piece", "Prompt", "computed_in", "device_for", "generate"]

_log = logger("xpuruntime.session")
_T = TypeVar("_T")


class Generator:
    """A language model, ready to generate text.

    model:    a checkpoint's folder, a GGUF file, or a transformers model.
    capacity: size of the KV cache in tokens, for prompt and answer. Default: 2,048, or the model's maximum if that is less.
    batch:    number of texts that are decoded together, each with its own cache. A larger batch slows the decoding of one text little.
    dtype:    precision to compute in. Default: the policy's, else the checkpoint's.
    buckets:  prefill lengths.
    device:   ``"cpu"`` or ``"cuda:0"``. Default: the policy's device, else ``"cpu"``. A policy with ``parallel: {tensor: N}`` divides the
              model over N GPUs from this one on, or over N threads of the CPU.
    policy, target: as for ``compile``. Default target: code for the device.
    threads:  as for ``Executor``.
    cache_dir: folder of the store, which keeps the programs; default XPU_CACHE_DIR.
    on_progress: receives a line of text for each step of opening. Without it, a terminal shows one if opening takes longer than 2 s.
    source_capacity: of an encoder-decoder: tokens of the longest prompt, which its encoder reads. Default: 512, or the model's maximum if
              that is less. ``capacity`` is then the size of the decoder's cache.

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
        cache_dir: str | os.PathLike[str] | None = None,
        on_progress: Callable[[str], object] | None = None,
        source_capacity: int | None = None,
    ) -> None:
        if on_progress is not None:
            check_argument(
                "Generator", "on_progress", on_progress, Callable, "a function", "Give a function of text."
            )
        batch = check_count("Generator", "batch", batch)
        threads = None if threads is None else check_count("Generator", "threads", threads)
        self.checkpoint = _sized(open_checkpoint(model), source_capacity)
        self.config = config = self.checkpoint.config
        self.request = demands = demanded("Generator", {}, policy)
        self.arguments = {k: str(v) for k, v in (("target", device), ("precision", dtype)) if v is not None}
        execution = demands.policy.execution
        self._speculation = speculation_of(execution.options_for("native"))
        notes: list[str] = []
        device = device_for(device, target, demands, notes)
        self.dtype, demands = computed_in(dtype, config.dtype, demands, notes)
        if batch != 1 and demands.policy.kernel.demands_batch_invariance():
            do = "Open the model as a BatchGenerator, or with batch=1."
            raise PolicyError("Generator", "does not support batch_invariant with a batch", got=batch, do=do)
        if config.experts is not None and (stored := demands.policy.kernel.stored_weights()):
            kind = resolve_target(target or own_target(DeviceId.parse(device))).kind
            if f"matmul/{WEIGHT_KERNELS[stored]}" not in {k.name for k in kernels_of("expert_linear", kind)}:
                notes.append(
                    f"weights: {stored} does not apply to the matrices of experts on {kind}, which keep their type"
                )
        if notes:
            _log.warning("Generator: %s", "; ".join(notes))
        self.capacity = min(config.max_positions, 2048) if capacity is None else capacity
        entries = list(
            entry_lengths(
                config, capacity=self.capacity, batch=batch, buckets=buckets, name=self.checkpoint.name
            )
        )
        self.devices = rank_devices(device, tensor_ranks(execution))
        target = target or own_target(DeviceId.parse(device))
        shards = shards_of(self.checkpoint, self.devices)
        self.programs = DecoderPrograms(
            shards[0],
            sizes={"capacity": self.capacity, "batch": batch, "dtype": self.dtype, **cache_words(execution)},
            target=target,
            demands=demands,
            store=Store(cache_dir, mode="" if execution.caching is not False else "off"),
        )
        self.device, self.notes, self.observations = device, tuple(notes), Observations()
        options = {
            "batch": batch,
            "vocab": config.vocab,
            "dtype": self.dtype,
            "target": target,
            "threads": threads,
        }
        self._parts = [
            RankWeights(self.programs, shard, at, rank)
            for rank, (shard, at) in enumerate(zip(shards, self.devices, strict=True))
        ]
        self.program: CompiledProgram
        with shown(f"opening {self.checkpoint.name}", self.checkpoint.name, on_progress) as say:
            say("compiling, unless the store has the program")
            self.program, self.steps = self.programs.load(
                entries, lambda program: open_steps(program, self._parts, say, **options)
            )
        self.weights = self._parts[0].weights
        self.decode, self.prefill, self.states = self.steps.decode, self.steps.prefill, self.steps.states
        self._texts = AnswerTexts(self.checkpoint, self.capacity, self._most_likely)
        self._lock = threading.Lock()
        self._holder: int | None = None  # id of the thread that holds the lock
        self._threads, self.drafts = threads, Drafts()
        self._assistants: dict[Any, Generator] = {}

    # ── plan and receipt ──

    @property
    def plan(self) -> Plan:
        """Return what runs, and why: a region for each entry point that is open, its kernels, and every choice with what was rejected.

        ``plan.explain()`` is the text, ``plan.to_json()`` the data, as for a session.
        """
        return plan_of(self)

    def receipt(self, *, times: bool = True) -> Receipt:
        """Return what did run: the plan, and evidence of the kernels that each entry point called. ``times``: measure each kernel on the
        inputs of the last run.
        """
        with self._lock:
            return receipt_of(self, times=times)

    # ── texts ──

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt as tokens. Raises InputError if it is empty, has unknown tokens, or needs a tokenizer that is missing."""
        return self._texts.tokens(prompt)

    def encode(self, prompt: Prompt) -> Array:
        """Return the output of an encoder-decoder's encoder for one prompt, [length, hidden]. ``read`` and ``step`` then continue the decoder's
        text from it. Raises InputError if the model has no encoder.
        """
        if self.config.encoder is None:
            raise InputError(
                f"language model {self.checkpoint.name}",
                "has no encoder",
                do="Give a prompt of text, or open an encoder-decoder.",
            )
        source = self._texts.source(prompt)
        return self.steps.encode([source])[0]

    @overload
    def generate(
        self, prompt: Prompt, *, on_piece: Callable[[str], object] | None = None, **words: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, on_piece: Callable[[str], object] | None = None, **words: Any
    ) -> list[Completion]: ...
    @contained("Generator.generate")
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        on_piece: Callable[[str], object] | None = None,
        **words: Any,
    ) -> Completion | list[Completion]:
        """Generate the answer to a prompt, or one to each of a list of prompts. ``on_piece`` receives each piece of text of a single answer.

        Words are those of ``stream``, and:
        n, num_return_sequences: number of answers to each prompt. A list of prompts then has the answers to the first prompt first, and a
                                 single prompt has a list of answers.
        num_beams, length_penalty, early_stopping: beam search, with the rules of transformers. ``batch`` must be at least ``num_beams``.
        Raises InputError, UnavailableError, RunError.
        """
        if _is_batch(prompt):
            if on_piece is not None:
                raise InputError(
                    "generate",
                    "supports on_piece for a single prompt only",
                    got=len(prompt),
                    do="Leave on_piece out, or give one prompt.",
                )
            return self.generate_batch(prompt, **words)  # type: ignore[arg-type]
        options = self._options(words)
        if on_piece is not None and (options.samples > 1 or options.num_beams > 1):
            raise InputError(
                "generate",
                "supports on_piece for a single answer without beam search only",
                do="Leave on_piece out, or use stream().",
            )
        answers = self._answers([self._texts.source(prompt)], on_piece, options)  # type: ignore[arg-type]
        return answers if options.samples > 1 else answers[0]

    def generate_batch(self, prompts: Sequence[Prompt], **words: Any) -> list[Completion]:
        """Generate the answers to prompts, ``batch`` texts at a time. Prompts may differ in length. Logits are those of a single
        prompt up to rounding; ``BatchGenerator`` with ``batch_invariant`` gives equal bits. Words are those of ``generate``.
        """
        do = "Give a list of texts, or of lists of tokens."
        prompts = check_several("generate_batch", "prompts", prompts, "several prompts", do)
        options = self._options(words)
        return self._answers([self._texts.source(p) for p in prompts], None, options)

    def stream(self, prompt: Prompt, **words: Any) -> Iterator[Piece]:
        """Generate tokens one at a time. Greedy unless a temperature is given. Words are those of transformers' ``GenerationConfig``:

        generation_config: a ``GenerationConfig``, a dict, a file or a folder; True: the checkpoint's ``generation_config.json``. Keyword
                           arguments take precedence.
        max_new_tokens, max_length, min_new_tokens, min_length: limits of the answer, and of prompt and answer. Default: 128 new tokens.
        do_sample, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: as for ``Sampling``.
        seed:              seed of the random choices, or one for each prompt. Equal seeds give equal answers, whatever the other prompts are.
        stops, eos_token_id: tokens that end the answer. Default: the model's.
        stop_strings:      texts that end the answer, which does not contain them.
        bad_words_ids, suppress_tokens, no_repeat_ngram_size: what the answer may not contain.
        decoder_input_ids: of an encoder-decoder: tokens that the answer begins with. Default: the model's start token.
        language, task:    of a model that reads speech of many languages, such as ``"en"`` and ``"transcribe"``.
        forced_bos_token_id, forced_eos_token_id, begin_suppress_tokens: the first and the last token, and what the first is not. With
                           ``suppress_tokens``, an encoder-decoder has the checkpoint's, and None removes one.
        logprobs:          number of most likely tokens whose log probabilities are returned for each position, next to that of the token.
        prompt_lookup_num_tokens, max_matching_ngram_size: speculative decoding: this number of tokens is guessed from what followed earlier
                           occurrences of the last tokens (at most 2 by default), and checked in one run.
        assistant_model, num_assistant_tokens: the same with a draft model (a Generator, or what it opens), which guesses 5 tokens by default.
        json_schema, regex, grammar: what the answer matches (a Lark grammar). Needs ``pip install 'xpuruntime[grammar]'``.
        Raises InputError, UnavailableError.
        """
        options = self._options(words)
        if options.samples > 1 or options.num_beams > 1:
            raise InputError("stream", "supports one answer without beam search", do="Call generate.")
        states = self._texts.states([self._texts.source(prompt)], options)
        return (piece for _, piece in self._held(lambda: self._pieces(states)))

    def _options(self, words: Mapping[str, Any]) -> GenerationOptions:
        """Return the checked options of a call. A policy's speculation applies unless the call has its own, or searches by beams."""
        options = self._texts.options(words)
        if options.num_beams == 1 and not options.drafts:
            options = replace(options, **self._speculation)
        if options.drafts and self.steps.encoders:
            who = f"language model {self.checkpoint.name}"
            raise InputError(
                who,
                "is an encoder-decoder, which does not support speculative decoding",
                do="Leave the speculation out.",
            )
        return options

    def _answers(
        self,
        texts: Sequence[Source],
        on_piece: Callable[[str], object] | None,
        options: GenerationOptions,
    ) -> list[Completion]:
        if options.num_beams > 1:
            return [c for text in texts for c in self._held(lambda t=text: self._beams(t, options))]  # type: ignore[misc]
        states, size = self._texts.states(texts, options), 1 if options.drafts else self.steps.batch
        groups = [states[i : i + size] for i in range(0, len(states), size)]
        return [completion for group in groups for completion in self._together(group, on_piece)]

    def _together(
        self, states: list[AnswerState], on_piece: Callable[[str], object] | None
    ) -> list[Completion]:
        """Return the answers of texts that are decoded together."""
        start = first_token_time = time.perf_counter()
        pieces: list[list[Piece]] = [[] for _ in states]
        ended = [start] * len(states)
        started = False
        for row, piece in self._held(lambda: self._pieces(states)):
            if not started:
                first_token_time, started = time.perf_counter(), True
            pieces[row].append(piece)
            if on_piece is not None and piece.text:
                with foreign():
                    on_piece(piece.text)
            if piece.finish:
                ended[row] = time.perf_counter()
        return [
            _completion(state, answer, first_token_time - start, end - first_token_time)
            for state, answer, end in zip(states, pieces, ended, strict=True)
        ]

    def _held(self, work: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        """Yield what ``work`` yields while other threads wait."""
        with self.exclusive():
            yield from work()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let other threads wait, because a text changes the cache. Raises InputError if this thread has an active stream."""
        me = threading.get_ident()
        if self._holder == me:  # waiting for the lock would be a deadlock
            do = "Read it to its end, or call its close()."
            raise InputError(
                f"language model {self.checkpoint.name}", "has another active stream on this thread", do=do
            )
        with self._lock:
            self._holder = me
            try:
                yield
            finally:
                self._holder = None

    def _pieces(self, states: list[AnswerState]) -> Iterator[tuple[int, Piece]]:
        """Yield (index of a text, piece of its answer)."""
        if states[0].options.drafts:
            yield from ((0, piece) for piece in self._speculated(states[0]))
            return
        # Token and position of the next cache row of each text. Those of a finished text no longer change.
        tokens, positions = [s.prompt[-1] for s in states], [len(s.prompt) - 1 for s in states]
        live = set(range(len(states)))
        if sources := [s.source for s in states if s.source is not None]:
            self.steps.encode(sources)
        self.steps.read([s.prompt for s in states])
        options = states[0].options
        most_likely, on_device, counts = options.most_likely, options.on_device, options.counts
        settings = [options.sampling.settings] * len(states)
        selected = most_likely  # the tokens of the last step are there
        while True:
            for row in sorted(live):
                state = states[row]
                token = state.forced
                if token is None:
                    token = (
                        checked_token(int(self.steps.token[row]))
                        if selected
                        else state.pick(self.steps.logits[row])
                    )
                if most_likely and not math.isfinite(self.steps.logits[row, token]):
                    token = checked_token(NO_TOKEN)  # argmax returns a token even if logits are NaN
                piece = state.accept(token, self.steps.logits[row])
                if piece.finish:
                    live.discard(row)
                else:
                    tokens[row], positions[row] = token, len(state.prompt) + len(state.tokens) - 1
                yield row, piece
            if not live:
                return
            if most_likely or not on_device:
                self.steps.step(tokens, positions)
                continue
            if counts and not selected:
                self.steps.write_counts([s.counts for s in states if s.counts is not None])
            selected = True
            self.steps.sample(tokens, positions, settings, [s.numbers for s in states])

    def _speculated(self, state: AnswerState) -> Iterator[Piece]:
        """Yield the pieces of one answer, with guesses of the next tokens that runs of several tokens check."""
        options = state.options
        if options.assistant_model is None:
            drafter: Drafter = PromptLookup(options.max_matching_ngram_size)
            yield from speculated(self.steps, state, drafter, options.drafts, self.capacity, self.drafts)
            return
        model = self._assistant(options.assistant_model)
        with model.exclusive():
            drafter = DraftModel(model.steps, model.config.vocab, model.capacity, self.config.vocab)
            yield from speculated(self.steps, state, drafter, options.drafts, self.capacity, self.drafts)

    def _assistant(self, source: Any) -> Generator:
        """Return the draft model, opened once. Raises InputError if its tokens have other meanings."""
        model = source if isinstance(source, Generator) else self._assistants.get(_known_by(source))
        who = f"language model {self.checkpoint.name}"
        if model is self:
            raise InputError(who, "cannot be its own assistant_model", do="Give a smaller model.")
        if model is None:
            size = min(self.capacity, open_checkpoint(source).config.max_positions)
            model = Generator(source, capacity=size, device=self.device, threads=self._threads)
            self._assistants[_known_by(source)] = model
        ours, theirs = self.checkpoint.text, model.checkpoint.text
        same = model.config.vocab == self.config.vocab
        if ours is not None and theirs is not None and ours is not theirs:
            same = ours.tokenizer.get_vocab() == theirs.tokenizer.get_vocab()
        if not same or model.steps.encoders:
            do = "Give a smaller model of the same family, with the same tokenizer."
            raise InputError(
                who, "needs an assistant_model with the same tokens", got=model.checkpoint.name, do=do
            )
        return model

    def _beams(self, text: Source, options: GenerationOptions) -> Iterator[Completion]:
        """Yield the best answers of a beam search."""
        prompt, source = self._texts.begun(text, options)
        who, beams = f"language model {self.checkpoint.name}", options.num_beams
        if beams > self.steps.batch:
            do = f"Open the model with batch={beams} or more."
            raise InputError(
                who, f"decodes {self.steps.batch} texts together, fewer than num_beams", got=beams, do=do
            )
        limit = min(options.limit(len(prompt)), self.capacity - len(prompt) + 1)
        start = first_token_time = time.perf_counter()
        if source is not None:
            self.steps.encode([source] * beams)
        logits = self.steps.read([prompt] * beams)
        first_token_time = time.perf_counter()
        position = len(prompt) - 1

        def advance(rows: list[int], tokens: list[int]) -> Array:
            nonlocal position
            position += 1
            self.steps.reorder(rows)
            return self.steps.step(tokens, [position] * beams)

        answers = beam_search(prompt, options, limit, logits, advance)[: options.samples]
        seconds = (first_token_time - start, time.perf_counter() - first_token_time)
        codec = self.checkpoint.text
        rows = len(prompt) if source is None else source_rows(source)
        for answer in answers:
            stopped = bool(answer.tokens) and answer.tokens[-1] in options.stop_tokens
            tokens = answer.tokens[:-1] if stopped else answer.tokens
            full = len(answer.tokens) == limit < options.limit(len(prompt))
            finish = "stop" if stopped else "capacity" if full else "length"
            shown = "" if codec is None else codec.decode(tokens)
            yield Completion(tokens, shown, rows, finish, *seconds, score=answer.score)

    def _most_likely(self, source: Source, start: int, tokens: Sequence[int]) -> int:
        """Return the most likely of some tokens after a source and a first token."""

        def read() -> Iterator[Array]:
            self.steps.encode([source])
            yield self.steps.read([[start]])[0, list(tokens)]

        (logits,) = self._held(read)
        return tokens[int(np.argmax(logits))]

    # ── steps ──

    def read(self, tokens: Sequence[int], start: int = 0) -> Array:
        """Prefill one text from position ``start``. Return the logits [1, vocab] of the next token (valid until the next step)."""
        return self.steps.read([tokens], start)[:1]

    def step(self, token: int, position: int) -> Array:
        """Decode one token of one text. Return the logits [1, vocab] of the next token (valid until the next step)."""
        return self.steps.step([token], [position])[:1]

    def close(self) -> None:
        """Free memory, after the store has the weights. Later calls raise RunError."""
        self.steps.close()
        for part in self._parts:
            part.kept.wait()
        for assistant in self._assistants.values():
            assistant.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _known_by(source: Any) -> Any:
    """Return what a draft model is remembered by: its path, or the module itself."""
    return str(source) if isinstance(source, str | os.PathLike) else id(source)


def _sized(checkpoint: Checkpoint, source_capacity: int | None) -> Checkpoint:
    """Return the checkpoint for sources of up to this length. Raises BuildError."""
    config = with_source(checkpoint.config, source_capacity, f"language model {checkpoint.name}")
    return replace(checkpoint, config=config)


def device_for(device: Any, target: Any, demands: Resolved, notes: list[str]) -> Any:
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
        try:
            computed = DType.of(dtype)
        except ValueError:
            computed = None
        if computed is None or not computed.is_float:
            do = f"Use one of {', '.join(d.value for d in _COMPUTED)}."
            raise PrecisionUnavailable("Generator", "has an unsupported dtype", got=dtype, do=do)
        return computed, demands.without("precision")
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


def _completion(state: AnswerState, pieces: Sequence[Piece], prefill_s: float, decode_s: float) -> Completion:
    """Return the answer of a text whose generation has ended. A stop token is no part of it."""
    stopped = state.tokens[-1] in state.options.stop_tokens
    count = len(state.tokens) - stopped
    logprobs = tuple(p.logprob for p in pieces[:count] if p.logprob is not None)
    text, finish = "".join(p.text for p in pieces), pieces[-1].finish
    rows = len(state.prompt) if state.source is None else source_rows(state.source)
    return Completion(tuple(state.tokens[:count]), text, rows, finish, prefill_s, decode_s, logprobs)


def _is_batch(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Return True for a list of prompts, which are texts, lists of tokens, or conversations."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
        return False
    try:
        len(prompt[0])  # type: ignore[arg-type]
    except TypeError:  # a token
        return False
    return not isinstance(prompt[0], Mapping)


def generate(model: Any, prompt: Prompt | Sequence[Prompt], **options: Any) -> Completion | list[Completion]:
    """Generate the answer of a model to a prompt, or one answer to each of a list of prompts.

    model: a checkpoint's folder, a GGUF file, a transformers model, or a Generator (for several answers, which opens the model once).
    Options are those of ``Generator`` (capacity, batch, dtype, buckets, policy, device, target, threads, cache_dir, on_progress,
    source_capacity) and of ``Generator.stream``.
    """
    opening_options = {
        k: options.pop(k)
        for k in (
            "capacity", "batch", "dtype", "buckets", "policy", "device", "target", "threads", "cache_dir", "on_progress", "source_capacity",
        )
        if k in options
    }  # fmt: skip
    if isinstance(model, Generator):
        if opening_options:
            raise InputError(
                "generate",
                "accepts these options only if it opens the model",
                got=", ".join(opening_options),
                do="Give them to Generator(...), or a path instead of a model.",
            )
        return model.generate(prompt, **options)
    with Generator(model, **opening_options) as generator:
        return generator.generate(prompt, **options)
