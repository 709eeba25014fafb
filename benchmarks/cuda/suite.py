"""Networks of timm, torchvision and transformers on CUDA: the native engine next to PyTorch eager, its CUDA graph and torch.compile.

    python benchmarks/cuda/suite.py --out benchmarks/results/cuda_suite.json [--minutes 8] [--dtypes float32,float16,bfloat16] [--only NAME,...]
    python benchmarks/cuda/suite.py --device cpu --only resnet18.timm --dtypes float32      # tries the script

One network of each family of timm and torchvision, and base sizes of transformers, with random weights. A file that exists
is continued: cases that it has are not measured again, so that a machine that is lent for minutes measures the suite in parts. Each case has a
process of its own. Processes open their networks side by side; only one at a time is on the device. Times are of runs that are queued without
waiting, in rounds that alternate; a ratio is our time over that of the faster of eager and its CUDA graph in the same round, with the 95% interval
of its mean over the rounds. Errors are from the same network in float64. TF32 is off. A third of the networks also runs with 16 inputs, and 24 also
by torch.compile; both are drawn by ``--seed``, by default the commit.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import arguments, machine, write
from models import rms
from third_party import FAMILIES, as_dtype, build_model, dtypes, make_inputs

import xpuruntime as xrt

DTYPES = ("float32", "float16", "bfloat16")
NAMED = (
    "hubert.transformers", "tf_efficientnetv2_s.timm", "coatnet_0_rw_224.timm", "maxvit_tiny_tf_224.timm", "fastvit_t8.timm",
    "deit_tiny_patch16_224.timm", "r3d_18.torchvision", "regnety_008.timm",
)  # fmt: skip
"""Networks that were slow in float32 when the suite was written. They come first."""
_SIDES = {"inception": 299, "r3d": 112, "swin3d": 112}
"""First letters of torchvision's names -> the side of an image, where it is not 224."""
_FIRST_BATCH = {"deit_tiny_patch16_224.timm": 3}
ROUNDS = 7
_T95 = 2.447  # of Student's distribution with ROUNDS - 1 degrees of freedom
_SMALL = re.compile(
    r"(tiny|nano|atto|femto|pico|xxs|_xs|small|_s\b|_s_|18|b0|_0|050|032|002|zero|squeezenet1_0|shufflenet_v2_x1_0|vgg11$)"
)
_ERROR_BOUND = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.05}
"""Relative error from float64 that is allowed; more if PyTorch has more than half of it."""
_CASE_SECONDS = 240


@dataclass(frozen=True)
class Case:
    """A network (``name.source``), a precision, the number of inputs, and whether torch.compile is measured, too."""

    network: str
    dtype: str
    batch: int
    compiled: bool

    @property
    def key(self) -> str:
        """Name in the results."""
        return f"{self.network} {self.dtype} x{self.batch}"


# ── networks ──


def networks() -> list[str]:
    """Return a network of each family, as ``name.source``; those of ``NAMED`` first."""
    import timm
    import torchvision.models

    found = [f"{_smallest(names)}.timm" for m in timm.list_modules() if (names := timm.list_models(module=m))]
    families: dict[str, list[str]] = {}
    for module in (torchvision.models, torchvision.models.video):
        for name in torchvision.models.list_models(module=module):
            families.setdefault(re.match(r"[a-z]+", name)[0], []).append(name)  # type: ignore[index]
    found += [f"{_smallest(names)}.torchvision" for names in families.values()]
    found += [f"{name}.transformers" for name in FAMILIES]
    return [*NAMED, *sorted(set(found) - set(NAMED))]


def _smallest(names: Sequence[str]) -> str:
    return min([n for n in names if _SMALL.search(n)] or names, key=lambda n: (len(n), n))


