"""Constrained output: random weights sample bytes at random, so what matches was made to match."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.errors import InputError, RunError
from xpuruntime.llm import BatchGenerator, Generator
from xpuruntime.llm.decoding.grammar import Grammars
from xpuruntime.testing.conformance.seeded.decoders import reference

from .test_texts import save_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog", "none"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(folder)
    reference("qwen2", vocab_size=257, eos_token_id=256).save_pretrained(folder)
    with Generator(folder, capacity=160, buckets=(16,), batch=20) as generator:
        yield generator


@pytest.mark.sampled(one_in=2)
def test_a_hundred_texts_of_a_schema_parse(ours: Generator) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    texts = ["Describe a pet."] * 100
    words = {"temperature": 1.5, "seed": list(range(100)), "max_new_tokens": 140}
    free = ours.generate(texts[:20], **{**words, "seed": list(range(20))})
    assert not any(a.text.startswith("{") and a.text.endswith("}") for a in free)
    answers = ours.generate(texts, json_schema=SCHEMA, **words)
    assert {a.finish for a in answers} == {"stop"}
    values = [json.loads(a.text) for a in answers]
    for value in values:
        jsonschema.validate(value, SCHEMA)
    assert len({json.dumps(v) for v in values}) == 100
    assert {v["kind"] for v in values} == {"cat", "dog", "none"}


def test_texts_with_and_without_a_grammar_in_one_batch(ours: Generator) -> None:
    """Texts, stop strings and grammars are each text's own, also in a cache that preempts."""
    words: list[dict[str, Any]] = [
        {"json_schema": SCHEMA, "max_new_tokens": 100},
        {"regex": r"[0-9]{3}-[a-f]{2}"},
        {"stop_strings": ["e", "7"], "max_new_tokens": 60},
        {"max_new_tokens": 30},
    ]
    words = [{"temperature": 1.5, "seed": i, **w} for i, w in enumerate(words * 3)]
    want = [ours.generate("Describe a pet.", **w) for w in words]
    with BatchGenerator(ours.checkpoint, texts=8, capacity=160, cache_tokens=176, block_size=8) as batch:
        answers = [batch.submit("Describe a pet.", **w) for w in words]
        streamed = ["".join(p.text for p in a) for a in answers]
        got = [a.result() for a in answers]
        assert batch.statistics().preemptions > 0
    assert [(a.text, a.tokens, a.finish) for a in got] == [(w.text, w.tokens, w.finish) for w in want]
    assert streamed == [w.text for w in want]
    assert {a.finish for a in got[::4]} == {"stop"}


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]{2}"}, r"[0-9]{3}-[a-f]{2}"),
        ({"grammar": 'start: "yes" | "no" | NUMBER\nNUMBER: /[1-9][0-9]{0,3}/'}, r"yes|no|[1-9][0-9]{0,3}"),
        (
            {"json_schema": json.dumps({"type": "array", "items": {"const": 7}, "maxItems": 4})},
            r"\[(7(,7){0,3})?\]",
        ),
    ],
)
def test_texts_match_what_is_asked_for(ours: Generator, words: dict[str, str], pattern: str) -> None:
    for drawn in ({"temperature": 2.0, "n": 10, "seed": 1}, {}):
        answers = ours.generate(["x"], max_new_tokens=60, **drawn, **words)
        assert all(re.fullmatch(pattern, a.text) for a in answers), [a.text for a in answers]
        assert {a.finish for a in answers} == {"stop"}
    pieces = list(ours.stream("x", temperature=2.0, seed=3, **words))
    assert re.fullmatch(pattern, "".join(p.text for p in pieces))


def test_the_command_line_takes_a_schema(ours: Generator, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    folder = str(ours.checkpoint.folder)
    words = [
        "--temperature",
        "1.5",
        "--seed",
        "3",
        "-n",
        "140",
        "--capacity",
        "160",
        "--json-schema",
        str(tmp_path / "schema.json"),
    ]
    done = CliRunner().invoke(app, ["generate", folder, "-p", "x", "--no-chat", "--json", *words])
    assert done.exit_code == 0, done.output
    value = json.loads(json.loads(done.stdout)["text"])
    assert set(value) == set(SCHEMA["required"])
    missing = CliRunner().invoke(app, ["generate", folder, "-p", "x", "--grammar", str(tmp_path / "none")])
    assert missing.exit_code == 4
    assert "cannot read" in missing.output


def test_a_text_that_is_cut_says_so(ours: Generator) -> None:
    assert ours.generate("x", regex="[a-z]{50}", max_new_tokens=9).finish == "length"


def test_a_stop_token_that_is_text_does_not_end_what_does_not_match(ours: Generator) -> None:
    letter = ours.tokens("a")[0]
    assert ours.generate("x", regex="b{2}a?", eos_token_id=letter, max_new_tokens=9).text == "bb"
    with pytest.raises(RunError, match="grammars leave a token"):
        ours.generate("x", regex="a{3}", eos_token_id=letter)


def test_grammars_that_cannot_be_followed_are_refused(ours: Generator) -> None:
    for words, message in (
        ({"regex": "("}, "has an invalid regex"),
        ({"grammar": "start: nothing"}, "has an invalid grammar"),
        ({"json_schema": {"type": "nonsense"}}, "has an invalid json_schema"),
        ({"json_schema": "{"}, "has an invalid json_schema"),
        ({"json_schema": {}, "eos_token_id": []}, "needs a stop token"),
    ):
        with pytest.raises(InputError, match=message):
            ours.generate("x", **words)
    untold = Grammars(None, 257)
    with pytest.raises(InputError, match="needs a tokenizer"):
        untold.matcher(("regex", "a"), frozenset([256]))


def test_without_the_package_the_error_names_it(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    reference("qwen2", vocab_size=257, eos_token_id=256).save_pretrained(tmp_path)
    program = """
import sys
sys.modules["llguidance"] = None
import xpuruntime as xrt
from xpuruntime.errors import UnavailableError
with xrt.Generator(sys.argv[1], capacity=32, buckets=(16,)) as model:
    try:
        model.generate("x", regex="a")
    except UnavailableError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "[constrained output] needs the package llguidance" in done.stdout, done.stderr
    assert "pip install 'xpuruntime[grammar]'" in done.stdout
