"""Convolutions with one or few input channels and long filters, and transposed ones of vocoders, compared with PyTorch and ONNX Runtime.

    python benchmarks/long_filters.py [--shapes stft ...] [--threads 1 2] [--precisions float32 bfloat16] [--rounds 5] [--beside] [--keep]

A model is one convolution with bias, seeded. Every engine runs in a process of its own, is compared with PyTorch in float64 first, and takes turns
with the others. A time is the median of the rounds, each of which is the median of its runs. A ratio is the time of the fastest peer over ours, so over 1 means that we are faster. ONNX Runtime
has no bfloat16 convolution on CPUs.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from machine import facts, keep

ENGINES = ("native", "torch", "onnxruntime")
LIMITS = {"float32": 1e-5, "bfloat16": 2e-2}
"""Largest max|d| / max|ref| against float64 that counts as right."""
ROUND_SECONDS = 0.2


class Shape(NamedTuple):
    """One convolution. ``weight`` is as PyTorch stores it."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    transposed: bool = False

    @property
    def filters(self) -> int:
        """The number of output channels."""
        return self.weight[1 if self.transposed else 0]

    @property
    def mflop(self) -> float:
        """Millions of multiplications and additions."""
        taps = math.prod(self.weight[2:])
        places = self.x[2:]
        if not self.transposed:
            places = tuple(
                (n + 2 * (self.padding if k > 1 else 0) - k) // (self.stride if k > 1 else 1) + 1
                for n, k in zip(self.x[2:], self.weight[2:], strict=True)
            )
        return 2e-6 * self.x[0] * math.prod(places) * self.weight[0] * self.weight[1] * taps


SHAPES = {
    "tall 513x1, 32 filters": Shape((1, 1, 1024, 32), (32, 1, 513, 1)),
    "tall 64x1, 16 filters": Shape((1, 1, 1000, 22), (16, 1, 64, 1)),
    "wide 1x64, 8 filters (EEGNet)": Shape((1, 1, 22, 1125), (8, 1, 1, 64), padding=32),
    "frames 400/160, 512 filters": Shape((1, 1, 16000), (512, 1, 400), 160),
    "wav2vec2 first layer": Shape((1, 1, 16000), (512, 1, 10), 5),
    "SincNet first layer": Shape((1, 1, 3200), (80, 1, 251)),
    "SincNet first layer, batch 8": Shape((8, 1, 3200), (80, 1, 251)),
    "STFT 1024/256": Shape((1, 1, 32000), (1026, 1, 1024), 256),
    "STFT 512/128, padded, batch 4": Shape((4, 1, 16000), (514, 1, 512), 128, 256),
    "two channels 256/64": Shape((1, 2, 16000), (256, 2, 256), 64),
    "HiFi-GAN 512 to 256, 16/8": Shape((1, 512, 32), (512, 256, 16), 8, 4, True),
    "HiFi-GAN 256 to 128, 16/8": Shape((1, 256, 256), (256, 128, 16), 8, 4, True),
    "HiFi-GAN 256 to 128, 8/4": Shape((1, 256, 256), (256, 128, 8), 4, 2, True),
    "HiFi-GAN 128 to 64, 4/2": Shape((1, 128, 2048), (128, 64, 4), 2, 1, True),
    "HiFi-GAN 64 to 32, 4/2": Shape((1, 64, 4096), (64, 32, 4), 2, 1, True),
    "iSTFT 1024/256": Shape((1, 1026, 126), (1026, 1, 1024), 256, 0, True),
    "iSTFT 400/160": Shape((1, 402, 500), (402, 1, 400), 160, 0, True),
    "tall 513x1, one column": Shape((1, 1, 16000, 1), (32, 1, 513, 1)),
    "tall 65x1, 8 channels": Shape((1, 8, 300, 22), (16, 8, 65, 1)),
    "volume 3x3x3, one channel": Shape((1, 1, 32, 64, 64), (16, 1, 3, 3, 3), 1, 1),
    "wav2vec2 first layer, 2 x 5 s": Shape((2, 1, 80000), (512, 1, 10), 5),
    "HiFi-GAN last layer": Shape((1, 32, 8192), (1, 32, 7), 1, 3),
    "Conv-TasNet decoder 16/8": Shape((1, 512, 3999), (512, 1, 16), 8, 0, True),
}


class Case(NamedTuple):
    """A convolution with its operands and its result in float64."""

    onnx: bytes
    x: Any
    weight: Any
    bias: Any
    reference: Any


