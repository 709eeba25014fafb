"""The TensorRT engine against what 8.6, 10 and 11 have, without a GPU: ``support.tensorrt_double`` has exactly the members of each version.

What TensorRT itself does is checked on a GPU (tests/gpu/tensorrt_engine.py).
"""

from __future__ import annotations

import ast
import concurrent.futures
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("onnxruntime")
from support.tensorrt_double import VERSIONS, double

from xpuruntime.decisions import Reason, Support
from xpuruntime.engines.tensorrt import build as trt_build
from xpuruntime.engines.tensorrt import devices, engine, plan_file
from xpuruntime.engines.tensorrt import run as trt_run
from xpuruntime.engines.tensorrt.api import DIFFERENCES, Api
from xpuruntime.errors import BuildError, InputError, ModelError, RunError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import Artifact, EngineRequest
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

CPU = DeviceId("cpu")
node = helper.make_node


@pytest.fixture(params=VERSIONS)
def vendor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    """One version of the vendor on the host's memory, with a store of its own."""
    with_version = Api(double(request.param))
    for module in (trt_build, trt_run, devices):
        monkeypatch.setattr(module, "api", lambda: with_version)
    monkeypatch.setattr("xpuruntime.engines.tensorrt.kernel_options.api", lambda: with_version)
    monkeypatch.setattr(devices, "usable", lambda device: Support.yes())
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path / "store"))
    return with_version


def ask(precision: DType | None = None, **options: str) -> EngineRequest:
    return EngineRequest(CPU, precision, options=options)


def loaded(model: Any, request: EngineRequest) -> trt_run.TensorRtExecutable:
    source = open_model(model)
    return engine.load(engine.build(source, request), source, request)


def built(vendor: Api) -> dict[str, Any]:
    return vendor.module.builds[-1]  # type: ignore[no-any-return]


def test_the_table_of_differences_is_that_of_the_binding_modules() -> None:
    for version in VERSIONS:
        module = double(version)
        api = Api(module)
        for name in DIFFERENCES:
            kind, _, member = name.partition(".")
            assert hasattr(getattr(module, kind), member) is api.has(name), (version, name)


def test_no_other_file_calls_the_vendor() -> None:
    folder = Path(trt_run.__file__).parent
    for path in folder.glob("*.py"):
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert path.name == "api.py" or not names & {"tensorrt", "trt", "vendor_module"}, path.name


def test_a_model_is_built_run_and_reported(
    vendor: Api, conv_net: onnx.ModelProto, opened: Callable[..., Any]
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    want = opened("onnxruntime", conv_net).run({"x": x})[0]
    executable = loaded(conv_net, ask())
    np.testing.assert_allclose(executable.run({"x": x})[0], want, rtol=1e-5, atol=1e-6)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for (out,) in pool.map(lambda _: executable.run({"x": x}), range(16)):
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    evidence = executable.evidence({"x": x})
    assert evidence.version == vendor.version
    conv = next(r for r in evidence.rows if "conv1" in r.nodes)
    assert (conv.kernel, conv.precision, conv.activations, conv.weights) == (
        "sm90_convolution_fp32",
        "float32",
        "float32",
        "float32",
    )
    assert conv.time_us == pytest.approx(2.0)
    assert "profiled" in evidence.time_source
    executable.close()
    with pytest.raises(RunError, match="the session is closed"):
        executable.run({"x": x})


def test_the_models_own_precision_is_the_default(vendor: Api, conv_net: onnx.ModelProto) -> None:
    loaded(conv_net, ask())
    facts = built(vendor)
    assert "TF32" not in facts["flags"], "the vendor's default is on"
    assert not {"FP16", "BF16", "INT8"} & set(facts["flags"])
    members = vendor.module.NetworkDefinitionCreationFlag.__members__
    typed, batch = members.get("STRONGLY_TYPED"), members.get("EXPLICIT_BATCH")
    assert typed is None or facts["network"] >> typed & 1
    assert batch is None or facts["network"] >> batch & 1
    loaded(conv_net, ask(tf32="1"))
    assert "TF32" in built(vendor)["flags"]


def test_lower_precisions_are_flags_where_the_version_has_them(
    vendor: Api, conv_net: onnx.ModelProto
) -> None:
    source = open_model(conv_net)
    for dtype, flag, first in ((DType.FLOAT16, "FP16", 8), (DType.BFLOAT16, "BF16", 10)):
        support = engine.supports(source, ask(dtype))
        if first <= vendor.major < 11:
            loaded(conv_net, ask(dtype))
            assert flag in built(vendor)["flags"]
            assert (
                not built(vendor)["network"]
                >> vendor.module.NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED", 30)
                & 1
            )
        else:
            assert support.code is Reason.PRECISION_UNSUPPORTED
            assert f"TensorRT {vendor.version} computes" in support.reason
            assert f"Convert the model to {dtype}" in support.do


def test_a_quantized_model_computes_in_integers(vendor: Api, make: Callable[..., onnx.ModelProto]) -> None:
    weights = {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((4, 4), np.int8)}
    proto = make(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
            node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
            node("DequantizeLinear", ["w", "s", "z"], ["wd"], name="wd"),
            node("MatMul", ["d", "wd"], ["p"], name="product"),
            node("QuantizeLinear", ["p", "s", "z"], ["pq"], name="pq"),
            node("DequantizeLinear", ["pq", "s", "z"], ["y"], name="y"),
        ],
        {"x": ("float32", [2, 4])},
        {"y": ("float32", [2, 4])},
        weights,
    )
    assert open_model(proto).quantized is DType.INT8
    loaded(proto, ask())
    facts = built(vendor)
    typed = vendor.module.NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED")
    assert "INT8" in facts["flags"] if typed is None else facts["network"] >> typed & 1


