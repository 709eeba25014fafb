"""BatchGenerator: generation for many texts at once, which join and leave between steps.

    with BatchGenerator("Qwen2.5-0.5B-Instruct", texts=64, cache_tokens=32768) as batch:
        answers = [batch.submit(p, max_new_tokens=64) for p in prompts]
        for piece in answers[0]:
            print(piece.text, end="", flush=True)
        print(answers[1].result().text)

All texts share one KV cache in blocks. A step computes one token of each text that is past its prompt, and chunks of prompts next to them. It is
one run of one program, whose rows are tokens of any text.

With a policy that demands ``batch_invariant``, all steps have one size and kernels whose rows do not depend on each other. Each answer is then
bitwise equal to the one that its prompt gets alone, also after a preemption, and if its beginning was found in the cache. Without it, sums
are rounded in an order that depends on the size of a step.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...arguments import MAX_THREADS, check_argument, check_count, check_flag, check_several
from ...errors import BuildError, InputError, PolicyError, RunError, XpuError
from ...faults import contained
from ...inference.native.targets import own_target
from ...ir.interp.sampling import NO_TOKEN
from ...policies.entrances import demanded
from ...printable import logger
from ...program.program import CompiledProgram
from ...runtime import Weights, load_weights
from ...storage.store import Store
from ...targets import DeviceId
from ...types import DType
from ..answers import Completion, Piece, Prompt
from ..build import DECODE, check_capacity
from ..checkpoint.reader import open_checkpoint
from ..decoding.answer import checked_token
from ..decoding.texts import AnswerTexts
from ..decoding.words import GenerationOptions
from ..paged import PagedCache
from ..parallel.opening import tensor_ranks
from ..programs import DecoderPrograms
from ..resolve import computed_in, device_for
from .answer import CANCELLED, HOST, MOST_LIKELY, SAMPLED, BatchAnswer, choice_of
from .build import batch_entry_graph, cache_bytes_per_token, entry_name, step_sizes
from .scheduler import BatchText, Scheduler
from .steps import BatchSteps

__all__ = ["BatchGenerator", "BatchStatistics"]

_log = logger("xpuruntime.session")
_BLOCK_SIZE, _STEP_TOKENS = 16, 64
_MAX_TEXTS, _MAX_TOKENS = 1 << 16, 1 << 40


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts of a batch.

    blocks:            blocks of the cache. used_blocks: those that texts have now. peak_blocks: the most that they had at once.
    kept_blocks:       blocks that no text has, with content that a text may share.
    cache_bytes:       memory of the cache.
    running, waiting:  texts now. finished, cancelled, failed: texts so far.
    steps, tokens:     steps so far, and tokens that they computed, of prompts and answers.
    shared_tokens:     tokens that were found in the cache instead.
    preemptions:       how often a text lost its blocks. recomputed_tokens: tokens that were lost so.
    """

    blocks: int
    used_blocks: int
    peak_blocks: int
    kept_blocks: int
    cache_bytes: int
    running: int
    waiting: int
    finished: int
    cancelled: int
    failed: int
    steps: int
    tokens: int
    shared_tokens: int
    preemptions: int
    recomputed_tokens: int


