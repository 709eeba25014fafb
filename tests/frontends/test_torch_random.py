"""Random draws of PyTorch modules: their distributions on the native engine, in automatic selection and on ONNX Runtime, seeds, and divided models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from support.native import run_native  # noqa: E402
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
def test_automatic_selection_leaves_draws_to_pytorch(name: str) -> None:
    """PyTorch's seed gives PyTorch's numbers, as in eager mode, unless the draw is written to ONNX."""
    function, mean, deviation = DRAWS[name]
    with xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(X,)) as session:
        engines = {r.engine for r in session.plan.regions}
        torch.manual_seed(3)
        first = next(iter(session.run([X]).values()))
    assert close(first, mean, deviation)
    if name in EXPORTED:
        assert engines == {"onnxruntime"}
        return
    assert "torch" in engines
    assert "onnxruntime" not in engines
    torch.manual_seed(3)
    torch.testing.assert_close(first, function(X))


EXPORTED = ("rand", "bernoulli", "dropout")


@pytest.mark.parametrize("name", [n for n in DRAWS if n not in EXPORTED])
def test_draws_that_are_not_written_to_onnx(name: str) -> None:
    function = DRAWS[name][0]
    with pytest.raises(xrt.XpuError, match="draws random numbers, which ONNX Runtime does not") as error:
        xrt.export_onnx(OfFunction(function).eval(), (X,))
    assert "torch_oracle.py:" in str(error.value), "the line of the module"
    assert "give the numbers as an input, or run it natively" in str(error.value)
    with pytest.raises(xrt.XpuError, match="draws random numbers, which ONNX Runtime does not"):
        xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(X,), engine="onnxruntime")


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.rand(4) + x])
def test_draws_in_branches_are_not_written_to_onnx(draw: Any) -> None:
    def body(x: Any) -> Any:
        return torch.cond(x.sum() > 0, draw, lambda x: x + 1, (x,))

    with pytest.raises(xrt.XpuError, match="draws random numbers, which ONNX Runtime does not") as error:
        xrt.export_onnx(OfFunction(body).eval(), (torch.ones(4),))
    assert "natively" not in str(error.value)


def test_pytorch_draws_every_number_of_a_divided_model() -> None:
    """A draw that ONNX has, in a model of which PyTorch computes a part, is PyTorch's as well. Dropout in eval mode is no draw."""

    def body(x: Any) -> Any:
        y = torch.nn.functional.dropout(torch.rand_like(x), 0.5, training=True) + torch.rand(40)
        return torch.nn.functional.dropout(y, 0.5, training=False) * 2

    x = torch.zeros(40, 40)
    results = []
    with xrt.InferenceSession(OfFunction(body).eval(), example_inputs=(x,)) as session:
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            results.append(next(iter(session.run([x]).values())))
    first, again, other = results
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_two_draws_and_several_threads() -> None:
    """Draws of one graph differ, also those of the same kind and shape. Threads do not change the numbers."""
    kinds = (torch.rand_like, torch.randn_like, lambda x: torch.empty_like(x).exponential_())

    def body(x: Any) -> Any:
        return tuple(kind(x) for kind in kinds for _ in range(2))

    results = []
    for threads in (1, 3):
        with xrt.InferenceSession(
            OfFunction(body).eval(), example_inputs=(X,), engine="native", threads=threads
        ) as session:
            results.append([[*session.run([X]).values()] for _ in range(2)])
    for one, several in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))
    for first, second in ((r[i], r[i + 1]) for r in results[0] for i in (0, 2, 4)):
        assert (first == second).float().mean() < 0.001
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(N)


EXTREMES: dict[str, tuple[Any, float]] = {
    # function -> the largest finite value that the least uniform number may give
    "exponential_": (lambda x: torch.empty_like(x).exponential_(), 60),
    "geometric_": (lambda x: torch.empty_like(x).geometric_(0.5), 60),
    "gumbel": (lambda x: -torch.empty_like(x).exponential_().log(), 60),
    "cauchy_": (lambda x: torch.empty_like(x).cauchy_().abs() + 1e-3, 1e17),
}


@pytest.mark.parametrize("bits", ["zeros", "ones"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_uniform_numbers(name: str, dtype: Any, bits: str) -> None:
    """The least and the largest uniform number give values of the support: neither infinite, nor NaN, nor -0."""
    function, most = EXTREMES[name]
    results = at_extremes(function, torch.zeros(8, dtype=dtype), bits)
    for y in results:
        assert np.isfinite(y).all()
        assert (np.abs(y) <= most).all()
        if name == "gumbel":
            continue
        assert not np.signbit(y).any()
        assert (y >= (1 if name == "geometric_" else 1e-20)).all()


@pytest.mark.parametrize("bits", ["zeros", "ones"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_extreme_uniform_numbers_never_draw_impossible_classes(dtype: Any, bits: str) -> None:
    weights = torch.tensor([[0, 0, 3, 0, 1, 0]], dtype=dtype)
    for y in at_extremes(lambda x: torch.multinomial(x, 2), weights, bits):
        assert sorted(y[0]) == [2, 4]
    for y in at_extremes(lambda x: torch.multinomial(x, 5, replacement=True), weights, bits):
        assert (y == (2 if bits == "zeros" else 4)).all()


def at_extremes(function: Any, x: Any, bits: str) -> list[Any]:
    """Return the results of the interpreter and of the native engine, with random bits that are all 0 or all 1."""
    from xpuruntime import ir
    from xpuruntime.ir import interp
    from xpuruntime.passes import expand_random

    graph = expand_random.run(xrt.extract_ir(OfFunction(function).eval(), (x,)))

    def fixed(editor: ir.Editor, node: ir.Node) -> None:
        if node.op == "random_bits":
            value = (1 << node.attrs["bits"]) - 1 if bits == "ones" else 0
            editor.forward(
                node.name, editor.insert(node, "constant", value=np.full(node.spec.shape, value, np.int64))
            )

    graph = graph.rewrite(fixed)
    assert not any(n.op == "random_bits" for n in graph)
    feeds = {v.name: x.numpy() for v in graph.inputs}
    (interpreted,) = interp.run(graph, feeds, states={}).values()
    (compiled,) = run_native(graph, feeds, passes="none").values()  # constants are not folded
    return [interpreted, compiled]


def test_few_classes_of_many() -> None:
    weights = torch.zeros(50, 200_000)
    weights[:, 77], weights[:, 150_003] = 1.0, 2.0
    model = OfFunction(lambda x: torch.multinomial(x, 2)).eval()
    with xrt.InferenceSession(model, example_inputs=(weights,), engine="native") as session:
        for _ in range(2):
            drawn = next(iter(session.run([weights]).values()))
            assert (drawn.sort(1).values == torch.tensor([77, 150_003])).all()


@pytest.mark.parametrize("name", EXPORTED)
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


@pytest.mark.parametrize("seed", ["-1", "1.5", str(2**63), "x", "00000000000000000001" + "9" * 30])
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


def test_the_seed_holds_for_dynamic_sizes() -> None:
    model = OfFunction(lambda x: torch.rand_like(x)).eval()
    results = []
    for seed in (0, 7, 7):
        policy = {"version": 1, "execution": {"engine_options": {"native": {"seed": seed}}}}
        shapes = {"dynamic_shapes": {"x": {0: "rows"}}}
        with xrt.InferenceSession(
            model, example_inputs=(X,), engine="native", policy=policy, **shapes
        ) as session:
            results.append(next(iter(session.run([X[:300]]).values())))
    zero, seven, again = results
    assert torch.equal(seven, again)
    assert not torch.isclose(zero, seven).any()
