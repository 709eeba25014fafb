"""Heavy CUDA kernels on a GPU: errors against PyTorch within the tolerance of the dtype, and times next to PyTorch's kernels in the same run.

    python benchmarks/cuda/heavy_kernels.py [--out FILE] [--only WORD] [--tune] [PART ...]

Needs torch with CUDA, CuPy (which loads the CUBINs), and the package installed. Times are medians of replays of a captured CUDA graph. Inputs that
fit the L2 cache are rotated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from heavy_cases import Case, odd_cases, timed_cases, tuned_cases
from heavy_launch import Loaded, target, timed

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3, "int8": 0, "int32": 0}
"""Largest max|d| / max|ref|: one rounding of the result in 16 bits."""
CACHE = 60 << 20
CAUSAL = "attention/flash_v2 [4, 16, 4096, 128] [4, 16, 4096, 128] dv 128 bfloat16 causal"
"""Shape of attention in the acceptance check."""


def judge(case: Case, loaded: Loaded) -> dict[str, Any]:
    """Compare a case with its reference, then time it. Return its row."""
    y = torch.full(
        case.out,
        float("nan") if getattr(torch, case.dtype).is_floating_point else 77,
        dtype=getattr(torch, case.dtype),
        device="cuda",
    )
    loaded.run(case.operands, y, case.packed)
    torch.cuda.synchronize()
    row: dict[str, Any] = {"case": case.name}
    wide = [x if x is None or x.dtype is torch.bool else x.double() for x in case.operands]
    if case.flops < 3e11:
        want = case.reference(*wide)
        error = (y.double() - want).abs().max() / want.abs().max()
        row["error"] = float(error)
        limit = TOLERANCE[case.dtype] if case.tolerance is None else case.tolerance
        row["ok"] = bool(error <= limit) and not bool(y.isnan().any())
        again = torch.empty_like(y)
        loaded.run(case.operands, again, case.packed)
        row["same bits again"] = bool(torch.equal(y, again))
        del want
    del wide
    if case.time:
        sets = max(1, min(16, -(-3 * CACHE // max(case.bytes, 1)))) if case.bytes < 3 * CACHE else 1
        inputs = [
            case.operands,
            *([None if x is None else x.clone() for x in case.operands] for _ in range(sets - 1)),
        ]
        packed = [case.packed, *({n: x.clone() for n, x in case.packed.items()} for _ in range(sets - 1))]
        times = {"ours": timed(lambda i: loaded.run(inputs[i], y, packed[i]), sets)}
        for name, peer in case.peers.items():
            try:
                times[name] = timed(lambda i, p=peer: p(*inputs[i]), sets)
            except RuntimeError as error:
                row[name] = str(error).splitlines()[0][:120]
        row["ms"] = {n: round(t, 5) for n, t in times.items()}
        row["tflops"] = {n: round(case.flops / t / 1e9, 1) for n, t in times.items()}
        row["gb_per_s"] = {n: round(case.bytes / t / 1e6, 1) for n, t in times.items()}
    return row


def every(
    report: Report, args: argparse.Namespace, makers: Callable[[], Iterator[Callable[[], Case]]]
) -> list[dict[str, Any]]:
    """Run cases, which threads compile while earlier ones run. No case begins after ``--limit`` seconds."""
    begin, rows = time.time(), list[dict[str, Any]]()
    cases = [c for c in (m() for m in makers()) if args.only in c.name]
    with ThreadPoolExecutor(16) as pool:
        built = [pool.submit(Loaded.build, c.lowered) for c in cases]
        for case, future in zip(cases, built, strict=True):
            if time.time() - begin > args.limit:
                rows.append({"case": case.name, "skipped": "out of time"})
                continue
            try:
                row = judge(case, future.result())
            except Exception as error:
                message = f"{type(error).__name__}: {str(error)[:300]}"
                row = {"case": case.name, "ok": False, "failed": message}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if not row.get("ok", True):
                report.check(False, f"{case.name}: {row.get('failed', row.get('error'))}")
            case.operands.clear()
    return rows


def right(report: Report, args: argparse.Namespace) -> Any:
    """Check odd shapes, every dtype, masks and epilogues; a second run gives the same bits."""
    return every(report, args, odd_cases)


def speed(report: Report, args: argparse.Namespace) -> Any:
    """Measure the shapes whose speed the documentation states, next to PyTorch's kernels."""
    rows = every(report, args, timed_cases)
    reached = next((r["tflops"]["ours"] for r in rows if r["case"] == CAUSAL and "tflops" in r), None)
    if not args.only:
        report.bound("flash_v2 on b4 h16 s4096 d128, causal, bfloat16", reached, at_least=250, unit="TFLOP/s")
    return rows


def tuned(report: Report, args: argparse.Namespace) -> Any:
    """Measure other tile configurations of the same shapes, with ``--tune``."""
    return every(report, args, tuned_cases) if args.tune else "not asked for"


def bandwidth(report: Report, args: argparse.Namespace) -> Any:
    """Measure the memory bandwidth of this device."""
    big = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    other = torch.empty_like(big)
    return {
        "target": target().name,
        "read_gb_per_s": round(big.nbytes / timed(lambda i: big.max(), 1) / 1e6),
        "copy_gb_per_s": round(2 * big.nbytes / timed(lambda i: other.copy_(big), 1) / 1e6),
    }


PARTS = {"right": right, "speed": speed, "tuned": tuned, "bandwidth": bandwidth}


def prepare(args: argparse.Namespace) -> None:
    """Disable TF32 and seed the random numbers."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(3)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--tune", action="store_true", help="also measure other tile configurations")
    parser.add_argument(
        "--limit", type=float, default=150, help="seconds of a part after which no further case begins"
    )
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch", "cupy-cuda13x"), argv=argv,
        parser=parser, before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