def built(network: str, batch: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network in evaluation mode and its inputs, both seeded, on the host."""
    name, _, source = network.rpartition(".")
    torch.manual_seed(0)
    if source == "transformers":
        model = build_model(FAMILIES[name], "full")
        inputs = tuple(x.repeat(batch, *[1] * (x.dim() - 1)) for x in make_inputs(FAMILIES[name], model))
        return model, inputs
    if source == "timm":
        import timm

        model = timm.create_model(name, pretrained=False).eval()
        shape = model.default_cfg["input_size"]
    else:
        import torchvision.models

        model = torchvision.models.get_model(name, weights=None).eval()
        is_video = name in torchvision.models.list_models(module=torchvision.models.video)
        side = next((s for n, s in _SIDES.items() if name.startswith(n)), 224)
        shape = (3, 16, side, side) if is_video else (3, side, side)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
    _set_statistics(model, torch.randn(4, *shape, generator=generator))
    return model, (torch.randn(batch, *shape, generator=generator),)


def _set_statistics(model: torch.nn.Module, x: torch.Tensor) -> None:
    """Give batch norms the statistics of these inputs. With others, values may grow from layer to layer until rounding decides the result."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        with torch.no_grad():
            model(x)
    model.eval()


# ── one case, in a process of its own ──


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Wait until no other process of the suite is on the device."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured(case: Case, device: str, lock: Path | None) -> dict[str, Any]:
    """Return errors, times and the outcome of a case. A network that PyTorch cannot run is not a case of ours."""
    row: dict[str, Any] = {"outcome": "torch"}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    policy = None if case.dtype == "float32" else xrt.ExecutionPolicy(precision=case.dtype)
    model, inputs = built(case.network, case.batch)
    with torch.inference_mode():
        try:
            with alone(lock):
                wide = model.to(device).double()
                want = _first(wide(*as_dtype(inputs, device, torch.float64))).double().cpu().numpy()
                del wide
        except Exception as error:
            return row | {"error_text": f"{type(error).__name__}: {error}"[:300]}
        model, inputs = built(case.network, case.batch)
        started = time.perf_counter()
        try:
            session = xrt.InferenceSession(
                model, device=device, engine="native", example_inputs=inputs, exec_policy=policy
            )
        except xrt.XpuError as error:
            return row | {"outcome": "refused", "error_text": str(error)[:600]}
        row["open_s"] = round(time.perf_counter() - started, 2)
        with session, alone(lock):
            return row | _compared(session, model, inputs, want, case, device)


def _first(value: Any) -> torch.Tensor:
    while not isinstance(value, torch.Tensor):
        value = next(iter(value.values() if isinstance(value, Mapping) else value))
    return value


def _compared(
    session: Any, model: torch.nn.Module, inputs: Any, want: Any, case: Case, device: str
) -> dict[str, Any]:
    kind = getattr(torch, case.dtype)
    feeds = dict(
        zip((i.name for i in session.input_info), as_dtype(inputs, device, torch.float32), strict=True)
    )
    model, cast = model.to(device, kind), as_dtype(inputs, device, kind)
    ours = next(iter(session.run(feeds).values())).double().cpu().numpy()
    theirs = _first(model(*cast)).double().cpu().numpy()
    errors = {"ours": rms(ours, want), "torch": rms(theirs, want)}
    allowed = max(_ERROR_BOUND[case.dtype], 2 * errors["torch"])
    runs: dict[str, Callable[[], Any]] = {"native": lambda: session.run(feeds), "eager": lambda: model(*cast)}
    if device != "cpu":
        with suppress(RuntimeError):
            runs["cuda graph"] = _graph(model, cast)
    row: dict[str, Any] = {"error": errors}
    if case.compiled:
        try:
            compiled = torch.compile(model, mode="reduce-overhead" if device != "cpu" else None)
            for _ in range(3):
                compiled(*cast)
            runs["torch.compile"] = lambda: compiled(*cast)
        except Exception as error:
            row["no torch.compile"] = f"{type(error).__name__}: {error}"[:200]
    rounds = [{n: _milliseconds(run, device) for n, run in runs.items()} for _ in range(ROUNDS)]
    ratios = [r["native"] / min(r[n] for n in ("eager", "cuda graph") if n in r) for r in rounds]
    middle, half = statistics.mean(ratios), _T95 * statistics.stdev(ratios) / math.sqrt(ROUNDS)
    row["ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
    row["ratio"] = [round(middle - half, 4), round(middle, 4), round(middle + half, 4)]
    if "torch.compile" in runs:
        row["over torch.compile"] = round(row["ms"]["native"] / row["ms"]["torch.compile"], 4)
    if math.isnan(errors["torch"]):
        row["outcome"] = "torch"  # its own result is no reference for a precision
    else:
        row["outcome"] = "right" if errors["ours"] <= allowed else "wrong"
    return row


def _graph(model: torch.nn.Module, cast: Sequence[torch.Tensor]) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            model(*cast)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*cast)
    return graph.replay


def _milliseconds(run: Callable[[], Any], device: str, seconds: float = 0.04) -> float:
    """Return the milliseconds of a run, of as many as fit into the seconds, queued back to back."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    run()
    wait()
    started = time.perf_counter()
    run()
    wait()
    times = max(3, min(200, int(seconds / max(time.perf_counter() - started, 1e-5))))
    started = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return (time.perf_counter() - started) / times * 1e3


# ── the suite ──


def cases(args: argparse.Namespace) -> list[Case]:
    """Return all cases of the command line. Draws depend on the seed only."""
    draw = random.Random(args.seed)
    every = networks()
    batched = set(draw.sample(every, len(every) // 3))
    compiled = set(draw.sample(every, 24))
    chosen = [n for n in every if not args.only or n in args.only]
    if unknown := set(args.only) - set(every):
        raise SystemExit(f"no network {', '.join(sorted(unknown))}")
    return [
        Case(n, dtype, batch, n in compiled and batch < 16)
        for dtype in args.dtypes
        for n in chosen
        for batch in (_FIRST_BATCH.get(n, 1), *((16,) if n in batched else ()))
    ]


def run_cases(
    todo: Sequence[Case], args: argparse.Namespace, done: Callable[[Case, dict[str, Any]], None]
) -> None:
    """Run cases in processes until the minutes are over. A case that was not finished is left for the next part."""
    pending, live = list(todo), list[tuple[Case, subprocess.Popen[str], Any, float]]()
    ends = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        while pending or live:
            while pending and len(live) < args.workers and time.monotonic() < ends - 30:
                case, output = pending.pop(0), tempfile.TemporaryFile("w+")  # noqa: SIM115  - closed below
                words = [case.network, case.dtype, str(case.batch), str(int(case.compiled))]
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    *words,
                    "--device",
                    args.device,
                    "--lock",
                    f"{folder}/lock",
                ]
                live.append(
                    (
                        case,
                        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True),
                        output,
                        time.monotonic(),
                    )
                )
            if time.monotonic() >= ends - 30:
                pending = []
            for item in list(live):
                case, process, output, started = item
                is_late, is_over = time.monotonic() - started > _CASE_SECONDS, time.monotonic() > ends
                if process.poll() is None and not is_late and not is_over:
                    continue
                if process.poll() is None:
                    process.kill()
                    process.wait()
                    row: dict[str, Any] | None = {"outcome": "late"} if is_late else None
                else:
                    output.seek(0)
                    row = _row(output.read(), process.returncode)
                output.close()
                live.remove(item)
                if row is not None:
                    done(case, row)
            time.sleep(0.1)


def _row(text: str, status: int) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("ROW ")]
    if lines and not status:
        row: dict[str, Any] = json.loads(lines[-1][4:])
        return row
    return {"outcome": "failed", "error_text": text[-600:]}


def summary(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of outcomes, the cases that are slower than PyTorch, and the geometric means."""
    right = {k: r for k, r in rows.items() if r["outcome"] == "right"}
    compiled = [r["over torch.compile"] for r in right.values() if "over torch.compile" in r]
    outcomes = [r["outcome"] for r in rows.values()]

    def mean(values: Sequence[float]) -> float | None:
        return round(math.exp(statistics.fmean(map(math.log, values))), 4) if values else None

    return {
        "outcomes": {o: outcomes.count(o) for o in sorted(set(outcomes))},
        "ratio, geometric mean": {d: mean([r["ratio"][1] for k, r in right.items() if f" {d} " in k]) for d in DTYPES},
        "over torch.compile, geometric mean": mean(compiled),
        "slower than 1.05": {k: r["ratio"] for k, r in sorted(right.items(), key=lambda i: -i[1]["ratio"][0]) if r["ratio"][0] > 1.05},
        "open_s, median": statistics.median([r["open_s"] for r in right.values()]) if right else None,
    }  # fmt: skip


def _commit() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "0"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    options = arguments(__doc__)
    options.add_argument("--minutes", type=float, default=8, help="after which no case is begun")
    options.add_argument("--dtypes", type=dtypes, default=list(DTYPES), metavar="A,B")
    options.add_argument("--only", type=lambda t: t.split(","), default=[], metavar="NAME,...")
    options.add_argument("--workers", type=int, default=12, help="processes that open networks side by side")
    options.add_argument(
        "--seed", default=None, help="of the draws; default: that of the file, or the commit"
    )
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--one", nargs=4, help="a case; for the script itself")
    options.add_argument("--lock", type=Path, help="for the script itself")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a network is wrong or fails."""
    args = parser().parse_args(argv)
    if args.one:
        network, dtype, batch, compiled = args.one
        torch.set_num_threads(1)
        case = Case(network, dtype, int(batch), compiled == "1")
        print("ROW " + json.dumps(measured(case, args.device, args.lock)), flush=True)
        return 0
    known = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    args.seed = args.seed or known.get("seed") or _commit()
    rows: dict[str, Any] = known.get("rows", {})
    every = cases(args)
    todo = [c for c in every if c.key not in rows]
    print(f"{len(every)} cases, {len(todo)} to measure, seed {args.seed}", flush=True)
    if args.dry_run:
        print(*(c.key for c in todo), sep="\n")
        return 0
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    facts = machine(name, "torch", "timm", "torchvision", "transformers")
    if before := known.get("machine"):
        facts["earlier_commands"] = [*before.get("earlier_commands", []), before["command"]]
    save = functools.partial(_save, args, facts, rows)

    def done(case: Case, row: dict[str, Any]) -> None:
        rows[case.key] = {**row, "gpu": name}
        print(
            f"{row['outcome']:8} {row.get('ratio', ['', '', ''])[1]!s:>8} {case.key} {row.get('error_text', '')[-160:]}",
            flush=True,
        )
        save()

    run_cases(todo, args, done)
    print(json.dumps(summary(rows), indent=1))
    return 1 if any(r["outcome"] in ("wrong", "failed") for r in rows.values()) else 0


def _save(args: argparse.Namespace, facts: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
    write(args.out, {"machine": facts, "seed": args.seed, "summary": summary(rows), "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
