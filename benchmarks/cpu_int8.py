"""Quantized models on a CPU: the native engine against ONNX Runtime and OpenVINO, each in a process of its own.

    python benchmarks/cpu_int8.py [--models resnet50 ...] [--threads 2] [--rounds 7] [--keep] [--beside]

Models are seeded, of the size of their papers (transformers also smaller), and quantized here by ``xpuruntime.workbench.quantize``: uint8 activations, int8 weights per
channel. Outputs are compared with those of the QDQ model computed in floats; right is within 0.1 of the largest, or four times ONNX Runtime's
own distance. The processes run in turn, round after round, while the others sleep; a ratio is a peer's median over ours, so over 1 means that we
are faster. With ``--beside`` other work may run, and the times are processor seconds of the process (with one thread: waiting does not count, other
work's share of caches does). ``limit`` is the time of the model's products at the rate of dot products in registers on the same number of threads.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cpu_models import _peak_mib, _session
from machine import facts, keep

ENGINES = ("native", "onnxruntime", "openvino")
CNNS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121")
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_base": ("bert", {}),
    "bert_small": ("bert", {"hidden": 512, "layers": 4, "heads": 8}),
    "bert_minilm": ("bert", {"hidden": 384, "layers": 6, "heads": 12}),
    "vit_base": ("vit", {}),
    "vit_small": ("vit", {"hidden": 384, "layers": 12, "heads": 6}),
}
MODELS = (*CNNS, *TRANSFORMERS)
SAMPLES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="Where models are kept. Default: a temporary folder.")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument(
        "--beside", action="store_true", help="Keep although other work runs; the result says so."
    )
    options = parser.parse_args()
    about = facts("torch", "onnxruntime", "openvino", "numpy")
    rate = _products_per_second(options.threads)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.models:
            reference, vendor, products = _prepare(name, folder)
            rows += _measure(name, folder, options, reference, vendor, products / rate)
    summary = _summary(rows)
    print(summary)
    if options.keep:
        clock = "processor time, beside other work" if options.beside else "wall time"
        result = {
            "machine": about,
            "clock": clock,
            "products_per_second": rate,
            "rows": rows,
            "summary": summary,
        }
        print("wrote", keep("cpu_int8", result, beside=options.beside))
    return 0 if all(r.get("ok") for r in rows if r["engine"] == "native") else 1


def _prepare(name: str, folder: Path) -> tuple[np.ndarray[Any, Any], float, int]:
    """Write the quantized model and its inputs. Return the output in floats, ONNX Runtime's distance from it, and the number of products."""
    import onnxruntime as ort
    import torch

    from xpuruntime.testing.conformance.seeded import networks
    from xpuruntime.workbench.quantize import quantize

    base, sizes = TRANSFORMERS.get(name, (name, {}))
    path, stored = folder / f"{name}.onnx", folder / f"{name}.npz"
    if not path.exists():
        row = networks.MODELS[base]
        module, example = row.make(**sizes)
        feeds = [networks.inputs(base, 1, size="full", seed=s) for s in range(SAMPLES)]
        np.savez(stored, **networks.inputs(base, 1, size="full", seed=7))
        np.savez(folder / "samples.npz", **{n: np.concatenate([f[n] for f in feeds]) for n in feeds[0]})
        program = torch.onnx.export(
            module,
            example,
            input_names=list(row.input_names),
            output_names=["scores"],
            dynamo=True,
            optimize=True,
            verbose=False,
        )
        program.save(str(folder / "float.onnx"))
        report = quantize(folder / "float.onnx", folder / "samples.npz", path)
        print(f"{name}: quantized, relative error {report.error:.3g} with seeded weights")
    feeds = dict(np.load(stored))
    outputs = []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        session_options = ort.SessionOptions()
        session_options.graph_optimization_level = level
        session = ort.InferenceSession(str(path), session_options, providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, feeds)[0])
    exact, own = outputs
    return exact, float(np.abs(own - exact).max() / np.abs(exact).max()), _products(path)


def _products(path: Path) -> int:
    """Return the multiplications of the model's quantized products."""
    from xpuruntime.compiler import compile as compile_graph
    from xpuruntime.frontends.onnx.importer import import_onnx

    graph, weights = import_onnx(str(path))
    program = compile_graph(graph, weights=weights)
    calls = [c for e in program.entries for c in e.plans[0].calls]
    return sum(c.flops for c in calls if c.kernel.endswith("/int8")) // 2


