"""The QNN engine on the HTP emulator that its package has for x86: prepared, stored, loaded again and run, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.engines import lookup
from xpuruntime.errors import BuildError, BuildTimeout, EngineUnavailable
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import EngineRequest, ModelSource
from xpuruntime.storage.store import Store
from xpuruntime.targets import DeviceId

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn", reason="the package onnxruntime-qnn is not installed")
pytest.importorskip("onnx")
if not lookup("onnxruntime").installed() or not lookup("qnn").installed():
    pytest.skip("an unsupported version is installed", allow_module_level=True)

from xpuruntime.engines.qnn import build as qnn_build  # noqa: E402
from xpuruntime.engines.qnn import library, offline, probe  # noqa: E402
from xpuruntime.engines.qnn.graph_dump import dtype_name, source_name  # noqa: E402
from xpuruntime.engines.qnn.options import HTP_ARCHITECTURES, QnnSettings, parse  # noqa: E402

EMULATED = library.usable(DeviceId("npu"), emulator=True)
pytestmark = pytest.mark.skipif(not EMULATED, reason=f"no HTP emulator: {EMULATED.reason}")
SOME = pytest.mark.sampled(4, group="qnn")
"""Each of these starts child processes for seconds."""
NPU = DeviceId("npu")
node = helper.make_node


def request(**options: str) -> EngineRequest:
    return EngineRequest(NPU, threads=1, options={"emulator": "1", "htp_arch": "75", **options})


def policy(**options: str) -> xrt.ExecutionPolicy:
    return xrt.ExecutionPolicy(engine_options={"qnn": {"emulator": "1", "htp_arch": "75", **options}})


def session(model: Any, **arguments: Any) -> xrt.InferenceSession:
    return xrt.InferenceSession(
        model, device="npu", engine="qnn", **{"exec_policy": policy(), "threads": 1, **arguments}
    )


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sess = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return sess.run(None, feeds)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def float_net(make: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """Convolution and products, with an op in the middle that QNN leaves on the CPU (Erf)."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3), dtype=np.float32) / 5}
    weights["m"] = rng.standard_normal((128, 5), dtype=np.float32) / 10
    return make(
        [
            node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Erf", ["c"], ["e"], name="erf"),
            node("Relu", ["e"], ["r"], name="relu"),
            node("Flatten", ["r"], ["f"], name="flat"),
            node("MatMul", ["f", "m"], ["y"], name="product"),
        ],
        {"x": ("float32", [1, 3, 8, 8])},
        {"y": ("float32", [1, 5])},
        weights,
    )


@pytest.fixture(scope="module")
def qdq_net(make: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """A quantized convolution (uint8 by int8, per channel) with bias, Relu, a quantized product."""
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "s": np.float32(0.02), "z": np.uint8(128), "s1": np.float32(0.01), "z1": np.uint8(0), "s2": np.float32(0.03), "z2": np.uint8(120),
        "w": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8), "ws": (rng.random(8) / 500 + 0.001).astype(np.float32),
        "wz": np.zeros(8, np.int8), "b": rng.integers(-500, 500, 8).astype(np.int32), "bz": np.zeros(8, np.int32),
        "m": rng.integers(-127, 128, (512, 5)).astype(np.int8), "ms": np.float32(0.004), "mz": np.int8(0),
    }  # fmt: skip
    weights["bs"] = weights["ws"] * weights["s"]
    return make(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="x_q"),
            node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="x_dq"),
            node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="w_dq", axis=0),
            node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], name="b_dq", axis=0),
            node("Conv", ["xd", "wd", "bd"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"], name="relu"),
            node("QuantizeLinear", ["r", "s1", "z1"], ["rq"], name="r_q"),
            node("DequantizeLinear", ["rq", "s1", "z1"], ["rd"], name="r_dq"),
            node("Flatten", ["rd"], ["f"], name="flat"),
            node("QuantizeLinear", ["f", "s1", "z1"], ["fq"], name="f_q"),
            node("DequantizeLinear", ["fq", "s1", "z1"], ["fd"], name="f_dq"),
            node("DequantizeLinear", ["m", "ms", "mz"], ["md"], name="m_dq"),
            node("MatMul", ["fd", "md"], ["p"], name="product"),
            node("QuantizeLinear", ["p", "s2", "z2"], ["pq"], name="p_q"),
            node("DequantizeLinear", ["pq", "s2", "z2"], ["y"], name="y_dq"),
        ],
        {"x": ("float32", [1, 3, 8, 8])},
        {"y": ("float32", [1, 5])},
        weights,
    )


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8), dtype=np.float32)}


