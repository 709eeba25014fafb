"""Whisper: features of audio, the tokens that an answer begins with, and the command line, against transformers."""

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

from xpuruntime.cli.app import app
from xpuruntime.errors import InputError
from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.audio import log_mel
from xpuruntime.llm.decoding.sources import first_tokens
from xpuruntime.llm.decoding.texts import options_of
from xpuruntime.llm.decoding.words import read_words
from xpuruntime.testing.conformance.seeded.encoder_decoders import features, greedy, reference


def opened(source: Any) -> Generator:
    return Generator(open_checkpoint(source), capacity=32, buckets=(16,), device=device_name())


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("kind", ["noise", "tones", "short", "silence"])
def test_features_of_audio_are_those_of_transformers(bins: int, kind: str) -> None:
    from transformers import WhisperFeatureExtractor

    seconds = np.arange(16000 * 3) / 16000
    audio = {
        "noise": 0.1 * np.random.default_rng(0).standard_normal(16000 * 30),
        "tones": 0.4 * np.sin(2 * np.pi * 440 * seconds) + 0.2 * np.sin(2 * np.pi * (300 + 900 * seconds) * seconds),
        "short": np.array([0.5, -0.25]),
        "silence": np.zeros(16000),
    }[kind].astype(np.float32)  # fmt: skip
    extractor = WhisperFeatureExtractor(feature_size=bins)
    want = extractor(audio, sampling_rate=16000, return_tensors="np").input_features[0]
    assert abs(log_mel(audio, bins, 3000) - want).max() < 1e-4


def test_audio_is_answered_as_its_features_are() -> None:
    model = reference("whisper")
    audio = 0.3 * np.random.default_rng(1).standard_normal(64 * 160).astype(np.float32)
    frames = log_mel(audio, 10, 64)
    with opened(model) as ours:
        answer = ours.generate(audio, max_new_tokens=8)
        assert answer == ours.generate(frames, max_new_tokens=8)
        assert list(answer.tokens) == greedy(model, frames, 8)
        for wrong, match in (
            (np.zeros(64 * 160 + 1), r"reads 0\.64 s of audio at once; got 0\.640062 s.*Split"),
            (np.zeros((2, 400)), r"reads audio of one channel; got \(2, 400\).*one channel"),
            ("hello", "reads audio; got 'hello'.*samples at 16000 Hz"),
            (np.array([np.nan]), "all of them finite"),
        ):
            with pytest.raises(InputError, match=match):
                ours.generate(wrong)


SPOKEN = {
    "lang_to_id": {"<|en|>": 20, "<|de|>": 21}, "task_to_id": {"transcribe": 30, "translate": 31}, "no_timestamps_token_id": 40,
    "is_multilingual": True, "return_timestamps": False, "decoder_start_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize("words", [{"language": "de"}, {"language": "<|en|>", "task": "translate"}, {"language": "EN", "task": "transcribe"}])  # fmt: skip
def test_answers_begin_with_language_and_task_as_in_transformers(words: dict[str, str]) -> None:
    from transformers import GenerationConfig

    model = reference("whisper")
    config = GenerationConfig(**SPOKEN, **words)  # type: ignore[arg-type]
    want = model._retrieve_init_tokens(None, 1, config, model.config, 64, {})[0].tolist()
    checkpoint = replace(open_checkpoint(model), generation=SPOKEN)
    assert first_tokens(checkpoint, read_words(words, None, SPOKEN, (), 97), 32) == want


def test_a_language_that_is_not_given_is_detected_as_in_transformers() -> None:
    from transformers import GenerationConfig

    model = reference("whisper")
    languages = {"<|en|>": 85, "<|de|>": 25}
    words = {**SPOKEN, "lang_to_id": languages}
    config = GenerationConfig(**words)  # type: ignore[arg-type]
    checkpoint = replace(open_checkpoint(model), generation=words)
    found = []
    with opened(checkpoint) as ours:
        for seed in range(4):
            source = features(model, seed)
            inputs = torch_of(source)
            want = model._retrieve_init_tokens(inputs, 1, config, model.config, 64, {})[0].tolist()
            assert ours._texts.begun(source, options_of(checkpoint, {}))[0] == want
            found.append(want[1])
            answer = ours.generate(source, max_new_tokens=6).tokens
            assert answer == ours.generate(source, max_new_tokens=6, decoder_input_ids=want).tokens
    assert len(set(found)) > 1, found


def torch_of(source: np.ndarray) -> Any:
    import torch

    return torch.tensor(source)[None]


def test_a_language_that_is_unknown_or_missing_is_refused() -> None:
    checkpoint = replace(open_checkpoint(reference("whisper")), generation=SPOKEN)
    for words, match in (
        ({}, "needs a language.*one of de, en"),
        ({"language": "fr"}, "knows no such language; got fr"),
        ({"language": "de", "task": "sing"}, "knows no such task; got sing.*transcribe, translate"),
    ):
        with pytest.raises(InputError, match=match):
            first_tokens(checkpoint, read_words(words, None, SPOKEN, (), 97), 32)


def test_the_command_line_reads_audio(tmp_path: Path) -> None:
    model = reference("whisper")
    model.save_pretrained(tmp_path)
    sound = (8000 * np.sin(np.arange(9000) / 9)).astype("<i2")
    for rate, file in ((16000, tmp_path / "right.wav"), (8000, tmp_path / "slow.wav")):
        with wave.open(str(file), "wb") as w:
            w.setnchannels(2)
            w.setsampwidth(2)
            w.setframerate(rate)
            w.writeframes(np.stack([sound, sound], 1).tobytes())
    told = ["generate", str(tmp_path), "-n", "8", "--capacity", "32", "--json", "--audio"]
    run = CliRunner().invoke(app, [*told, str(tmp_path / "right.wav")])
    assert run.exit_code == 0, run.output
    frames = log_mel((sound / 32768).astype(np.float32), 10, 64)
    assert json.loads(run.stdout)["tokens"] == greedy(model, frames, 8)
    for file, what in (("slow", "must have 16-bit samples at 16000 Hz"), ("no", "cannot be read as WAV")):
        run = CliRunner().invoke(app, [*told, str(tmp_path / f"{file}.wav")])
        error = json.loads(run.stdout)
        assert (run.exit_code, error["what"]) == (4, what)
        assert error["do"] == f"Convert it: ffmpeg -i {file}.wav -ar 16000 -ac 1 -c:a pcm_s16le OUT.wav"
