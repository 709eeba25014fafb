"""Many rows times weights of fewer bits on CUDA: each tile configuration of ``quantized_rows``, next to the weight as floats first, and PyTorch in bfloat16. ``kernels/cuda/matmul/quantized_rows.py`` takes its crossovers from here.

    python benchmarks/cuda/quantized_rows.py --out benchmarks/results/cuda_quantized_rows.json [--words fp8_weights ...] [--rows 64 ...] [--tune] [PART ...]

Parts: ``right`` (errors of odd shapes against float64, within the tolerance of the dtype) and ``speed`` (times as CUDA graphs; inputs rotate, so
that weights come from memory). *By floats* is the launch that writes the weight as bfloat16, then PyTorch's product. Needs torch with CUDA and CuPy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from heavy_cases import quantized_weight
from heavy_kernels import CACHE, TOLERANCE, prepare
from heavy_launch import Loaded, node, random, target, timed

from xpuruntime.kernels.cuda.heavy import multiprocessors
from xpuruntime.kernels.cuda.matmul.quantized import KERNELS, by_floats
from xpuruntime.kernels.cuda.matmul.quantized_rows import RowsConfig, rows_config, rows_lowered, whole_split
from xpuruntime.kernels.cuda.matmul.quantized_tiles import QuantizedTiles
from xpuruntime.kernels.kernel import LoweredCall, NodeCall
from xpuruntime.kernels.spec.linear import LinearLayer

WORDS = ("fp8_weights", "int8_weights", "int4_weights", "int4_weights_128")
SHAPES = ((8960, 1536), (1536, 8960), (17920, 1536), (2048, 1536), (1536, 1536))
"""Outputs and inputs: products of a decoder of Qwen2.5-1.5B's sizes."""
ROWS = (17, 32, 64, 128, 256, 512, 1024, 2048)
ODD = (
    (17, 70, 264, "bfloat16"), (40, 130, 1000, "bfloat16"), (129, 70, 264, "float16"), (64, 333, 1001, "float16"), (100, 200, 8200, "bfloat16"),
    (300, 1000, 640, "float16"), (33, 1536, 8960, "bfloat16"),
)  # fmt: skip


class Problem:
    """A layer with its weight: what the launches read, and the weight's values."""

    def __init__(self, word: str, m: int, n: int, k: int, dtype: str = "bfloat16") -> None:
        self.kernel = next(r for r in KERNELS if r.name == f"matmul/{word}")
        self.weight, self.buffers, self.exact = quantized_weight(word, n, k, dtype, False)
        self.x, self.dtype, self.n = random((m, k), dtype), dtype, n
        self.call: NodeCall = node("linear", [self.x, self.weight], (1,))
        self.tiles = QuantizedTiles(LinearLayer.of(self.call), self.kernel.form, codes=self.kernel.codes)

    def lowered(self, config: RowsConfig) -> LoweredCall:
        """Return the launch of a config."""
        return rows_lowered(self.call, self.tiles, config)

    def usual(self) -> RowsConfig:
        """Return the config that a program uses."""
        return rows_config(self.tiles, target())

    def widening(self) -> LoweredCall:
        """Return the launch that writes the weight as floats; its result is the operand ``temp0``."""
        return replace(by_floats(self.call, self.tiles, LoweredCall(())), temps=())

    def empty(self) -> Any:
        """Return a result without values."""
        return torch.full((len(self.x), self.n), float("nan"), dtype=self.x.dtype, device="cuda")

    def error(self, run: Callable[[Any], None]) -> float:
        """Return the largest error over the largest value, from float64."""
        y, want = self.empty(), self.x.double() @ self.exact.double().T
        run(y)
        torch.cuda.synchronize()
        return float((y.double() - want).abs().max() / want.abs().max())


