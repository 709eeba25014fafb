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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...arguments import check_argument, check_flag, check_several
from ...errors import BuildError, InputError, PolicyError, RunError, XpuError
from ...faults import contained
from ...inference.native.executor_evidence import Observations
from ...profiler.receipt import Receipt
from ...program.plan import Plan
from ...program.program import CompiledProgram
from ...progress import shown
from ...protocols import Array
from ...targets import DeviceId
from ...types import DType
from ..answers import Completion, Piece, Prompt, Source
from ..build import BUCKETS, DECODE, check_capacity, encode_name, encoder_lengths
from ..decoding.answer import AnswerState
from ..decoding.sources import source_rows
from ..decoding.texts import AnswerTexts
from ..decoding.words import GenerationOptions, speculation_of
from ..opening import check_opening, opened_checkpoint, opening_request
from ..paged import PagedCache
from ..parallel.opening import RankWeights, tensor_ranks
from ..programs import DecoderPrograms
from ..report import plan_of, receipt_of
from ..sampling import Sampling
from ..speculation import Drafts, checked_drafts
from .answer import CANCELLED, HOST, MOST_LIKELY, SAMPLED, BatchAnswer, choice_of
from .beams import BatchBeams
from .build import batch_entry_graph, cache_bytes_per_token, entry_name, step_sizes
from .scheduler import BatchText, Chunk, Scheduler
from .sources import SourceSlots, source_key
from .steps import BatchSteps

