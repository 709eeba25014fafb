"""Every check and measurement that needs an NVIDIA GPU, step by step, with a table of outcomes at the end.

    scripts/test-gpu 1|2|3|4|5|6|7|8 [--results FOLDER]   a stage: build, then its steps, in under ten minutes
    scripts/test-gpu all --devices 0,1                   every stage, one step at a time on each GPU; a further call runs what has not passed
    scripts/test-gpu --only kernels,models              those steps
    python tests/gpu/stages.py --dry-run                   print the plan; try every script and its arguments without a device

A step that fails or takes too long does not stop the next one. Each step writes its own file, and ``stages-STAGE.json`` has the table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from gpu_report import machine, write  # noqa: E402

SHORTEST = 20.0
"""Minimum seconds left for a step to begin."""
WORKERS = 12
"""Worker processes of a test run, and parallel compilers of a suite."""
ON_DEVICE = {"tests/native", "tests/llm/test_decoder_table.py", "tests/llm/batching/test_batch_generator.py"}
"""Tests that run on the device that XPU_TEST_DEVICE names; others find a device by themselves."""
PYTHON, PYTEST, SHELL = "python", "pytest", "shell"
RUNNING: set[subprocess.Popen[bytes]] = set()
"""The processes of the steps that run."""
FILE = "{out}"
"""Placeholder for the step's result file in a command."""


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    stage:   1 to 8; 0 for steps that run only by name.
    seconds: time limit; the step is killed after it.
    command: for ``python``, a script and its arguments (``--out`` is added); for ``pytest``, its arguments; for ``shell``, a command line.
    result:  name of the file that it writes.
    check:   the check that the step's exit code decides. Other checks are rows of its file.
    """

    name: str
    stage: int
    kind: str
    command: tuple[str, ...]
    seconds: int
    result: str = ""
    check: str = ""


XPU = "python -m xpuruntime.cli"
STEPS: tuple[Step, ...] = (
    # 1: the core, the backend, sessions
    Step("core-cpp", 1, SHELL, ("ctest --test-dir $XPU_GPU_FOLDER/cpp --output-on-failure -j 8",), 180, check="the C++ tests on this machine"),
    Step("backend", 1, PYTHON, ("tests/gpu/cuda_backend.py",), 180, "cuda_backend.json", "the CUDA backend on the real driver"),
    Step("sessions", 1, PYTHON, ("tests/gpu/cuda_sessions.py",), 150, "cuda_sessions.json", "sessions and saved programs on the device"),
    Step("spec-examples", 1, PYTHON, ("tests/gpu/spec_examples.py",), 60, "cuda_spec_examples.json", "the CUDA snippets of the porting guide, names mapped only"),
    # 2: kernels
    Step("kernels", 2, PYTHON, ("benchmarks/cuda/heavy_kernels.py",), 200, "cuda_kernels.json", "heavy kernels right beside PyTorch, flash_v2's rate"),
    Step("libraries", 2, PYTHON, ("benchmarks/cuda/libraries.py", "--limit", "65"), 150, "cuda_libraries.json", "library kernels and attention right beside PyTorch"),
    Step("bandwidth", 2, PYTHON, ("benchmarks/cuda/bandwidth.py",), 100, "cuda_bandwidth.json", "elementwise at 88% and rows at 80% of the copy rate"),
    Step("evidence", 2, PYTHON, ("tests/gpu/evidence.py",), 150, "cuda_evidence.json", "receipts: kernels that CUPTI saw, pinned algorithms, refusals, reports of kernels"),
    # 3: whole models
    Step("models", 3, PYTHON, ("benchmarks/cuda/models.py", "--compile"), 300, "cuda_models.json", "ResNets: right beside PyTorch, and how fast"),
    Step("decoders", 3, PYTHON, ("benchmarks/cuda/decoders.py", "--compile"), 390, "cuda_decoders.json", "Qwen2.5-1.5B's sizes: near float64 through 64 forced steps, and how fast"),
    # 4: suites
    Step("conformance", 4, SHELL, (f"{XPU} conformance cuda:0 --suite nodes,kernels --jobs {WORKERS} --json > {FILE}",), 200, "cuda_conformance.json", "xpu conformance cuda: node cases, every kernel by name"),
    Step("conformance-networks", 4, SHELL, (f"{XPU} conformance cuda:0 --suite networks --jobs {WORKERS} --json > {FILE}",), 300, "cuda_conformance_networks.json", "xpu conformance cuda: networks and decoders"),
    # 5: users' kernels, several processes, memory
    Step("user-kernels", 5, PYTHON, ("tests/gpu/user_kernels.py",), 150, "cuda_user_kernels.json", "kernels of users: CUDA C++, Triton, Python functions"),
    Step("processes", 5, PYTHON, ("tests/gpu/processes.py",), 150, "cuda_processes.json", "two processes of eight threads: every output right"),
    Step("memory", 5, PYTHON, ("tests/gpu/memory.py",), 150, "cuda_memory.json", "out of memory on purpose; memory flat over 10,000 runs"),
    Step("dispatch", 5, PYTHON, ("benchmarks/cuda/dispatch.py",), 120, "cuda_dispatch.json", "single ops on PyTorch's tensors, what a call and a run add to their launches"),
    # 6: the sanitizer
    Step("sanitizer", 6, PYTHON, ("tests/gpu/sanitize.py", "--seconds", "125"), 530, "cuda_sanitizer.json", "compute-sanitizer over programs of every kind of kernel"),
    # 7: the native tests
    Step("native-tests", 7, PYTEST, ("tests/native", "tests/kernels", "--ignore=tests/kernels/cuda"), 530, "cuda_native_tests.json", "the native test suite on the device"),
    # 8: PyTorch's samples
    Step("conformance-ops", 8, SHELL, (f"{XPU} conformance cuda:0 --suite ops --jobs {WORKERS} --json > {FILE}",), 420, "cuda_conformance_ops.json", "xpu conformance cuda: PyTorch's samples of its ops"),
    Step("attention-gradients", 8, PYTHON, ("tests/gpu/attention_gradients.py",), 150, "cuda_attention_gradients.json", "attention in training: near float64, the same bits, kernels by policy"),
    # by name only
    Step("training-steps", 0, PYTHON, ("tests/gpu/training_steps.py",), 300, "cuda_training_steps.json", "training: gradients near float64, captured steps in flat memory, attention by policy"),
    Step("training-tests", 0, PYTEST, ("tests/pytorch", "-k", "cuda or cudnn", "--seed", "all"), 400, "cuda_training_tests.json", "tests of training on the device: ops, policies, capture, kill and resume"),
    Step("decoder-families", 0, PYTEST, ("tests/llm/test_decoder_table.py", "tests/llm/test_encoder_decoders.py", "--seed", "all", "-k", "folder or batch or beams"), 400, "cuda_decoder_families.json", "every family of decoders and encoder-decoders: as transformers through 69 given tokens, alone, in a batch and with beams"),
    Step("many-texts", 0, PYTEST, ("tests/llm/batching/test_batch_generator.py", "--seed", "all"), 400, "cuda_many_texts.json", "many texts at once: as alone, bitwise under batch_invariant, 10,000 steps"),
    Step("tensorrt", 0, PYTHON, ("tests/gpu/tensorrt_engine.py",), 500, "cuda_tensorrt.json", "TensorRT: right beside ONNX Runtime, second start from the store, device tensors"),
    Step("onnxruntime-cuda", 0, PYTHON, ("tests/gpu/onnxruntime_cuda.py",), 300, "cuda_onnxruntime.json", "ONNX Runtime on CUDA: right beside its CPU provider, device tensors without the host"),
    Step("vendor-copies", 0, PYTHON, ("tests/gpu/vendor_copies.py", "onnxruntime", "mixed", "session"), 500, "cuda_vendor_copies.json", "ONNX Runtime on CUDA and mixed plans: no copy touches the host, by CUPTI"),
    Step("tensorrt-copies", 0, PYTHON, ("tests/gpu/vendor_copies.py", "tensorrt", "float16"), 590, "cuda_tensorrt_copies.json", "TensorRT: no copy touches the host, by CUPTI; float16 kernels"),
    Step("attention-training", 0, PYTHON, ("benchmarks/cuda/attention_training.py",), 150, "cuda_attention_training.json", "attention forward and backward right, and beside PyTorch's backends"),
    Step("several-devices", 0, PYTHON, ("tests/gpu/several_devices.py",), 150, "cuda_several_devices.json", "two GPUs: sessions on each, copies between them, collectives like torch.distributed's, a killed rank"),
    Step("parallel", 0, PYTHON, ("benchmarks/cuda/parallel.py",), 400, "cuda_parallel.json", "language models divided over two GPUs: as on one, and how fast"),
    Step("vendor-plans", 0, PYTHON, ("tests/gpu/vendor_plans.py",), 300, "cuda_vendor_plans.json", "plans of cuDNN in the store of the session: restored by other processes, built again if damaged"),
    Step("decoder-breakdown", 0, PYTHON, ("benchmarks/cuda/decoder_breakdown.py",), 300, "cuda_decoder_breakdown.json", "where a token's time goes, and with other cuts of its products"),
    Step("quantized-rows", 0, PYTHON, ("benchmarks/cuda/quantized_rows.py",), 300, "cuda_quantized_rows.json", "many rows times weights of fewer bits: right, and beside PyTorch in bfloat16"),
    Step("sampled-tokens", 0, PYTHON, ("benchmarks/cuda/sampled_tokens.py",), 300, "cuda_sampled_tokens.json", "sampled tokens: the host's choice, and at most 5% slower than greedy ones"),
    Step("decoder-sizes", 0, PYTHON, ("benchmarks/cuda/decoder_sizes.py",), 400, "cuda_decoder_sizes.json", "language models of other sizes: right beside PyTorch, and how fast a token is"),
    Step("attention-sizes", 0, PYTHON, ("benchmarks/cuda/attention_sizes.py",), 90, "cuda_attention_sizes.json", "cuDNN's attention and ours right, and which is faster at which sizes"),
    Step("attention-chunks", 0, PYTHON, ("benchmarks/cuda/attention_chunks.py",), 120, "cuda_attention_chunks.json", "attention of chunks over a cache right, and which of our kernels is faster"),
    Step("products-hopper", 0, PYTHON, ("benchmarks/cuda/products_hopper.py",), 400, "cuda_products_hopper.json", "products of many rows by wgmma and TMA: right, and beside cuBLASLt and its second launch"),
    Step("workspaces", 0, PYTHON, ("benchmarks/cuda/workspaces.py",), 120, "cuda_workspaces.json", "products by cuBLASLt under limits of its workspace"),
    Step("depthwise", 0, PYTHON, ("benchmarks/cuda/depthwise.py",), 120, "cuda_depthwise.json", "depthwise convolutions right, and beside cuDNN and PyTorch"),
    Step("training", 0, PYTHON, ("benchmarks/cuda/training.py", "gpt2", "--with", "max-autotune"), 590, "cuda_training.json", "GPT-2 small: a training step beside PyTorch's compiler"),
    Step("training-images", 0, PYTHON, ("benchmarks/cuda/training.py", "resnet50"), 590, "cuda_training_images.json", "ResNet-50: a training step beside PyTorch's compiler"),
    Step("third-party", 0, PYTHON, ("benchmarks/cuda/third_party.py",), 400, "cuda_third_party.json", "models of other families: right beside PyTorch, and how fast"),
    Step("attribution", 0, PYTHON, ("tests/gpu/attribution.py", "--write"), 200, "cuda_attribution.json", "receipts of ResNet-50, BERT and PP-OCR: every node explained, 99% of the time in named kernels"),
    Step("bisection", 0, PYTHON, ("tests/gpu/bisection.py", "weights", "--write", "--jobs", "10"), 400, "cuda_bisection.json", "bisections of ten networks: the node, the number of runs, memory, and the saved folder"),
    Step("locks", 0, PYTHON, ("tests/gpu/locks.py", "--write"), 200, "cuda_locks.json", "locks of a session with cuDNN and of regions on two devices: two cold processes, equal bits, nothing measured"),
    Step("core-python", 0, PYTEST, ("tests/cpp", "tests/runtime", "tests/profiler"), 240, "core_python.json", "the core's Python tests"),
    Step("cpu-tests", 0, SHELL, ("python -m pytest -q -p no:cacheprovider tests/compiler tests/kernels tests/codegen tests/runtime",), 540, check="the native engine's tests on this processor"),
    Step("cpu-kernels", 0, SHELL, ("cd benchmarks && python kernels.py --dtype float32 bfloat16 --threads 1 2 --json " + FILE,), 540, "kernels_xeon.json", "our kernels beside oneDNN on this processor"),
)  # fmt: skip
"""All steps, in the order in which they run."""
STAGES = tuple(sorted({s.stage for s in STEPS} - {0}))


def chosen(stage: str, only: Sequence[str]) -> list[Step]:
    """Return the steps of a stage (or of ``all``), or the named ones. Raise SystemExit for an unknown name."""
    known = {s.name: s for s in STEPS}
    missing = [n for n in only if n not in known]
    if missing:
        raise SystemExit(f"no step {', '.join(missing)}: there are {', '.join(known)}")
    if only:
        return [known[n] for n in only]
    return [s for s in STEPS if (s.stage > 0 if stage == "all" else str(s.stage) == stage)]


def line_of(step: Step, out: Path) -> list[str]:
    """Return the argument list of the step's process."""
    if step.kind == PYTHON:
        return [sys.executable, str(ROOT / step.command[0]), *step.command[1:], "--out", str(out)]
    if step.kind == PYTEST:
        return [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "--tb=short",
            *(["-n", str(WORKERS), "--dist", "worksteal"] if importlib.util.find_spec("xdist") else []),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",  # pytest-benchmark, if installed, warns under xdist
            f"--junitxml={out.with_suffix('.xml')}",
            *step.command,
        ]
    return ["bash", "-c", step.command[0].replace(FILE, str(out)).replace("python ", f"{sys.executable} ")]