def case(name: str, precision: str) -> Case:
    """Return the operands and the ONNX model of a shape."""
    import torch
    from onnx import TensorProto, helper

    shape, rng = SHAPES[name], np.random.default_rng(7)
    dtype = ml_dtypes.bfloat16 if precision == "bfloat16" else np.float32
    scale = 1 / math.sqrt(max(1, shape.weight[0 if shape.transposed else 1] * math.prod(shape.weight[2:])))
    x = rng.standard_normal(shape.x, np.float32).astype(dtype)
    weight = (rng.standard_normal(shape.weight, np.float32) * scale).astype(dtype)
    bias = rng.standard_normal(shape.filters, np.float32).astype(dtype)
    operands = [torch.from_numpy(v.astype(np.float64)) for v in (x, weight, bias)]
    reference = _torch_conv(shape)(*operands).numpy()
    kind = TensorProto.BFLOAT16 if precision == "bfloat16" else TensorProto.FLOAT
    stride, padding = _attributes(shape)
    graph = helper.make_graph(
        [
            helper.make_node(
                "ConvTranspose" if shape.transposed else "Conv",
                ["x", "w", "b"],
                ["y"],
                strides=stride,
                pads=padding * 2,
            )
        ],
        "one",
        [helper.make_tensor_value_info("x", kind, shape.x)],
        [helper.make_tensor_value_info("y", kind, reference.shape)],
        [
            helper.make_tensor(n, kind, v.shape, v.tobytes(), raw=True)
            for n, v in (("w", weight), ("b", bias))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return Case(model.SerializeToString(), x, weight, bias, reference)


def _attributes(shape: Shape) -> tuple[list[int], list[int]]:
    """Return strides and padding; a dim of one tap has neither."""
    taps = shape.weight[2:]
    return [shape.stride if k > 1 else 1 for k in taps], [shape.padding if k > 1 else 0 for k in taps]


def _torch_conv(shape: Shape) -> Callable[..., Any]:
    import torch

    stride, padding = _attributes(shape)
    name = f"conv{'_transpose' * shape.transposed}{len(shape.weight) - 2}d"
    function = getattr(torch.nn.functional, name)
    return lambda x, w, b: function(x, w, b, stride=stride, padding=padding)


def _native(case: Case, threads: int, shape: Shape) -> Callable[[], Any]:
    import xpuruntime as xrt

    session = xrt.InferenceSession(case.onnx, engine="native", device="cpu", threads=threads)
    feeds = {"x": case.x}
    return lambda: session.run(feeds)["y"]


def _onnxruntime(case: Case, threads: int, shape: Shape) -> Callable[[], Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = ort.InferenceSession(case.onnx, options, providers=["CPUExecutionProvider"])
    feeds = {"x": case.x}
    return lambda: session.run(None, feeds)[0]


def _torch(case: Case, threads: int, shape: Shape) -> Callable[[], Any]:
    import torch

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if case.x.dtype == ml_dtypes.bfloat16 else torch.float32
    operands = [torch.from_numpy(v.astype(np.float32)).to(dtype) for v in (case.x, case.weight, case.bias)]
    function = _torch_conv(shape)

    def run() -> Any:
        with torch.inference_mode():
            return function(*operands)

    return run


_RUN = {"native": _native, "torch": _torch, "onnxruntime": _onnxruntime}


def _worker(pipe: Connection, engine: str, threads: int) -> None:
    os.environ["XPU_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    run: Callable[[], Any] | None = None
    while (order := pipe.recv()) is not None:
        if order == "run" and run is not None:
            pipe.send(_once(run))
            continue
        name, precision = order
        try:
            one = case(name, precision)
            run = _RUN[engine](one, threads, SHAPES[name])
            result = run()
            result = result.double().numpy() if engine == "torch" else np.asarray(result, np.float64)
            pipe.send(float(np.abs(result - one.reference).max() / np.abs(one.reference).max()))
        except Exception as error:  # a peer without the precision
            pipe.send(f"{type(error).__name__}: {str(error)[:120]}")


def _once(run: Callable[[], Any]) -> float:
    """Return the median seconds of the runs of a round, at least three."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < ROUND_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(names: Sequence[str], precision: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each shape."""
    workers: dict[str, tuple[Any, Any]] = {}
    for engine in ENGINES:
        here, there = mp.Pipe()
        process = mp.get_context("spawn").Process(target=_worker, args=(there, engine, threads), daemon=True)
        process.start()
        workers[engine] = (process, here)
    rows = []
    for name in names:
        errors: dict[str, Any] = {}
        for engine, (_, pipe) in workers.items():
            pipe.send((name, precision))
            errors[engine] = pipe.recv()
        usable = [e for e, error in errors.items() if isinstance(error, float) and error <= LIMITS[precision]]
        times: dict[str, list[float]] = {engine: [] for engine in usable}
        for _ in range(rounds):
            for engine in usable:
                workers[engine][1].send("run")
                times[engine].append(workers[engine][1].recv())
        seconds = {engine: statistics.median(rounds_of) for engine, rounds_of in times.items()}
        row: dict[str, Any] = {"shape": name, "precision": precision, "threads": threads}
        row |= {"mflop": round(SHAPES[name].mflop, 1), "errors": errors}
        row |= {"ms": {e: round(t * 1e3, 4) for e, t in seconds.items()}}
        peers = [e for e in seconds if e != "native"]
        if peers and "native" in seconds:
            peer = min(peers, key=lambda e: seconds[e])
            row |= {"best_peer": peer, "ratio": round(seconds[peer] / seconds["native"], 3)}
        rows.append(row)
        text = ", ".join(f"{e} {t:.3f} ms" for e, t in row["ms"].items())
        print(f"{name:32} {precision} {threads}: {text}; ratio {row.get('ratio')}", flush=True)
        for engine in set(errors) - set(usable):
            print(f"    {engine}: {errors[engine]}", flush=True)
    for process, pipe in workers.values():
        pipe.send(None)
        process.join()
    return rows


def main() -> int:
    """Measure and print; exit with 1 if one of our results is wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="*", default=[], help="parts of names; all without")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--precisions", nargs="*", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", action="store_true", help="keep times though other work runs")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/long_filters.json")
    options = parser.parse_args()
    names = [n for n in SHAPES if not options.shapes or any(part in n for part in options.shapes)]
    if not names:
        parser.error(f"no shape has one of {options.shapes} in its name; the names are {', '.join(SHAPES)}")
    result: dict[str, Any] = {"machine": facts("torch", "onnxruntime", "numpy")}
    rows = [
        row
        for precision in options.precisions
        for threads in options.threads
        for row in measure(names, precision, threads, options.rounds)
    ]
    result["rows"] = rows
    if options.keep:
        print("wrote", keep("long_filters", result, beside=options.beside))
    return 0 if all("native" in r["ms"] for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
