"""Where the native tests run: on the processor, or on a device that was named once for all of them.

    device_under_test.name_device("cuda:0")
    device_under_test.name_device("cpu", "xpuruntime.testing.emulation.cuda_host:cuda_host")      a GPU's kernels on the emulator
    device_under_test.name_device("mypackage.backend:ToyBackend", "mypackage.target:ToyTarget")

The project's tests take both names from the environment (tests/conftest.py). What a test says of levels of a processor then means that device;
layouts and kernels are the compiler's own choice there.
"""

from __future__ import annotations

from typing import Any

from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.program.program import CompiledProgram
from xpuruntime.testing.conformance.subject import DeviceUnderTest, subject

__all__ = ["device_of", "name_device", "named", "target_of"]

_named: list[DeviceUnderTest] = []


def name_device(where: str, target: str | None = None) -> None:
    """Run native tests on this device from now on, or on the processor again for an empty name. Raises the errors of ``subject``."""
    _named[:] = [subject(where, target=target)] if where else []


def named() -> DeviceUnderTest | None:
    """Return the named device, or None for the processor."""
    return _named[0] if _named else None


def target_of(asked: str | CodegenTarget) -> str | CodegenTarget:
    """Return the compilation target of a test: the requested one, or the named device's where the test requests a processor."""
    there = named()
    if there is None or not isinstance(asked, str) or asked.partition(":")[0] != "cpu":
        return asked
    assert there.target is not None, f"{there.name} runs no programs of the native compiler"
    return there.target


def device_of(program: CompiledProgram) -> Any:
    """Return what runs a compiled program: a device's name or a backend."""
    target, there = program.entries[0].plans[0].target, named()
    if there is not None and there.target is not None and there.target.name == target:
        return there.device
    return "cuda:0" if target.startswith("cuda:") else "cpu"
