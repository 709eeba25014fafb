"""Self-checks of PyTorch modules on vendors' engines, whose ONNX form we write: a wrong one is refused, whoever is named."""

from __future__ import annotations

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import WrongResult
from xpuruntime.frontends import onnx_writer
from xpuruntime.inference.self_check import check as checks

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
    for _ in range(2):  # the second time from the store
        with pytest.raises(
            WrongResult, match="the module computes other values when it is exported"
        ) as caught:
            opened(module, x, engine, tmp_path)
        assert "Make forward compute the same when it is exported" in caught.value.do
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
