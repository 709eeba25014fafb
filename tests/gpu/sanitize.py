"""NVIDIA's compute-sanitizer (memcheck, racecheck, synccheck, initcheck) on programs of our kernels.

    python tests/gpu/sanitize.py --out benchmarks/results/cuda_sanitizer.json [--seconds 120] [--programs WORDS] [TOOL ...]

The tool is searched on PATH, in toolkits, and in the package nvidia-cuda-sanitizer-api. If it is missing or does not start in this container, the result
says so. It runs ``python tests/gpu/sanitize.py --inside``, which runs one program after another and compares each with the interpreter.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, arguments, run_parts
from small_net import compiled, feeds, right, weights
from training_programs import training_programs

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.native import check

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.runtime import Executor

TOOLS: Mapping[str, tuple[str, ...]] = {
    "memcheck": ("--leak-check", "no", "--report-api-errors", "no"),
    "racecheck": (),
    "synccheck": (),
    "initcheck": (),
}
"""The sanitizer's tools and the options of each."""
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")
_WRONG = 86
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", re.IGNORECASE)


def tool() -> str:
    """Return the path of compute-sanitizer; "" if it is not installed."""
    packages = [
        str(f) for p in sys.path for f in Path(p or ".").glob("nvidia/**/compute-sanitizer") if f.is_file()
    ]
    on_path = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    return on_path or next(iter(packages), "")


def graphs() -> Iterator[tuple[str, ir.Graph, dict[str, Any]]]:
    """Yield a program for each kind of kernel. Sizes are odd, and small because the tool slows kernels down a hundred times."""
    random = np.random.default_rng(0)

    def one(name: str, op: str, *shapes: tuple[int, ...], dtype: str = "float32", **attrs: Any) -> Any:
        b = ir.GraphBuilder(name.replace(" ", "_"))
        kind = xrt.DType.of(dtype).numpy
        arrays = {f"x{i}": random.standard_normal(s).astype(kind) for i, s in enumerate(shapes)}
        names = [b.input(n, f"{dtype}{list(v.shape)}") for n, v in arrays.items()]
        outputs = b.call(op, *names, **attrs)
        b.output("y", outputs if isinstance(outputs, str) else outputs[0])
        return f"{name} {dtype}", b.build(), arrays

    for dtype in ("float32", "bfloat16"):
        yield one("add", "add", (3, 5, 257), (257,), dtype=dtype)
        yield one("softmax", "softmax", (7, 1025), dtype=dtype, dim=1)
        yield one("softmax across", "softmax", (33, 19, 5), dtype=dtype, dim=1)
        yield one(
            "layer norm",
            "layer_norm",
            (9, 771),
            (771,),
            (771,),
            dtype=dtype,
            normalized_shape=(771,),
            eps=1e-5,
        )
        yield one("rms norm", "rms_norm", (1, 1536), (1536,), dtype=dtype, normalized_shape=(1536,))
        yield one("sum all", "sum", (61, 1031), dtype=dtype)
        yield one("sum columns", "sum", (517, 33), dtype=dtype, dim=(0,))
        yield one("argmax", "argmax", (5, 3001), dtype=dtype, dim=1)
        yield one("transpose", "permute", (67, 129), dtype=dtype, dims=(1, 0))
        yield one("heads", "permute", (2, 17, 3, 40), dtype=dtype, dims=(0, 2, 1, 3))
        yield one("product", "matmul", (67, 129), (129, 70), dtype=dtype)
        yield one("products", "matmul", (3, 20, 65), (3, 65, 24), dtype=dtype)
        yield one("vector", "linear", (1, 1536), (333, 1536), dtype=dtype)
        yield one("few rows", "linear", (5, 264), (130, 264), dtype=dtype)
        yield one(
            "attention",
            "attention",
            (1, 4, 70, 64),
            (1, 2, 70, 64),
            (1, 2, 70, 64),
            dtype=dtype,
            causal=True,
        )
        yield one(
            "attention shared keys",
            "attention",
            (1, 8, 300, 64),
            (1, 2, 600, 64),
            (1, 2, 600, 64),
            dtype=dtype,
        )
        yield one("decode", "attention", (1, 4, 1, 64), (1, 2, 1030, 64), (1, 2, 1030, 64), dtype=dtype)
        yield one(
            "convolution", "convolution", (2, 5, 13, 11), (7, 5, 3, 3), dtype=dtype, stride=(2, 1), padding=(1, 1), dilation=(1, 1), groups=1,
        )  # fmt: skip
        yield one(
            "max pool",
            "max_pool",
            (2, 3, 13, 11),
            dtype=dtype,
            kernel_size=(3, 3),
            stride=(2, 2),
            padding=(1, 1),
            dilation=(1, 1),
        )
    for name, graph, arrays in training_programs():
        yield f"training: {name}", graph, arrays


