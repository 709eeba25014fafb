"""ONNX Runtime as an engine: devices, precisions, options, what it refuses, and that it says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from xpuruntime.decisions import Reason, Support
from xpuruntime.engines.onnxruntime import engine, providers
from xpuruntime.engines.onnxruntime.plugin import PLUGIN
from xpuruntime.errors import BuildError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.plugins.loader import package_version
from xpuruntime.protocols import EngineRequest, Executable, ModelSource
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

Make = Callable[..., onnx.ModelProto]
Opened = Callable[..., Executable]
AZURE = "AzureExecutionProvider"
VEC = {"x": ("float32", [4])}
OUT = {"y": ("float32", [4])}


def relu(make: Make, **more: Any) -> onnx.ModelProto:
    return make([helper.make_node("Relu", ["x"], ["y"], name="r")], VEC, OUT, **more)


def ask(model: ModelSource, device: str = "cpu", precision: DType | None = None, **options: str) -> Support:
    return engine.supports(model, EngineRequest(DeviceId.parse(device), precision, options=options))


@pytest.fixture
def source(make: Make) -> ModelSource:
    return open_model(relu(make))


def test_version_is_the_vendors() -> None:
    assert engine.version() == onnxruntime.__version__
    if (
        sum(package_version(p) is not None for p in PLUGIN.package) == 1
    ):  # with two wheels nobody knows whose metadata is read
        assert PLUGIN.version() == onnxruntime.__version__


def test_devices_are_the_listed_providers() -> None:
    facts = {f.name: f for f in engine.devices()}
    listed = onnxruntime.get_available_providers()
    if (
        "onnxruntime_qnn" in sys.modules
    ):  # a test of the engine qnn in this process has registered its library
        listed.remove("QNNExecutionProvider")
    assert list(facts) == listed
    assert facts["CPUExecutionProvider"].support
    assert str(facts["CPUExecutionProvider"].device) == "cpu"


@pytest.mark.parametrize("kind", ["cuda", "npu", "metal", "webgpu"])
def test_a_device_without_a_provider(source: ModelSource, kind: str) -> None:
    if any(f.device.kind == kind for f in engine.devices()):
        pytest.skip(f"this build of ONNX Runtime has a provider for {kind}")
    no = ask(source, kind)
    assert no.code is Reason.NO_DEVICE
    assert no.reason.startswith(
        f"the installed ONNX Runtime has no provider for device {DeviceId.parse(kind)}; it has "
    )
    assert "CPUExecutionProvider" in no.reason
    assert "choose device='cpu'" in no.do


def test_the_second_cpu(source: ModelSource) -> None:
    no = ask(source, "cpu:1")
    assert (no.code, no.reason) == (Reason.NO_DEVICE, "ONNX Runtime has one CPU device, cpu")


def test_auto_takes_the_first_usable_provider(source: ModelSource) -> None:
    assert ask(source, "auto")


def test_own_precision_only(source: ModelSource) -> None:
    assert ask(source, precision=DType.FLOAT32)
    no = ask(source, precision=DType.FLOAT16)
    assert no.code is Reason.PRECISION_UNSUPPORTED
    assert (
        no.reason
        == "ONNX Runtime computes in the model's own precision, float32; it cannot compute in float16 instead"
    )
    assert no.do.startswith("Convert the model to float16 first")


@pytest.mark.parametrize(
    ("key", "value", "reason", "do"),
    [
        (
            "enable_mem_patern",
            "1",
            "ONNX Runtime has no option 'enable_mem_patern' for the CPU",
            "Did you mean 'enable_mem_pattern'? ",
        ),
        (
            "enable_mem_pattern",
            "maybe",
            "ONNX Runtime option 'enable_mem_pattern' cannot be 'maybe'",
            "Use one of 1, true, 0, false.",
        ),
        (
            "inter_op_num_threads",
            "-1",
            "ONNX Runtime option 'inter_op_num_threads' cannot be '-1'",
            "Use a non-negative integer.",
        ),
        (
            "intra_op_num_threads",
            "2",
            "ONNX Runtime option 'intra_op_num_threads' is set by xpuruntime",
            "Use threads=.",
        ),
        (
            "session.disable_prepaking",
            "1",
            "ONNX Runtime has no option 'session.disable_prepaking'",
            "Did you mean 'session.disable_prepacking'?",
        ),
        (
            "providers",
            "CpuExecutionProvider",
            "the installed ONNX Runtime has no provider 'CpuExecutionProvider'",
            "Did you mean 'CPUExecutionProvider'? ",
        ),
    ],
)
def test_wrong_options(source: ModelSource, key: str, value: str, reason: str, do: str) -> None:
    no = ask(source, **{key: value})
    assert no.code is Reason.OPTION_UNKNOWN
    assert no.reason.startswith(reason)
    assert no.do.startswith(do)
    with pytest.raises(BuildError, match="cannot build; got "):
        engine.build(source, EngineRequest(DeviceId("cpu"), options={key: value}))


def test_options_reach_the_session(make: Make, opened: Opened) -> None:
    options = {
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "enable_mem_pattern": "false",
        "session.disable_prepacking": "1",
        "session.intra_op.allow_spinning": "1",
    }
    said = opened("onnxruntime", relu(make), options=options, threads=3).evidence().options
    assert said["graph_optimization_level"] == "ORT_DISABLE_ALL"
    assert said["session.disable_prepacking"] == "1"
    assert said["session.intra_op.allow_spinning"] == "1"
    assert said["intra_op_num_threads"] == "3"


def test_spinning_is_off_unless_asked_for(make: Make, opened: Opened) -> None:
    assert opened("onnxruntime", relu(make)).evidence().options["session.intra_op.allow_spinning"] == "0"


def test_an_op_of_an_unknown_domain(make: Make) -> None:
    node = helper.make_node("Magic", ["x"], ["y"], name="m", domain="vendor.ops")
    no = ask(open_model(make([node], VEC, OUT, opsets=[("", 17), ("vendor.ops", 1)])))
    assert no.code is Reason.OP_UNSUPPORTED
    assert no.reason == "node 'm' has op 'Magic' of domain 'vendor.ops', which no ONNX Runtime build has"


def test_an_opset_that_is_too_new(make: Make) -> None:
    newest = onnx.defs.onnx_opset_version()
    source = open_model(relu(make, opsets=[("", newest)]))
    refusal = ""
    try:
        onnxruntime.InferenceSession(source.data, providers=["CPUExecutionProvider"])
    except Exception as error:
        refusal = str(error)
    no = ask(source)
    assert bool(no) == (not refusal)
    if refusal:
        assert no.code is Reason.FORMAT_UNSUPPORTED
        assert no.reason.startswith(f"ONNX Runtime {onnxruntime.__version__} rejects the model's opset: ")
        assert "official support for domain ai.onnx is till opset" in refusal
        assert "official support for domain ai.onnx is till opset" in no.reason


def test_another_format(source: ModelSource) -> None:
    import dataclasses

    no = ask(dataclasses.replace(source, format="openvino-ir"))
    assert (no.code, no.do) == (Reason.FORMAT_UNSUPPORTED, "Use engine='openvino'.")


def test_an_element_type_without_an_array(make: Make) -> None:
    proto = relu(make)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.COMPLEX64
    no = ask(open_model(proto))
    assert (no.code, no.reason) == (
        Reason.DTYPE_UNSUPPORTED,
        "ONNX Runtime does not support complex64 arrays; 'x' is complex64[4]",
    )


def test_what_the_vendor_cannot_build_repeats_its_text(make: Make, opened: Opened) -> None:
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], name="c"
    )  # a weight of the wrong rank passes every check but the vendor's
    proto = make(
        [node],
        {"x": ("float32", [1, 1, 4, 4])},
        {"y": ("float32", ["a", "b", "c", "d"])},
        {"w": np.ones(3, np.float32)},
    )
    with pytest.raises(
        BuildError,
        match=r"\[onnxruntime, model graph\] ONNX Runtime cannot build this model; got \[ONNXRuntimeError\]",
    ):
        opened("onnxruntime", proto)


def test_strings(make: Make, opened: Opened) -> None:
    node = helper.make_node("StringConcat", ["x", "x"], ["y"])
    proto = make([node], {"x": ("string", ["n"])}, {"y": ("string", ["n"])}, opsets=[("", 20)])
    (y,) = opened("onnxruntime", proto).run({"x": np.array(["a", "äö"], object)})
    assert y.tolist() == ["aa", "äöäö"]


def test_float64_is_computed_in_float64(make: Make, opened: Opened) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    x = np.array([1 + 2.0**-40])
    (y,) = opened("onnxruntime", make([node], {"x": ("float64", [1])}, {"y": ("float64", [1])})).run({"x": x})
    assert y[0] == 2 + 2.0**-39


UNUSABLE = """
from xpuruntime.engines.onnxruntime import engine
for f in engine.devices(): print(f.name, f.device, bool(f.support), f.support.code, f.support.reason, sep='|')
"""


def test_devices_prints_nothing() -> None:
    """The vendor's log of providers that fail to load is caught, also where it is written straight to file descriptor 2."""
    done = subprocess.run(
        [sys.executable, "-c", UNUSABLE], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        name, _, ok, code, reason = line.split("|")
        assert ok == "True" or (
            code == "device_refused" and reason.startswith(f"{name} is built in but cannot be used: ")
        )


@pytest.mark.parametrize(
    "opsets", [(("", 13),), (("", 300), ("ai.onnx.ml", 3)), (("", -1),), (("", 2**62), ("ü", 0))]
)
def test_the_probe_model_is_what_onnx_writes(opsets: tuple[tuple[str, int], ...]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "tiny", [x], [y])
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    expected = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert onnx.load_model_from_string(providers._tiny_model(opsets)) == expected
