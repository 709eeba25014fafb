"""``CudaTarget``: NVIDIA GPUs, by generated CUDA C++ that NVRTC compiles to a CUBIN.

Parts of the prelude are the files of ``templates/cuda/``. A part without such a file is the C++ part of the same name: code for one scalar is
also code for one GPU thread.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources

from ...errors import DeviceUnavailable
from ...printable import logger
from ...program.program import TENSOR_MAPS, Binary
from ...targets import CUDA_GENERATED, GPUS, TargetConfig
from ..binary_cache import is_self_contained
from ..cpp.target import ordered_parts, part_text
from ..target import CodegenTarget
from .sm import LEVELS, SmLevel, sm_level
from .wgmma import wgmma_part

__all__ = ["CudaTarget", "cuda_part", "cuda_target", "sized_target"]

_log = logger("xpuruntime.compiler")


class CudaTarget(CodegenTarget):
    """One compute capability.

    ``config`` sizes blocks (``max_threadgroup_1d`` threads) and tiles (``max_threadgroup_2d`` wide). If its GPU-specific fields are 0, they are those
    of the compute capability, whose limits also bound ``smem_per_block`` and ``max_cluster_size``.
    """

    kind = "cuda"
    takes_fused = True
    any_layout = frozenset(["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"])
    few_rows = 4  # above this cuBLASLt is faster (docs/development/runtime-notes.md)
    few_rows_16_bits = 16
    functions_per_binary = 4
    library_workspaces = True
    place_alignment = 16  # required by 16-byte loads and by cuDNN's fast engines
    sm: SmLevel

    def __init__(self, sm: SmLevel, config: TargetConfig | None = None) -> None:
        self.sm = sm
        self.name = f"cuda:{sm.name}"
        self.gates_many_rows = sm.wgmma and sm.tma
        config = _completed(CUDA_GENERATED if config is None else config, sm)
        self.config = replace(
            config,
            smem_per_block=min(config.smem_per_block, sm.smem_per_block),
            max_cluster_size=min(config.max_cluster_size, sm.max_cluster_size),
        )

    def most_functions(self, parts: frozenset[str]) -> int:
        """Return so many that NVRTC compiles a binary in about half a second: the slowest one decides how long a network compiles on many cores."""
        limit = self.functions_per_binary
        if not limit or parts & _SLOW_PARTS:
            return min(limit, 1)
        return 3 * limit if parts <= _FAST_PARTS else limit

    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """Return the function of the prelude and the part that defines it: ``("exp", "math.cuh")``."""
        from ..expr.expression import FUNCTIONS  # imported here, because only porters use it

        function, part = FUNCTIONS.get(kernel_name, (kernel_name, "prelude"))
        return function, cuda_part(part)[0]

    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """Return the product's template: a matrix-vector kernel for one row, otherwise a tiled one."""
        return ("gemv", "gemv.cuh") if is_vec else ("gemm", "gemm.cuh")

    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """Return the core function of a kernel of several ops, and its part."""
        function, part = _FUSED.get(kernel_type, (kernel_type, kernel_type))
        return function, cuda_part(part)[0]

    def shader_source(self, filename: str) -> str:
        """Return a part's text. Raises BuildError for a file that does not exist."""
        return cuda_part(filename.rpartition(".")[0] or filename)[1]

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Compile one CUBIN of the used parts and the functions. Raises BuildError with NVRTC's log."""
        return self._built(self.source(functions, parts), tuple(functions), OPTIONS)

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        source, options = f"{self.source({}, parts)}\n{text}", (*OPTIONS, *flags)
        return self._built(source, (symbol,), options, keep=is_self_contained(text, flags))

    def _built(
        self, source: str, symbols: tuple[str, ...], options: tuple[str, ...], *, keep: bool = True
    ) -> Binary:
        from .nvrtc import nvrtc_toolchain

        toolchain = nvrtc_toolchain()
        return Binary(
            target=self.name,
            format="cubin",
            requires=(self.name, *([TENSOR_MAPS] if "__grid_constant__ TensorMap" in source else [])),
            symbols=symbols,
            data=toolchain.build(source, self.sm.architecture, options, who=self.name, keep=keep),
            source=source,
            compiler=" ".join((toolchain.name, *options, self.sm.architecture)),
        )

    def part(self, name: str) -> tuple[str, str]:
        """Return file name and text of a part of the prelude."""
        return cuda_part(name)

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """Return the translation unit. ``KERNEL`` in a function's text is replaced by its symbol."""
        head = f"// {self.name}\n#define SM {self.sm.number}\n"
        files = dict(self.part(part) for part in ordered_parts(parts, lambda p: self.part(p)[1]))
        texts = [*files.values()]
        texts += [text.replace("KERNEL", symbol) for symbol, text in functions.items()]
        return "\n".join([head, *texts])


# In addition to the fixed NVRTC options. The C++ parts have variables that only some kernels use.
OPTIONS: tuple[str, ...] = ("--disable-warnings",)