__all__ = ["BatchGenerator", "BatchStatistics"]

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
    dtype, device, policy, target, threads, cache_dir, on_progress, source_capacity: as for ``Generator``.

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
        on_progress: Callable[[str], object] | None = None,
        source_capacity: int | None = None,
    ) -> None:
        share_prefixes = check_flag("BatchGenerator", "share_prefixes", share_prefixes)
        threads = check_opening("BatchGenerator", threads, on_progress)
        self.checkpoint = opened_checkpoint(model, source_capacity)
        self.config = config = self.checkpoint.config
        who = self._who = f"language model {self.checkpoint.name}"
        opened = opening_request(
            "BatchGenerator", self.checkpoint, dtype=dtype, policy=policy, device=device, target=target
        )
        self.request, self.arguments, self.notes = opened.request, opened.arguments, opened.notes
        self.dtype, self.device = opened.dtype, opened.device
        self.devices: tuple[str, ...] = (str(DeviceId.parse(self.device)),)
        execution = opened.request.policy.execution
        speculation = speculation_of(execution.options_for("native"))
        if "assistant_model" in speculation:
            do = "Open the model as a Generator, or give prompt_lookup_num_tokens."
            raise PolicyError(
                who, "does not support a draft model in batches", got=speculation["assistant_model"], do=do
            )
        if tensor_ranks(execution) > 1:
            do = "Open the model as a Generator, or leave parallel out."
            raise PolicyError(
                who,
                "does not divide a model over several devices",
                got=dict(execution.parallel or {}),
                do=do,
            )
        if execution.kv_cache == "fp8":
            do = "Open the model as a Generator, or leave kv_cache out."
            raise PolicyError(who, "does not support kv_cache: fp8", got="a cache in blocks", do=do)
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
        encoder = config.encoder
        self.cache = PagedCache(blocks + 1, block_size, capacity, sources=0 if encoder is None else texts)
        self._slots = SourceSlots(self.cache.sources)
        # Steps that check guesses have results for them.
        results = min(step_tokens, texts * (1 + speculation.get("prompt_lookup_num_tokens", 0)))
        self.batch_invariant = opened.demands.policy.kernel.demands_batch_invariance()
        sizes = (step_tokens,) if self.batch_invariant else step_sizes(step_tokens)
        store = opened.store(cache_dir)
        self.programs = DecoderPrograms(
            self.checkpoint,
            sizes={"cache": self.cache, "results": results, "dtype": self.dtype},
            target=opened.target,
            demands=opened.demands,
            store=store,
            graph=batch_entry_graph,
        )
        self.observations = Observations()
        self._part = RankWeights(self.programs, self.checkpoint, self.device)

        def loaded(program: CompiledProgram) -> BatchSteps:
            return BatchSteps(
                program, self._part.load(program, say), self.cache, sizes=sizes, results=results, vocab=config.vocab, dtype=self.dtype,
                device=self.device, threads=threads,
                source_capacity=0 if encoder is None else encoder.max_positions, further=self._part.further, store=store,
            )  # fmt: skip

        self.program: CompiledProgram
        entries = [entry_name(DECODE, size) for size in sizes]
        if encoder is not None:
            entries += map(encode_name, encoder_lengths(encoder, BUCKETS))
        with shown(f"opening {self.checkpoint.name}", self.checkpoint.name, on_progress) as say:
            say("compiling, unless the store has the program")
            self.program, self.steps = self.programs.load(entries, loaded)
        self.weights = self._part.weights
        # Bytes of the keys and values of texts, and of encoded sources.
        self.cache_bytes = sum(s.spec.size_bytes or 0 for s in self.program.states)
        self.scheduler = Scheduler(
            self.cache, texts=texts, step_tokens=step_tokens, share=share_prefixes, results=results
        )
        self._texts = AnswerTexts(self.checkpoint, capacity, self._most_likely, speculation)
        self._owners: dict[BatchText, BatchAnswer | BatchBeams] = {}
        self._live: dict[BatchAnswer, None] = {}
        self._lock, self._drafts = threading.RLock(), Drafts()
        self._arrivals = self._steps = self._tokens = 0
        self._finished = self._cancelled = self._failed = 0
        self._closed = False

    # ── plan and receipt ──

    @property
    def plan(self) -> Plan:
        """Return what runs, and why, as ``Generator.plan`` does. There is a region for each size of a step."""
        return plan_of(self)

    @property
    def drafts(self) -> Drafts:
        """Return the counts of speculative decoding."""
        return self._drafts

    def receipt(self, *, times: bool = True) -> Receipt:
        """Return what did run, as ``Generator.receipt`` does. No step runs meanwhile."""
        times = check_flag("BatchGenerator.receipt", "times", times)
        with self._lock:
            return receipt_of(self, times=times)

    # ── texts ──

    @contained("BatchGenerator.submit")
    def submit(self, prompt: Prompt, **words: Any) -> BatchAnswer:
        """Add a prompt. Its answer is generated by later steps. Words are those of ``Generator.stream``.

        Raises InputError, also for a prompt that exceeds the capacity, and RunError after ``close``.
        """
        options = self._texts.options(words)
        if options.samples > 1:
            raise InputError(
                "submit", "returns one answer", got=f"n={options.samples}", do="Call submit_all, which returns several."
            )  # fmt: skip
        (answer,) = self._submitted([self._texts.source(prompt)], options)
        return answer

    @contained("BatchGenerator.submit_all")
    def submit_all(self, prompts: Sequence[Prompt], **words: Any) -> list[BatchAnswer]:
        """Add prompts, all or none of them, and return their answers in order. With ``n``, each prompt has this number of answers, and those
        to the first prompt come first. Raises the errors of ``submit``.
        """
        do = "Give a list of texts, or of lists of tokens."
        prompts = check_several("BatchGenerator.submit_all", "prompts", prompts, "several prompts", do)
        return self._submitted([self._texts.source(p) for p in prompts], self._texts.options(words))

    @contained("BatchGenerator.generate")
    def generate(self, prompts: Sequence[Prompt], **words: Any) -> list[Completion]:
        """Generate the answers to prompts, and return them in order, as ``submit_all`` does. Words are those of ``Generator.generate``."""
        answers = self.submit_all(prompts, **words)
        try:
            return [a.result() for a in answers]
        finally:
            for answer in answers:
                answer.cancel()

    def _submitted(self, texts: Sequence[Source], options: GenerationOptions) -> list[BatchAnswer]:
        if options.num_beams > self.scheduler.texts:
            do = f"Open the model with texts={options.num_beams} or more."
            what = f"decodes {self.scheduler.texts} texts together, fewer than num_beams"
            raise InputError(self._who, what, got=options.num_beams, do=do)
        if options.assistant_model is not None:
            do = "Open the model as a Generator, or give prompt_lookup_num_tokens."
            raise InputError(
                "a batch",
                "does not support assistant_model",
                got=type(options.assistant_model).__name__,
                do=do,
            )
        return self._added(self._texts.states(texts, options), options)

    def _added(self, states: Sequence[AnswerState], options: GenerationOptions) -> list[BatchAnswer]:
        """Add the answers of these states, all or none of them."""
        with self._lock:
            self._check_open()
            if states and choice_of(options) == SAMPLED:
                self.steps.open_sampling()
            groups = range(0, len(states), options.samples)
            owners = [o for i in groups for o in self._owners_for(states[i : i + options.samples])]
            for owner in owners:
                self._owners[owner.texts[0]] = owner
                self.scheduler.add(owner.texts[0])
            answers = [a for o in owners for a in o.answers]
            self._live.update(dict.fromkeys(answers))
            return answers

    def _owners_for(self, states: Sequence[AnswerState]) -> list[BatchAnswer] | list[BatchBeams]:
        """Return what computes the answers to one prompt: a text each, or the beams of a search. Raises InputError."""
        options, arrival = states[0].options, self._arrivals
        self._arrivals += max(options.num_beams, len(states))
        source = states[0].source
        root, rows = (b"", 0) if source is None else (source_key(source), source_rows(source))
        texts = [
            BatchText(list(s.prompt), arrival + i, root=root, source_rows=rows) for i, s in enumerate(states)
        ]
        if options.num_beams == 1:
            return [BatchAnswer(self, s, t) for s, t in zip(states, texts, strict=True)]
        beams = BatchBeams([BatchAnswer(self, s, texts[0]) for s in states], self.scheduler)
        if beams.blocks > self.cache.blocks - 1:
            do = f"Give fewer beams, a smaller max_new_tokens, or cache_tokens={beams.blocks * self.cache.block_size} or more."
            what = f"has a cache of {self.cache.blocks - 1} blocks, fewer than {options.num_beams} beams may need"
            raise InputError(self._who, what, got=beams.blocks, do=do)
        return [beams]

    # ── steps ──

    @contained("BatchGenerator.step")
    def step(self) -> list[tuple[BatchAnswer, Piece]]:
        """Run one step. Return the pieces that it generated; none if there is nothing to do, or only prompts were computed.

        An error of one text, such as logits without a finite value, ends that text alone. Raises RunError if the step fails; no text has changed
        then, and the next step tries again.
        """
        with self._lock:
            self._check_open()
            for owner in self._owners.values():
                owner.draft()
            chunks = self.scheduler.schedule()
            if not chunks:
                return []
            self._encode(chunks)
            ends = [c for c in chunks if c.ends]
            owners = [self._owners[c.text] for c in ends]
            choices = {o.choice for o in owners}
            sampled = SAMPLED in choices and HOST not in choices
            if sampled:
                states = [o.state for o in owners if isinstance(o, BatchAnswer)]
                rows = [(s, i) for s, c in zip(states, ends, strict=True) for i in range(c.results)]
                settings = [state.options.sampling.settings for state, _ in rows]
                self.steps.run(chunks, settings, [state.numbers_after(i) for state, i in rows])
            else:
                self.steps.run(chunks)
            self.scheduler.commit(chunks)
            self._steps += 1
            self._tokens += sum(c.count + len(c.drafts) for c in chunks)
            pieces, row = [], 0
            for owner, chunk in zip(owners, ends, strict=True):
                if isinstance(owner, BatchBeams):
                    pieces += self._read_beam(owner, chunk.text, self.steps.logits[row])
                else:
                    pieces += self._read(owner, chunk, row, sampled)
                row += chunk.results
            return pieces

    def _encode(self, chunks: Sequence[Chunk]) -> None:
        """Give the texts of a step the slots of their sources, which are encoded unless another text has the same one."""
        self._slots.release(self.scheduler.running)
        for text in (c.text for c in chunks):
            source = self._owners[text].source
            if source is None:
                continue
            text.slot, fresh = self._slots.take(text)
            if fresh:
                try:
                    self.steps.encode(source, text.slot)
                except BaseException:
                    self._slots.forget(text.slot)
                    raise

    def _most_likely(self, source: Source, start: int, tokens: Sequence[int]) -> int:
        """Return the most likely of some tokens after a source and a first token."""
        others = set(range(self.config.vocab)).difference(tokens)
        options = GenerationOptions(Sampling(), frozenset(), max_new_tokens=1, suppressed=tuple(others))
        state = AnswerState(
            [start], options, seed=0, sample=0, vocab=self.config.vocab, capacity=self.capacity, text=None, matcher=None, source=source
        )  # fmt: skip
        (answer,) = self._added([state], options)
        return answer.result().tokens[0]

    def _read_beam(
        self, beams: BatchBeams, text: BatchText, logits: Array
    ) -> list[tuple[BatchAnswer, Piece]]:
        """Read a beam's row of the results. An error ends the search."""
        try:
            pieces = beams.read(text, logits)
        except XpuError as error:
            for answer in beams.answers:
                if not answer.done:
                    self._failed += 1
                    answer.fail(error)
            self._drop(beams)
            return []
        self._owners.update(dict.fromkeys(beams.texts, beams))
        if pieces:
            self._finished += len({answer for answer, _ in pieces})
            self._drop(beams)
        return pieces

    def _read(
        self, answer: BatchAnswer, chunk: Chunk, row: int, sampled: bool
    ) -> list[tuple[BatchAnswer, Piece]]:
        """Choose the next tokens of a text by its rows of the results. An error ends the text."""
        state, text, choice = answer.state, answer.text, answer.choice
        pieces: list[tuple[BatchAnswer, Piece]] = []

        def result(i: int) -> tuple[int | None, Array | None]:
            selected = int(self.steps.token[row + i]) if sampled or choice == MOST_LIKELY else None
            return selected, None if sampled else self.steps.logits[row + i]

        counts = self._drafts if state.options.drafts else Drafts()
        counts.rounds += bool(chunk.drafts)
        counts.steps += bool(state.tokens) and not chunk.drafts
        counts.drafted += len(chunk.drafts)
        try:
            for piece in checked_drafts(state, chunk.drafts, result, counts):
                answer.add(piece)
                pieces.append((answer, piece))
                if not piece.finish:
                    text.tokens.append(piece.token)
        except XpuError as error:
            self._failed += 1
            answer.fail(error)
            self._drop(answer)
            return pieces
        if pieces[-1][1].finish:
            self._finished += 1
            self._drop(answer)
        else:  # guesses that were accepted are in the cache
            self.scheduler.computed(text, len(pieces) - 1)
            self.scheduler.drop_unread(text)
        return pieces

    def _drop(self, owner: BatchAnswer | BatchBeams) -> None:
        """Remove the texts of an answer, or of a search, that is done."""
        for text in owner.texts:
            self.scheduler.remove(text)
            del self._owners[text]
        for answer in owner.answers:
            self._live.pop(answer, None)

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
                del self._live[answer]
                owner = self._owners[answer.text]
                if all(a.done for a in owner.answers):
                    self._drop(owner)

    # ── state ──

    @property
    def pending(self) -> int:
        """Return the number of answers that are not done."""
        return len(self._live)

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
        if not answer.done and answer not in self._live:
            raise InputError(self._who, "answer must be an answer of this batch", got="another's", do=do)

    def close(self) -> None:
        """Cancel all texts and free memory, after the store has the weights. Later calls raise RunError."""
        with self._lock:
            for answer in list(self._live):
                self.cancel(answer)
            self._closed = True
            self.steps.close()
        self._part.kept.wait()

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
