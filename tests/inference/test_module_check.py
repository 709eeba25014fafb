"""Self-checks of PyTorch modules on vendors' engines, whose ONNX form we write: a wrong one is refused, whoever is named."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import WrongResult
from xpuruntime.frontends import onnx_writer
from xpuruntime.inference.self_check import check as checks
from xpuruntime.inference.self_check.eager_code import eager_digest
from xpuruntime.inference.self_check.overflow import as_in_type

torch = pytest.importorskip("torch")
nn = torch.nn

ENGINES = ("onnxruntime", "openvino")


@pytest.fixture(autouse=True)
def enough_time(monkeypatch):
    """The bounds are for users; a test must not depend on how busy the machine is."""
    monkeypatch.setattr(checks, "LEAST_S", 60.0)
    monkeypatch.setattr(checks, "MOST_S", 60.0)


@pytest.fixture
def written_wrong(monkeypatch):
    """An exporter with a bug: weights of matrices are a hundredth too large."""
    right = onnx_writer.to_onnx

    def wrong(graph, weights, *more):
        arrays = {w.name: np.asarray(weights[w.name]) for w in graph.weights}
        return right(graph, {n: a * np.float32(1.01) if a.ndim == 2 else a for n, a in arrays.items()}, *more)

    monkeypatch.setattr(onnx_writer, "to_onnx", wrong)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).eval()


def opened(module, x, engine, folder, **more):
    if engine in ENGINES:
        pytest.importorskip(engine)
    return xrt.InferenceSession(
        module, example_inputs=x, device="cpu", engine=engine, threads=1, cache_dir=folder, **more
    )


def verdict_of(session):
    decision = session.plan.decision("self_check")
    assert decision is not None
    return decision.chosen


@pytest.mark.parametrize("engine", ENGINES)
def test_a_named_engine_is_compared_with_the_module(engine, tmp_path):
    module, x = network(), torch.randn(3, 7)
    for code in (Reason.CHECKED, Reason.RECORDED):
        with opened(module, x, engine, tmp_path) as session:
            verdict = verdict_of(session)
            assert (verdict.code, verdict.name) == (code, "the PyTorch module")
            assert "max|d|/max|ref| is at most" in verdict.reason
            session.run([x])
            assert "self_check for Sequential: the PyTorch module" in str(session.receipt())
    off = xrt.ExecutionPolicy(self_check="off")
    with opened(module, x, engine, tmp_path, exec_policy=off) as session:
        assert verdict_of(session).code is Reason.NOT_CHECKED


@pytest.mark.parametrize("engine", [*ENGINES, None])
def test_a_wrong_form_is_refused(engine, tmp_path, written_wrong):
    x = torch.randn(3, 7)
    order = xrt.ExecutionPolicy(engine_order={"cpu": ("onnxruntime", "openvino")})
    options = {} if engine else {"exec_policy": order}
    with pytest.raises(WrongResult, match="disagrees with the PyTorch module on the given inputs"):
        opened(network(), x, engine, tmp_path, **options)


class MaskOfItsType(nn.Module):
    """In float64 its mask, which is float32 in any type, is 0 * -inf."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        scores = x
        for _ in range(12):  # each rounding of 16 bits grows
            scores = (self.fc(scores) * 3.0).sin()
        mask = (1.0 - torch.ones(6)) * torch.finfo(scores.dtype).min
        return (scores + mask.to(scores.dtype)).softmax(-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_module_that_is_nan_in_float64_is_compared_in_its_type(dtype, tmp_path):
    """As canine of transformers."""
    kind = getattr(torch, dtype)
    module, x = MaskOfItsType().eval().to(kind), torch.linspace(-1, 1, 18).view(3, 6).to(kind)
    assert module.double()(x.double()).isnan().any()
    module.to(kind)
    with opened(module, x, "native", tmp_path) as session:
        verdict = verdict_of(session)
        assert (verdict.code, verdict.name) == (Reason.CHECKED, "the PyTorch module")


def test_new_nan_of_float64():
    a, nan = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert checks._has_new_nan([a, nan], [a, a])
    assert not checks._has_new_nan([nan, a, a], [nan, nan, a[:1]])
    assert not checks._has_new_nan([a > 1], [a > 1])


def test_the_next_engine_in_order_takes_over(tmp_path, written_wrong):
    x = torch.randn(3, 7)
    with opened(network(), x, None, tmp_path) as session:  # native does not read the ONNX form
        assert session.plan.decision("engine").chosen.name == "native on cpu"


def test_without_the_module_the_interpreter_runs_the_graph_that_was_written(
    tmp_path, monkeypatch, written_wrong
):
    monkeypatch.setattr(checks.EngineReference, "loaded", staticmethod(lambda name: False))
    module, x = network(), torch.randn(3, 7)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(WrongResult, match="disagrees with the reference interpreter"):
        opened(module, x, "onnxruntime", tmp_path)
    program = torch.export.export(network(), (x,))
    with pytest.raises(WrongResult, match="disagrees with the reference interpreter"):
        opened(program, None, "onnxruntime", tmp_path)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2 if torch.compiler.is_exporting() else 1)


