"""Registers, stack and shared memory of the heavy CUDA kernels on every architecture. It needs NVRTC, and no GPU.

    python benchmarks/cuda/resources.py --out benchmarks/results/cuda_resources.json [--levels sm_80,sm_120]

The calls are those of tests/support/heavy_cuda_calls.py. Resident blocks are those that registers, threads and shared memory of a multiprocessor
allow. A stack is local memory: registers that were spilled, or an array that is indexed by values. A kernel has no row where it needs more
shared memory than the architecture has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import paths  # noqa: F401
from gpu_report import arguments, machine, write
from support.heavy_cuda_calls import CALLS, FEW_SPILLS, call_text, resources

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.sm import LEVELS, SmLevel
from xpuruntime.codegen.cuda.target import cuda_target

_REGISTERS, _WARP, _GRANULE = 65536, 32, 256
_DRIVER_SHARED = 1024  # bytes of each block that the driver takes


def resident_blocks(level: SmLevel, threads: int, registers: int, shared: int) -> int:
    """Return how many blocks of a kernel a multiprocessor holds at the same time."""
    per_warp = -(-registers * _WARP // _GRANULE) * _GRANULE
    limits = [level.threads // threads, _REGISTERS // (per_warp * -(-threads // _WARP))]
    return min(*limits, (level.smem_per_block + _DRIVER_SHARED) // (shared + _DRIVER_SHARED))


def row(index: int, level: SmLevel) -> list[dict[str, Any]]:
    """Return a row for each stage of a call."""
    rows = []
    for found, options in resources(index, cuda_target(f"cuda:{level.name}")):
        threads = math.prod(options["block"])
        shared = found.shared_bytes + options["shared"]
        rows.append({
            "registers": found.registers, "stack": found.stack_bytes, "shared": shared, "threads": threads,
            "blocks": resident_blocks(level, threads, found.registers, shared),
        })  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a kernel has more than a few spilled registers, or does not fit."""
    parser = arguments(__doc__)
    parser.add_argument("--levels", type=lambda t: t.split(","), default=list(LEVELS), metavar="A,B")
    args = parser.parse_args(argv)
    if unknown := set(args.levels) - LEVELS.keys():
        parser.error(f"no level {', '.join(sorted(unknown))}: there are {', '.join(LEVELS)}")
    rows: dict[str, Any] = {}
    for index in range(len(CALLS)):
        rows[call_text(index)] = {name: row(index, LEVELS[name]) for name in args.levels}
        for name, stages in rows[call_text(index)].items():
            for s in stages:
                print(f"{name:7} {s['registers']:4} registers {s['stack']:4} stack {s['shared']:7} shared {s['threads']:5} threads "
                      f"{s['blocks']:2} blocks  {call_text(index)[:90]}", flush=True)  # fmt: skip
    bad = [
        k
        for k, r in rows.items()
        for stages in r.values()
        for s in stages
        if s["stack"] > FEW_SPILLS or not s["blocks"]
    ]
    facts = machine("none", "nvidia-cuda-nvrtc") | {"compiler": nvrtc_toolchain().name}
    write(args.out, {"machine": facts, "with a larger stack, or too large": sorted(set(bad)), "rows": rows})
    print(f"{len(bad)} of {len(rows)} calls with a larger stack, or too large")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
