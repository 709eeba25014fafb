"""A saved decoder runs where nothing but the runtime is: no torch, no transformers, no compiler, only the file and the checkpoint's weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from xpuruntime.llm import Generator
from xpuruntime.testing.conformance.seeded.decoders import greedy, prompt, reference

RUN = """
import sys

class Blocked:
    names = ("torch", "transformers", "onnx", "xpuruntime.compiler", "xpuruntime.passes", "xpuruntime.kernels", "xpuruntime.codegen", "xpuruntime.ir", "xpuruntime.llm")
    def find_spec(self, name, path=None, target=None):
        if name in self.names or name.startswith(tuple(n + "." for n in self.names)):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

import json
import numpy as np
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime import Executor, load_weights

program = CompiledProgram.load(sys.argv[1])
weights = load_weights(sys.argv[2], program)
tokens, count = json.loads(sys.argv[3]), int(sys.argv[4])
decode = Executor(program, entry="decode")
prefill = Executor(program, entry="prefill_8", states=decode.states)
for executor in (decode, prefill):
    executor.bind(weights)
token, logits = prefill.run_arrays([np.array([tokens]), np.arange(8)[None], np.array([7])])
made = [int(token[0])]
while len(made) < count:
    place = len(tokens) + len(made) - 1
    token, logits = decode.run_arrays([np.array([[made[-1]]]), np.array([[place]]), np.array([0])])
    made.append(int(token[0]))
print(json.dumps(made))
"""


def test_a_saved_decoder_needs_its_file_and_the_weights_only(tmp_path: Path) -> None:
    import json

    model = reference("llama")
    model.save_pretrained(tmp_path / "model")
    tokens = prompt(8)
    with Generator(tmp_path / "model", capacity=64, buckets=(8,)) as ours:
        ours.program.save(tmp_path / "decoder.npubin")
    weights = tmp_path / "model" / "model.safetensors"
    given = [str(tmp_path / "decoder.npubin"), str(weights), json.dumps(tokens), "20"]
    clean = {**os.environ, "PATH": str(tmp_path)}  # no C++ compiler either
    done = subprocess.run(
        [sys.executable, "-c", RUN, *given], capture_output=True, text=True, env=clean, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == greedy(model, tokens, 20)
