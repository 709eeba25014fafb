"""CudaTarget: NVIDIA GPUs, by generated CUDA C++ that NVRTC turns into a CUBIN.

Parts of the prelude are the files of ``templates/cuda/``; a part that is not there is the C++ one of the same name: what is written
for one scalar serves a thread of a GPU too.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources

from ..errors import DeviceUnavailable
from ..printable import logger
from ..program.program import Binary
from ..targets import CUDA_GPU, TargetConfig
from .binary_cache import is_self_contained
from .cpp import ordered_parts, part_text
from .sm import LEVELS, SmLevel, sm_level
from .target import CodegenTarget
from .wgmma import wgmma_part

__all__ = ["CONFIG", "CudaTarget", "cuda_part", "cuda_target", "sized_target"]

_log = logger("xpuruntime.compiler")

CONFIG: TargetConfig = replace(CUDA_GPU, name="cuda", channel_alignment_bytes=1, max_threadgroup_1d=256)
"""The porting guide's sizes, but channels are packed, which is what the libraries' fast paths want, and blocks are of 256 threads."""


class CudaTarget(CodegenTarget):
    """One compute capability. ``config`` sizes blocks (``max_threadgroup_1d`` threads) and tiles (``max_threadgroup_2d`` wide)."""

    kind = "cuda"
    takes_fused = True
    any_layout = frozenset(["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"])
    few_rows = 4  # of 5, 6 and 8 rows cuBLASLt makes a token 2, 8 and 22% faster, of 3 and 4 13 and 8% slower (H200, bfloat16)
    place_alignment = 16  # loads of 16 bytes, and what cuDNN's fast engines ask for
    sm: SmLevel

    def __init__(self, sm: SmLevel, config: TargetConfig | None = None) -> None:
        self.sm = sm
        self.name = f"cuda:{sm.name}"
        self.config = CONFIG if config is None else config

    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """The function of the prelude and the part that defines it: ``("exp", "math.cuh")``."""
        from .expr import FUNCTIONS  # a table over the IR's ops, read only when a porter asks

        function, part = FUNCTIONS.get(kernel_name, (kernel_name, "prelude"))
        return function, cuda_part(part)[0]

    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """The product's template: one row streams its weights, others go by tiles."""
        return ("gemv", "gemv.cuh") if is_vec else ("gemm", "gemm.cuh")

    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """The function at the heart of a kernel of several ops, and its part."""
        function, part = _FUSED.get(kernel_type, (kernel_type, kernel_type))
        return function, cuda_part(part)[0]

    def shader_source(self, filename: str) -> str:
        """A part's text. Raises BuildError for a file that does not exist."""
        return cuda_part(filename.rpartition(".")[0] or filename)[1]

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """One CUBIN; its source is the parts that are used, then the functions. Raises BuildError with NVRTC's log."""
        return self._built(self.source(functions, parts), tuple(functions), OPTIONS)

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        source, options = f"{self.source({}, parts)}\n{text}", (*OPTIONS, *flags)
        return self._built(source, (symbol,), options, keep=is_self_contained(text, flags))

    def _built(
        self, source: str, symbols: tuple[str, ...], options: tuple[str, ...], *, keep: bool = True
    ) -> Binary:
        from .toolchains_nvrtc import nvrtc_toolchain

        toolchain = nvrtc_toolchain()
        return Binary(
            target=self.name,
            format="cubin",
            requires=(self.name,),
            symbols=symbols,
            data=toolchain.build(source, self.sm.architecture, options, who=self.name, keep=keep),
            source=source,
            compiler=" ".join((toolchain.name, *options, self.sm.architecture)),
        )

    def part(self, name: str) -> tuple[str, str]:
        """File name and text of a part of the prelude."""
        return cuda_part(name)

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """The whole translation unit. ``KERNEL`` in a function's text stands for its symbol."""
        head = f"// {self.name}\n#define SM {self.sm.number}\n"
        files = dict(self.part(part) for part in ordered_parts(parts, lambda p: self.part(p)[1]))
        texts = [*files.values()]
        texts += [text.replace("KERNEL", symbol) for symbol, text in functions.items()]
        return "\n".join([head, *texts])


