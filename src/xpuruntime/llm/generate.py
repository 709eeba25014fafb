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
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from ..arguments import check_argument, check_count, check_flag, check_several
from ..errors import InputError, PolicyError
from ..faults import contained
from ..inference.native.executor_evidence import Observations
from ..profiler.receipt import Receipt
from ..program.plan import Plan
from ..program.program import CompiledProgram
from ..progress import shown
from ..protocols import Array
from ..targets import DeviceId
from ..types import DType
from .answer_loop import AnswerLoop
from .answers import Completion, Piece, Prompt
from .build import BUCKETS, cache_words, entry_lengths, fixed_tokens, long_entries
from .checkpoint.reader import open_checkpoint
from .decoding.words import speculation_of
from .opening import check_opening, opened_checkpoint, opening_request
from .parallel.opening import RankWeights, open_steps, rank_devices, shards_of, tensor_ranks
from .programs import DecoderPrograms
from .report import plan_of, receipt_of
from .speculation import DraftModel, Drafts

__all__ = ["Completion", "Generator", "Piece", "Prompt", "generate"]

_MAX_BATCH = 1 << 16


class Generator:
    """A language model, ready to generate text.

    model:    a checkpoint's folder, a GGUF file, or a transformers model.
    capacity: size of the KV cache in tokens, for prompt and answer. Default: 2,048, or the model's maximum if that is less.
    batch:    number of texts that are decoded together, each with its own cache. A larger batch slows the decoding of one text little.
    dtype:    precision to compute in. Default: the policy's, else the checkpoint's.
    buckets:  prefill lengths. Default: 16 and 128, and on a GPU the lengths that make 512 and 1,024 tokens of all texts, whose entry points are
              compiled when a prompt first needs them.
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
        buckets: Sequence[int] | None = None,
        policy: Any = None,
        device: Any = None,
        target: Any = None,
        threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        on_progress: Callable[[str], object] | None = None,
        source_capacity: int | None = None,
    ) -> None:
        batch = check_count("Generator", "batch", batch, 1, _MAX_BATCH)
        threads = check_opening("Generator", threads, on_progress)
        self.checkpoint = opened_checkpoint(model, source_capacity)
        self.config = config = self.checkpoint.config
        opened = opening_request(
            "Generator", self.checkpoint, dtype=dtype, policy=policy, device=device, target=target
        )
        self.request, self.arguments, self.notes = opened.request, opened.arguments, opened.notes
        self.dtype, self.device, target = opened.dtype, opened.device, opened.target
        execution = opened.request.policy.execution
        speculation = speculation_of(execution.options_for("native"))
        if batch != 1 and opened.demands.policy.kernel.demands_batch_invariance():
            do = "Open the model as a BatchGenerator, or with batch=1."
            raise PolicyError("Generator", "does not support batch_invariant with a batch", got=batch, do=do)
        self.capacity = min(config.max_positions, 2048) if capacity is None else capacity
        entries = list(
            entry_lengths(
                config,
                capacity=self.capacity,
                batch=batch,
                buckets=BUCKETS if buckets is None else buckets,
                name=self.checkpoint.name,
            )
        )
        device_id = DeviceId.parse(self.device)
        later = long_entries(config, capacity=self.capacity, batch=batch, device=device_id)
        self.devices = rank_devices(self.device, tensor_ranks(execution))
        shards = shards_of(self.checkpoint, self.devices)
        store = opened.store(cache_dir)
        self.programs = DecoderPrograms(
            shards[0],
            sizes={"capacity": self.capacity, "batch": batch, "dtype": self.dtype, **cache_words(execution)},
            target=target,
            demands=opened.demands,
            store=store,
        )
        self.observations = Observations()
        options = {
            "batch": batch,
            "vocab": config.vocab,
            "dtype": self.dtype,
            "target": target,
            "threads": threads,
            "store": store,
            "later": later if buckets is None else (),
            "fixed": fixed_tokens(device_id, batch),
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
        self._loop = AnswerLoop(
            self.checkpoint,
            self.steps,
            self.capacity,
            speculation=speculation,
            draft_model=self._draft_model,
        )
        self._texts, self._threads = self._loop.texts, threads
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
        times = check_flag("Generator.receipt", "times", times)
        with self.exclusive():
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
        with self.exclusive():
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
        if on_piece is not None:
            do = "Give a function of text."
            check_argument("generate", "on_piece", on_piece, Callable, "a function", do)
        if _is_batch(prompt):
            if on_piece is not None:
                raise InputError(
                    "generate",
                    "supports on_piece for a single prompt only",
                    got=len(prompt),
                    do="Leave on_piece out, or give one prompt.",
                )
            return self.generate_batch(prompt, **words)  # type: ignore[arg-type]
        options = self._loop.options(words)
        if on_piece is not None and (options.samples > 1 or options.num_beams > 1):
            raise InputError(
                "generate",
                "supports on_piece for a single answer without beam search only",
                do="Leave on_piece out, or use stream().",
            )
        answers = self._loop.answers([self._texts.source(prompt)], options, on_piece)  # type: ignore[arg-type]
        return answers if options.samples > 1 else answers[0]

    def generate_batch(self, prompts: Sequence[Prompt], **words: Any) -> list[Completion]:
        """Generate the answers to prompts, ``batch`` texts at a time. Prompts may differ in length. Logits are those of a single
        prompt up to rounding; ``BatchGenerator`` with ``batch_invariant`` gives equal bits. Words are those of ``generate``.
        """
        do = "Give a list of texts, or of lists of tokens."
        prompts = check_several("generate_batch", "prompts", prompts, "several prompts", do)
        options = self._loop.options(words)
        return self._loop.answers([self._texts.source(p) for p in prompts], options)

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
        return_timestamps: of a model that reads speech: the answer says when its segments are spoken (``Completion.segments``).
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
        options = self._loop.options(words)
        if options.samples > 1 or options.num_beams > 1:
            raise InputError("stream", "supports one answer without beam search", do="Call generate.")
        return self._loop.stream(self._texts.source(prompt), options)

    # ── speculative decoding ──

    @property
    def drafts(self) -> Drafts:
        """Return the counts of speculative decoding."""
        return self._loop.drafts

    @contextlib.contextmanager
    def _draft_model(self, source: Any) -> Iterator[DraftModel]:
        """Let a smaller model guess the tokens of one answer."""
        model = self._assistant(source)
        with model.exclusive():
            yield DraftModel(model.steps, model.config.vocab, model.capacity, self.config.vocab)

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

    # ── steps ──

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """Let other threads wait, because a text changes the cache. Raises InputError if this thread has an active stream."""
        return self._loop.exclusive()

    def read(self, tokens: Sequence[int], start: int = 0) -> Array:
        """Prefill one text from position ``start``. Return the logits [1, vocab] of the next token (valid until the next step).

        With ``start`` 0, the cache behind the text is undefined afterwards: the padding of a long chunk may have been written there.

        Raises InputError for tokens that the model does not have, or that do not fit into the cache.
        """
        start = check_count("Generator.read", "start", start, 0, self.capacity - 1)
        tokens = self._texts.rows(tokens, start)
        with self.exclusive():
            return self.steps.read([tokens], start)[:1]

    def step(self, token: int, position: int) -> Array:
        """Decode one token of one text. Return the logits [1, vocab] of the next token (valid until the next step).

        Raises InputError for a token that the model does not have, or a position beyond the cache.
        """
        token = check_count("Generator.step", "token", token, 0, self.config.vocab - 1)
        position = check_count("Generator.step", "position", position, 0, self.capacity - 1)
        with self.exclusive():
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