def layers() -> Iterator[tuple[str, ir.Graph, dict[str, Any], dict[str, Any]]]:
    """Yield a decoder's two layers of few rows, whose weights are read while the launch before runs: name, graph, inputs, weights."""
    random = np.random.default_rng(1)
    for rows, dtype in ((1, "float32"), (7, "bfloat16"), (13, "float16")):
        b, kind = ir.GraphBuilder(f"layers_{dtype}"), xrt.DType.of(dtype).numpy
        shapes = {"scale": (328,), "up": (402, 328), "down": (328, 201)}
        known = {n: (random.standard_normal(s) * 0.1).astype(kind) for n, s in shapes.items()}
        weight = {n: b.weight(n, f"{dtype}{list(s)}") for n, s in shapes.items()}
        x = b.input("x", f"{dtype}[{rows}, 328]")
        h = b.norm_linear(x, weight["up"], None, None, weight["scale"], act="silu", eps=1e-6, gated=True)
        b.output("y", b.fused_linear(h, weight["down"], None, x, act="none"))
        yield (
            f"layers of {rows} rows {dtype}",
            b.build(),
            {"x": random.standard_normal((rows, 328)).astype(kind)},
            known,
        )


def many_rows() -> Iterator[tuple[str, ir.Graph, dict[str, Any], dict[str, Any]]]:
    """Yield layers of many rows of 16-bit floats with a gate or an activation, as ``layers`` does. Blocks of the second have several tiles."""
    random = np.random.default_rng(2)
    for name, dtype, rows, n, k in (
        ("gated", "bfloat16", 250, 200, 328),
        ("gelu", "float16", 1024, 6000, 648),
    ):
        b, kind = ir.GraphBuilder(f"many_{name}"), xrt.DType.of(dtype).numpy
        x = b.input("x", f"{dtype}[{rows}, {k}]")
        w = b.weight("w", f"{dtype}[{2 * n if name == 'gated' else n}, {k}]")
        attrs = {"act": "silu", "gated": True} if name == "gated" else {"act": name}
        b.output("y", b.call("norm_linear" if name == "gated" else "fused_linear", x, w, **attrs))
        arrays = [
            (random.standard_normal(s) * 0.1).astype(kind)
            for s in ((rows, k), (2 * n if name == "gated" else n, k))
        ]
        yield f"many rows, {name} {rows}x{n}x{k} {dtype}", b.build(), {"x": arrays[0]}, {"w": arrays[1]}


def inside(words: str = "") -> int:
    """Compare each program with the interpreter, then run the small network three times, so that its graph is captured and replayed.

    With ``words``, only the programs whose names hold them run. Return the number of programs that were wrong or refused.
    """
    wrong = 0
    for name, graph, arrays, known in (*((*program, {}) for program in graphs()), *layers(), *many_rows()):
        if words not in name:
            continue
        try:
            own = xrt.KernelPolicy(matmul="generated") if "many rows" in name else None
            check(graph, arrays, weights=known, target="cuda", policy=own)
        except AssertionError as error:
            wrong += 1
            print(f"WRONG {name}: {str(error).splitlines()[0]}", flush=True)
        except Exception as error:
            wrong += 1
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            print(f"right {name}", flush=True)
    if words:
        return wrong
    executor = Executor(compiled("cuda"), "cuda:0")
    executor.bind(weights())
    outputs = [executor.run_arrays([feeds(i)["x"]])[0] for i in range(3)]
    network = all(right(i, y) for i, y in enumerate(outputs))
    print("right network" if network else "WRONG network", flush=True)
    return wrong + (not network) + sum(map(decoded, ("float32", "bfloat16")))