# Beside what NVRTC is always told. The C++ parts have variables that only some kernels use.
OPTIONS: tuple[str, ...] = ("--disable-warnings",)

_FUSED = {
    **dict.fromkeys(
        ("softmax", "log_softmax", "rmsnorm", "layernorm", "rms_norm", "layer_norm"),
        ("block_reduce", "reduce"),
    ),
    "attention": ("flash_v2", "flash_v2"),
    "conv": ("implicit_gemm", "implicit_gemm"),
}

# CUDA has these functions; the C++ prelude writes them out.
_SAME = dict.fromkeys(("arith", "exp", "log", "trig", "inverse", "erf", "pow"), "math")

# Parts whose text is generated.
_GENERATED = {"wgmma": wgmma_part}


@functools.cache
def cuda_part(part: str) -> tuple[str, str]:
    """File name and text of a part: CUDA's own, else the C++ one. Raises BuildError for one that does not exist."""
    name = _SAME.get(part, part)
    if name in _GENERATED:
        return f"{name}.cuh", _GENERATED[name]()
    file = resources.files(__package__) / "templates" / "cuda" / f"{name}.cuh"
    if file.is_file():
        return f"{name}.cuh", file.read_text(encoding="utf-8")
    return f"{name}.h", part_text(name)


def cuda_target(text: str = "cuda") -> CudaTarget:
    """``"cuda:sm_90"`` -> that compute capability; ``"cuda"``, ``"cuda:1"`` -> that of this machine's first or second device.

    Raises DeviceUnavailable.
    """
    kind, _, name = text.partition(":")
    index = 0 if not name else int(name) if name.isdecimal() else None
    if kind != "cuda" or (index is None and name not in LEVELS):
        near = difflib.get_close_matches(name, LEVELS, n=1)
        hint = f"Did you mean 'cuda:{near[0]}'? " if near else ""
        raise DeviceUnavailable(
            "target", "no such CUDA target", got=repr(text), do=f"{hint}Name one of cuda, {_known()}."
        )
    return CudaTarget(LEVELS[name] if index is None else _own_level(index))


def sized_target(config: TargetConfig) -> CudaTarget:
    """Code with these sizes for this machine's first GPU; on a machine without one for the least compute capability, with a warning."""
    try:
        return CudaTarget(_own_level(0), config)
    except DeviceUnavailable as error:
        least = next(iter(LEVELS.values()))
        _log.warning(
            "target %s: code is generated for %s (%s). For other GPUs name one of %s.",
            config.name,
            least.name,
            error.got,
            _known(),
        )
        return CudaTarget(least, config)


def _known() -> str:
    return ", ".join(f"cuda:{name}" for name in LEVELS)


def _own_level(index: int) -> SmLevel:
    from .. import _core  # facts of this machine; a level named in full needs none
    from .own_libraries import place_of

    status, facts = _core.cuda_facts(place_of("cuda"))
    device = next((d for d in facts.devices if d.index == index), None) if status.ok else None
    if device is None:
        which = f"CUDA device {index}" if index else "CUDA device"
        raise DeviceUnavailable(
            "target",
            f"this machine shows no {which}, so its compute capability must be named",
            got=status.message or f"{len(facts.devices) or 'no'} device{'s' * (len(facts.devices) > 1)}",
            do=f"Name one of {_known()}.",
        )
    level = sm_level(device.compute_capability)
    if level is None:
        major, minor = device.compute_capability
        raise DeviceUnavailable(
            "target",
            "no code is generated for this device",
            got=f"{device.name}, compute capability {major}.{minor}",
            do=f"Name one of {_known()}.",
        )
    return level
