"""Generated CUDA kernels on a machine without a GPU: the same source compiled as C++, one block of threads at a time (``cuda_host.h``).

    check(graph, feeds, target=cuda_host())        checks all but the device: compiler, plan, executor, kernel sources

A block runs to its end before the next one starts. Its threads wait for each other at barriers and when they exchange values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from ...codegen.cpp.toolchain import cxx_toolchain
from ...codegen.cuda.sm import LEVELS, SmLevel
from ...codegen.cuda.target import CudaTarget
from ...errors import BuildError
from ...program.program import Binary
from ...targets import TargetConfig

__all__ = ["CudaHost", "cuda_host"]

# Linked with libm, whose functions replace CUDA's.
FLAGS = (
    "-O1",
    "-fno-gnu-unique",
    "-march=x86-64-v2",
    "-Wl,--no-as-needed",
    "-lm",
    "-lc",
    "-l:ld-linux-x86-64.so.2",
)
_LAUNCH = re.compile(
    r"// launch: grid (\d+) (\d+) (\d+), block (\d+) (\d+) (\d+), shared (\d+)(?:, cluster (\d+))?"
)
_SYNCHRONIZES = re.compile(
    r"(warp|block|column)_reduce|is_last_block|__sync|__shfl|transposed<|rising\(|tensor::|DYNAMIC_SMEM|gemm|gemv|flash|simt|tiles|decode"
)


_REPLACEMENTS = {"tensor": "cuda_tensor.h", "hopper": "cuda_hopper.h", "wgmma": "cuda_wgmma.h"}
"""Part with GPU-only instructions -> the header that replaces it."""


class CudaHost(CudaTarget):
    """A target with CUDA kernels and CPU binaries. Its name is a CPU target, since the CPU backend runs the plans."""

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
        """Compile with the C++ compiler every time; ``keep`` applies to NVRTC's binaries only."""
        toolchain = cxx_toolchain()
        return Binary(
            target=self.name,
            format="elf-x86-64",
            requires=(),
            symbols=symbols,
            data=toolchain.build(source, FLAGS, who="cuda on the host"),
            source=source,
            compiler=toolchain.version,
        )

    def part(self, name: str) -> tuple[str, str]:
        """Return a part, with GPU-only instructions replaced."""
        replacement = _REPLACEMENTS.get(name)
        return (replacement, _header(replacement)) if replacement else super().part(name)

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """Return the translation unit: the replacement of CUDA, the unchanged GPU sources, and the wrappers."""
        renamed = {f"gpu_{s}": re.sub(rf"\b{s}\b", f"gpu_{s}", text) for s, text in functions.items()}
        body = super().source(renamed, parts)
        reports = "xpurt_report" in body
        report_variable = ["static unsigned long long report_words[3];"] if reports else []
        wrappers = [_wrapper(s, text, reports) for s, text in functions.items()]
        return "\n".join([_header("cuda_host.h"), body, *report_variable, *wrappers])


def _header(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


def cuda_host(name: str = "sm_90", config: TargetConfig | None = None) -> CudaHost:
    """Return the emulated target of one compute capability."""
    return CudaHost(LEVELS[name], config)


def _wrapper(symbol: str, text: str, reports: bool) -> str:
    launch = _LAUNCH.search(text)
    if launch is None:
        raise BuildError("cuda on the host", "the kernel has no launch comment", got=symbol)
    sizes = [int(g or 1) for g in launch.groups()]
    grid, block = (f"three{{{', '.join(map(str, s))}}}" for s in (sizes[:3], sizes[3:6]))
    synchronizes = str(_SYNCHRONIZES.search(text) is not None).lower()
    lines = [
        f'extern "C" void {symbol}(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {{',
        *(["  xpurt_report[1] = (unsigned long long)report_words;"] if reports else []),
        f"  if (!host::launch(gpu_{symbol}, {grid}, {block}, {synchronizes}, {sizes[7]}, args, params, begin, end)) __builtin_trap();",
    ]
    if reports:
        lines += [
            "  if (report_words[0]) {",
            "    for (int i = 0; i < 3; ++i) ((int64_t *)scratch)[-1 - i] = (int64_t)report_words[i];",
            "    xpurt_report[0] = report_words[0] = 0;",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])
