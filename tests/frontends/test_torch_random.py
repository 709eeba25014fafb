"""Random draws of PyTorch modules: their distributions on the native engine and on ONNX Runtime, seeds, and divided models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from support.torch_oracle import OfFunction  # noqa: E402

import xpuruntime as xrt  # noqa: E402

N = 20_000
X = torch.linspace(0.1, 0.9, N)
SHARES = torch.tensor([[1.0, 0.0, 3.0], [2.0, 2.0, 4.0]])

DRAWS: dict[str, tuple[Any, float, float]] = {
    # function -> mean and standard deviation of its result
    "rand": (lambda x: torch.rand(N), 0.5, 12**-0.5),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 12**-0.5),
    "rand_like of bfloat16": (lambda x: torch.rand_like(x.bfloat16()).float(), 0.5, 12**-0.5),
    "randn_like": (lambda x: torch.randn_like(x), 0, 1),
    "randn_like of float16": (lambda x: torch.randn_like(x.half()).float(), 0, 1),
    "randint": (lambda x: torch.randint(-3, 5, (N,)).float(), 0.5, (63 / 12) ** 0.5),
    "randint_like": (lambda x: torch.randint_like(x, 7), 3, 2),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1, 2),
    "normal of tensors": (lambda x: torch.normal(x * 0 + 2, x * 0 + 3), 2, 3),
    "normal of a mean": (lambda x: torch.normal(x * 0 + 2, 0.5), 2, 0.5),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 1), 0, 3**-0.5),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.2), 0.2, 0.4),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.2), 0.2, 0.4),
    "bernoulli_ of a tensor": (lambda x: torch.empty_like(x).bernoulli_(x * 0 + 0.2), 0.2, 0.4),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda x: torch.empty_like(x).geometric_(0.25), 4, 12**0.5),
    "log_normal_": (lambda x: torch.empty_like(x).log_normal_(0, 0.25).log(), 0, 0.25),
    "cauchy_": (lambda x: torch.empty_like(x).cauchy_(1, 2).sub(1).div(2).atan(), 0, math.pi / 12**0.5),
    "dropout": (lambda x: torch.nn.functional.dropout(x * 0 + 1, 0.2, training=True), 1, 0.5),
    "multinomial": (
        lambda x: torch.multinomial(SHARES[:1] * 1.0, N, replacement=True).float(), 1.5, 0.75**0.5,
    ),
    "randperm": (lambda x: torch.randperm(N).float(), (N - 1) / 2, N / 12**0.5),
}  # fmt: skip


def close(sample: Any, mean: float, deviation: float) -> bool:
    """Return whether mean and deviation are within 5 standard errors; no distribution here has a kurtosis above 12."""
    sample = np.asarray(sample, np.float64)
    assert sample.shape[-1] == N
    error = deviation * 5 / math.sqrt(N)
    return bool(abs(sample.mean() - mean) < error and abs(sample.std() - deviation) < 2 * error)


@pytest.mark.parametrize("name", DRAWS)
def test_distributions_of_the_native_engine(name: str) -> None:
    function, mean, deviation = DRAWS[name]
    with xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(X,), engine="native") as session:
        assert [r.engine for r in session.plan.regions] == ["native"]
        first, second = (next(iter(session.run([X]).values())) for _ in range(2))
    assert close(function(X), mean, deviation), "the bounds hold for PyTorch"
    assert close(first, mean, deviation)
    assert close(second, mean, deviation)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", DRAWS)
def test_distributions_on_onnx_runtime(name: str, tmp_path: Path) -> None:
    function, mean, deviation = DRAWS[name]
    file = tmp_path / "model.onnx"
    xrt.export_onnx(OfFunction(function).eval(), (X,), file)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    feeds = {i.name: X.numpy() for i in session.get_inputs()}
    first, second = (session.run(None, feeds)[0] for _ in range(2))
    assert close(first, mean, deviation)
    assert close(second, mean, deviation)
    assert not np.array_equal(first, second)


def test_classes_without_replacement() -> None:
    """The most likely class of the first row is drawn first three times of four, and one without probability never."""

    def draw(x: Any) -> Any:
        return torch.multinomial(x, 2)

    rows = SHARES[:1].repeat(4000, 1)
    with xrt.InferenceSession(OfFunction(draw).eval(), example_inputs=(rows,), engine="native") as session:
        drawn = next(iter(session.run([rows]).values())).numpy()
    assert (np.sort(drawn, 1) == [0, 2]).all()
    assert abs((drawn[:, 0] == 2).mean() - 0.75) < 0.035


def numbers(seed: int | None, runs: int = 2, **options: Any) -> list[Any]:
    model = OfFunction(lambda x: torch.rand_like(x)).eval()
    if seed is not None:
        options["policy"] = {
            "version": 1,
            "execution": {"engine_options": {"native": {"seed": seed}}},
        }
    with xrt.InferenceSession(model, example_inputs=(X[:50],), engine="native", **options) as session:
        return [next(iter(session.run([X[:50]]).values())) for _ in range(runs)]


def test_the_seed_decides_the_numbers_of_a_session() -> None:
    none, again, zero, seven = numbers(None), numbers(None), numbers(0), numbers(2**63 - 1)
    assert all(torch.equal(a, b) for a, b in zip(none, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(none, zero, strict=True))
    assert not torch.isclose(none[0], seven[0]).any()
    assert not torch.isclose(none[0], none[1]).any()
    assert all(torch.equal(a, b) for a, b in zip(seven, numbers(2**63 - 1), strict=True))


@pytest.mark.parametrize("seed", ["-1", "1.5", str(2**63), "x"])
def test_seeds_that_are_no_numbers(seed: str) -> None:
    with pytest.raises(xrt.XpuError, match="seed must be a number from 0 to"):
        numbers(seed)  # type: ignore[arg-type]


def test_parts_of_a_divided_model_draw_different_numbers() -> None:
    def body(x: Any) -> Any:
        first = torch.rand_like(x)
        values = torch.linalg.eigvalsh(first)  # PyTorch's operator divides the model
        return first, torch.rand_like(values) + values * 0

    x = torch.zeros(40, 40)
    place = {"random": "native"}
    for seed in (0, 3):
        policy = {
            "version": 1,
            "execution": {"place": place, "engine_options": {"native": {"seed": seed}}},
        }
        results = []
        for _ in range(2):
            with xrt.InferenceSession(OfFunction(body).eval(), example_inputs=(x,), policy=policy) as session:
                assert {"native", "torch"} <= {r.engine for r in session.plan.regions}
                a, b = session.run([x]).values()
                assert not torch.isclose(a[0], b).any()
                results.append((a, b, *session.run([x]).values()))
        assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))
        assert not torch.isclose(results[0][0], results[0][2]).any()


def test_a_draw_in_a_loop_is_refused_with_the_reason() -> None:
    from xpuruntime import ir

    inner = ir.GraphBuilder("body")
    inner.input("i", "int64[]")
    y = inner.input("y", "float32[3]")
    inner.output("next", inner.add(y, inner.rand(size=[3])))
    b = ir.GraphBuilder("g")
    x, count = b.input("x", "float32[3]"), b.input("count", "int64[]")
    b.output("z", b.loop(count, None, x, body=inner.build(), carried=1))
    with pytest.raises(xrt.XpuError, match="draws random numbers in a branch or a loop"):
        xrt.compile(b.build())