def test_a_float_model_is_prepared_stored_and_run_again_from_the_store(
    float_net: onnx.ModelProto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for from_store in (False, True):
        with session(float_net, cache_dir=tmp_path) as sess:
            assert sess.plan.decision("engine").chosen.facts["from_store"] is from_store
            for seed in range(3):
                want = reference(float_net, image(seed))
                assert np.abs(sess.run(image(seed))["y"] - want).max() <= 1e-5 * np.abs(want).max()
            evidence = sess.receipt().evidence["r0"]
        rows = {n: r for r in evidence.rows for n in r.nodes}
        assert rows["erf"].device == "cpu"
        assert rows["erf"].kernel == "CPUExecutionProvider Erf"
        assert {rows[n].device for n in ("conv", "relu", "product")} == {"npu"}
        assert rows["conv"].kernel.startswith("HTP v75 Conv2d (")
        assert rows["conv"].activations == rows["conv"].weights == rows["conv"].precision == "float32"
        assert evidence.fallbacks == ("QNN left nodes on the CPU: 1 nodes: erf",)
        assert any("emulator" in n for n in evidence.notes)
        assert evidence.options["sdk"].startswith("v2.")
    assert "qnn on npu: QNN left nodes on the CPU" in caplog.text
    assert [e.kind for e in Store(tmp_path).entries()].count("artifact") == 1


def test_a_quantized_model_runs_in_integers(qdq_net: onnx.ModelProto) -> None:
    with session(
        qdq_net, exec_policy=policy().merge(xrt.ExecutionPolicy(precision="int8", strict=True))
    ) as sess:
        for seed in range(3):
            want = reference(qdq_net, image(seed))
            assert np.abs(sess.run(image(seed))["y"] - want).max() <= 0.061, (
                "a step of the output for each quantized op"
            )
        receipt = sess.receipt()
    assert receipt.confirmed
    products = [r for r in receipt.evidence["r0"].rows if r.weights]
    assert [(r.op, r.activations, r.weights) for r in products] == [
        ("Conv2d", "uint8", "int8"),
        ("MatMul", "uint8", "int8"),
    ] or [(r.activations, r.weights) for r in products] == [("uint8", "int8")] * 2
    assert {r.device for r in receipt.evidence["r0"].rows} == {"npu"}


@SOME
def test_16_bit_activations_are_computed_in_integers(tmp_path: Path) -> None:
    """With ``precision: int8``, which no engine on the CPU admits for them; values beyond the calibrated range do not saturate."""
    from xpuruntime.workbench.quantize import quantize

    rng = np.random.default_rng(9)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)), "m": rng.standard_normal((5, 8))}
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w"], ["c"], name="conv"),
            node("Clip", ["c", "low", "high"], ["r"], name="relu6"),
            node("GlobalAveragePool", ["r"], ["p"], name="pool"),
            node("Flatten", ["p"], ["f"], name="flatten"),
            node("Gemm", ["f", "m"], ["y"], name="product", transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", 1, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", 1, [1, 5])],
        [
            numpy_helper.from_array(np.asarray(v, np.float32), n)
            for n, v in {**weights, "low": 0, "high": 6}.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.standard_normal((8, 3, 12, 12)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=x)
    report = quantize(tmp_path / "m.onnx", tmp_path / "s.npz", tmp_path / "q.onnx", activations="uint16")
    feeds = {"x": 1.8 * x[:1]}
    exec_policy = replace(policy(), precision="int8")
    with session(tmp_path / "q.onnx", exec_policy=exec_policy, strict=True) as sess:
        (got,) = sess.run(**feeds).values()
        assert "computed in int8: 2 products of uint16 activations and int8 weights" in sess.receipt().text()
    want = reference(model, feeds)
    assert report.error < 0.01
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.02


@SOME
def test_inputs_may_be_quantized_on_the_cpu(qdq_net: onnx.ModelProto) -> None:
    with session(qdq_net, exec_policy=policy(offload_graph_io_quantization="1")) as sess:
        want = reference(qdq_net, image())
        assert np.abs(sess.run(image())["y"] - want).max() <= 0.061
        evidence = sess.receipt(times=False).evidence["r0"]
    assert {r.op for r in evidence.rows if r.device == "cpu"} == {"QuantizeLinear", "DequantizeLinear"}
    assert evidence.fallbacks == ()
    assert any("quantized" in n and "x_q" in n for n in evidence.notes)


@SOME
def test_a_context_model_of_another_program_runs(float_net: onnx.ModelProto, tmp_path: Path) -> None:
    """The artifact is an ordinary EPContext model, which ONNX Runtime itself also reads and writes."""
    model = open_model(float_net)
    artifact = lookup("qnn").load().build(model, request())
    path = tmp_path / "context.onnx"
    path.write_bytes(bytes(artifact.blob))
    assert {n.op_type for n in onnx.load(path).graph.node} == {"EPContext", "Erf"}
    with session(path) as sess:
        want = reference(float_net, image())
        assert np.abs(sess.run(image())["y"] - want).max() <= 1e-5 * np.abs(want).max()
        evidence = sess.receipt(times=False).evidence["r0"]
    assert "EPContext" in {r.op for r in evidence.rows}
    assert any("prepared elsewhere" in n for n in evidence.notes)


@SOME
def test_options_change_the_binary_and_the_key(float_net: onnx.ModelProto) -> None:
    engine, model = lookup("qnn").load(), open_model(float_net)
    blobs = [bytes(engine.build(model, request(htp_arch=a)).blob) for a in ("73", "75", "75")]
    assert blobs[0] != blobs[1]
    assert blobs[1] == blobs[2]
    assert engine.fingerprint(request(htp_arch="73")) != engine.fingerprint(request(htp_arch="75"))


@SOME
def test_dlc_files_are_exported(qdq_net: onnx.ModelProto) -> None:
    settings = parse(request())
    assert isinstance(settings, QnnSettings)
    files = offline.dlc_files(open_model(qdq_net), settings.options)
    assert all(name.endswith(".dlc") for name in files)
    assert all(data[:2] == b"PK" for data in files.values()), "a DLC file is a ZIP archive"


@SOME
def test_a_policy_places_nodes_on_the_npu(float_net: onnx.ModelProto) -> None:
    """The nodes that ``place`` names run on the emulator, the others on the CPU; the receipt confirms both."""
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8), dtype=np.float32)
    place = {n.name: "qnn on npu" for n in float_net.graph.node if n.op_type == "Conv"}
    options = {"qnn": {"emulator": "1", "htp_arch": "75"}}
    mixed = xrt.ExecutionPolicy(place=place, engine_options=options)
    with xrt.InferenceSession(float_net, exec_policy=mixed, threads=1) as sess:
        (value, *_) = sess.run({sess.input_info[0].name: x.reshape(sess.input_info[0].shape)}).values()
        regions = {(r.engine, r.device) for r in sess.plan.regions}
        receipt = sess.receipt(times=False)
    assert ("qnn", "npu") in regions
    assert any(device == "cpu" for _, device in regions)
    assert receipt.confirmed, receipt
    want = reference(float_net, {sess.input_info[0].name: x.reshape(sess.input_info[0].shape)})
    assert np.abs(value - want).max() <= 1e-5 * np.abs(want).max()