def configs_of(p: Problem, *, tune: bool) -> list[RowsConfig]:
    """Return the usual config and, if ``tune``, others that give each SM up to two blocks."""
    configs = [p.usual()]
    layer = p.tiles.layer
    steps, sms = -(-layer.k // 64), multiprocessors(target())
    for rows in (64, 128) if tune and layer.m > 64 else (64,) if tune else ():
        for groups in (1, 2):
            columns, tiles = RowsConfig(rows, groups).tasks(layer)
            for blocks in (1, sms, 2 * sms):
                split = min(8, blocks // (columns * tiles), steps // 4)
                configs.append(RowsConfig(rows, groups, whole_split(steps, split)))
    return list(dict.fromkeys(configs))


def chosen(args: argparse.Namespace) -> Iterator[tuple[str, int, int, int]]:
    """Yield the cases: word, rows, outputs, inputs."""
    for word in args.words:
        for n, k in SHAPES[: args.shapes]:
            for m in args.rows:
                yield word, m, n, k


def right(report: Report, args: argparse.Namespace) -> Any:
    """Check odd shapes; a second run gives the same bits."""
    results = []
    cases = [(w, *odd) for w in args.words for odd in ODD]
    problems = [Problem(*case) for case in cases]
    with ThreadPoolExecutor(16) as pool:
        built = list(pool.map(lambda p: Loaded.build(p.lowered(p.usual())), problems))
    for case, p, loaded in zip(cases, problems, built, strict=True):
        error = p.error(lambda y, p=p, loaded=loaded: loaded.run([p.x, p.weight], y, p.buffers))
        a, b = p.empty(), p.empty()
        for y in (a, b):
            loaded.run([p.x, p.weight], y, p.buffers)
        same, ok = bool(torch.equal(a, b)), error <= TOLERANCE[p.dtype] * 1.5
        results.append(
            {
                "case": " ".join(map(str, case)),
                "config": str(p.usual()),
                "error": error,
                "ok": ok,
                "same bits again": same,
            }
        )
        report.check(ok and same, f"{results[-1]}")
    return results


def speed(report: Report, args: argparse.Namespace) -> Any:
    """Measure each case: the configs, the weight as floats first, and PyTorch."""
    results = []
    cases = list(chosen(args))
    problems = [Problem(*case) for case in cases]
    work = [(p, c) for p in problems for c in configs_of(p, tune=args.tune)]
    with ThreadPoolExecutor(16) as pool:
        built = dict(
            zip(
                [(id(p), c) for p, c in work],
                pool.map(lambda w: Loaded.build(w[0].lowered(w[1])), work),
                strict=True,
            )
        )
        widen = dict(
            zip(map(id, problems), pool.map(lambda p: Loaded.build(p.widening()), problems), strict=True)
        )
    for case, p in zip(cases, problems, strict=True):
        launches = {c: built[id(p), c] for c in configs_of(p, tune=args.tune)}
        row = {"case": "{} {}x{}x{}".format(*case), **measured(report, p, launches, widen[id(p)])}
        results.append(row)
        print(f"   {row['case']} (usual {row['usual']}): {row['us']}", flush=True)
    return results


def measured(
    report: Report, p: Problem, launches: dict[RowsConfig, Loaded], widening: Loaded
) -> dict[str, Any]:
    """Return the times of a case, and the errors of what was timed."""
    size = sum(b.nbytes for b in p.buffers.values())
    sets = max(1, min(16, -(-3 * CACHE // size)))
    packed = [p.buffers, *({n: b.clone() for n, b in p.buffers.items()} for _ in range(sets - 1))]
    weights = [p.weight.clone() for _ in range(max(1, min(8, -(-3 * CACHE // p.weight.nbytes))))]
    y, floats = p.empty(), torch.empty_like(p.weight)
    us: dict[str, float] = {}
    errors: dict[str, float] = {}

    def widen(i: int) -> None:
        widening.run([p.x, p.weight], p.x, {**packed[i], "temp0": floats})

    def floats_first(i: int) -> Any:
        widen(i)
        return torch.nn.functional.linear(p.x, floats)

    def wgmma(loaded: Loaded) -> Callable[[int], None]:
        return lambda i: loaded.run([p.x, p.weight], y, packed[i])

    for config, loaded in launches.items():
        name = str(astuple(config))
        errors[name] = p.error(lambda y, of=loaded: of.run([p.x, p.weight], y, p.buffers))
        us[name] = timed(wgmma(loaded), sets) * 1e3
    errors["by floats"] = p.error(lambda y: y.copy_(floats_first(0)))
    us |= {"the weight as floats": timed(widen, sets) * 1e3, "by floats": timed(floats_first, sets) * 1e3}
    us["torch"] = timed(lambda i: torch.nn.functional.linear(p.x, weights[i]), len(weights)) * 1e3
    for name, error in errors.items():
        report.check(
            error <= TOLERANCE[p.dtype] * 1.5, f"{p.kernel.name} {p.tiles.layer} {name}: error {error}"
        )
    return {
        "usual": str(astuple(p.usual())),
        "us": {n: round(t, 2) for n, t in us.items()},
        "over torch": {n: round(t / us["torch"], 3) for n, t in us.items() if n != "torch"},
        "errors": errors,
    }


PARTS = {"right": right, "speed": speed}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--words", nargs="*", default=WORDS)
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="the first shapes only")
    parser.add_argument("--tune", action="store_true", help="also measure other tile configurations")
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch", "cupy-cuda13x"), argv=argv,
        parser=parser, before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
