"""ONNX Runtime's execution providers as devices: the kind of device of each, and whether it works on this machine.

A provider of the installed build may be unusable (no driver, no library). ONNX Runtime then logs a reason and continues without it. So
each provider except the CPU's is tried once per process on a one-node model, and the logged text is the reason.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...decisions import Reason, Support
from ...plugins.vendor_imports import vendor
from ...protocols import DeviceFact
from ...targets import DeviceId

__all__ = [
    "BY_NAME_ONLY",
    "CPU",
    "PROVIDER_DEVICES",
    "available",
    "devices",
    "ort",
    "short",
    "usable",
    "version",
]

CPU = "CPUExecutionProvider"

# Provider -> kind of device (targets.DEVICE_KINDS). "auto": the provider decides or calls a service.
PROVIDER_DEVICES: dict[str, str] = {
    CPU: "cpu",
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "MIGraphXExecutionProvider": "gpu",
    "ROCMExecutionProvider": "gpu",
    "DmlExecutionProvider": "gpu",
    "WebGpuExecutionProvider": "webgpu",
    "QNNExecutionProvider": "npu",
    "VitisAIExecutionProvider": "npu",
    "CANNExecutionProvider": "npu",
    "NnapiExecutionProvider": "npu",
    "VSINPUExecutionProvider": "npu",
    "RknpuExecutionProvider": "npu",
    "CoreMLExecutionProvider": "npu",
    "OpenVINOExecutionProvider": "auto",
    "WebNNExecutionProvider": "auto",
    "JsExecutionProvider": "auto",
    "AzureExecutionProvider": "auto",
    "XnnpackExecutionProvider": "cpu",
    "DnnlExecutionProvider": "cpu",
    "ACLExecutionProvider": "cpu",
}

# Providers that are used only if a user names them. Another provider of the same kind represents the device by default.
BY_NAME_ONLY = frozenset(
    {
        "TensorrtExecutionProvider",
        "NvTensorRTRTXExecutionProvider",
        "XnnpackExecutionProvider",
        "DnnlExecutionProvider",
        "ACLExecutionProvider",
        "AzureExecutionProvider",
        "OpenVINOExecutionProvider",
    }
)


@functools.cache
def ort() -> Any:
    """Return the vendor's module; imported on first use."""
    onnxruntime = vendor("onnxruntime")

    if hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime


def version() -> str:
    """Return the version of the vendor's package."""
    return str(ort().__version__)


def available() -> tuple[str, ...]:
    """Return the providers of the installed build, in the vendor's order of preference.

    A provider whose library the engine ``qnn`` has registered is listed by ONNX Runtime, too, but sessions cannot use it by name.
    """
    registered = {"QNNExecutionProvider"} if "onnxruntime_qnn" in sys.modules else set()
    return tuple(p for p in ort().get_available_providers() if p not in registered)


def for_device(device: DeviceId) -> tuple[str, ...]:
    """Return the providers that may be used for a device without being named. ``gpu`` means any GPU, ``auto`` any provider."""
    kinds = {"gpu": {"gpu", "cuda", "webgpu"}}.get(device.kind, {device.kind})
    listed = [p for p in available() if p not in BY_NAME_ONLY]
    return tuple(p for p in listed if device.kind == "auto" or PROVIDER_DEVICES.get(p) in kinds)


@functools.cache
def usable(provider: str, index: int = 0) -> Support:
    """Return whether a session with the provider really uses it; the reason is the vendor's text."""
    if provider == CPU:
        return (
            Support.yes()
            if index == 0
            else Support.no(Reason.NO_DEVICE, "ONNX Runtime has one CPU device, cpu")
        )
    options = ort().SessionOptions()
    options.log_severity_level = 2
    error = ""
    with _stderr() as text:
        try:
            requested = [(provider, {"device_id": str(index)} if index else {})]
            session = ort().InferenceSession(_tiny_model(), options, providers=requested, enable_fallback=0)
        except Exception as raised:  # the vendor's exceptions have no common base class
            error = str(raised)
        else:
            if provider in session.get_providers():
                return Support.yes()
    reason = short(" ".join(t for t in (_plain("".join(text)), error) if t))
    return Support.no(
        Reason.DEVICE_REFUSED,
        f"{provider} is built in but cannot be used: {reason or 'ONNX Runtime skipped it without a reason'}",
        do="Install what the vendor's text requires, or choose another device.",
    )


def devices() -> tuple[DeviceFact, ...]:
    """Return one fact per listed provider. Never raises."""
    try:
        listed = available()
    except Exception as error:  # one broken installation must not hide the other devices
        return (
            DeviceFact(
                DeviceId("cpu"),
                CPU,
                Support.no(Reason.DEVICE_REFUSED, short(f"{type(error).__name__}: {error}")),
            ),
        )
    return tuple(
        DeviceFact(
            DeviceId(PROVIDER_DEVICES.get(p, "auto")), p, usable(p), {"by_name_only": p in BY_NAME_ONLY}
        )
        for p in listed
    )


def short(text: str, limit: int = 700) -> str:
    """Return one line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _plain(text: str) -> str:
    """Return log lines without colors, time stamps and the "EP Error" banner."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"^\d{4}-\d\d-\d\d [\d:.]+ \[\w:[^\]]*\] ?", "", text, flags=re.MULTILINE)


_STDERR_LOCK = threading.Lock()


@contextmanager
def _stderr() -> Iterator[list[str]]:
    """Collect native output to the process's stderr, since the vendor reports the reason only there."""
    text: list[str] = []
    with _STDERR_LOCK, tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            text.append(file.read().decode(errors="replace"))


def _tiny_model(opsets: tuple[tuple[str, int], ...] = (("", 13),)) -> bytes:
    """Return the ONNX model ``y = Identity(x)`` of four floats under the given opset imports.

    It is written without the package ``onnx``, whose import takes as long as that of ONNX Runtime. Numbers are those of fields in onnx.proto.
    """
    four_floats = _field(
        1, _field(1, 1) + _field(2, _field(1, _field(1, 4)))
    )  # tensor_type: elem_type, shape
    node = _field(1, b"x") + _field(2, b"y") + _field(4, b"Identity")
    x, y = (_field(1, name) + _field(2, four_floats) for name in (b"x", b"y"))
    graph = _field(1, node) + _field(2, b"tiny") + _field(11, x) + _field(12, y)
    imports = (_field(8, _field(1, domain.encode()) + _field(2, version)) for domain, version in opsets)
    return _field(1, 8) + _field(7, graph) + b"".join(imports)  # ir_version 8


def _field(number: int, value: int | bytes) -> bytes:
    """Return a protobuf field: a number as a varint, bytes with their length (protobuf.dev/programming-guides/encoding)."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)  # as an unsigned number, as protobuf has it
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


@functools.cache
def reads_opsets(opsets: tuple[tuple[str, int], ...]) -> str:
    """Return an empty string if the installed ONNX Runtime reads models with these opsets, else its error."""
    options = ort().SessionOptions()
    options.log_severity_level = 4
    try:
        ort().InferenceSession(_tiny_model(opsets), options, providers=[CPU])
    except Exception as error:
        return short(str(error))
    return ""
