"""Names of build variants of Hugging Face ``kernels``, and why a variant does not apply to this process.

A name is ``torch212-cxx11-cu126-x86_64-linux``: the framework with its version, on Linux the C++ ABI, the backend, the processor and the
system. Variants without native code are ``torch-BACKEND`` and ``torch-universal``.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

__all__ = ["BuildVariant", "Host", "parse_variant"]

_NATIVE = re.compile(
    r"(torch|tvm-ffi)([0-9])([0-9]{1,2})(?:-(cxx11|cxx98))?-([a-z]+[0-9.]*)-(x86_64|aarch64|arm64|riscv64)-(linux|darwin|windows)"
)
_PURE = re.compile(r"torch-(universal|[a-z]{2,12})")
_BACKENDS = re.compile(r"(cpu|cuda|cu|rocm|metal|xpu|cann|npu|neuron|tpu)[0-9.]*")


@dataclass(frozen=True, slots=True)
class BuildVariant:
    """A parsed name. Fields without a part in the name are empty; ``backend`` is ``universal`` for any."""

    name: str
    framework: str
    version: str = ""
    abi: str = ""
    backend: str = ""
    processor: str = ""
    system: str = ""

    def obstacle(self, host: Host) -> str:
        """Return why the variant does not apply; empty if it does."""
        if self.framework != "torch":
            return f"it needs the framework {self.framework}"
        if not host.torch:
            return "PyTorch is not installed"
        facts = (
            ("PyTorch", self.version, host.torch),
            ("the C++ ABI", self.abi, host.abi),
            ("the backend", self.backend, host.backend if self.version else host.backend_kind),
            ("the processor", self.processor, host.processor),
            ("the system", self.system, host.system),
        )
        for what, needed, here in facts:
            if needed and needed not in ("universal", here):
                return f"it needs {what} {needed}, here it is {here}"
        return ""


@dataclass(frozen=True, slots=True)
class Host:
    """The facts of this process that variants depend on; ``torch`` is empty if PyTorch is not installed."""

    torch: str
    abi: str
    backend: str
    processor: str
    system: str

    @property
    def backend_kind(self) -> str:
        """Return the backend without its version: ``cuda`` for ``cu126``."""
        kind = self.backend.rstrip("0123456789.")
        return "cuda" if kind == "cu" else kind

    @classmethod
    def here(cls) -> Host:
        """Return the facts of this process. Imports PyTorch."""
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
        system = platform.system().lower()
        try:
            import torch
        except ImportError:
            return cls("", "", "cpu", machine, system)
        major, minor = torch.__version__.split(".")[:2]
        cuda, hip = torch.version.cuda, torch.version.hip
        backend = (
            f"cu{cuda.replace('.', '')}" if cuda else f"rocm{'.'.join(hip.split('.')[:2])}" if hip else "cpu"
        )
        if backend == "cpu" and torch.backends.mps.is_available():
            backend = "metal"
        abi = ("cxx11" if torch.compiled_with_cxx11_abi() else "cxx98") if system == "linux" else ""
        return cls(f"{major}.{minor}", abi, backend, machine, system)


def parse_variant(name: str) -> BuildVariant | None:
    """Parse the name of a folder below ``build``; None if it is no variant's."""
    if match := _NATIVE.fullmatch(name):
        framework, major, minor, abi, backend, processor, system = match.groups()
        if not _BACKENDS.fullmatch(backend):
            return None
        processor = {"arm64": "aarch64"}.get(processor, processor)
        return BuildVariant(name, framework, f"{major}.{minor}", abi or "", backend, processor, system)
    match = _PURE.fullmatch(name)
    if match is None or (match[1] != "universal" and not _BACKENDS.fullmatch(match[1])):
        return None
    return BuildVariant(name, "torch", backend=match[1])