def decoded(dtype: str) -> bool:
    """Return True if a decoder's logits of a prompt and of the next tokens are wrong. Without transformers nothing runs."""
    if importlib.util.find_spec("transformers") is None:
        print(f"no transformers: decoder {dtype} not run", flush=True)
        return False
    from xpuruntime.llm import Generator
    from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt, reference

    model = reference("qwen2", hidden_size=256, head_dim=64, num_attention_heads=4)
    tokens = prompt(20)
    want = logits_of(model, tokens)
    with Generator(model, capacity=256, buckets=(16,), dtype=dtype, device="cuda:0") as ours:
        rows = [np.array(ours.read(tokens[:13])[0], np.float64)]
        rows += [np.array(ours.steps.step([t], [13 + i])[0], np.float64) for i, t in enumerate(tokens[13:])]
    error = float(np.abs(np.array(rows) - want[12:]).max() / np.abs(want).max())
    wrong = not error <= (1e-4 if dtype == "float32" else 0.15)
    print(f"{'WRONG' if wrong else 'right'} decoder {dtype}: {error:.2g} from float32", flush=True)
    return wrong


def under(name: str, report: Report, args: argparse.Namespace) -> Any:
    """Run all programs under one tool."""
    path = tool()
    if not path:
        report.bound(f"compute-sanitizer {name}", False, required=False)
        return {"outcome": "did not start", "why": "no compute-sanitizer on this machine"}
    log = Path(f"/tmp/sanitizer-{os.getpid()}-{name}.log")
    command = [path, "--tool", name, *TOOLS[name], "--error-exitcode", str(_WRONG), "--log-file", str(log)]
    command += [sys.executable, __file__, "--inside", "--programs", args.programs]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds, check=False)
        code, output, late = done.returncode, done.stdout + done.stderr, False
    except subprocess.TimeoutExpired as error:
        code, late = -1, True
        output = "".join(
            t.decode(errors="replace") if isinstance(t, bytes) else t or ""
            for t in (error.stdout, error.stderr)
        )
    log_text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    summary = [int(a or b) for a, b in _SUMMARY.findall(log_text)]
    programs = [line for line in output.splitlines() if line.startswith(("right ", "WRONG ", "FAILED "))]
    row = {
        "tool": path,
        "command": " ".join(command).replace(f"{Path(__file__).resolve().parents[2]}/", ""),
        "programs": programs,
        "errors": summary[-1] if summary else None,
        "exit_code": code,
        "log": log_text[-4000:],
    }
    if not programs or (not summary and not late):
        report.bound(f"compute-sanitizer {name}", False, required=False)
        return row | {"outcome": "did not start", "why": (log_text or output)[-1500:]}
    clean = not sum(summary) and all(line.startswith("right ") for line in programs)
    # The other two tools also report harmless accesses: initcheck reports padding that is read but not used.
    required = name in ("memcheck", "racecheck")
    report.bound(f"compute-sanitizer {name}: programs without a complaint", clean, required=required)
    return row | {
        "outcome": "ran out of time, without a complaint so far"
        if late and clean
        else "clean"
        if clean
        else "complaints"
    }


PARTS = {name: functools.partial(under, name) for name in TOOLS}
for _part in PARTS.values():
    _part.__doc__ = under.__doc__


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a tool reports errors or a program is wrong. A tool that does not start is only reported."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument(
        "--inside", action="store_true", help="run the programs in this process, without the tool"
    )
    parser.add_argument("--seconds", type=int, default=120, help="of each tool")
    parser.add_argument("--programs", default="", help="only those whose names hold these words")
    chosen = parser.parse_args(argv)
    if chosen.inside:
        return inside(chosen.programs)
    return run_parts(__doc__, PARTS, gpu=name_of, argv=argv, parser=parser)


def name_of() -> str:
    """Return the device's name."""
    return str(xrt.Device("cuda:0").backend.name)


if __name__ == "__main__":
    sys.exit(main())
