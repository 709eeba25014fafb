"""QNN's packages and devices: the provider library that ONNX Runtime loads, and the hardware that it finds.

On x86 the package emulates the HTP, Qualcomm's tensor processor. The emulator computes what the NPU computes, thousands of times slower,
and ONNX Runtime lists it as a device of the host processor. It is used only with the engine option ``emulator``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ...decisions import Reason, Support
from ...plugins.vendor_imports import vendor
from ...protocols import DeviceFact
from ...targets import DeviceId
from ..onnxruntime.providers import ort, short

__all__ = ["PROVIDER", "devices", "ep_devices", "has_npu", "library_file", "usable", "version"]

PROVIDER = "QNNExecutionProvider"


@functools.cache
def _qnn() -> Any:
    return vendor("onnxruntime_qnn")


def version() -> str:
    """Return the version of the vendor's package."""
    return str(_qnn().__version__)


def library_file(name: str) -> Path:
    """Return the path of one of the vendor's libraries: ``QnnHtp`` -> ``.../libQnnHtp.so``."""
    return Path(_qnn().LIB_DIR_FULL_PATH, f"lib{name}.so")


@functools.cache
def ep_devices() -> tuple[Any, ...]:
    """Return the devices that the provider library reports to ONNX Runtime. Loads the library once per process.

    Raises the vendor's error if it cannot be loaded.
    """
    ort().register_execution_provider_library(PROVIDER, _qnn().get_library_path())
    return tuple(d for d in ort().get_ep_devices() if d.ep_name == PROVIDER)


def has_npu() -> bool:
    """Return True if the provider reports an NPU, False if it only emulates one."""
    return any(d.device.type == ort().OrtHardwareDeviceType.NPU for d in ep_devices())


def usable(device: DeviceId, emulator: bool) -> Support:
    """Return whether QNN can use the device; the reason quotes the vendor's text."""
    if device.kind != "npu" or device.index:
        return Support.no(Reason.DEVICE_MISMATCH, f"QNN supports npu, not {device}", do="Use device='npu'.")
    try:
        reported = ep_devices()
    except Exception as error:  # the vendor's exceptions have no common base class
        text = f"the provider library of onnxruntime-qnn {version()} cannot be loaded: {short(str(error))}"
        return Support.no(Reason.DEVICE_REFUSED, text, do="Reinstall it: pip install 'xpuruntime[qnn]'")
    if not reported:
        text = "the provider library of onnxruntime-qnn reports no device on this machine"
        return Support.no(
            Reason.NO_DEVICE, text, do="Use an x86-64 Linux machine, or one with a Qualcomm NPU."
        )
    if not library_file("QnnHtp").is_file():
        text = f"onnxruntime-qnn {version()} lacks {library_file('QnnHtp').name}"
        return Support.no(Reason.DEVICE_REFUSED, text, do="Reinstall it: pip install 'xpuruntime[qnn]'")
    if not emulator and not has_npu():
        return Support.no(
            Reason.NO_DEVICE,
            "this machine has no Qualcomm NPU; onnxruntime-qnn can emulate one",
            do="Set the engine option emulator=1 to run on the emulator, or allow a fallback with allow_fallback='cpu'.",
        )
    return Support.yes()


def devices() -> tuple[DeviceFact, ...]:
    """Return the NPU, usable or not. Never raises."""
    device = DeviceId("npu")
    try:
        support = usable(device, emulator=False)
        emulated = usable(device, emulator=True)
    except Exception as error:  # a broken installation must not hide the other engines
        text = short(f"{type(error).__name__}: {error}")
        return (DeviceFact(device, "Qualcomm HTP", Support.no(Reason.DEVICE_REFUSED, text)),)
    facts = {"emulator": emulated.ok and not support.ok}
    return (DeviceFact(device, "Qualcomm HTP", support, facts),)
