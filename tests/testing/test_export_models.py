"""The ONNX files of seeded models: the same bytes each time, the same answers as PyTorch and on every engine."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

from xpuruntime.frontends.onnx import import_onnx  # noqa: E402
from xpuruntime.frontends.onnx_writer import to_onnx  # noqa: E402
from xpuruntime.numerics import compare, tolerance_for  # noqa: E402
from xpuruntime.testing.conformance.seeded import networks as models  # noqa: E402
from xpuruntime.testing.conformance.seeded.export import export_onnx  # noqa: E402
from xpuruntime.types import DType  # noqa: E402

NAMES = list(models.MODELS)
TOLERANCE = tolerance_for(DType.FLOAT32)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_engine_the_interpreter_and_the_way_back_agree_with_pytorch(name: str, onnx_file, run) -> None:
    proto = onnx.load(onnx_file(name))
    feeds = models.inputs(name, 3, seed=9)
    wanted = run["torch"](models.build(name)[0], feeds)
    graph, weights = import_onnx(proto)
    assert [n for n in graph if n.op == "opaque"] == []
    found = {
        "onnxruntime": run["onnxruntime"](proto, feeds),
        "openvino": run["openvino"](proto, feeds),
        "interpreter": run["interpreter"]((graph, weights), feeds),
        "written": run["onnxruntime"](to_onnx(graph, weights), feeds),
    }
    for who, scores in found.items():
        result = compare(who, scores, wanted, TOLERANCE)
        assert result.ok, f"{name}: {who}: {result.reason}"


@pytest.mark.conformance
@pytest.mark.parametrize("how", [{"optimize": True}, {"dynamic": True}], ids=["optimized", "dynamic"])
@pytest.mark.parametrize("name", NAMES)
def test_other_ways_to_export_agree_and_come_back(name: str, how: dict[str, bool], onnx_file, run) -> None:
    proto = onnx.load(onnx_file(name, **how))
    feeds = models.inputs(name, 3, seed=9)
    wanted = run["torch"](models.build(name)[0], feeds)
    graph, weights = import_onnx(proto)
    for who, scores in (
        ("onnxruntime", run["onnxruntime"](proto, feeds)),
        ("openvino", run["openvino"](proto, feeds)),
        ("interpreter", run["interpreter"]((graph, weights), feeds)),
        ("written", run["onnxruntime"](to_onnx(graph, weights), feeds)),
    ):
        result = compare(who, scores, wanted, TOLERANCE)
        assert result.ok, f"{name}: {who}: {result.reason}"


@pytest.mark.sampled(1, one_in=2)
def test_the_bytes_are_the_same_each_time_and_a_right_file_stays(tmp_path) -> None:
    first, second = (export_onnx("qwen2", tmp_path / f"{k}.onnx") for k in "ab")
    assert first.read_bytes() == second.read_bytes()
    before = first.stat().st_mtime_ns
    export_onnx("qwen2", first)
    assert first.stat().st_mtime_ns == before
    export_onnx("qwen2", first, seed=1)
    assert first.read_bytes() != second.read_bytes()
    text = first.read_bytes()
    assert str(tmp_path).encode() not in text
    assert b".py" not in text


def test_weights_keep_their_names_and_norms_their_statistics(onnx_file) -> None:
    module, _ = models.build("resnet18")
    proto = onnx.load(onnx_file("resnet18"))
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    for key, value in module.state_dict().items():
        if value.is_floating_point():
            assert np.array_equal(stored[key], value.numpy()), key
