"""Small seeded networks and decoders as a whole, compared with PyTorch in float64. Dropping any part of them changes the results.

float32: at most 1e-5 of the largest score from PyTorch's float64 results, and the same five best classes. bfloat16 and float16: an error of at most
1.25 times PyTorch's own in that dtype. Decoders: prefill and steps within 1e-4 of the largest logit of the reference's float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ...errors import XpuError
from ...protocols import Array
from ...runtime import Executor
from .finding import CaseFinding
from .subject import DeviceUnderTest

__all__ = ["NEEDS", "findings"]

NEEDS = ("torch", "transformers")
USUAL = 20
"""Default number of inputs per network. In 16 bits, the largest error over fewer inputs is not representative."""
PRECISIONS = ("float32", "bfloat16", "float16")
DECODERS = ("qwen2", "llama")


def findings(subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
    """Yield a finding per network and precision, then per decoder. A vendor's engine is checked in float32."""
    from .seeded.networks import MODELS

    for name in MODELS:
        for precision in PRECISIONS if subject.is_native else PRECISIONS[:1]:
            yield _guarded(
                f"{name} {precision}", partial(_network, subject, name, precision, sample or USUAL)
            )
    if subject.is_native:
        for family in DECODERS:
            yield _guarded(f"{family} decoder", partial(_decoder, subject, family))


def _guarded(case: str, work: Callable[[], tuple[str, tuple[str, ...]]]) -> CaseFinding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            difference, kernels = work()
        except XpuError as error:
            return CaseFinding(case, "refused", str(error), f"{type(error).__name__}: {error.what}"[:120])
        except Exception as error:  # a defect is a finding and does not stop the suite
            return CaseFinding(case, "wrong", f"{type(error).__name__}: {error}"[:2000])
    return CaseFinding(case, "wrong" if difference else "right", difference, kernels=kernels)


def far(actual: Array, reference: Array) -> float:
    """Return max|d| / max|ref|."""
    return float(np.abs(actual.astype(np.float64) - reference).max() / np.abs(reference).max())


def _network(subject: DeviceUnderTest, name: str, precision: str, count: int) -> tuple[str, tuple[str, ...]]:
    import torch

    from .seeded import networks as models

    count = count if precision == "float32" else max(count, USUAL)
    feeds = models.inputs(name, count, size="small", seed=3)
    module, _ = models.build(name, "small")
    exact = _by_torch(module, feeds, torch.float64)
    torch_error = far(_by_torch(module, feeds, getattr(torch, precision)), exact)
    module, _ = models.build(name, "small")  # a new module, since the first one's weights were rounded
    scores, kernels = _scores(subject, name, module, feeds, precision)
    error = far(scores, exact)
    limit = 1e-5 if precision == "float32" else 1.25 * torch_error
    if not error <= limit:
        return f"is {error:.3g} of the largest score from float64, PyTorch is {torch_error:.3g}", kernels
    same_classes = (np.argsort(-scores, -1)[..., :5] == np.argsort(-exact, -1)[..., :5]).all()
    if precision == "float32" and not same_classes:
        return "the five best classes differ", kernels
    return "", kernels


def _by_torch(module: Any, feeds: dict[str, Array], dtype: Any) -> Array:
    import torch

    module.to(dtype)
    rows = []
    with torch.inference_mode():
        for i in range(len(next(iter(feeds.values())))):
            tensors = [torch.from_numpy(v[i : i + 1]) for v in feeds.values()]
            inputs = (t.to(dtype) if t.is_floating_point() else t for t in tensors)
            rows.append(module(*inputs).double().numpy())
    return np.concatenate(rows)


def _scores(
    subject: DeviceUnderTest, name: str, module: Any, feeds: dict[str, Array], precision: str
) -> tuple[Array, tuple[str, ...]]:
    """Return the scores of each example, run with batch 1, and the kernels that ran."""
    import torch

    from ...frontends.torch.importer import extract_ir
    from ...policies import ExecutionPolicy

    count = len(next(iter(feeds.values())))
    examples = [[np.ascontiguousarray(v[i : i + 1]) for v in feeds.values()] for i in range(count)]
    if not subject.is_native:
        return _by_session(subject, name, examples), ()
    graph = extract_ir(module, tuple(map(torch.from_numpy, examples[0])), model_name=name)
    arrays = {n: t.detach().numpy() for n, t in (*module.named_parameters(), *module.named_buffers())}
    program = subject.program(graph, policy=ExecutionPolicy(precision=precision), weights=arrays)
    kernels = tuple(dict.fromkeys(c.kernel for c in program.entries[0].plans[0].calls))
    with Executor(program, subject.device) as executor:
        executor.bind({w.name: arrays[w.name] for w in program.weights if w.data is None})
        scores = [executor.run_arrays(example)[0] for example in examples]
    return np.concatenate(scores), kernels


def _by_session(subject: DeviceUnderTest, name: str, examples: list[list[Array]]) -> Array:
    import tempfile
    from pathlib import Path

    from ...inference.session import InferenceSession
    from .seeded.export import export_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(name, Path(folder) / f"{name}.onnx")
        with InferenceSession(path, engine=subject.engine, device=subject.device) as session:
            names = [s.name for s in session.input_info]
            return np.concatenate([session.run(dict(zip(names, e, strict=True)))["scores"] for e in examples])


def _decoder(subject: DeviceUnderTest, family: str) -> tuple[str, tuple[str, ...]]:
    from ...llm import Generator
    from .seeded.decoders import greedy, logits_of, prompt, reference

    model, tokens = reference(family), prompt(21)
    want = logits_of(model, tokens)
    with Generator(
        model, capacity=64, buckets=(16,), target=subject.target, device=subject.device
    ) as generator:
        logits = [np.array(generator.read(tokens[:13])[0])]  # a copy, because the next step overwrites it
        logits += [
            np.array(generator.steps.step([token], [13 + i])[0]) for i, token in enumerate(tokens[13:])
        ]
        error = float(np.abs(np.array(logits) - want[12:]).max() / np.abs(want).max())
        kernels = tuple(dict.fromkeys(c.kernel for c in generator.decode.plan.calls))
        if not error <= 1e-4:
            return f"logits are {error:.3g} of the largest from the reference", kernels
        tokens_generated = list(generator.generate(prompt(9), max_new_tokens=12).tokens)
    return "" if tokens_generated == greedy(
        model, prompt(9), 12
    ) else f"generates {tokens_generated}", kernels
