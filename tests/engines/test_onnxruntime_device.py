"""ONNX Runtime on device tensors, through the same functions on the host's memory with the CPU provider; and the options that are calls of SessionOptions.

On a GPU: tests/gpu/onnxruntime_cuda.py.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("onnxruntime")

from xpuruntime.decisions import Reason
from xpuruntime.engines.onnxruntime import engine, options, run
from xpuruntime.engines.onnxruntime.device_run import GRAPH, FixedMemory, OrtDeviceExecutable
from xpuruntime.errors import BuildError, InputError, RunError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.protocols import EngineRequest
from xpuruntime.runtime.device import Device
from xpuruntime.runtime.memory.buffer import DeviceBuffer
from xpuruntime.targets import DeviceId

CPU = DeviceId("cpu")
Make = Callable[..., onnx.ModelProto]
node = helper.make_node


def on_buffers(model: onnx.ModelProto, **given: str) -> OrtDeviceExecutable:
    request = EngineRequest(CPU, threads=1, options=given)
    settings = options.parse(request)
    assert isinstance(settings, options.Settings)
    return OrtDeviceExecutable(open_model(model), request, settings, Device("cpu").backend)


@pytest.fixture
def open_net(make: Make) -> onnx.ModelProto:
    """An output whose size the inputs decide, and one whose size their values decide."""
    return make(
        [node("Relu", ["x"], ["y"], name="relu"), node("NonZero", ["y"], ["z"], name="nonzero")],
        {"x": ("float32", ["n", 4])},
        {"y": ("float32", ["n", 4]), "z": ("int64", [2, "found"])},
    )


def test_tensors_are_bound_and_outputs_are_tensors_of_the_same_library(open_net: onnx.ModelProto) -> None:
    torch = pytest.importorskip("torch")
    executable = on_buffers(open_net)
    for count in (3, 0, 7):
        x = torch.randn(count, 4)
        y, z = executable.run_tensors({"x": x})
        assert isinstance(y, torch.Tensor)
        assert torch.equal(y, x.relu())
        assert torch.equal(z, x.relu().nonzero().T)
    x = torch.full((2, 4), float("nan"))
    assert executable.run_tensors({"x": x})[0].isnan().all()
    assert not executable.on_device
    assert np.array_equal(executable.run({"x": x.numpy()})[0], x.numpy(), equal_nan=True)


def test_buffers_of_the_runtime_are_read_in_place(open_net: onnx.ModelProto) -> None:
    executable = on_buffers(open_net)
    x = DeviceBuffer.from_numpy(np.array([[-1, 0, 1, 2]], np.float32))
    y, z = executable.run_tensors({"x": x})
    assert isinstance(y, DeviceBuffer)
    assert y.to_numpy().tolist() == [[0, 0, 1, 2]]
    assert z.to_numpy().tolist() == [[0, 0], [2, 3]]


def test_wrong_tensors_are_our_errors(open_net: onnx.ModelProto) -> None:
    torch = pytest.importorskip("torch")
    executable = on_buffers(open_net)
    for given, text in (
        ({"x": torch.zeros(2, 4, dtype=torch.float64)}, "input 'x' must be float32; got float64"),
        ({"x": torch.zeros(2, 5)}, r"input 'x' must be float32\[n, 4\].*; got the shape \[2, 5\]"),
        ({"y": torch.zeros(2, 4)}, "takes the inputs x; got y"),
    ):
        with pytest.raises(InputError, match=text):
            executable.run_tensors(given)
    executable.close()
    with pytest.raises(RunError, match="the session is closed"):
        executable.run_tensors({"x": torch.zeros(2, 4)})


def relu(make: Make) -> OrtDeviceExecutable:
    return on_buffers(
        make(
            [node("Relu", ["x"], ["y"], name="relu")],
            {"x": ("float32", ["n", 4])},
            {"y": ("float32", ["n", 4])},
        )
    )


def test_a_run_of_known_forms_is_prepared_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later runs with other addresses and values pass no check and no DLPack capsule, and do not write to earlier outputs."""
    torch = pytest.importorskip("torch")
    executable = relu(make)
    kept = []
    for count in (3, 5, 3, 5):
        x = torch.randn(count, 4)
        kept.append((x, executable.run_tensors({"x": x})[0]))
    prepared = []
    monkeypatch.setattr(executable, "_output_shapes", lambda shapes: prepared.append(shapes))
    monkeypatch.setattr(executable._io, "imported", lambda *_: pytest.fail("imported by DLPack"))
    for count in (3, 5) * 20:
        x = torch.randn(count, 4)
        outputs = executable.try_run_tensors({"x": x})
        assert outputs is not None
        kept.append((x, outputs["y"]))
    assert prepared == []
    assert len({y.data_ptr() for _, y in kept}) == len(kept), "each run has outputs of its own"
    assert all(torch.equal(y, x.relu()) for x, y in kept)


