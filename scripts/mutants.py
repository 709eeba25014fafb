#!/usr/bin/env python3
"""Draw faults of the Python sources, run the gate's tests and all tests on each, and print how many of them each finds.

    scripts/mutants.py --count 20 --seed a
    scripts/mutants.py --sources ir/promotion.py dims.py --tests tests/ir tests/test_types.py

Without ``--tests``, each mutant runs the tests that reach its line, as ``scripts/coverage`` recorded them in build/coverage; a mutant of a
line that no test reaches survives. If only the gate is recorded, its record serves for the full run, too: that one runs the cases
that the gate's sample leaves out of the files that reach the line, and misses files of which the gate runs nothing.
A mutant that all tests miss is printed: it needs a test, or does not change the behavior.
Several mutants run at the same time (``--jobs``), each in a copy of the package in build/mutants; the sources and the environment are
not changed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "xpuruntime"
BUILD = ROOT / "build" / "mutants"
COVERAGE = ROOT / "build" / "coverage"
LEFT_OUT = {"testing"}  # tools for tests
EVERYTHING = "all"  # the seed that leaves no case out
MAX_TESTS = 400  # of one run of a mutant
HANGS = 120  # seconds of one test

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
# An editable install finds its modules before PYTHONPATH does.
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""
# Keeps the tests that a file names, at most so many. Test IDs on the command line would be an error where a mutant renames a case.
PLUGIN = """import json, os

def pytest_collection_modifyitems(config, items):
    with open(os.environ["MUTANT_TESTS"]) as file:
        wanted = json.load(file)
    names, done = set(wanted["tests"]), set(wanted["done"])
    def is_left_out(item):
        return bool(item.get_closest_marker("sampled")) and item.nodeid not in done or "part" in getattr(item, "fixturenames", ())
    kept = [item for item in items if (item.nodeid in names if names else is_left_out(item))]
    items[:] = kept[: wanted["limit"]]
