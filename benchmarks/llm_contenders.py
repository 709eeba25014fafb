"""What benchmarks/cpu_llm.py compares: our generator, transformers eager and compiled, OpenVINO GenAI, llama.cpp."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from xpuruntime.llm import Generator


class Contender:
    """Reads a prompt, then takes the following tokens one by one."""

    gives_logits = True

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
        tokens = [int(self.prefill(prompt).argmax())]
        while len(tokens) < count:
            tokens.append(int(self.step(tokens[-1], len(prompt) + len(tokens) - 1).argmax()))
        return tokens

    def prefill_seconds(self, tokens: Sequence[int]) -> float:
        """Of reading these tokens."""
        begun = time.perf_counter()
        self.prefill(tokens)
        return time.perf_counter() - begun

    def decode_seconds(self, tokens: Sequence[int], prompt: int) -> float:
        """Of the tokens after the prompt, one by one."""
        self.prefill(tokens[:prompt])
        begun = time.perf_counter()
        for i, token in enumerate(tokens[prompt:]):
            self.step(token, prompt + i)
        return time.perf_counter() - begun


class Ours(Contender):
    def __init__(self, model: Generator) -> None:
        self.model = model

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        return self.model.read(tokens)[0]

    def step(self, token: int, position: int) -> np.ndarray:
        return self.model.step(token, position)[0]

    def bytes_per_token(self) -> int:
        """Of weights that the calls of one token read: all but the table that tokens are looked up in."""
        plan = self.model.decode.plan
        sizes = {b.name: b.spec.size_bytes or 0 for b in plan.buffers if b.kind.value == "weight"}
        read = {n for c in plan.calls if "embedding" not in c.ops for n in c.inputs if n in sizes}
        return sum(sizes[n] for n in read)


class Theirs(Contender):
    """transformers with its static cache."""

    def __init__(self, model: Any, capacity: int) -> None:
        import torch

        self.torch, self.model, self.capacity = torch, model, capacity
        self.read: Callable[..., Any] = model.forward
        self.decode: Callable[..., Any] = model.forward
        self.cache: Any = None

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        from transformers import StaticCache

        if self.cache is None:
            self.cache = StaticCache(config=self.model.config, max_cache_len=self.capacity)
        with self.torch.inference_mode():
            self.cache.reset()
        return self._run(self.read, list(tokens), 0)

    def step(self, token: int, position: int) -> np.ndarray:
        return self._run(self.decode, [token], position)

    def _run(self, forward: Callable[..., Any], tokens: list[int], start: int) -> np.ndarray:
        torch = self.torch
        with torch.inference_mode():
            place = torch.arange(start, start + len(tokens))
            out = forward(
                input_ids=torch.tensor([tokens]), position_ids=place[None], cache_position=place,
                past_key_values=self.cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            return np.asarray(out.logits[0, -1].float().numpy())


class Compiled(Theirs):
    """The same under torch.compile: a graph for each length of prompt and one for decoding, made before anything is timed.

    seconds: what compiling may take. Raises TimeoutError. ``compile_seconds``: what it took; kernels may have come from PyTorch's own cache.
    """

    def __init__(self, model: Any, capacity: int, lengths: Sequence[int], seconds: float) -> None:
        super().__init__(model, capacity)
        self.torch._dynamo.reset()
        self.read = self.torch.compile(model.forward, dynamic=False)
        self.decode = self.torch.compile(model.forward, dynamic=False)
        begun = time.perf_counter()
        with within(seconds, "compiling"):
            for length in reversed(
                lengths
            ):  # the first comes last: decoding continues from it, as the cache counts itself
                for _ in range(2):  # a cache's first use and its later ones are different graphs
                    self.prefill([1] * length)
            for place in range(lengths[0], lengths[0] + 3):
                self.step(1, place)
        self.compile_seconds = time.perf_counter() - begun


class GenAI(Contender):
    """OpenVINO GenAI on a GGUF file, precision and cache pinned; it continues greedily and times itself."""

    gives_logits = False

    def __init__(self, file: str, dtype: str, threads: int) -> None:
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
        config = self.genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        return self.pipe.generate(self.openvino.Tensor(np.array([prompt], np.int64)), config)

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        return [int(t) for t in self.run(prompt, count).tokens[0]]

    def prefill_seconds(self, tokens: Sequence[int]) -> float:
        return float(self.run(tokens, 1).perf_metrics.get_ttft().mean) / 1e3

    def decode_seconds(self, tokens: Sequence[int], prompt: int) -> float:
        count = len(tokens) - prompt
        return float(self.run(tokens[:prompt], count + 1).perf_metrics.get_tpot().mean) / 1e3 * count


class LlamaCpp(Contender):
    """llama.cpp by its Python package on a GGUF file; keys and values are kept in the type of the weights.

    threads work on both parts. Where the package's own build stops with an illegal instruction or a segmentation fault, build it for the
    processor: ``CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python``.
    """

    def __init__(self, file: str, dtype: str, threads: int, capacity: int) -> None:
        import llama_cpp

        kind = {"float32": 0, "bfloat16": 30}[dtype]  # GGML_TYPE_F32, GGML_TYPE_BF16
        self.model = llama_cpp.Llama(
            file, n_ctx=capacity, n_batch=capacity, n_ubatch=capacity, n_threads=threads, n_threads_batch=threads,
            type_k=kind, type_v=kind, verbose=False,
        )  # fmt: skip

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        self.model.reset()
        return self._run(list(tokens))

    def step(self, token: int, position: int) -> np.ndarray:
        return self._run([token])

    def _run(self, tokens: list[int]) -> np.ndarray:
        self.model.eval(tokens)
        logits = (
            self.model._ctx.get_logits()
        )  # of the last token; the public copy is made of every token or of none
        return np.ctypeslib.as_array(logits, shape=(self.model.n_vocab(),)).copy()


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raises TimeoutError in what takes longer. For the main thread."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{what} took more than {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
