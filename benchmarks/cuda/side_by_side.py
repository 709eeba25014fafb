"""Cases of a script in processes of their own: they compile side by side, and measure one at a time."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_report import arguments, machine, write

__all__ = ["run_cases"]


def run_cases(
    doc: str | None,
    script: str,
    one: Callable[[str, Path | None], Mapping[str, Any]],
    cases: Sequence[str],
    packages: Sequence[str] = ("torch",),
    argv: Sequence[str] | None = None,
    note: Callable[[Mapping[str, Any]], str] = str,
) -> int:
    """Measure the cases of the command line, and write their results. Return 1 if a case fails.

    one:   measures a case; it takes the lock that processes hold while they are on the device.
    cases: the default cases.
    note:  the text that is printed for a result.
    """
    import torch

    parser = arguments(doc)
    parser.add_argument("--cases", type=lambda t: t.split(","), default=list(cases), metavar="CASE,...")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--one", help="a case; for the script itself")
    parser.add_argument("--lock", type=Path, help="for the script itself")
    args = parser.parse_args(argv)
    if args.dry_run:
        print(*args.cases, sep="\n")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if args.one:
        torch.set_num_threads(1)
        with torch.inference_mode():
            print("ROW " + json.dumps(one(args.one, args.lock)), flush=True)
        return 0
    if not torch.cuda.is_available():
        raise SystemExit(
            "this script needs an NVIDIA GPU, and PyTorch sees none here; --dry-run lists the cases"
        )
    results: dict[str, Any] = {"machine": machine(torch.cuda.get_device_name(0), *packages), "cases": {}}
    return _measure(args, script, results, note)


def _measure(
    args: argparse.Namespace, script: str, results: dict[str, Any], note: Callable[[Mapping[str, Any]], str]
) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        waiting, live = list(args.cases), list[Any]()
        while waiting or live:
            while waiting and len(live) < args.workers:
                case = waiting.pop(0)
                command = [sys.executable, script, "--one", case, "--lock", f"{folder}/lock"]
                output = tempfile.TemporaryFile("w+")  # noqa: SIM115  - closed below
                live.append(
                    (case, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), output)
                )
            for item in list(live):
                case, process, output = item
                try:
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
                live.remove(item)
                output.seek(0)
                text = output.read()
                output.close()
                rows = [line for line in text.splitlines() if line.startswith("ROW ")]
                row = json.loads(rows[-1][4:]) if rows else {"error": text[-1500:]}
                failed += "error" in row
                results["cases"][case] = row
                print(case, row["error"] if "error" in row else note(row), flush=True)
                write(args.out, results)
    return 1 if failed else 0
