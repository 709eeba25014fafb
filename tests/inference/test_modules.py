"""PyTorch modules and exported programs as models of a session, on every engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.decisions import Reason
from xpuruntime.errors import EngineUnavailable
from xpuruntime.numerics import compare

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


@pytest.fixture
def net() -> Any:
    return Net().eval()


@pytest.fixture
def x() -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 9, 9), dtype=np.float32))


@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_a_module_runs_on_every_engine(engine: str, net: Any, x: Any) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    with xrt.InferenceSession(net, engine=engine, device="cpu", example_inputs=x) as session:
        out = session.run(x)["output"]
        assert isinstance(out, torch.Tensor)
        assert compare("output", out.numpy(), net(x).detach().numpy(), 1e-5).ok
        assert {n.family for n in session.plan.nodes} >= {"conv", "matmul"}
        assert session.receipt(times=False).confirmed


def test_an_exported_program_needs_no_example(net: Any, x: Any) -> None:
    program = torch.export.export(net, (x,))
    with xrt.InferenceSession(program, engine="native", device="cpu") as session:
        assert compare("output", session.run({"x": x})["output"].numpy(), net(x).detach().numpy(), 1e-5).ok


def test_dynamic_dims_get_a_program_when_they_are_met(net: Any, x: Any) -> None:
    shapes = {"x": {0: "batch"}}
    with xrt.InferenceSession(
        net, engine="native", device="cpu", example_inputs=x, dynamic_shapes=shapes
    ) as session:
        for batch in (2, 1, 2):
            assert compare(
                "output", session.run(x[:batch])["output"].numpy(), net(x[:batch]).detach().numpy(), 1e-5
            ).ok
        assert "2 sets of shapes" in " ".join(session.receipt(times=False).evidence["r0"].notes)


def test_a_module_without_example_is_refused(net: Any) -> None:
    with pytest.raises(xrt.InputError, match="needs example inputs"):
        xrt.InferenceSession(net, engine="native")


def test_dynamic_shapes_for_a_file_are_refused(tmp_path: Any, x: Any) -> None:
    with pytest.raises(xrt.InputError, match="dynamic_shapes are for PyTorch modules"):
        xrt.InferenceSession(tmp_path / "model.onnx", dynamic_shapes={0: "batch"})


class Sum(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.full((3,), 0.5))
        self.gain = torch.nn.Parameter(torch.arange(3 * 3.0).view(3, 3))

    def forward(self, x: Any) -> Any:
        self.sum.add_((x @ self.gain).sum(0))
        return self.sum


def test_buffers_start_from_the_module_and_live_from_run_to_run() -> None:
    x = torch.ones(2, 3)
    reference = Sum()
    with xrt.InferenceSession(Sum(), engine="native", device="cpu", example_inputs=x) as session:
        first = session.run(x)["output"]
        assert torch.equal(first, reference(x))
        seen = first.clone()
        session.receipt()  # its timed runs are no runs of the session
        assert torch.equal(session.run(x)["output"], reference(x))
        assert torch.equal(first, seen)


def test_sets_of_shapes_share_buffers_and_weights() -> None:
    reference = Sum()
    with xrt.InferenceSession(
        Sum(),
        engine="native",
        device="cpu",
        example_inputs=torch.ones(2, 3),
        dynamic_shapes={"x": {0: torch.export.Dim("batch", max=8)}},
    ) as session:
        for rows in (2, 5, 2):
            x = torch.full((rows, 3), float(rows))
            assert torch.equal(session.run(x)["output"], reference(x))
        assert (
            session.receipt().evidence["r0"].rows
        )  # of the shape that ran last, not of the one compiled last
        one, two = session._executable._buckets.executors
        assert list(one.weights)
        assert all(two.weights[n] is one.weights[n] for n in one.weights)


class Drawn(torch.nn.Module):
    """Random numbers in the shape of an input, which ONNX Runtime does not draw independently."""

    def forward(self, x):
        return torch.rand_like(x) + x


def test_a_model_that_onnx_cannot_say_goes_to_the_engine_that_can():
    pytest.importorskip("onnxruntime")
    x = torch.randn(5, 4)
    with xrt.InferenceSession(Drawn().eval(), example_inputs=(x,), engine="auto", device="cpu") as session:
        rejected = {c.name: c for c in session.plan.decision("engine").rejected}
        assert session.run([x.numpy()])
    assert rejected["onnxruntime on cpu"].code is Reason.FORMAT_UNSUPPORTED
    assert "draws random numbers" in rejected["onnxruntime on cpu"].reason
    with pytest.raises(EngineUnavailable, match="draws random numbers"):
        xrt.InferenceSession(Drawn().eval(), example_inputs=(x,), engine="onnxruntime", device="cpu")


def test_the_digest_covers_every_byte_of_every_weight_on_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pieces of weights have digests of their own, which threads compute."""
    from xpuruntime.frontends.torch.weights import TorchWeights
    from xpuruntime.inference.models import modules

    monkeypatch.setattr(modules, "_PIECE", 64)
    monkeypatch.setattr(modules, "_MOST_PIECES", 3)
    tensors = {
        "many": torch.arange(50.0),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "half": torch.ones(33, dtype=torch.bfloat16),
        "none": torch.empty(0, 3),
        "one": torch.tensor(2.0),
        "flags": torch.zeros(64, dtype=torch.bool),
    }
    b = ir.GraphBuilder("weights")
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        b.output(f"{name}_out", b.neg(b.cast(b.weight(name, f"{kind}{list(tensor.shape)}"), dtype="float32")))
    graph = b.build()

    def digest(changed: dict[str, Any] | None = None, cores: int = 3) -> str:
        monkeypatch.setattr(modules, "cpu", lambda: SimpleNamespace(usable_cores=cores))
        return modules._digest(graph, TorchWeights(tensors | (changed or {})))

    seen = {digest()}
    assert {digest(cores=1), digest(cores=7)} == seen
    assert digest({"turned": tensors["turned"].contiguous()}) in seen
    for name, tensor in tensors.items():
        for place in range(tensor.numel()):
            other = tensor.clone(memory_format=torch.contiguous_format)
            other.view(-1)[place] = 1 - other.view(-1)[place].float() * 3
            value = digest({name: other})
            assert value not in seen, (name, place)
            seen.add(value)
    swapped = tensors["many"].clone()
    swapped[[0, 16]] = swapped[[16, 0]]
    assert digest({"many": swapped}) not in seen
