"""Generator: prompts go on, token by token, on the native engine.

    model = Generator("Qwen2.5-0.5B-Instruct", capacity=4096)
    print(model.generate("The sea is", max_new_tokens=64).text)
    for piece in model.stream("The sea is", temperature=0.7, top_p=0.9, seed=1):
        print(piece.text, end="", flush=True)

A prompt is read in pieces of the prefill lengths, then one token at a time. All entry points write one KV cache where it lies; a step
allocates nothing on the device. One text at a time: calls from several threads take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError
from ..program.program import CompiledProgram
from ..protocols import Array
from ..runtime import Executor, load_weights
from ..types import DType
from .build import BUCKETS, DECODE, build_program, decoder_graphs, prefill_name, rotary_tables
from .checkpoint import open_checkpoint
from .sampling import Sampling, pick
from .text import TextStream

__all__ = ["Completion", "Generator", "Piece", "Prompt", "generate"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text, its tokens, or a conversation (``[{"role": "user", "content": "..."}]``) for the model's chat template."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as it comes: ``text`` is what it completes (perhaps nothing yet); ``finish`` says why it is the last, or is empty."""

    token: int
    text: str
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came out. ``finish``: ``stop`` (a stop token, which is not part of it), ``length`` or ``capacity``. Times in seconds."""

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    finish: str
    prefill_s: float = field(compare=False)
    decode_s: float = field(compare=False)

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token comes from the prefill and does not count."""
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s > 0 and len(self.tokens) > 1 else 0.0