def test_the_emulator_is_used_only_if_named(float_net: onnx.ModelProto) -> None:
    if library.has_npu():
        pytest.skip("this machine has a Qualcomm NPU")
    support = lookup("qnn").load().supports(open_model(float_net), EngineRequest(NPU))
    assert support.code is Reason.NO_DEVICE
    assert "no Qualcomm NPU" in support.reason
    assert "emulator=1" in support.do
    (fact,) = lookup("qnn").load_devices().devices()
    assert (str(fact.device), fact.support.ok, fact.facts) == ("npu", False, {"emulator": True})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"htp_arch": "85"}, "'htp_arch' cannot be '85' .the provider would use its default."),
        ({"htp_arch": "v75"}, "'htp_arch' cannot be 'v75'"),
        ({"vtcm_mb": "-1"}, "'vtcm_mb' cannot be '-1'"),
        ({"htp_performance_mode": "warp"}, "cannot be 'warp'"),
        ({"nonsense": "1"}, "no option 'nonsense' .the provider would ignore it."),
        ({"backend_path": "x"}, "'backend_path' is set by xpuruntime"),
    ],
)
def test_options_that_the_vendor_ignores_are_refused(
    options: dict[str, str], text: str, float_net: onnx.ModelProto
) -> None:
    with pytest.raises(xrt.PolicyError, match=text):
        session(float_net, exec_policy=policy(**options))


