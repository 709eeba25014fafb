"""Products, attention and a net's convolutions compared with oneDNN in one table: what ``kernels_gemm.py`` and ``kernels_conv.py`` measure.

    python benchmarks/kernels.py [--dtype bfloat16] [--threads 1 2] [--net resnet50] [--seconds 0.1] [--json FILE]

Everything is compiled before anything is timed, on all processors at once. A row says what ours took and what the peer took, in milliseconds;
``ratio`` is the peer's time over ours, so over 1 means that we are faster. Peers are torch's own calls, which go to oneDNN.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernels_conv as conv
import kernels_gemm as gemm
import ml_dtypes
import numpy as np
import torch
from machine import facts


def dtype_of(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.float32


def compile_all(dtypes: list[str], net: str) -> None:
    """Fill the caches of both modules."""
    jobs: list[Callable[[], object]] = []
    for dtype in dtypes:
        jobs += [lambda n=n, d=dtype: gemm.linear_program(n, d) for n in gemm.LINEAR]  # type: ignore[misc]
        jobs += [lambda n=n, d=dtype: gemm.attention_program(n, d) for n in gemm.ATTENTION]  # type: ignore[misc]
        shapes = conv.convolutions(net)
        jobs += [lambda s=s, d=dtype: conv.built(s, dtype_of(d)) for s in shapes]  # type: ignore[misc]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda job: job(), jobs))


def row(
    what: str, dtype: str, threads: int, ours: float, peer: str, theirs: float, flops: float
) -> dict[str, Any]:
    """Times in seconds."""
    result = {
        "what": what,
        "dtype": dtype,
        "threads": threads,
        "gflops": round(flops / ours / 1e9, 1),
        "ours_ms": round(ours * 1e3, 4),
        "peer": peer,
        "peer_ms": round(theirs * 1e3, 4),
        "ratio": round(theirs / ours, 2),
    }
    print(
        f"{what:45} {dtype} {threads}: {result['ours_ms']:9.3f} ms {result['gflops']:7.0f} GFLOP/s, {peer} {result['peer_ms']:9.3f} ms: {result['ratio']:.2f}",
        flush=True,
    )
    return result


def products(dtype: str, threads: int, seconds: float) -> list[dict[str, Any]]:
    """Linear layers and attention."""
    rows = []
    for name in gemm.LINEAR:
        best_seconds = gemm.linear(name, dtype, threads, seconds)
        rows.append(
            row(
                name,
                dtype,
                threads,
                best_seconds["ours"],
                "torch",
                best_seconds["torch"],
                gemm.flops_of_linear(name),
            )
        )
    for name in gemm.ATTENTION:
        best_seconds = gemm.attention(name, dtype, threads, seconds)
        flops = gemm.flops_of_attention(name)
        rows.append(
            row(
                f"attention {name}",
                dtype,
                threads,
                best_seconds["ours"],
                "torch",
                best_seconds["torch"],
                flops,
            )
        )
    return rows


def convolutions(net: str, dtype: str, threads: int, driver: Any) -> list[dict[str, Any]]:
    """Each convolution, and the sum over the net."""
    measured = conv.measure(net, dtype_of(dtype), threads, driver)
    rows = [
        row(
            c["shape"],
            dtype,
            threads,
            c["ours_ms"] / 1e3,
            "oneDNN of torch",
            c["onednn_ms"] / 1e3,
            c["mflop"] * 1e6,
        )
        for c in measured["convolutions"]
    ]
    total = measured["total_ms"]
    rows.append(
        row(
            f"every convolution of {net}", dtype, threads, total["ours"] / 1e3, "oneDNN of torch", total["onednn"] / 1e3,
            measured["gflop"] * 1e9,
        )
    )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--net", default="resnet50", choices=conv.NETS)
    parser.add_argument("--seconds", type=float, default=0.1, help="of runs of each contender")
    parser.add_argument("--json", type=Path, help="write the table there")
    options = parser.parse_args()
    about = facts("torch", "numpy")
    conv.SECONDS = options.seconds / 3  # it measures in three rounds
    compile_all(options.dtype, options.net)
    driver = conv.build(conv.DRIVER)
    driver.least.restype = conv.ctypes.c_double
    peaks, rows = {}, []
    for dtype in options.dtype:
        peaks[dtype] = round(conv.peak(dtype_of(dtype)), 1)
        print(f"{dtype}: peak of one thread {peaks[dtype]} GFLOP/s", flush=True)
        for threads in options.threads:
            torch.set_num_threads(threads)
            rows += convolutions(options.net, dtype, threads, driver)
            rows += products(dtype, threads, options.seconds)
    if options.json:
        table = {"machine": about, "peak_gflops_of_one_thread": peaks, "rows": rows}
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
