"""Times in the text of speech: the rules of transformers for each token, its answers, and segments."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.device_under_test import device_name
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.cli.app import app
from xpuruntime.errors import InputError
from xpuruntime.llm import BatchGenerator, Generator, SpokenSegment, open_checkpoint
from xpuruntime.llm.decoding.texts import options_of
from xpuruntime.llm.decoding.timestamps import Timestamps, segments_of
from xpuruntime.testing.conformance.seeded.decoders import reference as decoder_reference
from xpuruntime.testing.conformance.seeded.encoder_decoders import features, greedy, reference

tokenizers = pytest.importorskip("tokenizers")

SILENT, END, VOCAB = 60, 50, 97
SPOKEN: dict[str, Any] = {
    "no_timestamps_token_id": SILENT, "max_initial_timestamp_index": 20, "decoder_start_token_id": 2, "return_timestamps": False,
}  # fmt: skip


def processor(begin: int, **words: Any) -> Any:
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = GenerationConfig(eos_token_id=END, **{**SPOKEN, **words})
    return WhisperTimeStampLogitsProcessor(config, begin_index=begin)


@pytest.mark.parametrize("latest", [None, 5])
def test_the_tokens_that_may_follow_are_those_of_transformers(latest: int | None) -> None:
    import torch

    rng, times = np.random.default_rng(0), Timestamps(SILENT + 1, END + 1, frozenset([END]), latest)
    rule = processor(2, max_initial_timestamp_index=latest)
    for _ in range(600):
        answer: list[int] = []
        for _ in range(int(rng.integers(0, 6))):  # times that increase, alone and in pairs, between text
            last = max([t for t in answer if t > SILENT], default=SILENT + 1)
            answer.append(
                int(rng.integers(last, min(last + 9, VOCAB)) if rng.random() < 0.5 else rng.integers(0, END))
            )
        logits = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
        logits[SILENT + 1 :] -= 2 * rng.random()
        want = rule(torch.tensor([[2, 3, *answer]]), torch.tensor(logits)[None])[0].numpy()
        got = logits.copy()
        times.constrain(got, answer)
        np.testing.assert_array_equal(got, want, err_msg=str(answer))


def test_a_stop_token_that_is_text_lets_no_text_follow_an_end() -> None:
    checkpoint = open_checkpoint(reference("whisper"))
    config = replace(checkpoint.config, stops=(END,))
    checkpoint = replace(checkpoint, config=config, generation={**checkpoint.generation, **SPOKEN})
    end = SILENT + 5
    for stops, follow in (([13, END], {13, END}), ([13], {13}), ([], set())):
        times = options_of(checkpoint, {"return_timestamps": True, "eos_token_id": stops}).timestamps
        assert times is not None
        logits = np.zeros(VOCAB, np.float32)
        logits[SILENT + 1 :] = -9  # so that times are not demanded
        times.constrain(logits, [SILENT + 1, 3, end])
        allowed = set(np.flatnonzero(np.isfinite(logits)))
        assert {t for t in allowed if t <= END} == follow
        assert {t for t in allowed if t > SILENT} == set(range(end, VOCAB))


def opened(model: Any, kind: Any = Generator, **options: Any) -> Any:
    checkpoint = open_checkpoint(model)
    config = replace(checkpoint.config, stops=(END,))
    checkpoint = replace(checkpoint, config=config, generation={**checkpoint.generation, **SPOKEN})
    return kind(checkpoint, capacity=32, device=device_name(), **options)


def test_answers_are_those_of_transformers() -> None:
    """Alone, in a batch of many texts, and by beams. Without the rules there are other tokens."""
    model = reference("whisper")
    sources = [features(model, seed) for seed in range(3)]
    words = {"max_new_tokens": 12, "return_timestamps": True}
    rules = {"eos_token_id": END, "logits_processor": [processor(1)]}
    with opened(model, buckets=(16,), batch=3) as ours, opened(model, BatchGenerator, texts=3) as batch:
        answers = ours.generate(sources, **words)
        for source, answer in zip(sources, answers, strict=True):
            want = [t for t in greedy(model, source, 12, **rules) if t != END]
            assert list(answer.tokens) == want
            assert answer.tokens[0] > SILENT
            assert answer.tokens != ours.generate(source, max_new_tokens=12).tokens
            assert answer.segments[0].start == pytest.approx(0.02 * (answer.tokens[0] - SILENT - 1))
            assert [t for s in answer.segments for t in s.tokens] == [t for t in answer.tokens if t <= SILENT]
            beams = ours.generate(source, num_beams=3, **words)
            want = greedy(model, source, 12, num_beams=3, **rules)
            assert list(beams.tokens) == [t for t in want if t != END][: len(beams.tokens)]
            assert beams.segments
        together = batch.generate(sources, **words)
        assert [(a.tokens, a.segments) for a in together] == [(a.tokens, a.segments) for a in answers]


def test_segments_of_an_answer() -> None:
    times = Timestamps(100, 91)

    def decode(tokens: Any) -> str:
        return "".join(chr(97 + t) for t in tokens)

    got = segments_of([100, 1, 2, 150, 150, 3, 200, 250, 4], times, decode)
    assert got == (
        SpokenSegment(0.0, 1.0, "bc", (1, 2)),
        SpokenSegment(1.0, 2.0, "d", (3,)),
        SpokenSegment(3.0, None, "e", (4,)),
    )
    got = segments_of([100, 1, 150, 2, 200], times, decode)  # the second segment has no start
    assert [(s.start, s.end) for s in got] == [(0.0, 1.0), (1.0, 2.0)]
    assert segments_of([100, 100], times, decode) == ()
    assert segments_of([1, 110], times, decode) == (SpokenSegment(0.0, pytest.approx(0.2), "b", (1,)),)


def test_the_command_prints_a_line_for_each_segment(tmp_path: Path) -> None:
    model = reference("whisper")
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({**SPOKEN, "eos_token_id": END}))
    words = tokenizers.models.WordLevel({f"w{t}": t for t in range(VOCAB)}, "w0")
    tokenizers.Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    with wave.open(str(tmp_path / "sound.wav"), "wb") as w:
        w.setparams((1, 2, 16000, 0, "NONE", ""))
        w.writeframes((8000 * np.sin(np.arange(9000) / 9)).astype("<i2").tobytes())
    told = ["generate", str(tmp_path), "-n", "12", "--capacity", "32", "--audio", str(tmp_path / "sound.wav")]
    run = CliRunner().invoke(app, [*told, "--return-timestamps", "--json"])
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    shown = CliRunner().invoke(app, [*told, "--return-timestamps"]).stdout.splitlines()
    assert len(shown) == len(document["segments"]) > 0
    for line, segment in zip(shown, document["segments"], strict=True):
        start, end = segment["start"], segment["end"]
        until = " " * 6 if end is None else f"{end:6.2f}"
        assert line == f"{start:6.2f} - {until}  {segment['text']}"
    plain = CliRunner().invoke(app, told).stdout
    streamed = CliRunner().invoke(app, [*told, "--return-timestamps", "--stream"]).stdout.splitlines()
    assert " - " not in plain
    assert streamed == [document["text"], *shown]
    chat = CliRunner().invoke(app, ["chat", str(tmp_path), "--return-timestamps"])
    assert chat.exit_code == 2, chat.output


def test_models_that_write_no_times_say_so() -> None:
    for checkpoint in (open_checkpoint(decoder_reference("qwen2")), open_checkpoint(reference("whisper"))):
        assert options_of(checkpoint, {"return_timestamps": False}).timestamps is None
        with pytest.raises(InputError, match="writes no times, which return_timestamps asks for"):
            options_of(checkpoint, {"return_timestamps": True})
    spoken = replace(open_checkpoint(reference("whisper")), generation=SPOKEN)
    with pytest.raises(InputError, match="does not support return_timestamps with a grammar; got regex"):
        options_of(spoken, {"return_timestamps": True, "regex": "a"})
    with pytest.raises(InputError, match="invalid return_timestamps; got 'word'"):
        options_of(spoken, {"return_timestamps": "word"})
