"""Generated CUDA kernels on a machine without a GPU: the same texts as C++, a block of threads at a time (``cuda_host.h``).

    check(graph, feeds, target=cuda_host())        everything but the device: compiler, plan, executor, kernels' texts

What a block does is done in full: threads that meet at a barrier or exchange values wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from ...codegen.cuda import CudaTarget
from ...codegen.sm import LEVELS, SmLevel
from ...codegen.toolchains import cxx_toolchain
from ...errors import BuildError
from ...program.program import Binary
from ...targets import TargetConfig

__all__ = ["CudaHost", "cuda_host"]

# Not freestanding: functions of libm stand for CUDA's.
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
_MEETS = re.compile(
    r"(warp|block|column)_reduce|is_last_block|__sync|__shfl|transposed<|rising\(|tensor::|DYNAMIC_SMEM|gemm|gemv|flash|simt|tiles|decode"
)


_STAND_INS = {"tensor": "cuda_tensor.h", "hopper": "cuda_hopper.h", "wgmma": "cuda_wgmma.h"}
"""Parts with instructions that only a GPU has, and the files that replace them."""


class CudaHost(CudaTarget):
    """CUDA's kernels, the processor's binaries. Plans carry the processor's name, since its backend runs them."""

    def __init__(self, sm: SmLevel, config: TargetConfig | None = None) -> None:
        super().__init__(sm, config)
        self.name = "cpu:x86-64-v2"

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """One shared library: the texts, and a function of the CPU's ABI around each. Raises BuildError."""
        return self._built(self.source(functions, parts), tuple(functions), ())

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        """Flags are NVRTC's, and left out here."""
        return self._built(self.source({symbol: text}, parts), (symbol,), ())

    def _built(
        self, source: str, symbols: tuple[str, ...], options: tuple[str, ...], *, keep: bool = False
    ) -> Binary:
        """Compiled by the C++ compiler, each time: ``keep`` is for NVRTC's binaries."""
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
        """Instructions that only a GPU has are written out."""
        stand_in = _STAND_INS.get(name)
        return (stand_in, _own(stand_in)) if stand_in else super().part(name)

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """The translation unit: the stand-in for CUDA, then the texts as a GPU gets them, then the wrappers."""
        renamed = {f"gpu_{s}": re.sub(rf"\b{s}\b", f"gpu_{s}", text) for s, text in functions.items()}
        body = super().source(renamed, parts)
        reports = "xpurt_report" in body
        words = ["static unsigned long long report_words[3];"] if reports else []
        wrappers = [_wrapper(s, text, reports) for s, text in functions.items()]
        return "\n".join([_own("cuda_host.h"), body, *words, *wrappers])


def _own(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


def cuda_host(name: str = "sm_90", config: TargetConfig | None = None) -> CudaHost:
    """A stand-in for one compute capability."""
    return CudaHost(LEVELS[name], config)


def _wrapper(symbol: str, text: str, reports: bool) -> str:
    found = _LAUNCH.search(text)
    if found is None:
        raise BuildError("cuda on the host", "the kernel does not say how it is launched", got=symbol)
    sizes = [int(g or 1) for g in found.groups()]
    grid, block = (f"three{{{', '.join(map(str, s))}}}" for s in (sizes[:3], sizes[3:6]))
    meets = str(_MEETS.search(text) is not None).lower()
    lines = [
        f'extern "C" void {symbol}(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {{',
        *(["  xpurt_report[1] = (unsigned long long)report_words;"] if reports else []),
        f"  if (!host::launch(gpu_{symbol}, {grid}, {block}, {meets}, {sizes[7]}, args, params, begin, end)) __builtin_trap();",
    ]
    if reports:
        lines += [
            "  if (report_words[0]) {",
            "    for (int i = 0; i < 3; ++i) ((int64_t *)scratch)[-1 - i] = (int64_t)report_words[i];",
            "    xpurt_report[0] = report_words[0] = 0;",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])
