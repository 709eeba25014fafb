"""OpenVINO's devices, with the vendor's reason for each unavailable one.

A device that OpenVINO does not list is tried once per process with a one-node model, since the vendor's error names the cause
(a missing driver, a missing compiler).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any

from ...decisions import Reason, Support
from ...plugins.vendor_imports import vendor
from ...protocols import DeviceFact
from ...targets import DeviceId

__all__ = ["DEVICES", "core", "devices", "short", "usable", "vendor_name", "version"]

# Kind of device -> OpenVINO's name.
DEVICES: dict[str, str] = {"cpu": "CPU", "auto": "AUTO", "gpu": "GPU", "npu": "NPU"}


@functools.cache
def core() -> Any:
    """Return the process's one ``openvino.Core``; imported on first use."""
    openvino = vendor("openvino")

    return openvino.Core()


def version() -> str:
    """Return the vendor's version, for example ``2026.4.1``."""
    openvino = vendor("openvino")

    return str(openvino.get_version()).partition("-")[0]


def vendor_name(device: DeviceId) -> str:
    """Return OpenVINO's name of a device: ``gpu:1`` -> ``GPU.1``; an empty string for other kinds of device."""
    name = DEVICES.get(device.kind, "")
    return f"{name}.{device.index}" if name and device.index else name


def usable(device: DeviceId) -> Support:
    """Return whether OpenVINO can use the device here; the reason quotes its text."""
    name = vendor_name(device)
    if not name:
        return Support.no(
            Reason.DEVICE_MISMATCH,
            f"OpenVINO supports {', '.join(DEVICES)}, not {device}",
            do="Choose one of these devices, or another engine.",
        )
    if name in ("CPU", "AUTO"):
        return Support.yes()
    listed = list(core().available_devices)
    refusal = _refusal(name, ())
    if not refusal:
        return Support.yes()
    if name in listed or any(n.startswith(f"{name}.") for n in listed):
        return Support.no(
            Reason.DEVICE_REFUSED, f"OpenVINO lists {name} but refuses to use it: {refusal}", do=_DRIVER
        )
    return Support.no(
        Reason.NO_DEVICE,
        f"OpenVINO lists no {name} here (it lists {', '.join(listed)}); compiling for it fails: {refusal}",
        do=_DRIVER,
    )


_DRIVER = "Install the device's driver, choose device='cpu', or allow a fallback with allow_fallback='cpu'."


@functools.cache
def _refusal(name: str, options: tuple[tuple[str, str], ...]) -> str:
    """Return OpenVINO's error when a one-node model is compiled for the device; empty if it compiles."""
    import numpy as np

    openvino = vendor("openvino")

    ops: Any = getattr(openvino, "opset13", None) or importlib.import_module(
        "openvino.runtime.opset13"
    )  # by release
    x = ops.parameter([1, 4], np.float32)
    model = openvino.Model([ops.relu(x)], [x], "probe")
    try:
        core().compile_model(model, name, dict(options))
    except Exception as error:  # RuntimeError, or an error of converting arguments
        return short(str(error))
    return ""


def refuses_options(name: str, options: Mapping[str, str]) -> str:
    """Return OpenVINO's error for these option values; empty if it accepts them."""
    return _refusal(name, tuple(sorted(options.items())))


def devices() -> tuple[DeviceFact, ...]:
    """Return CPU, AUTO, GPU and NPU, usable or not, and further indices that OpenVINO lists. Never raises."""
    try:
        listed = list(core().available_devices)
        further = [DeviceId(kind, int(index)) for kind, index in _indexed(listed) if int(index)]
        return tuple(_fact(d) for d in (*(DeviceId(k) for k in DEVICES), *further))
    except Exception as error:  # one broken installation must not hide the other devices
        text = short(f"{type(error).__name__}: {error}")
        return (DeviceFact(DeviceId("cpu"), "CPU", Support.no(Reason.DEVICE_REFUSED, text)),)


def _indexed(listed: list[str]) -> list[tuple[str, str]]:
    kinds = {v: k for k, v in DEVICES.items()}
    split = [n.partition(".") for n in listed]
    return [(kinds[name], index) for name, _, index in split if name in kinds and index.isdecimal()]


def _fact(device: DeviceId) -> DeviceFact:
    support = usable(device)
    facts: dict[str, Any] = {"capabilities": list(capabilities(vendor_name(device)))} if support else {}
    full = _property(vendor_name(device), "FULL_DEVICE_NAME") if support and device.kind != "auto" else ""
    return DeviceFact(device, full or vendor_name(device), support, facts)


@functools.cache
def capabilities(name: str) -> tuple[str, ...]:
    """Return OPTIMIZATION_CAPABILITIES of a device (``FP32``, ``BF16``, ...); for AUTO, those of the devices behind it."""
    try:
        return tuple(core().get_property(name, "OPTIMIZATION_CAPABILITIES"))
    except Exception:  # an unavailable device has none
        return ()


@functools.cache
def writable_properties(name: str) -> frozenset[str]:
    """Return the names of the options that the device accepts."""
    listed = dict(core().get_property(name, "SUPPORTED_PROPERTIES"))
    if name == "AUTO":  # AUTO accepts the options of the devices behind it
        listed |= dict(core().get_property("CPU", "SUPPORTED_PROPERTIES")) | {"DEVICE_PRIORITIES": "RW"}
    return frozenset(k for k, mode in listed.items() if mode in ("RW", "WO"))


def _property(name: str, key: str) -> str:
    try:
        return str(core().get_property(name, key))
    except Exception:  # not every device has this property
        return ""


def device_facts(name: str) -> dict[str, str]:
    """Return full name, architecture and capabilities of a device, on which a compiled blob depends."""
    device = "CPU" if name == "AUTO" else name
    return {
        "device_name": _property(device, "FULL_DEVICE_NAME"),
        "architecture": _property(device, "DEVICE_ARCHITECTURE"),
        "capabilities": ",".join(capabilities(device)),
    }


def short(text: str, limit: int = 700) -> str:
    """Return the vendor's text as one line, without source locations (``Exception from src/...:117:``)."""
    text = re.sub(r"Exception from \S+:\d+:\s*", "", text)
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
