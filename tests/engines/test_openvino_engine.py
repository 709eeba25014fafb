"""The engine on OpenVINO: devices, precisions, options, compiled blobs and evidence, compared with OpenVINO's own answers."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from onnx import helper

from xpuruntime.decisions import Reason, Support
from xpuruntime.engines.openvino import devices, engine
from xpuruntime.engines.openvino.plugin import PLUGIN
from xpuruntime.errors import BuildError, RunError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import Artifact, EngineRequest, Executable, ModelSource
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

Make = Callable[..., onnx.ModelProto]
Open = Callable[..., Executable]
INPUTS = {"x": ("float32", [4])}
OUTPUTS = {"y": ("float32", [4])}
CORE = openvino.Core()
CAPABILITIES = CORE.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def relu(make: Make, **more: Any) -> onnx.ModelProto:
    return make([helper.make_node("Relu", ["x"], ["y"], name="r")], INPUTS, OUTPUTS, **more)


def support_of(
    model: ModelSource, device: str = "cpu", precision: DType | None = None, **options: str
) -> Support:
    return engine.supports(model, EngineRequest(DeviceId.parse(device), precision, options=options))


@pytest.fixture
def source(make: Make) -> ModelSource:
    return open_model(relu(make))


def test_the_version_is_that_of_openvino() -> None:
    assert openvino.get_version().startswith(engine.version())
    assert engine.version() == PLUGIN.version()


@pytest.mark.parametrize(("opset", "domain"), [(21, ""), (17, "com.microsoft")])
def test_pairs_of_16_bits_are_refused_where_openvino_removes_them(
    opset: int, domain: str, make: Make
) -> None:
    scale = ["s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *scale], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", *scale], ["d"], domain=domain),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = {"s": np.float32(1 / 65535), "z": np.uint16(0)}
    model = make(nodes, INPUTS, OUTPUTS, weights, opsets=[("", opset), ("com.microsoft", 1)])
    compiled = CORE.compile_model(CORE.read_model(model.SerializeToString()), "CPU")
    saturates = next(iter(compiled({"x": np.array([0, 0.5, 1, 9], np.float32)}).values())).max() == 1
    support = support_of(open_model(model))
    assert bool(support) == saturates
    assert saturates or support.code is Reason.DTYPE_UNSUPPORTED
    assert saturates or "the model has 1 QuantizeLinear node with 16-bit codes" in support.reason
    weights["z"] = np.uint8(0)
    assert support_of(
        open_model(make(nodes, INPUTS, OUTPUTS, weights, opsets=[("", opset), ("com.microsoft", 1)]))
    )


def test_each_kind_of_device_is_listed() -> None:
    facts = {str(f.device): f for f in engine.devices()}
    assert {"cpu", "auto", "gpu", "npu"} <= set(facts)
    assert facts["cpu"].support
    assert facts["cpu"].name == CORE.get_property("CPU", "FULL_DEVICE_NAME")
    assert set(facts["cpu"].facts["capabilities"]) == set(CAPABILITIES)


@pytest.mark.parametrize("kind", ["gpu", "npu"])
def test_the_rejection_of_an_absent_device_repeats_openvinos_error(source: ModelSource, kind: str) -> None:
    name = kind.upper()
    if name in CORE.available_devices:
        pytest.skip(f"this machine has a {name}")
    with pytest.raises(RuntimeError) as caught:
        CORE.compile_model(CORE.read_model(onnx_bytes(source)), name)
    rejection = support_of(source, kind)
    assert rejection.code is Reason.NO_DEVICE
    assert rejection.reason.startswith(
        f"OpenVINO lists no {name} here (it lists {', '.join(CORE.available_devices)}); compiling for it fails: "
    )
    library = next(w for w in str(caught.value).split() if ".so" in w).strip("\"':")
    assert library in rejection.reason
    assert "device='cpu'" in rejection.do
    with pytest.raises(BuildError, match=f"cannot build; got OpenVINO lists no {name} here"):
        engine.build(source, EngineRequest(DeviceId(kind)))


def onnx_bytes(source: ModelSource) -> bytes:
    assert source.data is not None
    return source.data


def test_a_kind_of_device_that_openvino_does_not_support(source: ModelSource) -> None:
    rejection = support_of(source, "cuda")
    assert (rejection.code, rejection.reason) == (
        Reason.DEVICE_MISMATCH,
        "OpenVINO supports cpu, auto, gpu, npu, not cuda:0",
    )


@pytest.mark.parametrize(
    ("precision", "capability"), [(DType.BFLOAT16, "BF16"), (DType.FLOAT16, "FP16"), (DType.FLOAT32, "FP32")]
)
def test_a_precision_is_supported_if_the_device_lists_it(
    source: ModelSource, opened: Open, precision: DType, capability: str
) -> None:
    support = support_of(source, precision=precision)
    assert bool(support) == (capability in CAPABILITIES)
    if support:
        hint = opened("openvino", source, precision=precision).evidence().options["INFERENCE_PRECISION_HINT"]
        assert hint == {"BF16": "bf16", "FP16": "f16", "FP32": "f32"}[capability]
    else:
        assert support.code is Reason.PRECISION_UNSUPPORTED
        assert support.reason.startswith(
            f"OpenVINO's CPU does not compute in {precision}: its OPTIMIZATION_CAPABILITIES are "
        )


def test_int8_is_not_a_precision_of_a_session(source: ModelSource) -> None:
    rejection = support_of(source, precision=DType.INT8)
    assert (rejection.code, rejection.do) == (Reason.PRECISION_UNSUPPORTED, "Quantize the model first.")


def test_float64_is_rejected_because_openvino_computes_it_in_float32(make: Make) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    proto = make([node], {"x": ("float64", [1])}, {"y": ("float64", [1])})
    x = np.array([1 + 2.0**-40])
    hint = {"INFERENCE_PRECISION_HINT": "f64"}
    try:
        y = CORE.compile_model(CORE.read_model(proto.SerializeToString()), "CPU", hint)({0: x})[0]
    except RuntimeError:  # OpenVINO rejects the hint f64
        y = CORE.compile_model(CORE.read_model(proto.SerializeToString()), "CPU")({0: x})[0]
    assert y[0] == 2  # if this fails with 2 + 2**-39, OpenVINO computes float64: remove the rejection
    rejection = support_of(open_model(proto))
    assert (rejection.code, rejection.reason) == (
        Reason.PRECISION_UNSUPPORTED,
        "OpenVINO silently computes float64 in float32",
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_session_without_a_precision_computes_in_the_models(make: Make, opened: Open, dtype: str) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(dtype)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")]
    executable = opened("openvino", make(nodes, {"x": (dtype, [8, 64])}, {"y": (dtype, [8, 64])}, {"w": w}))
    e = executable.evidence()
    widened = dtype == "float16" and "FP16" not in CAPABILITIES
    assert e.options["INFERENCE_PRECISION_HINT"] == ("f16" if dtype == "float16" and not widened else "f32")
    assert (
        any("computed in float32: the device does not compute in the model's float16" in n for n in e.notes)
        == widened
    )
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(dtype)
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(executable.run({"x": x})[0] - want).max() / np.abs(want).max() < (
        1e-6 if dtype == "float32" else 2e-3
    )


@pytest.mark.skipif("BF16" not in CAPABILITIES, reason="this CPU does not compute in bfloat16")
def test_a_session_of_precision_bfloat16_computes_in_bfloat16(
    conv_net: onnx.ModelProto, opened: Open
) -> None:
    rows = opened("openvino", conv_net, precision=DType.BFLOAT16).evidence().rows
    assert {r.precision for r in rows if r.op == "Convolution"} == {"bfloat16"}
    assert {r.precision for r in opened("openvino", conv_net).evidence().rows if r.op == "Convolution"} == {
        "float32"
    }


@pytest.mark.parametrize(
    ("key", "value", "reason", "do"),
    [
        (
            "PERFORMANCE_HINTS",
            "LATENCY",
            "OpenVINO's CPU has no option 'PERFORMANCE_HINTS'",
            "Did you mean 'PERFORMANCE_HINT'? Options are ",
        ),
        (
            "INFERENCE_PRECISION_HINT",
            "bf16",
            "OpenVINO option 'INFERENCE_PRECISION_HINT' is set by xpuruntime",
            "Use precision=",
        ),
        ("FULL_DEVICE_NAME", "x", "OpenVINO's CPU has no option 'FULL_DEVICE_NAME'", ""),
        ("PERFORMANCE_HINT", "SLOW", "OpenVINO's CPU refuses the options: ", "Correct the values."),
    ],
)
def test_wrong_options(source: ModelSource, key: str, value: str, reason: str, do: str) -> None:
    rejection = support_of(source, **{key: value})
    assert rejection.code is Reason.OPTION_UNKNOWN
    assert rejection.reason.startswith(reason)
    assert rejection.do.startswith(do)


def test_options_reach_the_model(source: ModelSource, opened: Open) -> None:
    executable = opened("openvino", source, options={"PERFORMANCE_HINT": "THROUGHPUT"}, threads=1)
    options = executable.evidence().options
    assert options["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert options["INFERENCE_NUM_THREADS"] == "1"


def test_ops_and_dtypes_that_openvino_does_not_support(make: Make) -> None:
    node = helper.make_node("Magic", ["x"], ["y"], name="m", domain="vendor.ops")
    rejection = support_of(open_model(make([node], INPUTS, OUTPUTS, opsets=[("", 17), ("vendor.ops", 1)])))
    assert (rejection.code, rejection.reason) == (
        Reason.OP_UNSUPPORTED,
        "node 'm' has op 'Magic' of domain 'vendor.ops', for which OpenVINO has no conversion rule",
    )
    text = make([helper.make_node("Identity", ["x"], ["y"])], {"x": ("string", [1])}, {"y": ("string", [1])})
    rejection = support_of(open_model(text))
    assert rejection.code is Reason.DTYPE_UNSUPPORTED
    assert rejection.reason.startswith("OpenVINO does not support string as a model input or output")


def test_the_error_of_a_failed_build_repeats_openvinos_text(make: Make, opened: Open) -> None:
    node = helper.make_node("FusedGelu", ["x"], ["y"], name="g", domain="com.microsoft")
    proto = make([node], INPUTS, OUTPUTS, opsets=[("", 17), ("com.microsoft", 1)])
    with pytest.raises(
        BuildError, match=r"\[openvino, model graph\] OpenVINO .* cannot build this model; got .*FusedGelu"
    ):
        opened("openvino", proto)


def test_int64_values_that_32_bits_cannot_represent_are_rejected(make: Make, opened: Open) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    proto = make([node], {"x": ("int64", ["n"])}, {"y": ("int64", ["n"])})
    raw = CORE.compile_model(CORE.read_model(proto.SerializeToString()), "CPU")({0: np.array([2**40])})[0]
    assert raw[0] != 2**41  # if this fails, OpenVINO computes int64 in 64 bits: remove the rejection
    run = opened("openvino", proto).run
    with pytest.raises(
        RunError,
        match=r"computes int64 in 32 bits, so input 'x' must stay within .*; got values from 5 to 1099511627776",
    ):
        run({"x": np.array([5, 2**40])})
    assert run({"x": np.array([5, -7])})[0].tolist() == [10, -14]
    assert run({"x": np.zeros(0, np.int64)})[0].shape == (0,)


# ── compiled blobs, and the evidence of what runs ──


def build(model: object, device: str = "cpu") -> tuple[ModelSource, EngineRequest, Artifact]:
    source, request = open_model(model), EngineRequest(DeviceId(device), threads=2)
    return source, request, engine.build(source, request)


def test_a_blob_loads_again_with_its_evidence(conv_net: onnx.ModelProto) -> None:
    source, request, artifact = build(conv_net)
    assert artifact.cacheable
    assert artifact.blob
    executable = engine.load(artifact, source, request)
    e = executable.evidence()
    by_first = {r.nodes[0]: r for r in e.rows if r.nodes}
    assert by_first["conv1"].nodes == ("conv1", "norm1", "relu1")
    assert by_first["conv1"].op == "Convolution"
    assert (
        "avx" in by_first["conv1"].kernel
        or "jit" in by_first["conv1"].kernel
        or "ref" in by_first["conv1"].kernel
    )
    assert by_first["twice"].nodes == ("twice", "Sigmoid_13", "silu")
    assert by_first["twice"].op == "Subgraph"
    in_rows = [n for r in e.rows for n in r.nodes]
    assert set(in_rows) == {n.name for n in source.nodes} - {"shape", "root"}
    assert len(in_rows) == len(set(in_rows))
    assert any("computed once when building" in n and "shape, root" in n for n in e.notes)
    assert (e.placement_source, e.time_source, e.fallbacks) == ("session", "", ())


def test_times_are_measured_on_a_second_compilation_with_profiling(
    conv_net: onnx.ModelProto, opened: Open
) -> None:
    e = opened("openvino", conv_net).evidence({"x": np.ones((1, 16, 8, 8), np.float32)})
    assert e.time_source == "profiled twin, median of 10 runs"
    assert all(r.time_us is not None for r in e.rows if r.nodes)
    assert sum(r.time_us or 0 for r in e.rows) > 0


def test_steps_that_openvino_renames_or_splits_are_attributed_to_their_nodes(
    make: Make, opened: Open
) -> None:
    """OpenVINO removes a bias of zeros and renames the convolution. It splits a bidirectional LSTM into two steps with names of its own."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((16, 16, 3), dtype=np.float32),
        "zeros": np.zeros(16, np.float32),
        "w": rng.standard_normal((2, 32, 16), dtype=np.float32),
        "r": rng.standard_normal((2, 32, 8), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k", "zeros"], ["c"], "conv", pads=[1, 1]),
        helper.make_node("Transpose", ["c"], ["t"], "to_sequence", perm=[2, 0, 1]),
        helper.make_node("LSTM", ["t", "w", "r"], ["l"], "lstm", direction="bidirectional", hidden_size=8),
        helper.make_node("Transpose", ["l"], ["y"], "swap", perm=[0, 2, 1, 3]),
    ]
    model = make(
        nodes, {"x": ("float32", [1, 16, 12])}, {"y": ("float32", [12, 1, 2, 8])}, weights, (("", 13),)
    )
    rows = opened("openvino", model).evidence({"x": np.ones((1, 16, 12), np.float32)}).rows
    assert [r.nodes for r in rows if r.op == "Convolution"] == [("conv",)]
    recurrent = [r.nodes for r in rows if r.op in ("RNNSeq", "LSTMSequence")]
    assert recurrent
    assert all("lstm" in nodes for nodes in recurrent)


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_a_damaged_blob_is_a_build_error(conv_net: onnx.ModelProto, damage: str) -> None:
    source, request, artifact = build(conv_net)
    blob = artifact.blob[: len(artifact.blob) // 2] if damage == "truncated" else b"\0" * 100
    with pytest.raises(
        BuildError, match=r"OpenVINO .* cannot load the compiled blob; got .* Clear the cache entry"
    ):
        engine.load(Artifact("openvino", blob, cacheable=True), source, request)


def test_the_fingerprint_has_all_that_a_blob_depends_on() -> None:
    cpu = DeviceId("cpu")
    prints = [
        engine.fingerprint(r)
        for r in (
            EngineRequest(cpu, threads=1),
            EngineRequest(cpu, threads=2),
            EngineRequest(cpu, threads=1, options={"ENABLE_CPU_PINNING": "NO"}),
        )
    ]
    assert len({tuple(sorted(p.items())) for p in prints}) == 3
    assert prints[0]["openvino"] == openvino.get_version()
    assert prints[0]["device_name"] == CORE.get_property("CPU", "FULL_DEVICE_NAME")
    assert prints[0]["capabilities"].split(",") == list(CAPABILITIES)


def test_the_evidence_of_auto_names_the_device_that_runs(source: ModelSource, opened: Open) -> None:
    executable = opened("openvino", source, device="auto")
    assert executable.run({"x": np.array([-1, 0, 1, 2], np.float32)})[0].tolist() == [0, 0, 1, 2]
    e = executable.evidence({"x": np.ones(4, np.float32)})
    assert e.options["EXECUTION_DEVICES"] == "CPU"
    assert {r.device for r in e.rows} == {"cpu"}
    assert not build(onnx_bytes(source), "auto")[2].cacheable


def test_auto_that_skips_its_first_device_is_a_fallback(source: ModelSource, opened: Open) -> None:
    if "NPU" in CORE.available_devices:
        pytest.skip("this machine has an NPU")
    e = opened("openvino", source, device="auto", options={"DEVICE_PRIORITIES": "NPU,CPU"}).evidence()
    assert e.fallbacks == ("AUTO's first device is NPU, but it runs on CPU",)


def test_openvino_ir(conv_net: onnx.ModelProto, opened: Open, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    network = CORE.read_model(conv_net.SerializeToString())
    openvino.save_model(network, str(tmp_path / "m.xml"), compress_to_fp16=False)
    source = open_model(tmp_path / "m.xml")
    executable = opened("openvino", source)
    np.testing.assert_allclose(
        executable.run({"x": x})[0], opened("openvino", conv_net).run({"x": x})[0], rtol=1e-6
    )
    in_rows = {n for r in executable.evidence({"x": x}).rows for n in r.nodes}
    assert {"conv1", "conv2", "pool"} <= in_rows <= {n.name for n in source.nodes}


@pytest.mark.parametrize("name", ["AUTO:CPU", "HETERO:CPU", "MULTI:CPU", "BATCH:CPU(4)"])
def test_meta_devices_run_in_the_models_own_precision(
    name: str, conv_net: onnx.ModelProto, opened: Open
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    want = opened("onnxruntime", conv_net).run({"x": x})[0]
    executable = opened("openvino", conv_net, device="auto", options={"DEVICE": name})
    np.testing.assert_allclose(executable.run({"x": x})[0], want, rtol=1e-5, atol=1e-6)
    e = executable.evidence()
    assert e.fallbacks == ()
    assert e.options["EXECUTION_DEVICES"] == "CPU"
    assert {r.precision for r in e.rows} <= {"float32", "int32", "int64", ""}


def test_the_blob_of_a_heterogeneous_model_loads_again(conv_net: onnx.ModelProto) -> None:
    source = open_model(conv_net)
    request = EngineRequest(DeviceId("auto"), threads=1, options={"DEVICE": "HETERO:CPU"})
    artifact = engine.build(source, request)
    assert artifact.cacheable
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    results = [
        engine.load(a, source, request).run({"x": x})[0]
        for a in (artifact, Artifact("openvino", bytes(artifact.blob), True, artifact.meta))
    ]
    assert np.array_equal(*results)
    assert engine.fingerprint(request) != engine.fingerprint(EngineRequest(DeviceId("auto"), threads=1))


@pytest.mark.parametrize(
    ("device", "name", "code", "text"),
    [
        ("cpu", "HETERO:CPU", Reason.OPTION_UNKNOWN, "but the session's device is cpu"),
        ("auto", "CPU", Reason.OPTION_UNKNOWN, "cannot be 'CPU'"),
        ("auto", "HETERO:", Reason.OPTION_UNKNOWN, "cannot be 'HETERO:'"),
        ("auto", "HETERO:NPU,CPU", Reason.DEVICE_REFUSED, "OpenVINO refuses HETERO:NPU,CPU: "),
        ("auto", "MULTI:TPU", Reason.DEVICE_REFUSED, "OpenVINO refuses MULTI:TPU: "),
    ],
)
def test_meta_devices_that_are_rejected(
    device: str, name: str, code: Reason, text: str, source: ModelSource
) -> None:
    if "NPU" in name and "NPU" in CORE.available_devices:
        pytest.skip("this machine has an NPU")
    support = support_of(source, device, DEVICE=name)
    assert support.code is code
    assert text in support.reason


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "2"}, 2),
        ({"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT", "NUM_STREAMS": "1"}, 1),
    ],
)
def test_hints_and_streams_reach_the_device(
    options: dict[str, str], streams: int, conv_net: onnx.ModelProto, opened: Open
) -> None:
    executable = opened("openvino", conv_net, options=options)
    e = executable.evidence()
    assert e.options["PERFORMANCE_HINT"] == options.get("PERFORMANCE_HINT", "LATENCY")
    assert executable._compiled.get_property("NUM_STREAMS") == streams
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    want = opened("onnxruntime", conv_net).run({"x": x})[0]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: executable.run({"x": x})[0], range(16)):
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


def test_versions_of_drivers_are_facts_of_a_device() -> None:
    try:
        listed = dict(CORE.get_property("NPU", "SUPPORTED_PROPERTIES"))
    except RuntimeError as error:  # releases before 2026 need the NPU's driver for that
        pytest.skip(f"the NPU plug-in cannot be loaded: {error}")
    named = {f"NPU.{k}" for k in listed if k.endswith("_VERSION")}
    facts = devices.device_facts("NPU")
    assert named == {k for k in facts if k.startswith("NPU.")}
