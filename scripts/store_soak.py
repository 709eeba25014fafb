"""Kill processes at random moments while they compile models into one store and read them from it; every later read must be right.

    python scripts/store_soak.py --kills 1000 --workers 4

Each worker opens a random one of a few small models with the native engine, which compiles it or finds it in the store, runs it, and
compares the outputs with NumPy's. Now and then it clears the store. Workers are forked from a process that has imported every module and
started no thread. The script prints JSON: kills, sessions by the origin of their program, bad reads (damaged entries or wrong outputs),
and errors. The exit code is 1 after any bad read or error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import xpuruntime as xrt
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.inference.native.engine import compiler_facts
from xpuruntime.inference.session import InferenceSession
from xpuruntime.ir import GraphBuilder

MODELS = 6


def model(number: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return a model's ONNX bytes, an input, and the expected output."""
    rows, cols = 3 + number, 16 + 8 * number
    random_ = np.random.default_rng(number)
    w = random_.standard_normal((cols, 16)).astype(np.float32)
    x = random_.standard_normal((rows, 16)).astype(np.float32)
    b = GraphBuilder(f"model{number}")
    b.output(
        "y", b.relu(b.linear(b.input("x", f"float32[{rows}, 16]"), b.weight("w", f"float32[{cols}, 16]")))
    )
    return to_onnx(b.build(), {"w": w}).SerializeToString(), x, np.maximum(x @ w.T, 0)


class Report(logging.Handler):
    """Handler that sends the store's warnings to the parent. Each reports a damaged entry or an unusable store."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a warning."""
        tell("bad", record.getMessage())


def tell(kind: str, text: str = "") -> None:
    os.write(1, (json.dumps([kind, text[:300]]) + "\n").encode())


def work(
    models: list[tuple[bytes, np.ndarray, np.ndarray]], root: Path, seed: int, once: bool = False
) -> None:
    dice = random.Random(seed)
    logging.getLogger("xpuruntime.store").addHandler(Report(logging.WARNING))
    numbers = range(MODELS) if once else iter(lambda: dice.randrange(MODELS), None)
    for number in numbers:
        if not once and dice.random() < 0.03:
            xrt.Store(root).trim(0)
        data, x, right = models[number]
        with InferenceSession(data, engine="native", device="cpu", cache_dir=root, threads=1) as session:
            y = session.run(x=x)["y"]
            chosen = session.plan.decision("engine").chosen
            tell("stored" if chosen.facts["from_store"] else "compiled")
            if not np.allclose(y, right, rtol=1e-4, atol=1e-4):
                tell("bad", f"model {number}: wrong output")


def start(models: list, root: Path, seed: int, pipe: int, once: bool = False) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 0
    try:
        os.dup2(pipe, 1)
        work(models, root, seed, once)
    except BaseException as error:
        tell("error", repr(error))
        code = 1
    os._exit(code)


def import_all(models: list) -> None:
    """Import every module that a session imports lazily, so that a forked worker spends its short life on the store."""
    with tempfile.TemporaryDirectory(prefix="xpu-soak-") as folder:
        log = Path(folder) / "modules"
        pid = os.fork()
        if not pid:
            with InferenceSession(
                models[0][0], engine="native", device="cpu", cache_dir=folder, threads=1
            ) as session:
                session.run(x=models[0][1])
                session.plan.decision("engine")
            log.write_text("\n".join(sys.modules))
            os._exit(0)
        os.waitpid(pid, 0)
        for name in log.read_text().split("\n"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    compiler_facts()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=1.5, help="maximum seconds that a worker lives")
    args = parser.parse_args()
    began, dice, models = time.monotonic(), random.Random(args.seed), [model(n) for n in range(MODELS)]
    import_all(models)
    with tempfile.TemporaryDirectory(prefix="xpu-soak-") as folder:
        root = Path(folder) / "store"
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # for files that killed compilers leave behind
        log = Path(folder) / "log"
        pipe = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        alive = [
            (time.monotonic() + dice.random() * args.longest, start(models, root, n, pipe))
            for n in range(args.workers)
        ]
        for kill in range(args.kills):
            alive.sort()
            due, pid = alive.pop(0)
            time.sleep(max(0.0, due - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            next_ = start(models, root, args.workers + kill, pipe)
            alive.append((time.monotonic() + dice.random() * args.longest, next_))
        for _, pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        last = os.waitpid(start(models, root, 0, pipe, once=True), 0)[1]
        damaged = [str(e) for e in xrt.Store(root).verify()]
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
    counts = Counter(kind for kind, _ in lines)
    problems = [text for kind, text in lines if kind in ("bad", "error")]
    result = {
        "kills": args.kills,
        "compiled": counts["compiled"],
        "read": counts["stored"],
        "bad reads": counts["bad"],
        "errors": counts["error"],
        "damaged entries at the end": len(damaged),
        "a last start opened every model": last == 0,
        "seconds": round(time.monotonic() - began),
        "told": (problems + damaged)[:20],
    }
    print(json.dumps(result, indent=2))
    return int(bool(problems or damaged or last))


if __name__ == "__main__":
    sys.exit(main())