def run(step: Step, results: Path, left: float, device: str = "") -> dict[str, Any]:
    """Run a step on the GPU of this index (every GPU by default).

    Return its outcome (``holds``, ``does not hold``, ``out of time`` or ``not run``) and the rows of its file.
    """
    out = results / (step.result or f"{step.name}.json")
    limit = min(step.seconds, left)
    row: dict[str, Any] = {"step": step.name, "check": step.check, "limit_s": round(limit), "rows": []}
    if limit < SHORTEST:
        return row | {"outcome": "not run", "seconds": 0.0}
    print(f"\n== {step.name} (at most {limit:.0f} s): {step.check}", flush=True)
    environment = os.environ | ({"XPU_TEST_DEVICE": "cuda:0"} if ON_DEVICE & {*step.command} else {})
    if (
        step.kind != PYTHON
    ):  # with a PyTorch thread per core in every worker, workers would wait for each other
        environment |= {"OMP_NUM_THREADS": str(max(2, (os.cpu_count() or 1) // WORKERS))}
    if device:
        environment |= {"CUDA_VISIBLE_DEVICES": device}
    out.unlink(missing_ok=True)
    started = time.perf_counter()
    # In a process group of its own, so that its children are killed with it.
    process = subprocess.Popen(line_of(step, out), cwd=ROOT, env=environment, start_new_session=True)
    RUNNING.add(process)
    try:
        code = process.wait(limit)
        outcome = "holds" if code == 0 else "does not hold"
    except subprocess.TimeoutExpired:
        end(process)
        process.wait()
        outcome = "out of time"
    finally:
        RUNNING.discard(process)
    if step.kind == PYTEST:
        counted(out)
    if step.kind == SHELL:
        stamp(out, step)
    return row | {
        "outcome": outcome,
        "seconds": round(time.perf_counter() - started, 1),
        "rows": rows_of(out),
    }


def run_all(
    steps: Sequence[Step],
    passed: Sequence[dict[str, Any]],
    results: Path,
    left: Callable[[], float],
    devices: Sequence[str],
    table: Path,
) -> list[dict[str, Any]]:
    """Run the steps that have not passed, one at a time per device, on several devices the longest first. Write the table after each."""
    names, done, lock, what = {p["step"] for p in passed}, list(passed), threading.Lock(), sources()
    waiting = deque(s for s in steps if s.name not in names)
    if len(devices) > 1:
        waiting = deque(sorted(waiting, key=lambda s: -s.seconds))

    def work(device: str) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                step = waiting.popleft()
            row = run(step, results, left(), device)
            with lock:
                done.append(row)
                write(table, {"machine": machine(gpu_name()), "sources": what, "steps": done})

    with ThreadPoolExecutor(len(devices)) as pool:
        try:
            list(pool.map(work, devices))
        except BaseException:  # also KeyboardInterrupt
            waiting.clear()
            for process in tuple(RUNNING):
                end(process)
            raise
    return done


def end(process: subprocess.Popen[bytes]) -> None:
    """End a step and its children, which are in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def sources() -> str:
    """Return a digest of what the steps run."""
    parts = ("src", "cpp", "tests", "benchmarks/cuda", "scripts", "CMakeLists.txt", "pyproject.toml")
    command = [sys.executable, "scripts/digest", *parts]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def counted(out: Path) -> None:
    """Convert the counts of a test run to JSON."""
    report = out.with_suffix(".xml")
    if not report.is_file():
        return
    suite = next(ET.parse(report).getroot().iter("testsuite"))
    count = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{c.get('classname')}.{c.get('name')}"
        for c in suite.iter("testcase")
        if c.find("failure") is not None or c.find("error") is not None
    ]
    write(out, {"machine": machine(gpu_name()), **count, "failed": failed})
    report.unlink()


def stamp(out: Path, step: Step) -> None:
    """Add the machine to a result file that a command wrote without it."""
    document = read(out)
    if document and "machine" not in document:
        write(out, {"machine": machine(gpu_name()) | {"command": step.command[0]}, **document})


def read(out: Path) -> dict[str, Any]:
    """Return the document of a result file; empty if there is none."""
    try:
        document = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return the ``checks`` of a result file."""
    return list(read(out).get("checks", ()))


def gpu_name() -> str:
    """Return the name of the first GPU, as nvidia-smi reports it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.splitlines()[0]
    return "none"


def table(done: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line per check: outcome, figure, limit, name."""
    yield f"{'':14}  {'figure':>12}  {'limit':<18}  check"
    for step in done:
        yield f"{step['outcome']:14}  {step['seconds']:>10.1f} s  {'':18}  {step['check'] or step['step']}"
        for row in step["rows"]:
            word = "holds" if row["holds"] else "does not hold" if row.get("required", True) else "not yet"
            figure = row["figure"]
            figure_text = f"{figure:.4g}" if isinstance(figure, float) else str(figure)
            yield f"{word:14}  {figure_text + ' ' + row['unit']:>12}  {row['limit']:<18}    {row['check']}"


def dry_run(steps: Sequence[Step]) -> list[str]:
    """Print the plan and try every script with its arguments. Return the problems."""
    wrong = []
    for step in steps:
        print(
            f"{step.stage or '-'}  {step.name:22} {step.seconds:4} s  {' '.join(line_of(step, Path(step.result or '-'))[1:])}"
        )
        if step.kind == PYTEST:
            wrong += [
                f"{step.name}: {p} is not there"
                for p in step.command
                if "/" in p and "=" not in p and not (ROOT / p).exists()
            ]
        if step.kind == SHELL:
            done = subprocess.run(
                ["bash", "-n", "-c", step.command[0]], capture_output=True, text=True, check=False
            )
            wrong += [f"{step.name}: {done.stderr}"] if done.returncode else []
        if step.kind == PYTHON:
            problem = _tried(step)
            wrong += [f"{step.name}: {problem}"] if problem else []
    return wrong


def _tried(step: Step) -> str:
    """Return the problem of a script: it does not import, or refuses its arguments. "" if there is none."""
    path, output = ROOT / step.command[0], io.StringIO()
    if not path.is_file():
        return f"there is no {path.name}"
    spec = importlib.util.spec_from_file_location(f"gpu_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before, loaded = (
        list(sys.path),
        {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("support", "paths")},
    )
    # As in a process of its own: the test suite's folder and modules are not there unless the script adds them.
    sys.path[:] = [str(path.parent), *(p for p in before if Path(p or ".").resolve() != ROOT / "tests")]
    for name in loaded:
        del sys.modules[name]
    try:
        spec.loader.exec_module(module)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = module.main([*step.command[1:], "--out", os.devnull, "--dry-run"])
    except SystemExit as error:
        return f"refuses its arguments: {error} {output.getvalue()[-300:]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path[:] = before  # some scripts remove their folder
        sys.modules.update(loaded)
    return "" if code == 0 else f"a dry run gives {code}: {output.getvalue()[-300:]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a step did not hold."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "stage",
        nargs="?",
        choices=[*map(str, STAGES), "all"],
        help="which stage; all of them with --dry-run alone",
    )
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the files"
    )
    parser.add_argument("--only", default="", metavar="A,B", help="these steps instead of a stage's")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="after which no further step begins or goes on"
    )
    parser.add_argument(
        "--devices", default="", metavar="A,B", help="indices of the GPUs; each runs a step at a time"
    )
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args(argv)
    only = [n for n in args.only.split(",") if n]
    if args.dry_run:
        wrong = dry_run(chosen(args.stage or "", only) if args.stage or only else STEPS)
        print("\n".join(["", *wrong]) if wrong else "every script and argument is there")
        return 1 if wrong else 0
    if not args.stage and not only:
        parser.error(f"name a stage ({', '.join(map(str, STAGES))}) or steps with --only")
    devices = [d for d in args.devices.split(",") if d]
    if len(set(devices)) < len(devices) or not all(d.isdecimal() for d in devices):
        parser.error(f"--devices takes different indices of GPUs, such as 0,1; got {args.devices!r}")
    begun = time.perf_counter()
    args.results.mkdir(parents=True, exist_ok=True)
    name = f"stages-{args.stage or 'some'}.json"
    before = read(args.results / name) if args.stage == "all" else {}
    same = before.get("sources") == sources() and before["machine"]["gpu"] == gpu_name()
    done = run_all(
        chosen(args.stage or "", only),
        [s for s in before.get("steps", ()) if same and s["outcome"] == "holds"],
        args.results.resolve(),
        lambda: args.seconds - (time.perf_counter() - begun),
        devices or [""],
        args.results / name,
    )
    print("\n" + "\n".join(table(done)))
    return 0 if all(s["outcome"] == "holds" for s in done) else 1


if __name__ == "__main__":
    sys.exit(main())