@pytest.mark.parametrize("engine", ["native", *ENGINES, "auto"])
def test_a_module_that_computes_something_else_when_it_is_exported(engine, tmp_path):
    module, x = Branching().eval(), torch.randn(2, 4)
    for _ in range(2):
        with pytest.raises(
            WrongResult, match="the module computes other values when it is exported"
        ) as caught:
            opened(module, x, engine, tmp_path)
        assert "Make forward compute the same when it is exported" in caught.value.do
        assert "self_check='always'" in caught.value.do
        assert "report this bug" not in str(caught.value)
    program = torch.export.export(module, (x,))
    with opened(program, None, engine, tmp_path) as session:  # which has the values of its own
        np.testing.assert_allclose(session.run([x])["output"], (2 * module(x)).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_what_overflows_in_the_type_of_the_model_is_right(engine, tmp_path):
    """The module's own results in float64 are finite there."""

    class Squares(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    with opened(Squares(), torch.tensor([1.0, 1e30]), engine, tmp_path) as session:
        assert verdict_of(session).code is Reason.CHECKED


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: torch.exp(x * 20), torch.float16),
        (lambda x: torch.exp(x * 20) - torch.exp(x * 21), torch.float16),
        (lambda x: (torch.exp(x * 20)).argmax(1), torch.float16),
        (lambda x: torch.sigmoid(x * 2 + 20).argmax(1), torch.float32),
        (lambda x: (x * 1e25).norm(dim=1), torch.float32),
        (lambda x: (x * 300).norm(dim=1), torch.float16),
        (lambda x: (x * 1e30) * 1e9 - x, torch.float32),
    ],
    ids=["exp", "nan", "ties of infinities", "ties", "norm", "half norm", "product"],
)
def test_a_module_that_overflows_is_not_said_to_branch(engine, function, dtype, tmp_path):
    """float64 has other values, and the float32 inside a fused kernel rounds what the module's own type amplifies."""
    torch.manual_seed(0)
    x = torch.rand(4, 16).to(dtype)
    with opened(Plain(function).eval(), x, engine, tmp_path) as session:
        verdict = verdict_of(session)
        assert verdict.code in (Reason.CHECKED, Reason.NOT_CHECKED)
        assert verdict.code is Reason.CHECKED or "chooses among scores" in verdict.reason


def test_a_wrong_value_beside_infinities_is_refused(tmp_path, monkeypatch):
    """Infinity is no distance: finite values keep a finite limit."""
    right = onnx_writer.to_onnx

    def wrong(graph, weights, *more):
        arrays = {w.name: np.asarray(weights[w.name]) for w in graph.weights}
        return right(graph, {n: a * a.dtype.type(1.1) for n, a in arrays.items()}, *more)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([20.0] * 8 + [1.0] * 8).half())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x * self.scale)

    monkeypatch.setattr(onnx_writer, "to_onnx", wrong)
    with pytest.raises(WrongResult, match=r"max\\|d\\|/max\\|ref\\|") as caught:
        opened(Scaled().eval(), (1 + torch.rand(3, 16)).half(), "onnxruntime", tmp_path)
    assert "when it is exported" not in str(caught.value)


def test_what_overflow_decides():
    ours = np.array([np.inf, np.inf, 60000, np.nan, np.inf, -np.inf, 1, -np.inf], np.float16)
    own = np.array([np.inf, 65504, np.inf, np.nan, 3, np.inf, np.nan, np.nan], np.float16)
    exact = np.array([1e6, 65519, 1e6, 4, 3, 1e6, 2.0, -1e6])
    want = np.array([np.inf, np.inf, 1e6, np.nan, 3, 1e6, 2.0, -np.inf])
    np.testing.assert_array_equal(as_in_type(ours, own, exact, 0.002), want)
    whole = np.arange(8)
    np.testing.assert_array_equal(as_in_type(whole, own, exact, 0.0), exact)
    assert as_in_type(ours[:0], own[:0], exact[:0], 0.0).shape == (0,)
    np.testing.assert_array_equal(as_in_type(ours, own[:2], exact, 0.0), exact)


# ── a verdict belongs to the module that it was made for ──


class Head(nn.Module):
    """Its export is that of twice the layer, whatever the flag says."""

    def __init__(self, mended: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.mended = nn.Linear(4, 4), mended

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2 if self.mended or torch.compiler.is_exporting() else 1)