"""


@dataclass(frozen=True)
class Mutant:
    """One change: bytes ``start`` to ``end`` of a file become ``text``."""

    file: Path
    line: int
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        was = self.file.read_bytes()[self.start : self.end].decode()
        return f"{self.file.relative_to(SOURCE)}:{self.line}: {was[:60]!r} -> {self.text[:60]!r}"

    def applied(self) -> bytes:
        data = self.file.read_bytes()
        return data[: self.start] + self.text.encode() + data[self.end :]


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file. Annotations, docstrings and imports for type checkers have none."""
    data = file.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        return Mutant(file, node.lineno, start, end, text)

    def source(node: ast.expr) -> str:
        return f"({ast.get_source_segment(data.decode(), node)})"

    def visit(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                return
            case ast.If(test=test) | ast.IfExp(test=test):
                yield change(test, f"(not {source(test)})")
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                yield change(node, f"({source(left)} {COMPARISONS[type(op)]} {source(right)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                yield change(node, f"({source(left)} {OPERATORS[type(op)]} {source(right)})")
            case ast.BoolOp(op=op, values=values):
                word = " and " if isinstance(op, ast.Or) else " or "
                yield change(node, f"({word.join(map(source, values))})")
            case ast.Constant(value=bool(value)):
                yield change(node, str(not value))
            case ast.Constant(value=int(value)):
                yield change(node, f"({value + 1})")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield change(value, "None")
            case ast.Expr(value=ast.Call()):
                yield change(node, "pass")
            case ast.Raise():
                yield change(node, "pass")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from visit(child)

    yield from visit(ast.parse(data))


def drawn(sources: list[str], count: int, seed: str) -> list[Mutant]:
    """Return mutants drawn by the seed, each of another line. Files are drawn by their size."""
    paths = [SOURCE / name for name in sources]
    files = [f for path in paths for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    pool = [m for f in files if not LEFT_OUT & set(f.relative_to(SOURCE).parts) for m in mutants_of(f)]
    random.Random(seed).shuffle(pool)
    mutants: dict[tuple[Path, int], Mutant] = {}
    for mutant in pool:
        if len(mutants) < count and (mutant.file, mutant.line) not in mutants and compiles(mutant):
            mutants[mutant.file, mutant.line] = mutant
    return list(mutants.values())


def compiles(mutant: Mutant) -> bool:
    """Return True for a mutant that is valid Python and means something else."""
    try:
        return ast.dump(ast.parse(mutant.applied())) != ast.dump(ast.parse(mutant.file.read_bytes()))
    except SyntaxError:
        return False


def package(job: int) -> Path:
    """Return a copy of the package with the sources of this checkout and the installed core, for one worker."""
    tree = BUILD / f"tree{job}"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(SOURCE, tree / "xpuruntime", ignore=shutil.ignore_patterns("__pycache__"))
    core = find_spec("xpuruntime._core")
    assert core is not None
    assert core.origin is not None
    shutil.copy(core.origin, tree / "xpuruntime")
    (tree / "sitecustomize.py").write_text(SITE)
    (tree / "mutant_tests.py").write_text(PLUGIN)
    return tree


@functools.cache
def recorded(run: str) -> CoverageData | None:
    """Return the coverage of a run; None if it was not recorded."""
    from coverage import CoverageData

    if not (COVERAGE / run).is_file():
        return None
    data = CoverageData(str(COVERAGE / run))
    data.read()
    return data


def reaching(mutant: Mutant, run: str) -> list[str]:
    """Return the tests that reach a mutant's line in a recorded run, those of the source's own folder first.

    A line that is only read when the module is imported is reached by every test of that folder.
    """
    data = recorded(run)
    assert data is not None
    path = mutant.file.relative_to(SOURCE)
    own = f"tests/{path.parts[0].removesuffix('.py')}/"
    contexts: set[str] = set()
    for measured in data.measured_files():
        if measured.endswith(f"/{path.as_posix()}"):
            contexts.update(data.contexts_by_lineno(measured).get(mutant.line, ()))
    if contexts == {""}:  # coverage's name for the time before the first test
        folder = own if (ROOT / own).is_dir() else "tests/layout/"
        contexts = {c for c in data.measured_contexts() if c.startswith(folder)}
    tests = sorted({c.rpartition("|")[0] for c in contexts if c})
    tests = [t for t in tests if (ROOT / t.partition("::")[0]).is_file()]
    random.Random(str(mutant)).shuffle(tests)
    return sorted(tests, key=lambda t: not t.startswith(own))


@dataclass(frozen=True)
class Selection:
    """Tests by name; or, without names, the cases that the gate's sample leaves out, except those that are done."""

    tests: list[str]
    done: list[str]
    limit: int = MAX_TESTS


class Outcome(NamedTuple):
    """The result of a run of tests: "found", "missed", "sampled" (missed, and the seed left cases out) or "time"; and the tests that fail."""

    word: str
    failed: tuple[str, ...] = ()


MISSED = Outcome("missed")


def outcome(
    tree: Path,
    seed: str,
    seconds: int,
    paths: list[str],
    selection: Selection | None = None,
    first: bool = True,
) -> Outcome:
    """Run the tests of some files and folders on the package in a tree. first: up to the first test that fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--seed", seed, *paths]
    command += ["-m", "not conformance and not gpu"]
    command += ["--timeout", str(HANGS), "--timeout-method", "thread", *(["-x"] if first else [])]
    variables = environment(tree)
    if selection:
        names = tree / "tests.json"
        names.write_text(json.dumps(asdict(selection)))
        command += ["-p", "mutant_tests"]
        variables["MUTANT_TESTS"] = str(names)
    try:
        process = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome("time")
    text = process.stdout + process.stderr
    if process.returncode == pytest.ExitCode.USAGE_ERROR and "while loading conftest" not in text:
        sys.exit(f"mutants: pytest cannot run\n{text[-3000:]}")
    if process.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return Outcome("found", tuple(re.findall(r"^FAILED (.+?)(?: - .*)?$", text, re.MULTILINE)))
    return Outcome("sampled") if "cases left out" in text else MISSED


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def found_by(tree: Path, mutant: Mutant, args: argparse.Namespace) -> Outcome:
    """Return which run finds a mutant: "gate" (then the full run does, too), "all", "none", or "time" if a run takes too long."""
    run = functools.partial(outcome, tree, seconds=args.seconds)
    if args.tests:
        gate = run(args.gate_seed, paths=args.tests)
        full = run(EVERYTHING, paths=args.tests) if gate.word == "sampled" else gate
    else:
        tests = reaching(mutant, "gate")[:MAX_TESTS]
        gate = run(args.gate_seed, paths=files_of(tests), selection=Selection(tests, [])) if tests else MISSED
        if gate.word == "found":
            full = gate
        elif recorded("all"):
            rest = [test for test in reaching(mutant, "all") if test not in set(tests)][:MAX_TESTS]
            full = run(EVERYTHING, paths=files_of(rest), selection=Selection(rest, [])) if rest else MISSED
        else:
            full = run(EVERYTHING, paths=files_of(tests), selection=Selection([], tests)) if tests else MISSED
    if gate.word == "found":
        return Outcome("gate", gate.failed)
    if full.word == "found":
        return Outcome("all", full.failed)
    return Outcome("time" if "time" in (gate.word, full.word) else "none")


def check_unchanged(tree: Path, tests: set[str], args: argparse.Namespace) -> None:
    """Exit if a test that found a mutant fails on the sources as they are."""
    names = sorted(tests)
    run = outcome(tree, EVERYTHING, args.seconds, files_of(names), Selection(names, []), first=False)
    if names and run.word in ("found", "time"):
        failed = "\n".join(run.failed)
        sys.exit(f"mutants: these tests fail on the sources as they are, so the figures are wrong.\n{failed}")


def files_of(tests: list[str]) -> list[str]:
    """Return the files of tests, each once."""
    return list(dict.fromkeys(t.partition("::")[0] for t in tests))


def judged(trees: queue.Queue[Path], mutant: Mutant, args: argparse.Namespace) -> Outcome:
    """Apply a mutant to a free copy of the package, and return which run finds it."""
    tree = trees.get()
    target = tree / mutant.file.relative_to(SOURCE.parent)
    target.write_bytes(mutant.applied())
    try:
        return found_by(tree, mutant, args)
    finally:
        shutil.copy(mutant.file, target)
        trees.put(tree)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> int:
    """Draw, run and print. Exit with 1 if the gate finds less than its share."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", default="mutants", help="of the draw of mutants")
    parser.add_argument("--gate-seed", default="commit", help="of the gate's sample of tests")
    parser.add_argument("--sources", nargs="+", default=["."], help="files and folders below src/xpuruntime")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=[],
        help="tests of each mutant, in place of those that coverage recorded",
    )
    parser.add_argument("--jobs", type=int, default=cores(), help="mutants at the same time; default: cores")
    parser.add_argument("--seconds", type=int, default=600, help="for one run of tests")
    parser.add_argument(
        "--share", type=float, default=0.95, help="of the full run's mutants, that the gate must find"
    )
    args = parser.parse_args()
    if not args.tests and not recorded("gate"):
        sys.exit("mutants: no recorded coverage. Run scripts/coverage first, or name --tests.")
    if not args.tests and not recorded("all"):
        print(
            "Only the gate is recorded: the full run is the cases that the gate leaves out of the files that reach a line."
        )
    trees: queue.Queue[Path] = queue.Queue()
    for job in range(args.jobs):
        trees.put(package(job))
    killers: set[str] = set()
    counts = dict.fromkeys(("gate", "all", "none", "time"), 0)
    mutants = drawn(args.sources, args.count, args.seed)
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = {pool.submit(judged, trees, mutant, args): mutant for mutant in mutants}
        for number, run in enumerate(as_completed(runs), 1):
            found, failed = run.result()
            counts[found] += 1
            killers.update(failed)
            print(f"{number:3}/{len(mutants)} {found:4} {runs[run]}  {' '.join(failed)}".rstrip(), flush=True)
    check_unchanged(trees.get(), killers, args)
    gate, full = counts["gate"], counts["gate"] + counts["all"]
    share = gate / full if full else 1.0
    print(
        f"{len(mutants)} mutants: the gate finds {gate}, all tests {full}; the gate finds {share:.1%} of what all tests find; "
        f"{counts['time']} took more than {args.seconds} s"
    )
    return 0 if share >= args.share else 1


if __name__ == "__main__":
    sys.exit(main())
