"""Example inputs: what engines are measured on where the user knows better than a seed."""

from __future__ import annotations

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.execution.examples import digest_of, examples_of, measuring_feeds
from xpuruntime.ir import GraphBuilder
from xpuruntime.storage.store import Store

pytest.importorskip("onnx", reason="the tests build models with onnx")
pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="two engines are needed")

ROWS = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def model() -> bytes:
    """Rows whose variance is what is left of two large numbers, if all rows are alike: no engine is right where it is 1e-9."""
    from xpuruntime.frontends.onnx_writer import to_onnx

    b = GraphBuilder("rows")
    x = b.input("x", "float32[2, 4]")
    mean = b.mean(x, dim=(1,), keepdim=True)
    variance = b.sub(b.mean(b.mul(x, x), dim=(1,), keepdim=True), b.mul(mean, mean))
    b.output("y", b.div(b.sub(x, mean), variance))
    return to_onnx(b.build(), {}).SerializeToString()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", [None, {"*": "auto"}], ids=["one engine", "several"])
def test_a_choice_is_measured_on_them_and_recorded_for_them(place, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XPU_AUTO_SECONDS", "1")

    def chosen(**more):
        policy = {"version": 1, "execution": {"engine": "auto", **({"place": place} if place else {})}}
        with xrt.InferenceSession(
            model, device="cpu", policy=policy, threads=1, cache_dir=tmp_path, **more
        ) as session:
            np.testing.assert_allclose(session.run(x=ROWS)["y"].sum(axis=1), 0, atol=1e-4)
            return session.plan.decision("engine").chosen

    given = {"example_inputs": {"x": ROWS}}
    assert "us on the given inputs" in chosen(**given).reason or place
    assert chosen(**given).code.value == "recorded"
    assert chosen(example_inputs=[ROWS]).code.value == "recorded"  # in the model's order: the same
    other = chosen(example_inputs={"x": 2 * ROWS})
    assert other.code.value != "recorded"
    assert "seeded" in chosen().reason or place
    assert len([e for e in Store(tmp_path).entries() if e.kind == "auto"]) == 3


def test_what_a_run_would_refuse_is_refused(model) -> None:
    for wrong in ({"z": ROWS}, {"x": ROWS[:1]}, {"x": ROWS.astype(np.float64)}, [ROWS, ROWS]):
        with pytest.raises(xrt.InputError, match="example_inputs"):
            xrt.InferenceSession(model, engine="onnxruntime", device="cpu", example_inputs=wrong)


def test_examples_by_name_and_by_order_are_one(model) -> None:
    source = open_model(model)
    by_name, by_order = examples_of(source, {"x": ROWS}), examples_of(source, (ROWS,))
    assert by_name is not None
    assert by_order is not None
    assert digest_of(by_name) == digest_of(by_order) != digest_of({"x": ROWS + 1})
    assert examples_of(source, None) is None
    assert digest_of(None) is None
    feeds, told = measuring_feeds(source, None)
    assert (feeds["x"].shape, told) == ((2, 4), "seeded inputs")


def test_a_module_is_measured_on_what_it_was_traced_with() -> None:
    torch = pytest.importorskip("torch")
    from xpuruntime.inference.models.modules import open_any

    class Scaled(torch.nn.Module):
        def forward(self, rows, by: float):
            return rows * by

    net, rows = Scaled(), torch.from_numpy(ROWS)
    off = Store(mode="off")
    source = open_any(torch.nn.ReLU(), rows, None, off)
    made = examples_of(source, rows)
    assert made is not None
    np.testing.assert_array_equal(next(iter(made.values())), ROWS)
    assert examples_of(open_any(net, (rows, 2.0), None, off), (rows, 2.0)) is None  # a number is no input
