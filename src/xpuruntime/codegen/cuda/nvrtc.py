"""NVRTC: compiles CUDA C++ to CUBINs, without a device or a driver."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ... import _core, env
from ...errors import BuildError
from ...plugins.vendor_folders import vendor_folders
from ...storage.store import Store
from ..binary_cache import cached_binary
from ..cpp.toolchain import TextRefused

__all__ = ["NVRTC_FLAGS", "Nvrtc", "nvrtc_toolchain"]

NVRTC_FLAGS: tuple[str, ...] = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--no-source-include",
    "-lineinfo",
)
"""Options of every compilation. Division and square roots are precise, denormals are kept, and a product and a sum may become one FMA."""


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The NVRTC library of this process. ``version``: ``(13, 0)``."""

    version: tuple[int, int]

    @property
    def name(self) -> str:
        """Return the name for reports: ``NVRTC 13.0``."""
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def build(
        self,
        source: str,
        arch: str,
        options: Sequence[str] = (),
        *,
        who: str = "codegen",
        name: str = "kernels.cu",
        store: Store | None = None,
        keep: bool = True,
    ) -> bytes:
        """Return the CUBIN of a text for one architecture (``sm_80``, ``sm_90a`` ...), from the store if it is there.

        keep: whether to use the store; False for a text that reads other files.
        Raises BuildError with NVRTC's log, which quotes the line in error.
        """
        flags = [*NVRTC_FLAGS, *options]
        if not keep:
            return self._compiled(source, arch, flags, who, name)
        facts = {"name": name, "arch": arch, "options": flags, "nvrtc": list(self.version)}
        return cached_binary(
            "cubin", source, facts, lambda: self._compiled(source, arch, flags, who, name), store
        )

    def _compiled(self, source: str, arch: str, flags: Sequence[str], who: str, name: str) -> bytes:
        status, cubin, _ = _core.nvrtc_compile(source, name, arch, list(flags))
        if not status.ok:
            works, _, _ = _core.nvrtc_compile("", name, arch, flags)
            raise (TextRefused if works.ok else BuildError)(
                who,
                f"{self.name} rejects the code for {arch}",
                got=_log_head(status.message),
                do=status.advice or "Fix the kernel's source.",
            )
        return cubin


def nvrtc_toolchain() -> Nvrtc:
    """Return this machine's NVRTC. Raises BuildError with the locations that were tried if there is none."""
    override = env.get_path("XPU_LIBNVRTC")
    return _toolchain("" if override is None else str(override))


@functools.cache
def _toolchain(override: str) -> Nvrtc:
    search = _core.Search(override) if override else _core.Search(folders=vendor_folders())
    status = _core.open_library("nvrtc", search)
    if status.ok:
        status, major, minor = _core.nvrtc_version()
        if status.ok:
            return Nvrtc((major, minor))
    raise BuildError("codegen", "CUDA kernels need NVRTC", got=status.message, do=status.advice)


def _log_head(message: str, lines: int = 20) -> str:
    """Return the first lines of the compiler's log. Later lines mostly repeat them."""
    head = message.strip().splitlines()
    return "\n".join(head[:lines] + (["..."] if len(head) > lines else []))
