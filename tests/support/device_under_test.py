"""The device of the native tests: the processor, or a device that is named once for all tests.

    device_under_test.name_device("cuda:0")
    device_under_test.name_device("cpu", "xpuruntime.testing.emulation.cuda_host:cuda_host")      a GPU's kernels on the emulator
    device_under_test.name_device("mypackage.backend:ToyBackend", "mypackage.target:ToyTarget")

The project's tests take both names from the environment (tests/conftest.py). A named device replaces every CPU level that a test names, and
the compiler chooses layouts and kernels for it.
"""

from __future__ import annotations

from typing import Any

from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.program.program import CompiledProgram
from xpuruntime.testing.conformance.subject import DeviceUnderTest, subject

__all__ = ["device_name", "device_of", "name_device", "named", "target_of"]

_named: list[DeviceUnderTest] = []


def name_device(where: str, target: str | None = None) -> None:
    """Run native tests on this device from now on; an empty name selects the processor again. Raises the errors of ``subject``."""
    _named[:] = [subject(where, target=target)] if where else []


def named() -> DeviceUnderTest | None:
    """Return the named device, or None for the processor."""
    return _named[0] if _named else None


def device_name() -> str:
    """Return the name of the named device; ``cpu`` if none is named, or if it is a backend."""
    device = named()
    return device.device if device is not None and isinstance(device.device, str) else "cpu"


def target_of(requested: str | CodegenTarget) -> str | CodegenTarget:
    """Return the compilation target of a test: the named device's if the test requests a CPU target, else the requested one."""
    device = named()
    if device is None or not isinstance(requested, str) or requested.partition(":")[0] != "cpu":
        return requested
    assert device.target is not None, f"{device.name} runs no programs of the native compiler"
    return device.target


def device_of(program: CompiledProgram) -> Any:
    """Return the device that runs a compiled program: a device's name or a backend."""
    target, device = program.entries[0].plans[0].target, named()
    if device is not None and device.target is not None and device.target.name == target:
        return device.device
    return "cuda:0" if target.startswith("cuda:") else "cpu"