def _measure(
    name: str,
    folder: Path,
    options: argparse.Namespace,
    reference: np.ndarray[Any, Any],
    vendor: float,
    limit: float,
) -> list[dict[str, Any]]:
    workers: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(
            target=_worker,
            args=(there, engine, str(folder / name), options.threads, options.beside),
            daemon=True,
        )
        process.start()
        there.close()  # otherwise nobody notices that the process ended
        try:
            hello = here.recv()
        except EOFError:  # the engine's library ended the process
            process.join()
            hello = {"error": f"the process ended with {process.exitcode}"}
        if "error" in hello:
            print(f"{name} {engine}: {hello['error']}")
            process.join()
            rows.append(
                {"model": name, "threads": options.threads, "engine": engine, "failed": hello["error"]}
            )
            continue
        error = float(np.abs(hello["output"] - reference).max() / np.abs(reference).max())
        workers[engine] = process, here, hello["row"] | {"error": error}
    times: dict[str, list[float]] = {engine: [] for engine in workers}
    for _ in range(options.rounds):
        for engine, (_, pipe, _row) in workers.items():
            pipe.send("run")
            times[engine].append(pipe.recv())
    for engine, (process, pipe, row) in workers.items():
        pipe.send("end")
        row |= pipe.recv()
        process.join()
        row |= {
            "model": name,
            "threads": options.threads,
            "engine": engine,
            "ms": statistics.median(times[engine]) * 1e3,
        }
        row |= {"rounds_ms": [t * 1e3 for t in times[engine]], "ok": row["error"] <= max(0.1, 4 * vendor)}
        rows.append(row)
    peers = {r["engine"]: r["ms"] for r in rows if r["engine"] != "native" and r.get("ok")}
    for row in (r for r in rows if "ms" in r):
        if row["engine"] == "native" and peers:
            best = min(peers, key=lambda e: peers[e])
            row |= {
                "best_peer": best,
                "ratio": peers[best] / row["ms"],
                "limit_ms": limit * 1e3,
                "of_limit": limit * 1e3 / row["ms"],
            }
        wrong = "" if row["ok"] else " WRONG"
        ratio = (
            f", {row['ratio']:.2f} of {row['best_peer']}, limit {row['limit_ms']:.2f} ms"
            if "ratio" in row
            else ""
        )
        print(
            f"{name:16} {row['engine']:12} {row['ms']:8.2f} ms, error {row['error']:.1e}{wrong}{ratio}",
            flush=True,
        )
    return rows


def _worker(pipe: Any, engine: str, stem: str, threads: int, processor_time: bool) -> None:
    """Answer with the output, then with the median seconds of some runs per request."""
    os.environ["XPU_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    clock = time.process_time if processor_time else time.perf_counter
    feeds = dict(np.load(stem + ".npz"))
    try:
        with tempfile.TemporaryDirectory() as store:
            run, _close = _session(engine, stem, "float32", threads, store)
            output = run(feeds)
            for _ in range(3):
                run(feeds)
            pipe.send({"output": np.asarray(output, np.float32), "row": {}})
            while pipe.recv() == "run":
                times: list[float] = []
                while len(times) < 3 or sum(times) < 0.3:
                    begun = clock()
                    run(feeds)
                    times.append(clock() - begun)
                pipe.send(statistics.median(times))
            pipe.send({"peak_mib": _peak_mib()})
    except Exception as error:  # a peer that fails says so, and the others go on
        pipe.send({"error": f"{type(error).__name__}: {str(error)[:300]}"})


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = {r["model"]: r["ratio"] for r in rows if "ratio" in r}
    return {
        "geometric_mean": statistics.geometric_mean(ratios.values()) if ratios else None,
        "least": min(ratios.values(), default=None),
        "cnns": statistics.geometric_mean(v for m, v in ratios.items() if m in CNNS)
        if set(ratios) & set(CNNS)
        else None,
        "transformers": statistics.geometric_mean(v for m, v in ratios.items() if m in TRANSFORMERS)
        if set(ratios) & set(TRANSFORMERS)
        else None,
    }


_LOOP = """
extern "C" void loop(int64_t n) {
    int8::I acc[12] = {};
    int8::I a = splat<int8::I>(1), w = splat<int8::I>(3);
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) acc[j] = int8::ARITHMETIC::madd(acc[j], a, w);
    int8::I sum = acc[0];
#pragma GCC unroll 12
    for (int j = 1; j < 12; j++) sum += acc[j];
    __asm__ volatile("" : : "x"(sum));
}
"""


def _products_per_second(threads: int) -> float:
    """Return the multiplications of 8-bit codes per second in registers, the best of several runs."""
    from xpuruntime.codegen.cpp.target import cpu_target
    from xpuruntime.kernels.cpu.int8.tiling import has_byte_products

    target = cpu_target()
    by_bytes = has_byte_products(target.isa)
    text = _LOOP.replace("ARITHMETIC", "Bytes" if by_bytes else "Pairs")
    binary = target.assemble_apart("loop", text, ("int8",))
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary.data)
        file.flush()
        library = ctypes.CDLL(file.name)
    count = 20_000_000
    best = 0.0
    for _ in range(5):
        lanes = target.isa.lanes(4) * (4 if by_bytes else 2)
        begun = time.process_time()
        library.loop(ctypes.c_int64(count))
        best = max(best, threads * count * 12 * lanes / (time.process_time() - begun))
    return best


if __name__ == "__main__":
    raise SystemExit(main())
