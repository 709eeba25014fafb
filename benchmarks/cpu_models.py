"""The native engine against its peers on a CPU: latency, compile and load time, peak memory, each engine in a process of its own.

    python benchmarks/cpu_models.py [--models resnet50 ...] [--threads 1 2] [--precisions float32 bfloat16] [--rounds 7] [--keep | --json FILE]

Peers: ONNX Runtime, OpenVINO (precision pinned to the asked one), torch eager and torch.compile (channels-last where the model is
convolutional and that is faster). Models are seeded (``xpuruntime.testing.conformance.seeded.networks``) and have the size of their papers. Every engine
answers the same input first and is compared with PyTorch in float64; one that is wrong is reported and has no ratio. Then the processes run in turn,
round after round, while the others sleep; a ratio is a peer's median over ours, so over 1 means that we are faster.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts, keep

CNNS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121")
MODELS = (*CNNS, "vit", "bert")
ENGINES = ("native", "onnxruntime", "openvino", "torch", "torch.compile")
# Largest max|d|/max|ref| against float64 that counts as right, by precision; in a lower one half more than PyTorch's own error
# is right, too, whatever that is.
LIMITS = {"float32": 1e-4, "bfloat16": 1e-1}
LOWER = {"bfloat16"}
ROUND_SECONDS = 0.4


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--precisions", nargs="*", default=["float32", "bfloat16"], choices=list(LIMITS))
    parser.add_argument(
        "--compile-threads",
        nargs="*",
        type=int,
        help="torch.compile takes most of a minute each: only with these",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, after every model")
    options = parser.parse_args()
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    about = facts("torch", "onnxruntime", "openvino", "numpy")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            reference = _prepare(name, Path(folder))
            for precision in options.precisions:
                for threads in options.threads:
                    rows += _measure(name, Path(folder), precision, threads, options, reference)
            result = {"machine": about, "rows": rows, "summary": _summary(rows)}
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in result["summary"]["lines"]:
        print(line)
    if options.keep:
        print("wrote", keep("cpu_models", result))
    return 0 if all(r["ok"] for r in rows if r["engine"] == "native") else 1


def _prepare(name: str, folder: Path) -> np.ndarray[Any, Any]:
    """Export the model and its inputs; gives PyTorch's answer in float64."""
    import torch

    from xpuruntime.testing.conformance.seeded import networks as models
    from xpuruntime.testing.conformance.seeded.export import export_onnx

    module, _ = models.build(name, "full")
    feeds = models.inputs(name, 1, size="full", seed=7)
    example = tuple(torch.from_numpy(v) for v in feeds.values())
    torch.export.save(torch.export.export(module, example), folder / f"{name}.pt2")
    if not (folder / f"{name}.onnx").exists():
        export_onnx(name, folder / f"{name}.onnx", size="full")
    np.savez(folder / f"{name}.npz", **feeds)
    with torch.inference_mode():
        exact = module.double()(*(_double(torch, v) for v in feeds.values()))
    return np.asarray(exact.float().numpy())


