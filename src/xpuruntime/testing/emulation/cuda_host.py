"""The target ``CudaHost``: generated CUDA kernels compiled as C++ for the emulator.

check(graph, feeds, target=cuda_host())        checks all but the device: compiler, plan, executor, kernel sources
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from ...codegen.cpp.toolchain import Toolchain, cxx_toolchain
from ...codegen.cuda.sm import LEVELS, SmLevel
from ...codegen.cuda.target import CudaTarget
from ...errors import BuildError
from ...program.program import Binary
from ...targets import TargetConfig

__all__ = ["CudaHost", "cuda_host"]

_LEVEL = "-march=x86-64-v2"
# Linked with libm, whose functions replace CUDA's. The compiler reports every access to memory under the names of the thread sanitizer's
# runtime, which cuda/accesses.h defines.
FLAGS = (
    "-O0",
    "-fsanitize=thread",
    "-fno-gnu-unique",
    "-Wl,-Bsymbolic",
    _LEVEL,
    "-Wl,--no-as-needed",
    "-lm",
    "-lc",
    "-l:ld-linux-x86-64.so.2",
)
_LAUNCH = re.compile(
    r"// launch: grid (\d+) (\d+) (\d+), block (\d+) (\d+) (\d+), shared (\d+)(?:, cluster (\d+))?"
)
_TENSOR_MAP = re.compile(r"// tensor map: argument (\d+), (\d+) x (\d+), row (\d+), tile (\d+)")
_WHO = "cuda on the host"
_HEADERS = ("language", "threads", "shared_memory", "accesses", "barriers", "launch")
_REPLACED = frozenset(["tensor", "hopper", "wgmma", "cluster", "tma"])
"""Parts with GPU-only instructions: files of ``cuda/`` replace them."""


class CudaHost(CudaTarget):
    """A target with CUDA kernels and CPU binaries. Its name is a CPU target, since the CPU backend runs the plans."""

    functions_per_binary = 0

    def __init__(self, sm: SmLevel, config: TargetConfig | None = None) -> None:
        super().__init__(sm, config)
        self.name = "cpu:x86-64-v2"

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Return one shared library with the sources and a wrapper with the CPU ABI for each function. Raises BuildError."""
        return self._built(self.source(functions, parts), tuple(functions), ())

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        """Compile one function; NVRTC's flags are ignored."""
        return self._built(self.source({symbol: text}, parts), (symbol,), ())

    def _built(
        self, source: str, symbols: tuple[str, ...], options: tuple[str, ...], *, keep: bool = False
    ) -> Binary:
        """Compile with the C++ compiler; the store keeps the library by its text."""
        toolchain = cxx_toolchain()
        return Binary(
            target=self.name,
            format="elf-x86-64",
            requires=(),
            symbols=symbols,
            data=toolchain.build(source, FLAGS, who=_WHO, objects=(_emulator(toolchain),)),
            source=source,
            compiler=toolchain.version,
        )

    def part(self, name: str) -> tuple[str, str]:
        """Return a part, with GPU-only instructions replaced."""
        return (f"{name}.h", _header(name)) if name in _REPLACED else super().part(name)

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """Return the translation unit: the replacement of CUDA, the unchanged GPU sources, and the wrappers."""
        renamed = {f"gpu_{s}": re.sub(rf"\b{s}\b", f"gpu_{s}", text) for s, text in functions.items()}
        body = super().source(renamed, parts)
        reports = "xpurt_report[2]" in body
        wrappers = [_wrapper(s, text, reports) for s, text in functions.items()]
        return "\n".join([*(_header(name) for name in _HEADERS), body, *wrappers])


def _emulator(toolchain: Toolchain) -> bytes:
    """Return the object file of the emulator itself, which every library of kernels is linked with. Raises BuildError."""
    source = "\n".join(["#define EMULATOR_ITSELF", *map(_header, _HEADERS)])
    return toolchain.build(source, ("-c", _LEVEL), who=_WHO)


@functools.cache
def _header(name: str) -> str:
    return (resources.files(__package__) / "cuda" / f"{name}.h").read_text(encoding="utf-8")


def cuda_host(name: str = "sm_90", config: TargetConfig | None = None) -> CudaHost:
    """Return the emulated target of one compute capability."""
    return CudaHost(LEVELS[name], config)


def _wrapper(symbol: str, text: str, reports: bool) -> str:
    launch = _LAUNCH.search(text)
    if launch is None:
        raise BuildError("cuda on the host", "the kernel has no launch comment", got=symbol)
    sizes = [int(g or 1) for g in launch.groups()]
    grid, block = (f"three{{{', '.join(map(str, s))}}}" for s in (sizes[:3], sizes[3:6]))
    maps = ", ".join(f"{{{', '.join(m.groups())}}}" for m in _TENSOR_MAP.finditer(text))
    given = "maps" if maps else "nullptr"
    lines = [
        'extern "C" __attribute__((no_sanitize("thread")))',
        f"void {symbol}(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {{",
        *([f"  static const host::MappedMatrix maps[] = {{{maps}}};"] if maps else []),
        "  host::lock();",
        *(["  host::begin_report(xpurt_report);"] if reports else []),
        f'  host::launch("{symbol}", gpu_{symbol}, {grid}, {block}, {sizes[6]}, {sizes[7]}, args, params, {given}, begin, end);',
        *(["  host::end_report((int64_t *)scratch);"] if reports else []),
        "  host::unlock();",
    ]
    return "\n".join([*lines, "}", ""])