@SOME
@pytest.mark.parametrize("arch", HTP_ARCHITECTURES)
def test_every_architecture_is_prepared(arch: str, float_net: onnx.ModelProto) -> None:
    with session(float_net, exec_policy=policy(htp_arch=arch)) as sess:
        want = reference(float_net, image())
        assert np.abs(sess.run(image())["y"] - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    ("inputs", "nodes", "code", "text"),
    [
        ({"x": ("float32", ["n", 4])}, [node("Relu", ["x"], ["y"])], Reason.SHAPE_UNSUPPORTED, "needs static shapes; input 'x'"),
        ({"x": ("float64", [1, 4])}, [node("Relu", ["x"], ["y"])], Reason.DTYPE_UNSUPPORTED, "does not support float64"),
        ({"x": ("float32", [1, 4])}, [node("Own", ["x"], ["y"], domain="own")], Reason.OP_UNSUPPORTED, "op 'Own' of domain 'own'"),
    ],
)  # fmt: skip
def test_models_that_qnn_does_not_take(
    inputs: dict[str, Any], nodes: list[Any], code: Reason, text: str, make: Callable[..., onnx.ModelProto]
) -> None:
    kind = inputs["x"][0]
    proto = make(nodes, inputs, {"y": (kind, inputs["x"][1])}, opsets=[("", 17), ("own", 1)])
    support = lookup("qnn").load().supports(open_model(proto), request())
    assert support.code is code
    assert text in support.reason


@SOME
def test_open_sizes_run_once_they_are_fixed(make: Callable[..., onnx.ModelProto]) -> None:
    proto = make([node("Relu", ["x"], ["y"])], {"x": ("float32", ["n", 4])}, {"y": ("float32", ["n", 4])})
    with pytest.raises(
        EngineUnavailable, match=r"Fix the sizes in the execution policy: fixed_shapes=\{n: 1\}"
    ):
        session(proto)
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    fixed = policy().merge(xrt.ExecutionPolicy(fixed_shapes={"n": 2}))
    with session(proto, exec_policy=fixed) as sess:
        assert np.array_equal(sess.run(x=x)["y"], np.maximum(x, 0))


@SOME
def test_a_model_of_which_qnn_takes_nothing_is_refused(make: Callable[..., onnx.ModelProto]) -> None:
    proto = make([node("Erf", ["x"], ["y"])], {"x": ("float32", [4])}, {"y": ("float32", [4])})
    with pytest.raises(BuildError, match="QNN takes no node of this model: Erf"):
        session(proto)