def test_a_binding_is_reused_for_the_same_memory(make: Make) -> None:
    torch = pytest.importorskip("torch")
    executable = relu(make)
    x = torch.randn(3, 4)
    outputs = torch.empty(3, 4)
    executable.run_tensors({"x": x})
    (call,) = executable._calls._calls.values()
    assert call is not None
    prepare = call.prepare
    call.prepare = lambda tensors: ({"y": outputs}, [tensors["x"].data_ptr(), outputs.data_ptr()], 0, tensors)
    executable.run_tensors({"x": x})
    bound = set(call.bindings.values())
    for seed in range(5):
        x.copy_(torch.full((3, 4), float(seed - 2)))
        executable.run_tensors({"x": x})
        assert torch.equal(outputs, x.relu())
    assert set(call.bindings.values()) == bound
    call.prepare = prepare
    for _ in range(100):
        executable.run_tensors({"x": torch.randn(3, 4)})
    assert len(call.bindings) <= 9


def test_views_with_the_negative_bit(make: Make) -> None:
    """Their memory has the other signs. Before and after a run has prepared their forms."""
    torch = pytest.importorskip("torch")
    executable = relu(make)
    x = torch.randn(3, 4)
    dense = torch.complex(torch.randn(3, 4), x).conj().imag.as_strided((3, 4), (4, 1))
    assert dense.is_neg()
    assert dense.is_contiguous()
    for _ in range(2):
        for given in (torch._neg_view(x), dense, torch._neg_view(x[:1, :])):
            assert torch.equal(executable.run_tensors({"x": given})[0], given.relu())
        assert torch.equal(executable.run_tensors({"x": x})[0], x.relu())


def test_prepared_runs_in_threads(make: Make) -> None:
    torch = pytest.importorskip("torch")
    executable = relu(make)
    inputs = [torch.full((1 + i % 3, 4), float(i)) for i in range(64)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: executable.run_tensors({"x": x})[0], inputs * 4))
    assert all(torch.equal(x, y) for x, y in zip(inputs * 4, results, strict=True))


def test_tensors_that_cannot_be_read_in_place_are_converted_or_refused(make: Make) -> None:
    torch = pytest.importorskip("torch")
    executable = relu(make)
    x = torch.randn(4, 3)
    for _ in range(2):  # before and after the forms are known
        negative = torch._neg_view(torch.randn(2, 4))  # its memory has the other signs
        strided = torch.complex(x.T, x.T + 1).conj().imag
        for given in (x.T, x.T.contiguous(), torch.randn(4, 8)[:, ::2], torch.randn(0, 4), negative, strided):
            assert torch.equal(executable.run_tensors({"x": given})[0], given.relu())
        with pytest.raises(InputError, match=r"cannot read input 'x'.*gradient"):
            executable.run_tensors({"x": torch.randn(2, 4, requires_grad=True)})
        assert executable.try_run_tensors({"x": np.zeros((2, 4), np.float32)}) is None
        assert executable.try_run_tensors({"x": x, "y": x}) is None
        assert executable.try_run_tensors({}) is None


def test_padded_buffers_are_read_without_their_padding(make: Make) -> None:
    executable = relu(make)
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    padded = DeviceBuffer.from_numpy(values, alloc_shape=(2, 16))
    for _ in range(2):
        assert executable.run_tensors({"x": padded})[0].to_numpy().tolist() == values.tolist()


def test_a_closed_session_has_no_prepared_runs(make: Make) -> None:
    torch = pytest.importorskip("torch")
    executable = relu(make)
    x = torch.randn(2, 4)
    executable.run_tensors({"x": x})
    executable.close()
    assert executable.try_run_tensors({"x": x}) is None
    with pytest.raises(RunError, match="the session is closed"):
        executable.run_tensors({"x": x})


def test_runs_on_fixed_memory_are_those_of_the_session(make: Make) -> None:
    """What a session with CUDA graphs does: copy in, replay, copy out, one run at a time."""
    proto = make(
        [node("Relu", ["x"], ["y"], name="relu")], {"x": ("float32", [2, 3])}, {"y": ("float32", [2, 3])}
    )
    executable = on_buffers(proto)
    fixed = FixedMemory(executable)
    inputs = [np.random.default_rng(s).standard_normal((2, 3), dtype=np.float32) for s in range(16)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: fixed.run({"x": x})[0], inputs))
    for x, y in zip(inputs, results, strict=True):
        assert np.array_equal(y, np.maximum(x, 0))
    executable._fixed = fixed
    assert np.array_equal(executable.context().run({"x": inputs[0]})[0], np.maximum(inputs[0], 0))
    with pytest.raises(RunError, match=f"takes no tensors of the device; got {GRAPH}=1"):
        executable.run_tensors({"x": inputs[0]})
    with pytest.raises(RunError, match="takes no bindings"):
        executable.bind_context({"x": inputs[0]}, {"y": inputs[1]})


def test_fixed_memory_needs_static_shapes(open_net: onnx.ModelProto) -> None:
    with pytest.raises(BuildError, match=r"CUDA graphs need static shapes; got .*\[n, 4\].* fixed_shapes"):
        FixedMemory(on_buffers(open_net))


