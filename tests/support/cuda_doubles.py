"""CUDA without a device: stand-ins for what a compilation or a process asks the driver and NVIDIA's libraries for."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from xpuruntime.codegen.cuda import target as cuda
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.program.program import Binary

__all__ = ["build_libraries", "leave_text_uncompiled"]

_SOURCES = Path(__file__).resolve().parents[2] / "cpp" / "tests" / "libraries"


def build_libraries(folder: Path, *names: str) -> Mapping[str, Path]:
    """Compile shared libraries of cpp/tests/libraries into a folder, and return them by the names of their sources."""
    made = {name: folder / f"{name}.so" for name in names}
    for name, file in made.items():
        source = str(_SOURCES / f"{name}.cpp")
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(file), source, "-ldl"]
        subprocess.run(command, check=True)
    return made


def leave_text_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a compilation need neither a device nor NVRTC: every library counts as installed, and binaries are empty."""
    monkeypatch.setattr(libraries, "installed", lambda library: True)

    def assemble(self: Any, functions: Any, parts: Any) -> Binary:
        return Binary(self.name, "cubin", (self.name,), tuple(functions), b"none", source="")

    monkeypatch.setattr(cuda.CudaTarget, "assemble", assemble)
