"""NVRTC: CUDA C++ texts to CUBINs, without a device or a driver. What was compiled once is kept in the store.

A key is the text, the options, the architecture and NVRTC's version, so another NVRTC never meets an old binary.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .. import _core, env
from ..errors import BuildError, StoreError
from ..store import Store, digest
from ..vendor_folders import vendor_folders
from .toolchains import TextRefused

__all__ = ["NVRTC_FLAGS", "Nvrtc", "nvrtc_toolchain"]

NVRTC_FLAGS: tuple[str, ...] = (
    "--std=c++17",
    "--device-as-default-execution-space",
    "--no-source-include",
    "-lineinfo",
)
"""What every text is compiled with: precise division and square roots, denormals kept, a product and a sum may become one FMA."""

_KIND = "cubin"


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The runtime compiler of this process. ``version``: ``(13, 0)``."""

    version: tuple[int, int]

    @property
    def name(self) -> str:
        """For reports: ``NVRTC 13.0``."""
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
    ) -> bytes:
        """The CUBIN of a text for one architecture (``sm_80``, ``sm_90a`` ...), from the store where it lies there.

        Raises BuildError with the compiler's own text, which quotes the line that it complains of.
        """
        store = Store() if store is None else store
        flags = [*NVRTC_FLAGS, *options]
        ingredients = {
            "source": hashlib.sha256(source.encode()).hexdigest(),
            "name": name,
            "arch": arch,
            "options": flags,
            "nvrtc": list(self.version),
        }
        kept = store.get(_KIND, digest(ingredients))
        if kept is not None:
            return kept
        status, cubin, _ = _core.nvrtc_compile(source, name, arch, flags)
        if not status.ok:
            works, _, _ = _core.nvrtc_compile("", name, arch, flags)
            raise (TextRefused if works.ok else BuildError)(
                who,
                f"{self.name} refuses the text for {arch}",
                got=_said(status.message),
                do=status.advice or "Mend the kernel's text.",
            )
        _keep(store, ingredients, cubin)
        return cubin


def nvrtc_toolchain() -> Nvrtc:
    """NVRTC as this machine has it. Raises BuildError when it has none, with what was tried."""
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


def _keep(store: Store, ingredients: Mapping[str, object], cubin: bytes) -> None:
    """A store that cannot be written costs the next start some time, and nothing now."""
    try:
        store.put(_KIND, ingredients, cubin)
    except StoreError:
        return


def _said(message: str, lines: int = 20) -> str:
    """The head of the compiler's words; they quote the text's lines. What follows mostly repeats it."""
    kept = message.strip().splitlines()
    return "\n".join(kept[:lines] + (["..."] if len(kept) > lines else []))
