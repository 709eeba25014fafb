#!/usr/bin/env python3
"""Draw faults of the Python sources, run the gate's tests and all tests on each, and print how many of them each finds.

    scripts/mutants.py --count 20 --seed a
    scripts/mutants.py --sources ir/promotion.py dims.py --tests tests/ir tests/test_types.py

Without ``--tests``, each mutant runs the tests that reach its line, as ``scripts/coverage`` recorded them in build/coverage; a mutant of a
line that no test reaches survives. A mutant that all tests miss is printed: it needs a test, or does not change the behavior.
Mutants are copies of the package in build/mutants; the sources and the environment are not changed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "xpuruntime"
BUILD = ROOT / "build" / "mutants"
COVERAGE = ROOT / "build" / "coverage"
LEFT_OUT = {"testing"}  # tools for tests
MAX_TESTS = 400  # of one mutant

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


def package() -> Path:
    """Return a copy of the installed package, its libraries included, with the sources of this checkout."""
    tree = BUILD / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(SOURCE, tree / "xpuruntime", ignore=shutil.ignore_patterns("__pycache__"))
    core = find_spec("xpuruntime._core")
    assert core is not None
    assert core.origin is not None
    shutil.copy(core.origin, tree / "xpuruntime")
    (tree / "sitecustomize.py").write_text(SITE)
    return tree


def reaching(mutant: Mutant, run: str) -> list[str] | None:
    """Return the tests that reach a mutant's line in a recorded run; None for a line that is read when the module is imported."""
    from coverage import CoverageData

    data = CoverageData(str(COVERAGE / run))
    data.read()
    end = str(mutant.file.relative_to(SOURCE.parent))
    tests: list[str] = []
    for measured in data.measured_files():
        if measured.endswith(end):
            tests += data.contexts_by_lineno(measured).get(mutant.line, [])
    names = sorted({t.partition("|")[0] for t in tests if t})
    return names if names or "" not in tests else None


def killed(tree: Path, tests: list[str], seed: str, seconds: int) -> tuple[bool, bool]:
    """Return whether a test fails on the package in a folder, and whether the seed left cases out. A run over time counts as failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--seed", seed]
    command += ["-m", "not conformance and not gpu and not serial", *tests]
    try:
        process = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(tree),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, True
    if process.returncode not in (0, 1, 2, 3, 5):
        sys.exit(
            f"mutants: pytest ended with {process.returncode}\n{process.stdout[-3000:]}{process.stderr[-3000:]}"
        )
    return process.returncode not in (0, 5), "cases left out" in process.stdout


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def found_by(tree: Path, mutant: Mutant, args: argparse.Namespace) -> dict[str, bool]:
    """Return whether the gate and the full run find a mutant."""
    result: dict[str, bool] = {}
    for run, seed in (("gate", args.gate_seed), ("all", "all")):
        tests = args.tests or reaching(mutant, run)
        if tests is None:
            tests = ["tests/" + mutant.file.relative_to(SOURCE).parts[0].removesuffix(".py")]
            tests = [t for t in tests if (ROOT / t).is_dir()] or ["tests/layout"]
        tests = random.Random(seed).sample(tests, min(MAX_TESTS, len(tests)))
        hit, sampled = killed(tree, tests, seed, args.seconds) if tests else (False, False)
        result[run] = hit
        # The full run includes the gate's tests. It has no others if the seed left none out.
        if run == "gate" and (hit or (args.tests and not sampled)):
            return {"gate": hit, "all": hit}
    return result


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
    parser.add_argument("--seconds", type=int, default=600, help="for one run of tests")
    parser.add_argument(
        "--share", type=float, default=0.95, help="of the full run's mutants, that the gate must find"
    )
    args = parser.parse_args()
    if not args.tests and not all((COVERAGE / run).is_file() for run in ("gate", "all")):
        sys.exit("mutants: no recorded coverage. Run scripts/coverage first, or name --tests.")
    tree = package()
    if args.tests and killed(tree, args.tests, "all", args.seconds)[0]:
        sys.exit("mutants: the tests fail on the sources as they are.")
    counts = {"gate": 0, "all": 0}
    mutants = drawn(args.sources, args.count, args.seed)
    for mutant in mutants:
        target = tree / mutant.file.relative_to(SOURCE.parent)
        target.write_bytes(mutant.applied())
        try:
            result = found_by(tree, mutant, args)
        finally:
            shutil.copy(mutant.file, target)
        for run, hit in result.items():
            counts[run] += hit
        killer = "gate" if result["gate"] else "all" if result["all"] else "none"
        print(f"{killer:5} {mutant}", flush=True)
    share = counts["gate"] / counts["all"] if counts["all"] else 1.0
    print(
        f"{len(mutants)} mutants: the gate finds {counts['gate']}, all tests {counts['all']}; "
        f"the gate finds {share:.1%} of what all tests find"
    )
    return 0 if share >= args.share else 1


if __name__ == "__main__":
    sys.exit(main())