def _double(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


def _measure(
    name: str,
    folder: Path,
    precision: str,
    threads: int,
    options: argparse.Namespace,
    reference: np.ndarray[Any, Any],
) -> list[dict[str, Any]]:
    workers = {}
    skipped = {"torch.compile"} - (
        {"torch.compile"} if threads in (options.compile_threads or [threads]) else set()
    )
    for engine in (e for e in options.engines if e not in skipped):
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(
            target=_worker, args=(there, engine, str(folder / name), precision, threads), daemon=True
        )
        process.start()
        workers[engine] = (process, here)
        hello = here.recv()  # one after the other: set-up times are taken alone
        if "error" in hello:
            print(f"{name} {precision} {threads} thread(s) {engine}: {hello['error']}")
            process.join()
            workers.pop(engine)
            continue
        error = float(np.abs(hello["output"] - reference).max() / np.abs(reference).max())
        hello["row"] |= {"error": error}
        workers[engine] = (process, here, hello["row"])  # type: ignore[assignment]
    times: dict[str, list[float]] = {engine: [] for engine in workers}
    for _ in range(options.rounds):
        for engine, (_, pipe, *_rest) in workers.items():
            pipe.send("run")
            times[engine].append(pipe.recv())
    rows = []
    for engine, (process, pipe, row) in workers.items():  # type: ignore[misc]
        pipe.send("end")
        row |= pipe.recv()
        process.join()
        row |= {"model": name, "precision": precision, "threads": threads, "engine": engine}
        row |= {"ms": statistics.median(times[engine]) * 1e3, "rounds_ms": [t * 1e3 for t in times[engine]]}
        rows.append(row)
    vendor_error = max(
        (1.5 * r["error"] for r in rows if r["engine"] == "torch" and precision in LOWER), default=0.0
    )
    for row in rows:
        row["ok"] = row["error"] <= max(LIMITS[precision], vendor_error)
    peers = {r["engine"]: r["ms"] for r in rows if r["engine"] != "native" and r["ok"]}
    for row in rows:
        if row["engine"] == "native" and row["ok"] and peers:
            best = min(peers, key=lambda e: peers[e])
            row |= {"best_peer": best, "ratio": peers[best] / row["ms"]}
        result = f"{row['ms']:8.2f} ms, error {row['error']:.1e}" + ("" if row["ok"] else " WRONG")
        ratio = f", {row['ratio']:.2f} of {row['best_peer']}" if "ratio" in row else ""
        print(f"{name:16} {precision:9} {threads} thread(s) {row['engine']:14} {result}{ratio}", flush=True)
    return rows


def _worker(pipe: Connection, engine: str, stem: str, precision: str, threads: int) -> None:
    os.environ["XPU_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    feeds = dict(np.load(stem + ".npz"))
    try:
        with tempfile.TemporaryDirectory() as store:
            begun = time.perf_counter()
            run, close = (
                _TORCH[engine](stem, precision, threads)
                if engine in _TORCH
                else _session(engine, stem, precision, threads, store)
            )
            output = run(feeds)
            cold = time.perf_counter() - begun
            warm = None
            if engine not in _TORCH:
                close()
                begun = time.perf_counter()
                run, close = _session(engine, stem, precision, threads, store)
                run(feeds)
                warm = time.perf_counter() - begun
            for _ in range(3):
                run(feeds)
            row = {"first_s": cold, "cached_s": warm}
            pipe.send({"output": np.asarray(output, np.float32), "row": row})
            while pipe.recv() == "run":
                pipe.send(_once(run, feeds))
            pipe.send({"peak_mib": _peak_mib()})
    except Exception as error:  # a peer that lacks the precision says so, and the others go on
        pipe.send({"error": f"{type(error).__name__}: {str(error)[:300]}"})


def _peak_mib() -> float:
    """Most memory that this process ever had. Not ``ru_maxrss``: that one starts from what the parent had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:")) / 1024


def _once(run: Any, feeds: dict[str, Any]) -> float:
    """Median seconds of a run over some tenths of a second, at least three runs."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < ROUND_SECONDS:
        begun = time.perf_counter()
        run(feeds)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _session(engine: str, stem: str, precision: str, threads: int, store: str) -> tuple[Any, Any]:
    import xpuruntime as xrt

    policy = xrt.ExecutionPolicy(precision=precision) if precision in LOWER else None
    session = xrt.InferenceSession(
        stem + ".onnx", engine=engine, device="cpu", threads=threads, exec_policy=policy, cache_dir=store
    )
    return lambda feeds: next(iter(session.run(feeds).values())), session.close


def _eager(stem: str, precision: str, threads: int) -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(threads)
    module = torch.export.load(stem + ".pt2").module().to(getattr(torch, precision))
    if Path(stem).name in CNNS:
        module = module.to(memory_format=torch.channels_last)
    return _torch_run(torch, module, precision, Path(stem).name in CNNS), lambda: None


def _compiled(stem: str, precision: str, threads: int) -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(threads)
    module = torch.export.load(stem + ".pt2").module().to(getattr(torch, precision))
    if Path(stem).name in CNNS:
        module = module.to(memory_format=torch.channels_last)
    torch._inductor.config.freezing = True
    return _torch_run(torch, torch.compile(module), precision, Path(stem).name in CNNS), lambda: None


def _torch_run(torch: Any, module: Any, precision: str, image: bool) -> Any:
    dtype = getattr(torch, precision)

    def run(feeds: dict[str, Any]) -> Any:
        with torch.inference_mode():
            tensors = [torch.from_numpy(v) for v in feeds.values()]
            tensors = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
            if image:
                tensors = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
            return module(*tensors).float().numpy()

    return run


_TORCH = {"torch": _eager, "torch.compile": _compiled}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of the ratios on CNNs, by precision and threads."""
    lines, table = [], []
    for precision in LIMITS:
        for threads in sorted({r["threads"] for r in rows}):
            for group, names in (("CNNs", CNNS), ("transformers", tuple(m for m in MODELS if m not in CNNS))):
                ratios = {
                    r["model"]: r["ratio"]
                    for r in rows
                    if "ratio" in r
                    and r["precision"] == precision
                    and r["threads"] == threads
                    and r["model"] in names
                }
                if not ratios:
                    continue
                mean = statistics.geometric_mean(ratios.values())
                worst = min(ratios, key=lambda m: ratios[m])
                table.append(
                    {
                        "precision": precision,
                        "threads": threads,
                        "group": group,
                        "geomean": mean,
                        "worst": worst,
                        "worst_ratio": ratios[worst],
                    }
                )
                lines.append(
                    f"{group}, {precision}, {threads} thread(s): geometric mean {mean:.2f} of the best peer, worst {ratios[worst]:.2f} ({worst})"
                )
    return {"lines": lines, "table": table}


if __name__ == "__main__":
    raise SystemExit(main())
