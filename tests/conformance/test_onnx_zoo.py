"""Real models: each is lowered wholly, comes back from the IR equal on ONNX Runtime, and the interpreter says what the vendor says."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from examples.zoo import MODELS, ZooError  # noqa: E402
from xpuruntime.frontends.onnx import import_onnx  # noqa: E402
from xpuruntime.ir import interp, verify  # noqa: E402
from xpuruntime.testing.conformance.onnx_backend.suite import round_trip  # noqa: E402
from xpuruntime.testing.conformance.onnx_backend.vendors import ort_session  # noqa: E402

pytestmark = pytest.mark.zoo
SMALL = ("magika", "minilm-l6")  # the interpreter is exact before fast


def opened(name: str):
    try:
        path = MODELS[name].onnx_path()
    except ZooError as error:
        pytest.skip(str(error))
    return path, MODELS[name].inputs(MODELS[name].samples()[0])


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_comes_back_equal(name: str) -> None:
    path, feeds = opened(name)
    assert round_trip(onnx.load(path), feeds) == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_of_a_model_is_opaque(name: str) -> None:
    path, _ = opened(name)
    graph, _ = import_onnx(path)
    assert [(n.attrs["op_type"], n.attrs["reason"]) for n in verify(graph) if n.op == "opaque"] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SMALL)
def test_the_interpreter_agrees_with_the_vendor(name: str) -> None:
    path, feeds = opened(name)
    graph, weights = import_onnx(path)
    made = interp.run(graph, feeds, weights=weights)
    for got, want in zip(made.values(), ort_session(onnx.load(path)).run(None, dict(feeds)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