def open_net(make: Callable[..., onnx.ModelProto]) -> onnx.ModelProto:
    return make(
        [node("Relu", ["x"], ["r"], name="r"), node("Add", ["r", "b"], ["y"], name="add")],
        {"x": ("float32", ["batch", "seq", 4]), "b": ("float32", [4])},
        {"y": ("float32", ["batch", "seq", 4])},
    )


def test_profiles_of_dynamic_shapes(vendor: Api, make: Callable[..., onnx.ModelProto]) -> None:
    proto = open_net(make)
    support = engine.supports(open_model(proto), ask())
    assert support.code is Reason.SHAPE_UNSUPPORTED
    assert "profiles='batch=1:1:8 seq=1:1:8'" in support.do
    executable = loaded(proto, ask(profiles="batch=1:2:4 seq=1:8:16; batch=8:8:8 seq=1:1:64"))
    assert built(vendor)["profiles"] == 2
    sharing = vendor.module.PreviewFeature.__members__.get("PROFILE_SHARING_0806")
    assert sharing is None or built(vendor)["PROFILE_SHARING_0806"] is True
    rng, b = np.random.default_rng(0), np.arange(4, dtype=np.float32)
    for batch, seq in ((1, 1), (4, 16), (8, 64), (3, 5)):
        x = rng.standard_normal((batch, seq, 4), dtype=np.float32)
        np.testing.assert_allclose(executable.run({"x": x, "b": b})[0], np.maximum(x, 0) + b, rtol=1e-6)
    x = np.zeros((5, 1, 4), np.float32)
    with pytest.raises(
        InputError, match=r"no optimization profile has these shapes; .*x: \[1, 1, 4\] to \[4, 16, 4\]"
    ):
        executable.run({"x": x, "b": b})


