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
from ...protocols import DeviceFact, EngineRequest
from ...targets import DeviceId

__all__ = [
    "DEVICES", "DEVICE_OPTION", "META_DEVICES", "core", "devices", "members", "requested_name", "short", "usable", "usable_meta", "vendor_name", "version",
]  # fmt: skip

# Kind of device -> OpenVINO's name.
DEVICES: dict[str, str] = {"cpu": "CPU", "auto": "AUTO", "gpu": "GPU", "npu": "NPU"}

DEVICE_OPTION = "DEVICE"
"""The engine option that names a meta device for ``device='auto'``: ``HETERO:GPU,CPU``."""
META_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")
"""Devices over other devices: choose one, split the model, distribute the requests, batch the requests."""
_META = re.compile(rf"(?:{'|'.join(META_DEVICES)}):[A-Z0-9_.,()]+")


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


def requested_name(request: EngineRequest) -> str:
    """Return OpenVINO's name of a request's device, or the meta device that its options name."""
    return request.options.get(DEVICE_OPTION) or vendor_name(request.device)


def members(name: str) -> tuple[str, ...]:
    """Return the devices behind a meta device: ``HETERO:GPU,CPU`` -> GPU, CPU; the device itself otherwise, and the CPU for AUTO."""
    base, _, listed = name.partition(":")
    if base not in META_DEVICES:
        return (name,)
    return tuple(d.partition("(")[0] for d in listed.split(",") if d) or ("CPU",)


def usable_meta(device: DeviceId, name: str) -> Support:
    """Return whether OpenVINO can use a meta device here; the reason quotes its text."""
    if device.kind != "auto":
        text = f"OpenVINO option {DEVICE_OPTION!r} is {name!r}, but the session's device is {device}"
        return Support.no(Reason.OPTION_UNKNOWN, text, do="Use device='auto' with it.")
    if not _META.fullmatch(name):
        text = f"OpenVINO option {DEVICE_OPTION!r} cannot be {name!r}"
        return Support.no(
            Reason.OPTION_UNKNOWN, text, do=f"Use {', '.join(META_DEVICES)} with devices: HETERO:GPU,CPU."
        )
    refusal = _refusal(name, ())
    if refusal:
        return Support.no(Reason.DEVICE_REFUSED, f"OpenVINO refuses {name}: {refusal}", do=_DRIVER)
    return Support.yes()


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
    """Return OPTIMIZATION_CAPABILITIES of a device (``FP32``, ``BF16``, ...); for AUTO, those of the devices behind it, and for other
    meta devices those that all of them have.
    """
    if ":" in name:
        each = [capabilities(d) for d in members(name)]
        return tuple(c for c in each[0] if all(c in other for other in each))
    try:
        return tuple(core().get_property(name, "OPTIMIZATION_CAPABILITIES"))
    except Exception:  # an unavailable device has none
        return ()


@functools.cache
def writable_properties(name: str) -> frozenset[str]:
    """Return the names of the options that the device accepts."""
    base = name.partition(":")[0]
    listed = dict(core().get_property(base, "SUPPORTED_PROPERTIES"))
    if base in META_DEVICES:  # a meta device accepts the options of the devices behind it
        for device in members(name):
            listed |= dict(core().get_property(device, "SUPPORTED_PROPERTIES"))
        listed |= {"DEVICE_PRIORITIES": "RW"} if name == "AUTO" else {}
    return frozenset(k for k, mode in listed.items() if mode in ("RW", "WO"))


def _property(name: str, key: str) -> str:
    try:
        return str(core().get_property(name, key))
    except Exception:  # not every device has this property
        return ""


def device_facts(name: str) -> dict[str, str]:
    """Return full name, architecture, capabilities and versions (driver, compiler) of a device, on which a compiled blob depends. Facts of
    several devices are separated by semicolons.
    """
    behind = members(name)
    facts = {
        "device_name": "; ".join(_property(d, "FULL_DEVICE_NAME") for d in behind),
        "architecture": "; ".join(_property(d, "DEVICE_ARCHITECTURE") for d in behind),
        "capabilities": "; ".join(",".join(capabilities(d)) for d in behind),
    }
    versions = {f"{d}.{k}": _property(d, k) for d in behind for k in _version_properties(d)}
    return facts | versions


def _version_properties(name: str) -> list[str]:
    """Return the names of a device's properties that are versions (``NPU_DRIVER_VERSION``)."""
    try:
        listed = dict(core().get_property(name, "SUPPORTED_PROPERTIES"))
    except Exception:  # an unavailable device has none
        return []
    return sorted(k for k in listed if k.endswith("_VERSION"))


def short(text: str, limit: int = 700) -> str:
    """Return the vendor's text as one line, without source locations (``Exception from src/...:117:``)."""
    text = re.sub(r"Exception from \S+:\d+:\s*", "", text)
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