# Seconds of NVRTC (docs/development/cuda-measurements.md, "Parts of opening"): 0.03 for a binary, 0.1 to 0.4 for each function with a slow
# part, 0.02 to 0.05 for one with fast parts only, 0.05 to 0.1 for any other.
_SLOW_PARTS = frozenset(
    (
        "depthwise",
        "flash_decode",
        "flash_hopper",
        "flash_simt",
        "flash_v2",
        "fma_gemm",
        "gemm",
        "implicit_gemm",
        "simt",
    )
)
_FAST_PARTS = frozenset(("arith", "erf", "exp", "inverse", "log", "math", "movement", "pow", "trig"))

_FUSED = {
    **dict.fromkeys(
        ("softmax", "log_softmax", "rmsnorm", "layernorm", "rms_norm", "layer_norm"),
        ("block_reduce", "reduce"),
    ),
    "attention": ("flash_v2", "flash_v2"),
    "conv": ("implicit_gemm", "implicit_gemm"),
}

# CUDA has these functions built in; the C++ prelude implements them.
_SAME = dict.fromkeys(("arith", "exp", "log", "trig", "inverse", "erf", "pow"), "math")

# Parts whose text is generated.
_GENERATED = {"wgmma": wgmma_part}


@functools.cache
def cuda_part(part: str) -> tuple[str, str]:
    """Return file name and text of a part: CUDA's own, or the C++ one. Raises BuildError for a part that does not exist."""
    name = _SAME.get(part, part)
    if name in _GENERATED:
        return f"{name}.cuh", _GENERATED[name]()
    file = resources.files("xpuruntime.codegen") / "templates" / "cuda" / f"{name}.cuh"
    if file.is_file():
        return f"{name}.cuh", file.read_text(encoding="utf-8")
    return f"{name}.h", part_text(name)


def _completed(config: TargetConfig, default: SmLevel | TargetConfig) -> TargetConfig:
    """Return ``config`` with its GPU-specific fields filled in where they are 0."""
    return replace(
        config,
        num_sms=config.num_sms or default.num_sms,
        smem_per_block=config.smem_per_block or default.smem_per_block,
        max_cluster_size=config.max_cluster_size or default.max_cluster_size,
    )


def cuda_target(text: str = "cuda") -> CudaTarget:
    """Return the target that a text names. Raises DeviceUnavailable.

    ``"cuda:sm_90"`` is a compute capability, ``"cuda:h200"`` a GPU of ``targets.GPUS``. ``"cuda"`` and ``"cuda:1"`` are the first and the second CUDA
    device of this machine, whose attributes fill ``config``.
    """
    kind, _, name = text.partition(":")
    index = 0 if not name else int(name) if name.isdecimal() else None
    if kind == "cuda" and index is not None:
        sm, config = _device_level(index)
        return CudaTarget(sm, config)
    if kind == "cuda" and name in LEVELS:
        return CudaTarget(LEVELS[name])
    if kind == "cuda" and name in GPUS:
        return CudaTarget(LEVELS[GPUS[name].capability], TargetConfig.named(name))
    near = difflib.get_close_matches(name, [*LEVELS, *GPUS], n=1)
    hint = f"Did you mean 'cuda:{near[0]}'? " if near else ""
    raise DeviceUnavailable(
        "target",
        "no such CUDA target",
        got=repr(text),
        do=f"{hint}Name one of cuda, {_known()}, or a GPU: {', '.join(f'cuda:{g}' for g in GPUS)}.",
    )


def sized_target(config: TargetConfig) -> CudaTarget:
    """Return a target with these sizes, for the GPU that ``config`` is named after, or for this machine's first GPU.

    On a machine without a GPU, log a warning and use the lowest compute capability.
    """
    gpu = GPUS.get(config.name.partition(":")[2])
    if gpu is not None:
        return CudaTarget(LEVELS[gpu.capability], config)
    try:
        level, device_config = _device_level(0)
        return CudaTarget(level, _completed(config, device_config))
    except DeviceUnavailable as error:
        lowest = next(iter(LEVELS.values()))
        _log.warning(
            "target %s: code is generated for %s (%s). For other GPUs name one of %s.",
            config.name,
            lowest.name,
            error.got,
            _known(),
        )
        return CudaTarget(lowest, config)


def _known() -> str:
    return ", ".join(f"cuda:{name}" for name in LEVELS)


def _device_level(index: int) -> tuple[SmLevel, TargetConfig]:
    """Return the compute capability of a CUDA device of this machine, and the sizes that its driver reports."""
    from ... import _core  # imported here, because it queries the driver
    from ..local_libraries import library_search

    status, facts = _core.cuda_facts(library_search("cuda"))
    device = next((d for d in facts.devices if d.index == index), None) if status.ok else None
    if device is None:
        which = f"CUDA device {index}" if index else "CUDA device"
        raise DeviceUnavailable(
            "target",
            f"this machine has no visible {which}, so a compute capability must be named",
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
    # The driver has no attribute for the cluster size, so that of the compute capability is used.
    return level, replace(
        CUDA_GENERATED, num_sms=device.multiprocessors, smem_per_block=device.shared_memory_per_block
    )