class BatchGenerator:
    """A language model, ready to generate many texts at once.

    model:          a checkpoint's folder, a GGUF file, or a transformers model.
    texts:          maximum texts of a step. Further ones wait.
    capacity:       maximum tokens of a text, prompt and answer. Default: 2,048, or the model's maximum or the cache if that is less.
    cache_tokens:   tokens of the cache, for all texts together. Default: ``texts`` times ``capacity``. cache_bytes: the same in bytes.
    block_size:     tokens of a block of the cache.
    step_tokens:    maximum tokens of a step. Prompts are computed in chunks of at most this length. Default: 64, or ``texts`` if that is more.
    share_prefixes: texts that begin alike share blocks of the cache.
    dtype, device, policy, target, threads, cache_dir: as for ``Generator``.

    Methods may be called from several threads. Raises ModelError, BuildError, PolicyError, UnavailableError.
    """

    @contained("BatchGenerator")
    def __init__(
        self,
        model: Any,
        *,
        texts: int = 8,
        capacity: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        block_size: int = _BLOCK_SIZE,
        step_tokens: int | None = None,
        share_prefixes: bool = True,
        dtype: DType | str | None = None,
        policy: Any = None,
        device: Any = None,
        target: Any = None,
        threads: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        share_prefixes = check_flag("BatchGenerator", "share_prefixes", share_prefixes)
        if threads is not None:
            threads = check_count("BatchGenerator", "threads", threads, 1, MAX_THREADS)
        self.checkpoint = open_checkpoint(model)
        self.config = config = self.checkpoint.config
        who = self._who = f"language model {self.checkpoint.name}"
        if config.slopes:
            raise BuildError(
                who, "has position biases (ALiBi), which batches do not support", do="Use a Generator."
            )
        if config.encoder is not None:
            raise BuildError(who, "has an encoder, which batches do not support", do="Use a Generator.")
        demands = demanded("Generator", {}, policy)
        if named := demands.policy.execution.options_for("native"):
            do = "Open the model as a Generator, or remove them."
            raise PolicyError(who, "does not support these options of native", got=", ".join(named), do=do)
        if tensor_ranks(demands.policy.execution) > 1:
            do = "Open the model as a Generator, or leave parallel out."
            raise PolicyError(
                who,
                "does not divide a model over several devices",
                got=dict(demands.policy.execution.parallel or {}),
                do=do,
            )
        if demands.policy.execution.kv_cache == "fp8":
            do = "Open the model as a Generator, or leave kv_cache out."
            raise PolicyError(who, "does not support kv_cache: fp8", got="a cache in blocks", do=do)
        notes: list[str] = []
        device = device_for(device, target, demands, notes)
        self.dtype, demands = computed_in(dtype, config.dtype, demands, notes)
        if notes:
            _log.warning("BatchGenerator: %s", "; ".join(notes))
        _check_positive(who, texts=texts, block_size=block_size, step_tokens=step_tokens, capacity=capacity)
        step_tokens = max(_STEP_TOKENS, texts) if step_tokens is None else step_tokens
        if step_tokens < texts:
            do = f"Give step_tokens={texts} or more, or fewer texts."
            raise BuildError(who, f"needs a token of each of {texts} texts in a step", got=step_tokens, do=do)
        per_token = cache_bytes_per_token(config, self.dtype)
        tokens = _cache_tokens(who, cache_tokens, cache_bytes, per_token)
        if capacity is None:
            capacity = min(config.max_positions, 2048, *([] if tokens is None else [max(tokens, 1)]))
        check_capacity(config, capacity, who)
        if tokens is None:
            tokens = texts * math.ceil(capacity / block_size) * block_size
        blocks = tokens // block_size
        if blocks * block_size < capacity:
            do = f"Give cache_tokens={math.ceil(capacity / block_size) * block_size} or more, or a smaller capacity."
            raise BuildError(
                who, f"has a cache of {blocks} blocks of {block_size} tokens, less than one text of capacity {capacity}",
                got=tokens, do=do,
            )  # fmt: skip
        self.capacity = capacity
        self.cache = PagedCache(blocks + 1, block_size, capacity)
        self.cache_bytes = self.cache.rows * per_token
        self.batch_invariant = demands.policy.kernel.demands_batch_invariance()
        sizes = (step_tokens,) if self.batch_invariant else step_sizes(step_tokens)
        store = Store(cache_dir, mode="" if demands.policy.execution.caching is not False else "off")
        self.programs = DecoderPrograms(
            self.checkpoint,
            sizes={"cache": self.cache, "texts": texts, "dtype": self.dtype},
            target=own_target(DeviceId.parse(device)) if target is None else target,
            demands=demands,
            store=store,
            graph=batch_entry_graph,
        )

        def further(entries: Sequence[str]) -> tuple[CompiledProgram, Weights]:
            return self.programs.load(
                entries,
                lambda p: load_weights(self.checkpoint.arrays, p, device, shared=[self.weights]),
            )

        def loaded(program: CompiledProgram) -> tuple[Weights, BatchSteps]:
            weights = load_weights(self.checkpoint.arrays, program, device)
            steps = BatchSteps(
                program, weights, self.cache, sizes=sizes, texts=texts, vocab=config.vocab, dtype=self.dtype, device=device,
                threads=threads, further=further, store=store,
            )  # fmt: skip
            return weights, steps

        entries = [entry_name(DECODE, size) for size in sizes]
        self.program, (self.weights, self.steps) = self.programs.load(entries, loaded)
        self.scheduler = Scheduler(self.cache, texts=texts, step_tokens=step_tokens, share=share_prefixes)
        self._texts = AnswerTexts(self.checkpoint, capacity)
        self._answers: dict[BatchText, BatchAnswer] = {}
        self._lock = threading.RLock()
        self._arrivals = self._steps = self._tokens = 0
        self._finished = self._cancelled = self._failed = 0
        self._closed = False

    # ── texts ──

    @contained("BatchGenerator.submit")
    def submit(self, prompt: Prompt, **words: Any) -> BatchAnswer:
        """Add a prompt. Its answer is generated by later steps. Words are those of ``Generator.stream``.

        Raises InputError, also for a prompt that exceeds the capacity, and RunError after ``close``.
        """
        options = self._texts.options(words)
        if options.samples > 1:
            raise InputError(
                "submit", "supports one answer", got=options.samples, do="Call generate, or submit the prompt several times."
            )  # fmt: skip
        (answer,) = self._submitted([self._texts.tokens(prompt)], options)
        return answer

    @contained("BatchGenerator.generate")
    def generate(self, prompts: Sequence[Prompt], **words: Any) -> list[Completion]:
        """Generate the answers to prompts, and return them in order. Words are those of ``Generator.generate``; with ``n``, the answers to the
        first prompt come first.
        """
        do = "Give a list of texts, or of lists of tokens."
        prompts = check_several("BatchGenerator.generate", "prompts", prompts, "several prompts", do)
        answers = self._submitted([self._texts.tokens(p) for p in prompts], self._texts.options(words))
        try:
            return [a.result() for a in answers]
        finally:
            for answer in answers:
                answer.cancel()

    def _submitted(self, texts: Sequence[Sequence[int]], options: GenerationOptions) -> list[BatchAnswer]:
        if options.num_beams > 1:
            do = "Open the model as a Generator."
            raise InputError("a batch", "does not support beam search", got=options.num_beams, do=do)
        if options.drafts:
            do = "Open the model as a Generator, or remove the words of speculative decoding."
            raise InputError("a batch", "does not support speculative decoding", got=options.drafts, do=do)
        states = self._texts.states(texts, options)
        with self._lock:
            self._check_open()
            if states and choice_of(options) == SAMPLED:
                self.steps.open_sampling()
            answers = []
            for state in states:
                text = BatchText(list(state.prompt), self._arrivals)
                self._arrivals += 1
                answers.append(BatchAnswer(self, state, text))
                self._answers[text] = answers[-1]
                self.scheduler.add(text)
            return answers

    # ── steps ──

    @contained("BatchGenerator.step")
    def step(self) -> list[tuple[BatchAnswer, Piece]]:
        """Run one step. Return the pieces that it generated; none if there is nothing to do, or only prompts were computed.

        An error of one text, such as logits without a finite value, ends that text alone. Raises RunError if the step fails; no text has changed
        then, and the next step tries again.
        """
        with self._lock:
            self._check_open()
            chunks = self.scheduler.schedule()
            if not chunks:
                return []
            answers = [self._answers[c.text] for c in chunks if c.ends]
            choices = {a.choice for a in answers}
            sampled = SAMPLED in choices and HOST not in choices
            if sampled:
                settings = [a.state.options.sampling.settings for a in answers]
                self.steps.run(chunks, settings, [a.state.numbers for a in answers])
            else:
                self.steps.run(chunks)
            self.scheduler.commit(chunks)
            self._steps += 1
            self._tokens += sum(c.count for c in chunks)
            pieces = []
            for row, answer in enumerate(answers):
                try:
                    piece = self._next_piece(answer, row, sampled)
                except XpuError as error:
                    self._failed += 1
                    answer.fail(error)
                    self._drop(answer)
                    continue
                answer.add(piece)
                pieces.append((answer, piece))
                if piece.finish:
                    self._finished += 1
                    self._drop(answer)
                else:
                    answer.text.tokens.append(piece.token)
            return pieces

    def _next_piece(self, answer: BatchAnswer, row: int, sampled: bool) -> Piece:
        """Choose the next token of a text by its row of the results. Raises RunError if there is none."""
        state, logits = answer.state, self.steps.logits[row]
        if sampled:
            return state.accept(checked_token(int(self.steps.token[row])), logits)
        if answer.choice == MOST_LIKELY:
            token = int(self.steps.token[row])
            token = checked_token(token if math.isfinite(logits[token]) else NO_TOKEN)
        else:
            token = state.pick(logits)
        return state.accept(token, logits)

    def _drop(self, answer: BatchAnswer) -> None:
        """Remove a text that is done."""
        self.scheduler.remove(answer.text)
        del self._answers[answer.text]

    def advance(self, answer: BatchAnswer) -> None:
        """Run a step, unless the answer has a piece or is done by then: another thread may have run one."""
        with self._lock:
            self._check_answer(answer)
            if not answer.unread and not answer.done:
                self.step()

    def cancel(self, answer: BatchAnswer) -> None:
        """End an answer. It has no effect on one that is done."""
        with self._lock:
            self._check_answer(answer)
            if not answer.done:
                self._cancelled += 1
                answer.end(CANCELLED)
                self._drop(answer)

    # ── state ──

    @property
    def pending(self) -> int:
        """Return the number of texts that are not done."""
        return len(self._answers)

    def statistics(self) -> BatchStatistics:
        """Return counts of blocks, texts, steps and tokens."""
        with self._lock:
            scheduler, pool = self.scheduler, self.scheduler.pool
            return BatchStatistics(
                blocks=self.cache.blocks - 1,
                used_blocks=pool.used,
                peak_blocks=pool.peak,
                kept_blocks=pool.kept,
                cache_bytes=self.cache_bytes,
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                finished=self._finished,
                cancelled=self._cancelled,
                failed=self._failed,
                steps=self._steps,
                tokens=self._tokens,
                shared_tokens=scheduler.shared_tokens,
                preemptions=scheduler.preemptions,
                recomputed_tokens=scheduler.recomputed_tokens,
            )

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(self._who, "is closed", do="Open the model again.")

    def _check_answer(self, answer: object) -> None:
        """Raise InputError for what is no answer of this batch."""
        do = "Give what submit of this BatchGenerator returned."
        check_argument(self._who, "answer", answer, BatchAnswer, "an answer of this batch", do)
        assert isinstance(answer, BatchAnswer)
        if not answer.done and answer.text not in self._answers:
            raise InputError(self._who, "answer must be an answer of this batch", got="another's", do=do)

    def close(self) -> None:
        """Cancel all texts and free memory. Later calls raise RunError."""
        with self._lock:
            for answer in list(self._answers.values()):
                self.cancel(answer)
            self._closed = True
            self.steps.close()

    def __enter__(self) -> BatchGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_positive(who: str, **words: Any) -> None:
    """Raise BuildError for a word whose value is neither None nor a whole number from 1 on."""
    for word, value in words.items():
        if value is None and word not in ("texts", "block_size"):
            continue
        most = _MAX_TEXTS if word == "texts" else _MAX_TOKENS
        if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
            do = f"Give a whole number from 1 to {most}."
            raise BuildError(who, f"has an invalid {word}", got=repr(value)[:80], do=do)


def _cache_tokens(who: str, tokens: int | None, size: int | None, per_token: int) -> int | None:
    """Return the tokens of the cache, if they are given as tokens or bytes."""
    if tokens is not None and size is not None:
        got = f"{tokens} and {size}"[:80]
        raise BuildError(who, "takes cache_tokens or cache_bytes", got=got, do="Leave one of them out.")
    _check_positive(who, cache_tokens=tokens, cache_bytes=size)
    return tokens if size is None else size // per_token
