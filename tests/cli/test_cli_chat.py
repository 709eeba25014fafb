"""``xpu chat``: turns through a pipe and on a terminal, its commands, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import InputError
from xpuruntime.llm import DecoderConfig, Generator
from xpuruntime.llm.conversation import Conversation
from xpuruntime.storage.tensor_files import write_safetensors

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

CONFIG = {
    "model_type": "llama", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "float32",
    "hidden_act": "silu",
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded checkpoint over bytes, with a chat template."""
    made = tmp_path_factory.mktemp("chat")
    (made / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(3)
    shapes = DecoderConfig.from_json(CONFIG).shapes()
    write_safetensors(
        {n: rng.standard_normal(s, np.float32) * np.float32(0.4) for n, s in shapes.items()},
        made / "model.safetensors",
    )
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return made


def talk(folder: Path, lines: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with lines from a pipe."""
    told = [sys.executable, "-m", "xpuruntime", "chat", str(folder), "--capacity", "512", "-n", "12", *words]
    return subprocess.run(
        told, input=lines, capture_output=True, text=True, timeout=120, check=False, errors="replace"
    )


def test_a_conversation_goes_through_the_template(folder: Path) -> None:
    with Generator(folder, capacity=512) as model:
        spoken = Conversation(model, "Be brief.")
        first = "".join(p.text for p in spoken.ask("one", max_new_tokens=8))
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
        assert first == model.generate(asked, max_new_tokens=8).text
        asked += [{"role": "assistant", "content": first}, {"role": "user", "content": "two"}]
        second = "".join(p.text for p in spoken.ask("two", max_new_tokens=8))
        assert second == model.generate(asked, max_new_tokens=8).text
        assert spoken.messages == [*asked, {"role": "assistant", "content": second}]
        pieces = spoken.ask("three", max_new_tokens=200)
        part = next(p.text for p in pieces if p.text)
        pieces.close()  # type: ignore[attr-defined]
        assert spoken.messages[-2]["content"] == "three"
        assert spoken.messages[-1]["content"].endswith(part)
        spoken.reset()
        assert spoken.messages == asked[:1]
        with pytest.raises(InputError, match="has a capacity of 512 tokens"):
            list(spoken.ask("x" * 600))
        assert spoken.messages == asked[:1]


@pytest.mark.sampled(2, group="processes")
def test_lines_of_a_pipe_are_messages(folder: Path) -> None:
    done = talk(folder, "one\n\ntwo\n/reset\none\n/exit\nnever\n", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    texts = [t["text"] for t in document["turns"]]
    assert len(texts) == 3
    assert texts[0] == texts[2]  # after a reset the same question has the same answer
    assert [m["role"] for m in document["messages"]] == ["user", "assistant"]
    streamed = talk(folder, "one\n/what\ntwo\n")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout == f"{texts[0]}\n{texts[1]}\n"
    assert "/reset: begin a new conversation" in streamed.stderr
    assert "\x1b" not in streamed.stderr  # no progress line without a terminal


@pytest.mark.sampled(2, group="processes")
def test_errors_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    long = talk(folder, "x" * 600 + "\n")
    assert long.returncode != 0
    assert "has a capacity of 512 tokens" in long.stderr
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(folder / name)
    bare = talk(tmp_path, "one\n")
    assert bare.returncode != 0
    assert "has no chat template" in bare.stderr
    beams = talk(folder, "one\n", "--num-beams", "2")
    assert "shows one answer without beam search" in beams.stderr


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.pid, self.handle = pty.fork()
        if not self.pid:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs in its background
            told = [sys.executable, "-m", "xpuruntime", "chat", str(folder), *words]
            os.execve(sys.executable, told, {**os.environ, "TERM": "dumb"})
        self.seen = ""

    def until(self, text: str) -> None:
        """Read until a text is shown. What was shown after it is for the next call."""
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.handle], [], [], 1)[0]:
                self.seen += os.read(self.handle, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def more(self) -> None:
        """Read until anything more is shown."""
        end = time.monotonic() + 60
        while not self.seen:
            assert time.monotonic() < end
            if select.select([self.handle], [], [], 1)[0]:
                self.seen += os.read(self.handle, 65536).decode(errors="replace")

    def say(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def close(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.handle)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.sampled(2, group="processes")
def test_ctrl_c_stops_the_answer_and_not_the_program(folder: Path) -> None:
    there: Any = Terminal(folder, "--capacity", "4096", "-n", "4000", "--temperature", "1.5")
    try:
        there.until("> ")
        there.say("one\n")
        there.until("one\r\n")
        there.more()  # the answer has begun, and takes longer
        os.kill(there.pid, signal.SIGINT)
        there.until("the answer was stopped")
        there.until("> ")
        there.say("two\n")  # the program goes on
        there.until("two\r\n")
        there.more()
        os.kill(there.pid, signal.SIGINT)
        there.until("the answer was stopped")
        there.until("> ")
        there.say("/exit\n")
        assert there.close() == 0
    except BaseException:
        os.kill(there.pid, signal.SIGKILL)
        raise
