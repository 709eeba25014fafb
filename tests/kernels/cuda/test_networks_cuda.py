"""Networks and node cases by CUDA kernels: the texts run on a CPU (testing/emulation), everything around them is the real thing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("transformers")

from support.native import compile_native  # noqa: E402

from xpuruntime.llm import Generator  # noqa: E402
from xpuruntime.runtime import Executor  # noqa: E402
from xpuruntime.testing.conformance.onnx_backend.coverage import known_cases  # noqa: E402
from xpuruntime.testing.conformance.onnx_backend.native import check_natively  # noqa: E402
from xpuruntime.testing.conformance.onnx_backend.suite import cases  # noqa: E402
from xpuruntime.testing.conformance.seeded import networks as models  # noqa: E402
from xpuruntime.testing.conformance.seeded.decoders import greedy, logits_of, prompt, reference  # noqa: E402
from xpuruntime.testing.emulation.cuda_host import cuda_host  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
MARKS = [pytest.mark.slow, pytest.mark.conformance]
OFTEN = {"efficientnet_b0", "bert"}


@pytest.mark.sampled(1, group="networks")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in OFTEN else MARKS) for n in models.MODELS])
def test_a_network_gives_pytorch_s_scores(name: str) -> None:
    module, _ = models.build(name, "small")
    feeds = [np.ascontiguousarray(v) for v in models.inputs(name, 1, size="small", seed=3).values()]
    graph = xrt.extract_ir(module, tuple(map(torch.from_numpy, feeds)), model_name=name)
    program = compile_native(
        graph, {s.name: v for s, v in zip(graph.input_specs, feeds, strict=True)}, target=cuda_host()
    )
    arrays = {n: t.detach().numpy() for n, t in (*module.named_parameters(), *module.named_buffers())}
    with Executor(program) as executor, torch.inference_mode():
        executor.bind({w.name: arrays[w.name] for w in program.weights if w.data is None})
        (ours,) = executor.run_arrays(feeds)
        theirs = module(*map(torch.from_numpy, feeds)).numpy()
    assert abs(ours - theirs).max() / abs(theirs).max() <= 1e-5
    assert (np.argsort(-ours, -1)[..., :5] == np.argsort(-theirs, -1)[..., :5]).all()


@pytest.fixture(scope="module", params=["qwen2", pytest.param("llama", marks=MARKS)])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Generator]]:
    model = reference(request.param)
    with Generator(model, capacity=64, buckets=(8,), target=cuda_host()) as ours:
        yield model, ours


@pytest.mark.sampled(1, group="networks")
def test_a_decoder_says_what_the_reference_says(pair: tuple[Any, Generator]) -> None:
    model, ours = pair
    tokens = prompt(13)
    want = logits_of(model, tokens)[-1]
    assert abs(ours.read(tokens)[0] - want).max() / abs(want).max() <= 1e-4
    assert list(ours.generate(prompt(9), max_new_tokens=12).tokens) == greedy(model, prompt(9), 12)


@pytest.mark.sampled(1, group="networks")
@pytest.mark.parametrize(("start", "step"), [(0, 36), (12, 36), (24, 36), pytest.param(0, 1, marks=MARKS)])
def test_node_cases(start: int, step: int) -> None:
    """Of the ONNX suite's node cases every twelfth, all with the marker: as many as on CPUs, none wrong."""
    looser = known_cases("native-cuda")  # an emulated device changes no tolerance
    judged = list(check_natively([*cases("node")][start::step], target=cuda_host(), looser=looser))
    wrong = {j.verdict.case: j.verdict.why for j in judged if j.verdict.outcome == "wrong"}
    right = sum(j.verdict.outcome == "right" for j in judged)
    assert not wrong
    assert right >= 0.84 * len(judged)
