"""Fuzz the readers of files: ``scripts/fuzz.py [--seconds 600] [--target onnx]``.

If atheris (libFuzzer) is installed (pip install atheris), coverage guides the mutations; else they are random, and the output says so. Two
targets run at a time and share the seconds. A crash is any exception but an XpuError; a hang takes over 5 s. Inputs that reach new code are
stored in build/fuzz/corpus, crashers in build/fuzz/crashes. After fixing a crasher, add it to tests/fuzz/crashers/<target> as a test.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # for `support`
BUILD = ROOT / "build" / "fuzz"
# Repeated here: importing fuzz_targets before atheris instruments it would disable the guidance.
TARGETS = (
    "onnx",
    "ir-text",
    "ir-json",
    "policy",
    "program",
    "gguf",
    "config",
    "safetensors",
    "npz",
    "review",
    "rules",
    "times",
    "foreign",
)
"""Those of tests/support/fuzz_targets.py, which is imported after atheris has instrumented the package."""


def guided(target: str, seconds: int) -> None:
    """Run libFuzzer on one target. Never returns."""
    import atheris

    # What the seeds import is what the target needs. To instrument the whole package takes three times as long as the gate fuzzes.
    with atheris.instrument_imports(include=["xpuruntime"]):
        from support import fuzz_targets

        for seed in fuzz_targets.seeds(target):
            fuzz_targets.run(target, seed)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        output = (
            fuzz_targets.MUTATORS[target](data, seed)
            if target in fuzz_targets.MUTATORS and seed % 4
            else atheris.Mutate(data, size)
        )
        return output[:size]

    arguments = [
        sys.argv[0],
        str(corpus(target)),
        f"-artifact_prefix={crashes(target)}/",
        f"-max_total_time={seconds}",
    ]
    arguments += [
        f"-timeout={fuzz_targets.LIMIT_S}",
        "-max_len=65536",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, lambda data: fuzz_targets.run(target, data), custom_mutator=mutate)
    atheris.Fuzz()


def unguided(target: str, seconds: int) -> int:
    """Run the same mutations without guidance by coverage. Return the exit code."""
    from support import fuzz_targets

    def hang(*_: object) -> None:
        raise TimeoutError(f"over {fuzz_targets.LIMIT_S} s")

    signal.signal(signal.SIGALRM, hang)
    pool, draw, count = fuzz_targets.seeds(target), random.Random(0), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = draw.choice(pool)
        data = (
            fuzz_targets.MUTATORS[target](data, draw.getrandbits(32))
            if target in fuzz_targets.MUTATORS
            else flipped(data, draw)
        )
        signal.alarm(fuzz_targets.LIMIT_S)
        try:
            fuzz_targets.run(target, data)
        except Exception:
            path = crashes(target) / f"crash-{hashlib.sha1(data).hexdigest()}"
            path.write_bytes(data)
            traceback.print_exc()
            return 1
        finally:
            signal.alarm(0)
        count += 1
    print(f"{target}: {count} inputs without guidance by coverage (atheris is not installed)")
    return 0


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Return the data with a few bytes changed, dropped or repeated."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(3):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del changed[at : at + draw.randint(1, 9)]
            case _:
                changed[at:at] = changed[at : at + draw.randint(1, 30)]
    return bytes(changed)


def corpus(target: str) -> Path:
    """Return the corpus folder of a target, filled with its seeds and with earlier crashers."""
    from support import fuzz_targets

    folder = BUILD / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    old = [p.read_bytes() for p in sorted((ROOT / "tests" / "fuzz" / "crashers" / target).glob("*"))]
    for data in (*fuzz_targets.seeds(target), *old):
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return folder


def crashes(target: str) -> Path:
    folder = BUILD / "crashes" / target
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def one(target: str, seconds: int) -> tuple[str, int, str]:
    command = [sys.executable, __file__, "--target", target, "--seconds", str(seconds), "--here"]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 120, check=False, env=os.environ
    )
    return target, process.returncode, process.stdout + process.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--seconds", type=int, default=600, help="wall-clock seconds for all targets together"
    )
    parser.add_argument("--target", choices=TARGETS, default=None)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        try:
            import atheris  # noqa: F401
        except ImportError:
            return unguided(args.target, args.seconds)
        guided(args.target, args.seconds)
        return 0
    targets = [args.target] if args.target else TARGETS
    rounds = -(-len(targets) // 2)
    failed = False
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for target, code, text in pool.map(lambda t: one(t, max(1, args.seconds // rounds)), targets):
            facts = [
                line
                for line in text.splitlines()
                if "number_of_executed_units" in line or "without guidance" in line
            ]
            print(f"{target}: {'ok' if code == 0 else 'CRASH'} {' '.join(facts)}".strip(), flush=True)
            if code:
                failed = True
                print("\n".join(text.splitlines()[-40:]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
