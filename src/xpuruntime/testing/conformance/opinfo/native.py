"""PyTorch's own samples of its ops on the native engine: each sample a graph of one node, compiled to a kernel of ours and run.

    python -m xpuruntime.testing.conformance.opinfo.native [--limit 6] [--dtypes float32,int64] [NAME ...]

A sample that no kernel takes is refused with its reason; a wrong answer, or code that does not compile, fails the run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....codegen.target import CodegenTarget
from ....compiler import compile as compile_graph
from ....errors import BuildError, KernelRefused, XpuError
from ....program.program import CompiledProgram
from ....runtime import Executor
from ..native_batch import Batch, in_batches, why_refused
from . import BRIDGES, LOOSE, Call, Unfit, calls, disagreement, graph_of

__all__ = ["DTYPES", "Sampled", "drawn", "judge_samples", "main"]

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")


@dataclass(frozen=True)
class Sampled:
    """What became of a sample: ``right``, ``wrong`` or ``refused``, and why."""

    name: str
    dtype: str
    op: str
    outcome: str
    why: str = ""
    kernel: str = ""


def judge_samples(
    names: Iterable[str] = tuple(BRIDGES),
    dtypes: Sequence[str] = DTYPES,
    limit: int | None = 6,
    *,
    target: str | CodegenTarget = "cpu",
    device: Any = "cpu",
    batch: int = 250,
    jobs: int = 1,
    threads: int = 1,
    lacking: MutableMapping[str, str] | None = None,
) -> Iterator[Sampled]:
    """A judgment per sample that is a call of one of our ops. ``limit``: samples per variant and dtype; ``device``: what runs the
    target's programs; ``batch``: samples that are compiled together, ``jobs`` batches at once; ``lacking``: as ``drawn`` has it.
    """
    samples = drawn(names, dtypes, limit, lacking)
    for (name, dtype, call), made, built in in_batches(
        samples, lambda s, gathering: _compiled(s[2], gathering), _programs, target, size=batch, jobs=jobs
    ):
        if isinstance(made, tuple):
            yield Sampled(name, dtype, call.op, *made)
            continue
        try:
            wrong = _wrong(call, built[0], LOOSE.get((name, dtype), ())[:2], device, threads)
        except KernelRefused as error:  # nobody asked the libraries of a target that is named in full
            yield Sampled(name, dtype, call.op, "refused", why_refused(error))
            continue
        kernel = ", ".join(dict.fromkeys(c.kernel for c in made.entries[0].plans[0].calls))
        shown = f"{wrong}: {call.sample} as {dict(call.attrs)}" if wrong else ""
        yield Sampled(name, dtype, call.op, "wrong" if wrong else "right", shown, kernel)


def drawn(
    names: Iterable[str] = tuple(BRIDGES),
    dtypes: Sequence[str] = DTYPES,
    limit: int | None = 6,
    lacking: MutableMapping[str, str] | None = None,
) -> Iterator[tuple[str, str, Call]]:
    """Entry, dtype and call of each sample that is a call of one of our ops.

    lacking: takes the entries that this PyTorch has no samples of, or whose samples it cannot make, and why; without it they are errors. Its
    releases differ in names, variants and dtypes.
    """
    for name in names:
        for dtype in dtypes:
            try:
                for call in calls(name, dtype, limit):
                    if not isinstance(call, Unfit):
                        yield name, dtype, call
            except Exception as error:  # PyTorch's own code, of any release
                if lacking is None:
                    raise
                lacking.setdefault(name, f"{type(error).__name__}: {error}"[:200])


def _programs(made: CompiledProgram | tuple[str, str]) -> list[CompiledProgram]:
    return [made] if isinstance(made, CompiledProgram) else []


def _compiled(call: Call, target: Batch) -> CompiledProgram | tuple[str, str]:
    try:
        return compile_graph(graph_of(call), target=target, passes=0)
    except XpuError as error:
        return "refused", why_refused(error)
    except Exception as error:  # a defect of the compiler is a wrong answer to the judge, not its end
        return "wrong", f"{type(error).__name__}: {error}: {call.sample} as {dict(call.attrs)}"


def _wrong(
    call: Call, program: CompiledProgram | BuildError, tolerance: Any, device: Any, threads: int
) -> str:
    if isinstance(program, BuildError):
        return f"does not compile: {program}"
    try:
        with Executor(program, device, threads=threads) as executor:
            executor.bind({})
            got = executor.run_arrays(
                [np.array(o, order="C") for o in call.operands if isinstance(o, np.ndarray)]
            )
    except KernelRefused:
        raise
    except XpuError as error:
        return str(error)
    for number, (mine, theirs) in enumerate(zip(got, call.want, strict=True)):
        said = disagreement(np.asarray(mine), theirs, tolerance or None)
        if said:
            return f"result {number} {said}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print counts; 1 when a sample is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m xpuruntime.testing.conformance.opinfo.native", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="entries of the OpInfo bridges; all without one")
    parser.add_argument("--limit", type=int, default=6, help="samples of each variant and dtype; 0: all")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    asked = parser.parse_args(arguments)
    lacking: dict[str, str] = {}
    names, dtypes = asked.names or tuple(BRIDGES), asked.dtypes.split(",")
    found = list(judge_samples(names, dtypes, asked.limit or None, lacking=lacking))
    count = Counter(s.outcome for s in found)
    ops = {s.op for s in found if s.outcome == "right"}
    print(
        f"{len(found)} samples: {dict(count)}; {len(ops)} of {len({s.op for s in found})} ops have a kernel"
    )
    for reason, n in Counter(s.why for s in found if s.outcome == "refused").most_common(60):
        print(f"  {n:5d}  {reason}")
    for name, why in lacking.items():
        print(f"not run: {name}: {why}")
    for sampled in found:
        if sampled.outcome == "wrong":
            print(f"WRONG {sampled.name} {sampled.dtype} by {sampled.kernel}: {sampled.why}")
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