@pytest.fixture(scope="module")
def gru_net(make: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    """A GRU, on which QNN fails the whole session, between nodes that it takes."""
    rng = np.random.default_rng(2)
    weights = {
        "w": rng.standard_normal((1, 12, 6), dtype=np.float32),
        "r": rng.standard_normal((1, 12, 4), dtype=np.float32),
    }
    return make(
        [
            node("Relu", ["x"], ["a"], name="before"),
            node("GRU", ["a", "w", "r"], ["g"], name="gru", hidden_size=4),
            node("Relu", ["g"], ["y"], name="after"),
        ],
        {"x": ("float32", [3, 1, 6])},
        {"y": ("float32", [3, 1, 1, 4])},
        weights,
    )


def test_the_node_on_which_the_vendor_fails_is_named(gru_net: onnx.ModelProto) -> None:
    with pytest.raises(BuildError, match=r"QNN fails on GRU \(node 'gru': .*QNN") as caught:
        session(gru_net)
    assert "before" not in str(caught.value)
    assert "Replace these ops" in caught.value.do


@SOME
def test_a_failing_node_falls_back_if_the_policy_admits_it(gru_net: onnx.ModelProto) -> None:
    fallback = policy().merge(xrt.ExecutionPolicy(allow_fallback="cpu"))
    x = np.random.default_rng(3).standard_normal((3, 1, 6), dtype=np.float32)
    with session(gru_net, exec_policy=fallback) as sess:
        assert sess.plan.regions[0].device == "cpu"
        want = reference(gru_net, {"x": x})
        assert np.abs(sess.run(x=x)["y"] - want).max() <= 1e-5


@SOME
def test_wrong_values_of_the_vendor_are_found_on_opening(make: Callable[..., onnx.ModelProto]) -> None:
    """QNN 2.51 pads a MaxPool of negative values with zeros, without an error."""
    pool = node("MaxPool", ["x"], ["y"], name="pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    proto = make([pool], {"x": ("float32", [1, 4, 9, 9])}, {"y": ("float32", [1, 4, 5, 5])})
    x = -5 - np.random.default_rng(0).random((1, 4, 9, 9), dtype=np.float32)
    with pytest.raises(xrt.WrongResult, match="output 'y' disagrees with onnxruntime on the given inputs"):
        session(proto, example_inputs={"x": x})
    fallback = policy().merge(xrt.ExecutionPolicy(allow_fallback="cpu"))
    with session(proto, example_inputs={"x": x}, exec_policy=fallback) as sess:
        np.testing.assert_allclose(sess.run(x=x)["y"], reference(proto, {"x": x}), rtol=1e-5)


def _settings() -> QnnSettings:
    settings = parse(request())
    assert isinstance(settings, QnnSettings)
    return settings


@SOME
@pytest.mark.parametrize("how", ["os.abort()", "time.sleep(60)"])
def test_a_crash_or_a_hang_of_the_vendor_names_the_node(
    how: str, gru_net: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The provider is replaced in the child by one that ends or stops at a GRU: sessions go on, and the probe goes on after it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "def hook(create):\n"
        "    def replaced(source, *a, **k):\n"
        "        import onnx\n"
        "        model = onnx.load(source) if isinstance(source, str) else onnx.ModelProto.FromString(source)\n"
        f"        any(n.op_type == 'GRU' for n in model.graph.node) and {how}\n"
        "        return create(source, *a, **k)\n"
        "    return replaced\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'xpuruntime.engines.qnn.probe':\n"
        "            sys.meta_path.remove(self)\n"
        "            from xpuruntime.engines.qnn import offline\n"
        "            offline.create_session = hook(offline.create_session)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe, "PROBE_S", 8.0)
    monkeypatch.setattr(qnn_build, "PREPARE_S", 8.0)
    model = open_model(gru_net)
    refusals = probe.refused_nodes(model, _settings(), "test")
    assert [(r.node, r.op) for r in refusals] == [("gru", "GRU")]
    assert ("died" if "abort" in how else "time limit") in refusals[0].text


@SOME
def test_every_kind_of_node_is_probed_once(qdq_net: onnx.ModelProto, float_net: onnx.ModelProto) -> None:
    units = probe._units(open_model(qdq_net))
    assert [(n, op) for n, op, _ in units] == [
        (n, n2) for n, n2 in (("conv", "Conv"), ("relu", "Relu"), ("flat", "Flatten"), ("product", "MatMul"))
    ]
    ops = {n: [k.op_type for k in onnx.ModelProto.FromString(u).graph.node] for n, _, u in units}
    assert ops["conv"] == ["DequantizeLinear"] * 3 + ["Conv"]
    assert ops["product"] == ["DequantizeLinear"] * 2 + ["MatMul", "QuantizeLinear"]
    for model in (qdq_net, float_net):
        assert probe.refused_nodes(open_model(model), _settings(), "test") == []


@SOME
def test_a_preparation_has_a_time_limit(float_net: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn_build, "PREPARE_S", 0.001)
    with pytest.raises(BuildTimeout, match="took longer than the time limit of QNN's offline preparation"):
        qnn_build.prepared(open_model(float_net), _settings(), "test")


def test_a_library_that_cannot_be_loaded_is_a_reason(tmp_path: Path) -> None:
    """A package of the right version whose provider library is cut off, as after a full disk."""
    package = tmp_path / "onnxruntime_qnn"
    package.mkdir()
    (package / "libonnxruntime_providers_qnn.so").write_bytes(b"\x7fELF cut off")
    (package / "__init__.py").write_text(
        "import os\n__version__ = '2.7.0'\nLIB_DIR_FULL_PATH = os.path.dirname(__file__)\n"
        "def get_library_path(): return os.path.join(LIB_DIR_FULL_PATH, 'libonnxruntime_providers_qnn.so')\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from xpuruntime.engines import lookup\n"
        "(f,) = lookup('qnn').load_devices().devices()\nprint(f.support.code, f.support.reason, f.support.do, sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    code_text, reason, do = done.stdout.strip().split("|")
    assert code_text == "device_refused"
    assert "the provider library of onnxruntime-qnn 2.7.0 cannot be loaded" in reason
    assert "libonnxruntime_providers_qnn.so" in reason
    assert "Reinstall" in do


def test_plain_sessions_do_not_change_once_the_provider_is_registered(float_net: onnx.ModelProto) -> None:
    assert library.ep_devices()
    with xrt.InferenceSession(float_net, device="cpu", engine="onnxruntime") as sess:
        want = reference(float_net, image())
        assert np.abs(sess.run(image())["y"] - want).max() <= 1e-5 * np.abs(want).max()
        assert {r.device for r in sess.receipt().evidence["r0"].rows} == {"cpu"}
    with pytest.raises(xrt.UnavailableError, match="has no provider for device npu"):
        xrt.InferenceSession(float_net, device="npu", engine="onnxruntime")


def test_element_types_and_names_of_the_dump() -> None:
    names = {
        0x0408: "uint8",
        0x0308: "int8",
        0x0332: "int32",
        0x0232: "float32",
        0x0216: "float16",
        0x0132: "uint32",
        0x0416: "uint16",
    }
    assert {code: dtype_name(code) for code in names} == names
    assert dtype_name(0x0508) == "bool"
    assert dtype_name(0x7FFFFFFF) == dtype_name(-1) == ""
    assert source_name("conv_token_12") == "conv"
    assert source_name("token_1x") == "token_1x"


@SOME
def test_a_model_source_is_not_changed(qdq_net: onnx.ModelProto) -> None:
    model: ModelSource = open_model(qdq_net)
    before = model.data
    lookup("qnn").load().build(model, request())
    assert model.data == before
