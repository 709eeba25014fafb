"""Wrong arguments of Generator and BatchGenerator: an error of ours that says what to do, never one of Python or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.errors import InternalError, RunError, XpuError  # noqa: E402
from xpuruntime.llm import BatchGenerator, Conversation, Generator  # noqa: E402
from xpuruntime.testing.conformance.seeded.decoders import reference  # noqa: E402

NEVER: tuple[Any, ...] = (
    -1, 1.5, float("nan"), 10**30, b"b", [1, [2]], {"a": 1}, np.zeros((2, 2)), torch.tensor([1, 2]), object(), lambda: 1, ["a"], "a\0b",
    np.array(["a"]), [1.5], (1.5, 2), {"b"}, "\ud800", np.array(2.5), [None],
)  # fmt: skip
"""Values that no argument below accepts."""
TOKENS = (None, True, 0, "", [], np.int64(2), Path("x"), range(100), [-1], [10**6])
NUMBERS = (None, True, "", [], Path("x"), np.arange(3), 64)
FLAGS = (None, 0, 1, "", [], np.arange(3), np.array(3))
WORDS = (
    "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "early_stopping", "seed", "eos_token_id", "suppress_tokens",
    "forced_bos_token_id", "guidance_scale", "typical_p", "num_beam_groups", "no_repeat_ngram_size", "logprobs", "num_beams",
    "length_penalty", "generation_config", "on_piece",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return reference("llama")


@pytest.fixture(scope="module")
def single(model: Any) -> Iterator[Generator]:
    with Generator(model, capacity=64, buckets=(8,)) as generator:
        yield generator


@pytest.fixture(scope="module")
def batch(model: Any) -> Iterator[BatchGenerator]:
    with BatchGenerator(model, capacity=64, texts=2) as generator:
        yield generator


def faults(call: Callable[[Any], object], values: tuple[Any, ...]) -> list[str]:
    """Return what is wrong with the errors of a call with each of these values."""
    found = []
    for value in values:
        try:
            call(value)
        except InternalError as error:
            found.append(f"{value!r}: {error}")
        except XpuError as error:
            if not error.do or len(str(error)) > 1000:
                found.append(f"{value!r}: {error}")
        except Exception as error:
            found.append(f"{value!r}: {type(error).__name__}: {error}")
        else:
            found.append(f"{value!r} is accepted")
    return found


def test_tokens_and_positions(single: Generator) -> None:
    lists = tuple(
        v for v in NEVER if not isinstance(v, torch.Tensor)
    )  # a tensor of whole numbers is a list of tokens
    assert faults(single.read, lists + TOKENS) == []
    assert faults(lambda v: single.read([1, 2], v), (*NEVER, *NUMBERS, 63)) == []
    assert faults(lambda v: single.step(v, 0), (*NEVER, *NUMBERS[:-1], single.config.vocab)) == []
    assert faults(lambda v: single.step(1, v), NEVER + NUMBERS) == []
    assert faults(lambda v: single.receipt(times=v), NEVER + FLAGS) == []
    for call in (single.tokens, single.generate, single.stream, single.encode):
        assert faults(call, (*lists, None, True, 0, "", [])) == []
    assert faults(single.generate_batch, (None, True, 0, "", b"b", [[]], [None], np.array(3))) == []


def test_what_is_accepted_gives_logits(single: Generator) -> None:
    expected = np.array(single.read([1, 2, 3]))
    assert np.array_equal(expected, single.read(np.array([1, 2, 3]), np.int64(0)))
    assert np.array_equal(expected, single.read(torch.tensor([1, 2, 3])))
    assert single.read([1] * 64).shape == single.step(np.int32(1), 63).shape


@pytest.mark.parametrize("word", WORDS)
def test_words(single: Generator, word: str) -> None:
    """A value that a word accepts is none that another one may have: only errors are compared here."""
    wrong = tuple(v for v in NEVER if not (word == "on_piece" and callable(v)))
    calls = (lambda v: single.generate([1, 2], **{word: v}), lambda v: single.stream([1, 2], **{word: v}))
    for call in calls:
        found = [f for f in faults(call, wrong) if not f.endswith(" is accepted")]
        assert found == []


def test_a_generator_while_its_stream_is_active(single: Generator) -> None:
    """The stream has the cache: a run of another text between its steps would change it."""
    stream = single.stream([1, 2], max_new_tokens=3)
    next(stream)
    for call in (lambda: single.read([1]), lambda: single.step(1, 2), single.receipt):
        assert faults(lambda _, c=call: c(), (0,)) == []
    assert len(list(stream)) == 2


def test_after_close(model: Any) -> None:
    single = Generator(model, capacity=64, buckets=(8,))
    batch = BatchGenerator(model, capacity=64, texts=2)
    answer = batch.submit([1, 2])
    for each in (single, batch):
        each.close()
        each.close()
    calls: list[Callable[[], object]] = [
        lambda: single.read([1]),
        lambda: single.step(1, 0),
        lambda: single.generate([1]),
        lambda: list(single.stream([1])),
        lambda: single.generate([1], temperature=1.0),
        lambda: single.generate([1], prompt_lookup_num_tokens=2),
        batch.step,
        lambda: batch.submit([1]),
        lambda: batch.generate([[1]]),
    ]
    for call in calls:
        with pytest.raises(RunError, match="closed") as caught:
            call()
        assert caught.value.do
    assert answer.finish == "cancelled"


def test_answers_of_a_batch(model: Any, batch: BatchGenerator) -> None:
    assert faults(batch.generate, (None, True, 0, "x", b"b", 1.5, [None], [[]], np.array(3), object())) == []
    assert faults(batch.submit, (None, True, 0, "", b"b", [], object(), [[1]])) == []
    for call in (batch.cancel, batch.advance):
        assert faults(call, (*NEVER, None, 0, "")) == []
    with BatchGenerator(model, capacity=64, texts=2) as other:
        answer = other.submit([1, 2])
        assert faults(batch.cancel, (answer,)) == []
        assert not answer.done


OPENING = {
    Generator: ("capacity", "batch", "buckets", "dtype", "device", "target", "threads", "on_progress", "source_capacity"),
    BatchGenerator: (
        "texts", "capacity", "cache_tokens", "cache_bytes", "block_size", "step_tokens", "share_prefixes", "dtype", "device", "target",
        "threads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPENING)
def test_opening(model: Any, kind: type[Any]) -> None:
    for name in OPENING[kind]:
        values = tuple(v for v in NEVER if not (name == "on_progress" and callable(v)))
        assert faults(lambda v, n=name: kind(model, **{n: v}), values) == [], name
    assert faults(lambda v: kind(model, target=v), (0, "", [], {})) == []
    assert faults(lambda v: kind(model, cache_dir=v), (0, 1.5, [], {}, np.arange(3), "a\0b", "\ud800")) == []
    assert faults(kind, NEVER) == []


def test_conversations(single: Generator) -> None:
    assert faults(Conversation, NEVER) == []  # type: ignore[arg-type]
    assert faults(lambda v: Conversation(single, v), NEVER) == []