def test_a_run_on_known_shapes_gives_a_context_only_new_addresses(
    vendor: Api, make: Callable[..., onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    executable = loaded(open_net(make), ask(profiles="batch=1:2:4 seq=1:8:16; batch=8:8:8 seq=1:1:64"))
    inferred, infer = list[Any](), vendor.infer
    monkeypatch.setattr(vendor, "infer", lambda *given: [inferred.append(given[1]), infer(*given)][1])
    b, kept = torch.arange(4.0), []
    for shape in ((2, 3, 4), (8, 1, 4)) * 2:
        for _ in range(5):
            x = torch.randn(shape)
            kept.append((x, executable.run_tensors({"x": x, "b": b})[0]))
    assert all(torch.equal(y, x.relu() + b) for x, y in kept)
    assert len({y.data_ptr() for _, y in kept}) == len(kept)
    assert len(inferred) <= 6, "once for each change of shapes, and twice when a shape is new"
    before = len(inferred)
    x = torch.randn(8, 1, 4)
    outputs = executable.try_run_tensors({"x": x, "b": b})
    assert outputs is not None
    assert torch.equal(outputs["y"], x.relu() + b)
    np.testing.assert_array_equal(executable.run({"x": x.numpy(), "b": b.numpy()})[0], x.relu() + b)
    assert len(inferred) == before, "runs from the host share the contexts"
    with pytest.raises(InputError, match="no optimization profile"):
        executable.run_tensors({"x": torch.zeros(5, 1, 4), "b": b})
    with pytest.raises(InputError, match="must be float32"):
        executable.run_tensors({"x": x.double(), "b": b})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        inputs = [torch.full((1 + i % 4, 2, 4), float(i)) for i in range(64)]
        results = list(pool.map(lambda x: executable.run_tensors({"x": x, "b": b})[0], inputs))
    assert all(torch.equal(y, x.relu() + b) for x, y in zip(inputs, results, strict=True))
    executable.close()
    assert executable.try_run_tensors({"x": x, "b": b}) is None


def test_an_address_that_the_vendor_refuses_ends_the_run(
    vendor: Api, make: Callable[..., onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    refused, binder = list[str](), vendor.binder
    monkeypatch.setattr(
        vendor, "binder", lambda c: lambda name, at: name not in refused and binder(c)(name, at)
    )
    executable = loaded(open_net(make), ask(profiles="batch=1:2:4 seq=1:8:16"))
    x, b = torch.randn(2, 3, 4), torch.arange(4.0)
    kept = [executable.run_tensors({"x": x, "b": b})[0] for _ in range(3)]
    for name in ("x", "y"):
        refused[:] = [name]
        with pytest.raises(RunError, match="TensorRT failed while running"):
            executable.run_tensors({"x": x.clone(), "b": b})
        refused.clear()
        assert torch.equal(executable.run_tensors({"x": x.clone(), "b": b})[0], x.relu() + b)
    assert all(torch.equal(y, x.relu() + b) for y in kept)


def test_streams_share_no_context(
    vendor: Api, make: Callable[..., onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context's activations are in one memory, so queued runs on two streams would overwrite each other's."""
    torch = pytest.importorskip("torch")
    used, launcher = list[tuple[int, int]](), vendor.launcher

    def recording(context: Any) -> Callable[[int], None]:
        launch = launcher(context)
        return lambda stream: [used.append((stream, id(context))), launch(stream)][1]  # type: ignore[func-returns-value, return-value]

    monkeypatch.setattr(vendor, "launcher", recording)
    executable = loaded(open_net(make), ask(profiles="batch=1:2:4 seq=1:8:16"))
    x, b = torch.randn(2, 3, 4), torch.arange(4.0)
    for stream in (0, 7, 0, 7, 7, 0):
        monkeypatch.setattr(executable._backend, "current_stream", lambda stream=stream: stream)
        executable.run_tensors({"x": x, "b": b})
    contexts = {s: {c for at, c in used if at == s} for s in (0, 7)}
    assert [len(c) for c in contexts.values()] == [1, 1]
    assert not contexts[0] & contexts[7]
    for stream in range(40):
        monkeypatch.setattr(executable._backend, "current_stream", lambda stream=stream: stream)
        executable.run_tensors({"x": x, "b": b})
    assert len(executable._pool.free) <= 16


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"profiles": "batch=4:2:1 seq=1:1:1"}, "cannot have 'batch=4:2:1'"),
        ({"profiles": "batch=1:2:4"}, "differ in seq"),
        ({"profiles": "batch=1:2:4 seq=1:2:4 w=1:2:3"}, "differ in w"),
        ({"profils": "x"}, "no option 'profils'"),
        ({"workspace_bytes": "much"}, "cannot be 'much'"),
        ({"builder_optimization_level": "6"}, "cannot be '6'"),
        ({"tactic_sources": "CUBLASS"}, "no tactic source 'CUBLASS'"),
        ({"plugins": "/nonexistent/lib.so"}, "'/nonexistent/lib.so' does not exist"),
    ],
)
@pytest.mark.parametrize("vendor", VERSIONS[-1:], indirect=True)
def test_wrong_options(
    vendor: Api, options: dict[str, str], text: str, make: Callable[..., onnx.ModelProto]
) -> None:
    support = engine.supports(open_model(open_net(make)), ask(**options))
    assert not support
    assert text in support.reason
    assert support.do


def test_settings_reach_the_builder(vendor: Api, conv_net: onnx.ModelProto) -> None:
    options = {
        "workspace_bytes": "1048576",
        "builder_optimization_level": "1",
        "tactic_sources": "JIT_CONVOLUTIONS;EDGE_MASK_CONVOLUTIONS",
    }
    loaded(conv_net, ask(sparse_weights="1", **options))
    facts = built(vendor)
    sources = vendor.module.TacticSource
    assert (facts["WORKSPACE"], facts["level"]) == (1048576, 1)
    assert facts["sources"] == 1 << sources.JIT_CONVOLUTIONS | 1 << sources.EDGE_MASK_CONVOLUTIONS
    assert "SPARSE_WEIGHTS" in facts["flags"]
    loaded(conv_net, EngineRequest(CPU, optimization=0))
    assert built(vendor)["level"] == 0


def test_kernel_words_are_tactic_sources(vendor: Api) -> None:
    table = engine.kernel_options(DeviceId("cuda"))
    words = {("conv", "cudnn"): "CUDNN", ("matmul", "cublas"): "CUBLAS", ("matmul", "cublasLt"): "CUBLAS_LT"}
    expected = {k: {"tactic_sources": v} for k, v in words.items()} if vendor.major < 11 else {}
    assert dict(table) == expected
    assert not engine.kernel_options(CPU)


def test_the_timing_cache_is_kept_between_builds(vendor: Api, conv_net: onnx.ModelProto) -> None:
    source = open_model(conv_net)
    engine.build(source, ask())
    assert built(vendor)["cache"] == {}
    engine.build(source, ask(builder_optimization_level="2"))
    assert built(vendor)["cache"] == {"graph": 1}
    engine.build(source, ask(timing_cache="0"))
    assert built(vendor)["cache"] == {}


def test_versions_drivers_and_plugins_are_part_of_the_key(
    vendor: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"\x7fELF one")

    class Gpu:
        name, compute_capability, driver_version = "NVIDIA H200", (9, 0), "580.65.06"

    monkeypatch.setattr(devices, "_gpus", lambda: ((Gpu,), "", ""))
    request = EngineRequest(DeviceId("cuda"), options={"plugins": str(plugin)})
    first = engine.fingerprint(request)
    assert first == engine.fingerprint(request)
    assert {first["tensorrt"], first["gpu"], first["driver"]} == {vendor.version, "NVIDIA H200", "580.65.06"}
    plugin.write_bytes(b"\x7fELF two")
    assert engine.fingerprint(request) != first
    plugin.write_bytes(b"\x7fELF one")
    monkeypatch.setattr(Gpu, "driver_version", "580.65.07")
    assert engine.fingerprint(request) != first


def test_a_plugin_library_that_does_not_load_is_a_build_error(
    vendor: Api, conv_net: onnx.ModelProto, tmp_path: Path
) -> None:
    good, broken = tmp_path / "good.so", tmp_path / "broken.so"
    good.write_bytes(b"\x7fELF")
    broken.write_bytes(b"text")
    loaded(conv_net, ask(plugins=str(good)))
    with pytest.raises(BuildError, match="TensorRT gave no reason"):
        loaded(conv_net, ask(plugins=f"{good}:{broken}"))


def test_what_the_vendor_refuses_repeats_its_text(
    vendor: Api, make: Callable[..., onnx.ModelProto], conv_net: onnx.ModelProto
) -> None:
    proto = make(
        [node("Own", ["x"], ["y"], domain="own")],
        {"x": ("float32", [4])},
        {"y": ("float32", [4])},
        opsets=[("", 17), ("own", 1)],
    )
    with pytest.raises(BuildError, match="cannot build this model; got No importer registered for op: Own"):
        loaded(proto, ask())
    source = open_model(conv_net)
    blob = bytes(engine.build(source, ask()).blob)
    for damaged in (b"", b"\0" * 64, blob[: len(blob) // 2]):
        if damaged:
            with pytest.raises(BuildError, match="cannot load the engine; got Serialization assertion"):
                engine.load(Artifact("tensorrt", damaged, True), source, ask())


@pytest.mark.parametrize("suffix", [".engine", ".plan"])
def test_engine_files_are_models(
    suffix: str,
    vendor: Api,
    make: Callable[..., onnx.ModelProto],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_file, "api", lambda: vendor)
    monkeypatch.setattr(plan_file, "usable_vendor", Support.yes)
    source = open_model(open_net(make))
    path = tmp_path / f"model{suffix}"
    path.write_bytes(bytes(engine.build(source, ask(profiles="batch=1:2:4 seq=1:8:16")).blob))
    plan = open_model(path)
    assert [str(s) for s in plan.inputs] == ["float32[x_0, x_1, 4]", "float32[4]"]
    assert [s.name for s in plan.outputs] == ["y"]
    assert engine.supports(plan, ask())
    assert engine.supports(plan, ask(DType.FLOAT16)).code is Reason.PRECISION_UNSUPPORTED
    artifact = engine.build(plan, ask())
    assert not artifact.cacheable
    x, b = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32), np.ones(4, np.float32)
    executable = engine.load(artifact, plan, ask())
    np.testing.assert_allclose(executable.run({"x": x, "b": b})[0], np.maximum(x, 0) + 1, rtol=1e-6)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(
        ModelError, match=f"TensorRT {vendor.version} cannot load it; got Serialization assertion"
    ):
        open_model(path)


def test_an_engine_file_without_tensorrt_says_what_is_missing(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is installed")
    (tmp_path / "model.plan").write_bytes(b"ftrt" + bytes(60))
    with pytest.raises(
        ModelError, match="needs TensorRT; got the package tensorrt cannot be imported: ModuleNotFoundError"
    ):
        open_model(tmp_path / "model.plan")


def test_tensors_of_the_device_are_run_on_the_callers_stream(
    vendor: Api, make: Callable[..., onnx.ModelProto]
) -> None:
    torch = pytest.importorskip("torch")
    executable = loaded(open_net(make), ask(profiles="batch=1:2:4 seq=1:8:16"))
    x, b = torch.randn(2, 3, 4), torch.randn(4)
    (y,) = executable.run_tensors({"x": x, "b": b})
    assert torch.equal(y, x.relu() + b)
    assert not executable.on_device, "the double computes on the host"
    with pytest.raises(InputError, match="input 'x' must be float32; got float64"):
        executable.run_tensors({"x": x.double(), "b": b})
    with pytest.raises(InputError, match="takes the inputs b, x; got x"):
        executable.run_tensors({"x": x})
    with pytest.raises(InputError, match=r"input 'b' must be .*; got the shape \[3\]"):
        executable.run_tensors({"x": x, "b": b[:3]})


def test_int64_is_int32_in_versions_without_it(vendor: Api, make: Callable[..., onnx.ModelProto]) -> None:
    proto = make([node("Add", ["x", "x"], ["y"], name="add")], {"x": ("int64", [3])}, {"y": ("int64", [3])})
    executable = loaded(proto, ask())
    y = executable.run({"x": np.array([1, -2, 3])})[0]
    assert y.dtype == np.int64
    assert y.tolist() == [2, -4, 6]
    big = np.array([2**40, 0, 0])
    if vendor.major == 8:
        with pytest.raises(RunError, match="computes int64 in int32, so input 'x' must fit"):
            executable.run({"x": big})
        torch = pytest.importorskip("torch")
        with pytest.raises(RunError, match="has 'x' in int32, not in int64"):
            executable.run_tensors({"x": torch.tensor([1, 2, 3])})
    else:
        assert executable.run({"x": big})[0].tolist() == [2**41, 0, 0]


def test_empty_tensors_and_nan(vendor: Api, make: Callable[..., onnx.ModelProto]) -> None:
    executable = loaded(open_net(make), ask(profiles="batch=0:1:4 seq=1:8:16"))
    b = np.zeros(4, np.float32)
    assert executable.run({"x": np.zeros((0, 2, 4), np.float32), "b": b})[0].shape == (0, 2, 4)
    x = np.full((1, 1, 4), np.nan, np.float32)
    assert np.isnan(executable.run({"x": x, "b": b})[0]).all()


def run(folder: Path, code: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_a_missing_old_or_broken_package_is_a_reason(tmp_path: Path) -> None:
    code = "from xpuruntime.engines import lookup; s = lookup('tensorrt').installed(); print(s.code, s.reason, s.do, sep='|')"
    if run(tmp_path, "import importlib.util; print(importlib.util.find_spec('tensorrt') is None)") == "True":
        said = run(tmp_path, code)
        assert (
            said
            == "not_installed|the Python package 'tensorrt' is not installed|Run: pip install 'xpuruntime[tensorrt]'"
        )
    info = tmp_path / "tensorrt-8.5.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt\nVersion: 8.5.3\n")
    (tmp_path / "tensorrt.py").write_text("import ctypes\nctypes.CDLL('libnvinfer.so.8-absent')\n")
    assert run(tmp_path, code).startswith(
        "version_unsupported|tensorrt 8.5.3 is installed; supported versions are >= 8.6"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt\nVersion: 8.6.1\n")
    code = (
        "from xpuruntime.engines import lookup\n"
        "f = lookup('tensorrt').load_devices().devices()[0]; print(f.support.code, f.support.reason, f.support.do, sep='|')"
    )
    said = run(tmp_path, code)
    assert said.startswith(
        "device_refused|the package tensorrt cannot be imported: OSError: libnvinfer.so.8-absent: cannot open"
    )
    assert "Reinstall it" in said