class Generator:
    """A language model, ready to go on with texts.

    model:    a checkpoint's folder, a GGUF file, or a transformers model.
    capacity: positions of the KV cache: prompt and answer together. By default 2,048, or what the model knows if that is less.
    dtype:    what is computed in; by default the checkpoint's own.
    buckets:  prefill lengths. policy, target: as for ``compile``. threads: as for ``Executor``.

    Raises ModelError, BuildError, PolicyError.
    """

    def __init__(
        self,
        model: Any,
        *,
        capacity: int | None = None,
        dtype: DType | str | None = None,
        buckets: Sequence[int] = BUCKETS,
        policy: Any = None,
        target: Any = "cpu",
        threads: int | None = None,
    ) -> None:
        self.checkpoint = open_checkpoint(model)
        self.config = config = self.checkpoint.config
        self.dtype = DType(dtype) if dtype is not None else config.dtype
        self.capacity = capacity or min(config.max_positions, 2048)
        graphs = decoder_graphs(
            config,
            capacity=self.capacity,
            buckets=buckets,
            dtype=self.dtype,
            stored=self.checkpoint.specs,
            files=self.checkpoint.files,
            name=self.checkpoint.name,
        )
        self.program: CompiledProgram = build_program(graphs, target=target, policy=policy)
        tables = rotary_tables(config, self.capacity, self.dtype)
        self.weights = load_weights(_Joined(tables, self.checkpoint.arrays), self.program)
        self.decode = Executor(self.program, threads=threads, entry=DECODE, contexts=1)
        self.states = self.decode.states
        lengths = sorted(int(e.name.rpartition("_")[2]) for e in self.program.entries if e.name != DECODE)
        self.prefill = {
            n: Executor(self.program, threads=threads, entry=prefill_name(n), contexts=1, states=self.states)
            for n in lengths
        }
        for executor in (self.decode, *self.prefill.values()):
            executor.bind(self.weights)
        self._turn = threading.Lock()
        self._holder: int | None = None  # the thread whose text this is
        self._token = np.zeros(1, np.int64)
        self._logits = np.zeros((1, config.vocab), self.dtype.numpy)

    # ── texts ──

    def tokens(self, prompt: Prompt) -> list[int]:
        """A prompt as tokens. Raises InputError for one that is empty, unknown to the model, or needs a tokenizer that is not there."""
        who = f"language model {self.checkpoint.name}"
        text = self.checkpoint.text
        found: list[int]
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], Mapping)):
            if text is None:
                raise InputError(who, "has no tokenizer", do="Give tokens, or a folder with tokenizer.json.")
            found = text.encode(prompt) if isinstance(prompt, str) else text.chat(list(prompt))  # type: ignore[arg-type]
        else:
            found = [int(t) for t in prompt]  # type: ignore[arg-type]
        if not found:
            raise InputError(who, "needs a prompt of one token or more")
        bad = [t for t in found if not 0 <= t < self.config.vocab]
        if bad:
            raise InputError(who, f"has tokens from 0 to {self.config.vocab - 1}", got=bad[0])
        if len(found) > self.capacity:
            do = f"Shorten the prompt, or give capacity={len(found)} or more."
            raise InputError(who, f"has room for {self.capacity} tokens", got=len(found), do=do)
        return found

    def generate(
        self, prompt: Prompt, *, on_piece: Callable[[str], object] | None = None, **options: Any
    ) -> Completion:
        """The whole answer. ``on_piece`` is called with each piece of text as it comes. Other options as ``stream``."""
        tokens, begun = self.tokens(prompt), time.perf_counter()
        first = begun
        made: list[int] = []
        parts: list[str] = []
        finish = ""
        for piece in self.stream(tokens, **options):
            if not made and not finish:
                first = time.perf_counter()
            parts.append(piece.text)
            if on_piece is not None and piece.text:
                on_piece(piece.text)
            finish = piece.finish
            if finish != "stop":
                made.append(piece.token)
        ended = time.perf_counter()
        return Completion(tuple(made), "".join(parts), len(tokens), finish, first - begun, ended - first)

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Completion]:
        """One answer per prompt, each as if alone; prompts have lengths of their own. Options as ``stream``."""
        return [self.generate(p, **options) for p in prompts]

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
        """Tokens as they come. Greedy unless ``temperature`` is given.

        stops: tokens that end the answer; by default the model's own. A seed makes what is drawn the same every time.
        Raises InputError.
        """
        tokens = self.tokens(prompt)
        sampling = Sampling(temperature, top_k, top_p, seed)
        ends = frozenset(self.config.stops if stops is None else stops)
        if max_new_tokens < 1:
            raise InputError("generation", "makes one token or more", got=max_new_tokens)
        return self._stream(tokens, max_new_tokens, sampling, ends)

    def _stream(
        self, tokens: list[int], most: int, sampling: Sampling, ends: frozenset[int]
    ) -> Iterator[Piece]:
        me = threading.get_ident()
        if self._holder == me:  # waiting for oneself would be for ever
            do = "Read it to its end, or call its close()."
            raise InputError(
                f"language model {self.checkpoint.name}", "is in the middle of another stream", do=do
            )
        with self._turn:
            self._holder = me
            try:
                yield from self._pieces(tokens, most, sampling, ends)
            finally:
                self._holder = None

    def _pieces(
        self, tokens: list[int], most: int, sampling: Sampling, ends: frozenset[int]
    ) -> Iterator[Piece]:
        random = sampling.generator()
        shown = None if self.checkpoint.text is None else TextStream(self.checkpoint.text)
        self.read(tokens)
        for made in range(1, most + 1):
            token = int(self._token[0]) if sampling.greedy else pick(self._logits[0], sampling, random)
            at = len(tokens) + made - 1  # where this token would stand
            finish = "stop" if token in ends else "length" if made == most else ""
            finish = finish or ("capacity" if at >= self.capacity else "")
            text = "" if shown is None or finish == "stop" else shown.add(token)
            if finish and shown is not None:
                text += shown.end()
            yield Piece(token, text, finish)
            if finish:
                return
            self.step(token, at)

    # ── steps ──

    def read(self, tokens: Sequence[int], start: int = 0) -> Array:
        """Prefill: tokens from position ``start`` on enter the cache; gives the logits [1, vocab] of what follows (valid until the next step)."""
        at = 0
        while at < len(tokens):
            left = len(tokens) - at
            length = self._bucket(left)
            if length == 1:
                self.step(tokens[at], start + at)
                at += 1
                continue
            count = min(length, left)
            # Rows beyond the text repeat its last token where it stands, and so write what is there already.
            rows = np.minimum(np.arange(length), count - 1)
            given = [
                np.asarray(tokens[at : at + count], np.int64)[rows][None],
                (start + at + rows)[None].astype(np.int64),
                np.array([count - 1], np.int64),
            ]
            self.prefill[length].run_arrays(given, [self._token, self._logits])
            at += count
        return self._logits

    def step(self, token: int, position: int) -> Array:
        """Decode: one token enters the cache; gives the logits [1, vocab] of what follows (valid until the next step)."""
        given = [np.array([[token]], np.int64), np.array([[position]], np.int64), np.zeros(1, np.int64)]
        self.decode.run_arrays(given, [self._token, self._logits])
        return self._logits

    def _bucket(self, left: int) -> int:
        """The prefill length for so many tokens: the least that takes them all, unless most of it would stand empty."""
        if left == 1:
            return 1
        lengths = list(self.prefill)
        fits = next((n for n in lengths if n >= left), lengths[-1])
        below = [n for n in lengths if n <= left]
        return below[-1] if below and fits > 2 * left else fits

    def close(self) -> None:
        """Give memory back; later calls raise RunError."""
        for executor in (self.decode, *self.prefill.values()):
            executor.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Joined(Mapping[str, Array]):
    """Arrays of two mappings by name; each is made when it is asked for."""

    def __init__(self, first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, name: str) -> Array:
        return (self._first if name in self._first else self._second)[name]

    def __iter__(self) -> Iterator[str]:
        yield from {**dict.fromkeys(self._first), **dict.fromkeys(self._second)}

    def __len__(self) -> int:
        return len({*self._first, *self._second})


def generate(model: Any, prompt: Prompt, **options: Any) -> Completion:
    """One answer of a model: a checkpoint's folder, a GGUF file, a transformers model, or a Generator (keep one for more than one answer).

    Options: those of ``Generator`` (capacity, dtype, buckets, policy, target, threads) and of ``Generator.stream``.
    """
    own = {
        k: options.pop(k)
        for k in ("capacity", "dtype", "buckets", "policy", "target", "threads")
        if k in options
    }
    if isinstance(model, Generator):
        if own:
            raise InputError("generate", "takes these only with a model to open", got=", ".join(own))
        return model.generate(prompt, **options)
    with Generator(model, **own) as opened:
        return opened.generate(prompt, **options)