@pytest.mark.parametrize("engine", ["native", *ENGINES])
def test_a_mended_module_is_not_refused_from_the_store(engine, tmp_path):
    x = torch.randn(2, 4)
    with pytest.raises(WrongResult):
        opened(Head(False).eval(), x, engine, tmp_path)
    for code in (Reason.CHECKED, Reason.RECORDED):
        with opened(Head(True).eval(), x, engine, tmp_path) as session:
            assert verdict_of(session).code is code
    with pytest.raises(WrongResult, match="when it is exported"):
        opened(Head(False).eval(), x, engine, tmp_path)


def test_a_module_without_a_digest_is_compared_at_each_opening(tmp_path):
    class Odd:
        @property
        def __dict__(self):
            raise RuntimeError("no attributes")

    module = network()
    module.odd = Odd()
    assert eager_digest(module) is None
    for _ in range(2):
        with opened(module, torch.ones(3, 7), "onnxruntime", tmp_path) as session:
            assert verdict_of(session).code is Reason.CHECKED


def factor():
    return 1


def other_factor():
    return 2


def test_what_the_digest_of_a_module_tells_apart():
    def with_class(function, **members):
        made = type("Made", (nn.Module,), {"forward": function, **members})
        return made()

    def helped(self, x):
        return self.help(x)

    def named(self, x):
        return x * factor()

    renamed = type(named)(named.__code__, {**globals(), "factor": other_factor}, "named")
    renamed.__qualname__ = named.__qualname__
    scale = 3
    different = [
        with_class(lambda self, x: x.sin()),
        with_class(lambda self, x: x.cos()),
        with_class(lambda self, x: x * 2),
        with_class(lambda self, x: x * 3),
        with_class(lambda self, x: x * scale),
        with_class(lambda self, x: [y * 3 for y in x]),
        with_class(lambda self, x: [y * 4 for y in x]),
        with_class(lambda self, x, by=1: x * by),
        with_class(lambda self, x, by=2: x * by),
        with_class(helped, help=lambda self, x: x + 1),
        with_class(helped, help=lambda self, x: x + 2),
        with_class(named),
        with_class(renamed),
        Plain(torch.sin),
        Plain(torch.cos),
        nn.Sequential(nn.ReLU(), nn.Tanh()),
        nn.Sequential(nn.Tanh(), nn.ReLU()),
        nn.Sequential(nn.Tanh(), nn.ReLU()).eval(),
        nn.GELU(),
        nn.GELU(approximate="tanh"),
        *(nn.LeakyReLU(slope) for slope in (0.1, 0.2)),
    ]
    values = (1, 2, 1.0, True, "1", b"1", None, (1,), (1, 2), [1], {1}, {1: 2}, torch.float32, torch.float16)
    for value in values:
        module = nn.ReLU()
        module.value = value
        different.append(module)
    digests = [eager_digest(m) for m in different]
    assert None not in digests
    assert len(set(digests)) == len(digests)
    assert digests == [eager_digest(copy.deepcopy(m)) for m in different]


@pytest.mark.sampled(one_in=2)
def test_the_digest_is_that_of_another_process():
    code = (
        "from torch import nn; from xpuruntime.inference.self_check.eager_code import eager_digest;"
        "m = nn.TransformerEncoderLayer(8, 2, 16); m.words = {'a', 'b', 'c'}; print(eager_digest(m))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_small_scores_of_a_vendor_are_not_wrong(tmp_path):
    """ONNX Runtime's sigmoid has an error of some last places of 1, which is much of a score of 0.00001."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(40, 30)
            nn.init.constant_(self.linear.bias, -12.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sigmoid()

    with opened(Scores().eval(), torch.randn(3, 40), "onnxruntime", tmp_path) as session:
        assert verdict_of(session).code is Reason.CHECKED


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_that_nothing_reads(engine, tmp_path):
    """OpenVINO has no port for them: an IndexError, or another input's values."""

    class Some(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return b * 2 if self.last else c - 2 * a

    for last in (False, True):
        module = Some().eval()
        module.last = last
        a, b, c = torch.randn(3, 2, 3).unbind()
        for _ in range(2):
            with opened(module, (a, b, c), engine, tmp_path) as session:
                np.testing.assert_allclose(session.run([c, a, b])["output"], module(c, a, b), rtol=1e-6)


@pytest.mark.parametrize("engine", ["native", *ENGINES])
def test_a_value_that_is_returned_several_times(engine, tmp_path):
    """An ONNX output has one name, so each further one needs a node of its own."""

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.linear(x)
            return y, y, x, y, x, self.linear.bias, self.linear.bias

    module, x = Several().eval(), torch.randn(3, 4)
    with opened(module, x, engine, tmp_path) as session:
        assert verdict_of(session).code is Reason.CHECKED
        for got, want in zip(session.run([x]).values(), module(x), strict=True):
            np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-6)