def ask(model: onnx.ModelProto, **given: str) -> Any:
    return engine.supports(open_model(model), EngineRequest(CPU, options=given))


def test_the_stream_is_the_default_one_or_the_sessions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(**given: str) -> Any:
        return options.parse(EngineRequest(DeviceId("cuda"), options=given))

    monkeypatch.setattr(options, "_providers", lambda _: (options.CUDA,))
    assert not settings().own_stream
    assert not settings(stream="default").own_stream
    assert not settings(stream="default", **{GRAPH: "0"}).own_stream
    assert settings(stream="own").own_stream
    assert settings(**{GRAPH: "1"}).own_stream
    assert settings(stream="own", **{GRAPH: "1"}).own_stream
    refused = settings(stream="0")
    assert refused.code is Reason.OPTION_UNKNOWN
    assert "default, own" in refused.do
    refused = settings(stream="default", **{GRAPH: "1"})
    assert refused.code is Reason.OPTION_UNKNOWN
    assert "CUDA graphs cannot capture the default stream" in refused.reason
    assert "stream=own" in refused.do


@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_session_on_the_cpu_has_no_stream(make: Make, stream: str) -> None:
    proto = make([node("Relu", ["x"], ["y"])], {"x": ("float32", [2])}, {"y": ("float32", [2])})
    refused = ask(proto, stream=stream)
    assert refused.code is Reason.OPTION_UNKNOWN
    assert "is for sessions of CUDAExecutionProvider, and this one has CPUExecutionProvider" in refused.reason
    assert "device='cuda'" in refused.do
    assert ask(proto)


def test_a_stream_of_its_own_needs_a_device_that_the_core_drives(open_net: onnx.ModelProto) -> None:
    settings = options.Settings(((options.CUDA, {}),), own_stream=True)
    absent = EngineRequest(DeviceId("cuda", 63), threads=1)
    with pytest.raises(BuildError, match="cannot use CUDA graphs or a stream of its own"):
        run._executable(open_model(open_net), absent, settings)


def test_free_dimensions_are_fixed_by_name(open_net: onnx.ModelProto, opened: Callable[..., Any]) -> None:
    executable = opened("onnxruntime", open_net, options={"free_dimension_overrides": "n=2"})
    x = np.array([[-1, 0, 1, 2]] * 2, np.float32)
    assert executable.run({"x": x})[0].tolist() == np.maximum(x, 0).tolist()
    assert [i.shape for i in executable._session.get_inputs()] == [[2, 4]]
    for text, reason in (
        ("n", "cannot have 'n'"),
        ("n=x", "cannot have 'n=x'"),
        ("n=2,batch=3", "no symbolic dim 'batch' to override; it has n"),
    ):
        support = ask(open_net, free_dimension_overrides=text)
        assert support.code is Reason.OPTION_UNKNOWN
        assert reason in support.reason


@pytest.mark.parametrize("level", range(4))
def test_graph_optimization_levels(level: int, conv_net: onnx.ModelProto, opened: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    executable = opened("onnxruntime", conv_net, optimization=level)
    want = opened("onnxruntime", conv_net, optimization=0).run({"x": x})[0]
    np.testing.assert_allclose(executable.run({"x": x})[0], want, rtol=1e-5, atol=1e-6)
    names = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
    assert executable.evidence().options["graph_optimization_level"] == names[level]
    steps = [r.op for r in executable.evidence({"x": x}).rows]
    assert ("BatchNormalization" in steps) is (level == 0)


def test_custom_op_libraries(make: Make, tmp_path: Path, opened: Callable[..., Any]) -> None:
    proto = make(
        [node("Own", ["x"], ["y"], domain="own")],
        {"x": ("float32", [4])},
        {"y": ("float32", [4])},
        opsets=[("", 17), ("own", 1)],
    )
    assert "custom_op_libraries" in ask(proto).do
    assert "does not exist" in ask(proto, custom_op_libraries="/nonexistent/lib.so").reason
    library = tmp_path / "libown.so"
    library.write_bytes(b"no library")
    assert ask(proto, custom_op_libraries=str(library))
    with pytest.raises(
        BuildError,
        match=r"custom-op library .*libown\.so'\] ONNX Runtime cannot load it; got .*file too short",
    ):
        opened("onnxruntime", proto, options={"custom_op_libraries": str(library)})


def test_a_context_binary_is_not_for_the_cpu(make: Make) -> None:
    proto = make(
        [
            node(
                "EPContext",
                ["x"],
                ["y"],
                name="part",
                domain="com.microsoft",
                embed_mode=1,
                ep_cache_context="binary",
            )
        ],
        {"x": ("float32", [4])},
        {"y": ("float32", [4])},
        opsets=[("", 17), ("com.microsoft", 1)],
    )
    support = ask(proto)
    assert support.code is Reason.OP_UNSUPPORTED
    assert "node 'part' holds a context binary" in support.reason
    assert "engine='qnn'" in support.do
