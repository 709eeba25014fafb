"""PyTorch's samples of its ops on the native engine: each is a graph of one node, compiled and run.

    python -m xpuruntime.testing.conformance.opinfo.native [--limit 6] [--dtypes float32,int64] [NAME ...]

A sample without a supporting kernel is refused with its reason. A wrong answer, or code that does not compile, fails the run.
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
from . import BRIDGES, LOOSE, NotComparable, OpInfoCall, calls, disagreement, graph_of

__all__ = ["DTYPES", "Sampled", "check_samples", "drawn", "main"]

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")


@dataclass(frozen=True)
class Sampled:
    """The outcome of a sample: ``right``, ``wrong`` or ``refused``, and why."""

    name: str
    dtype: str
    op: str
    outcome: str
    why: str = ""
    kernel: str = ""


def check_samples(
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
    """Yield a verdict per sample that is a call of one of our ops. ``limit``: samples per variant and dtype; ``device``: runs the
    target's programs; ``batch``: samples compiled together, ``jobs`` batches at once; ``lacking``: as for ``drawn``.
    """
    samples = drawn(names, dtypes, limit, lacking)
    for (name, dtype, call), prepared, programs in in_batches(
        samples, lambda s, gathering: _compiled(s[2], gathering), _programs, target, size=batch, jobs=jobs
    ):
        if isinstance(prepared, tuple):
            yield Sampled(name, dtype, call.op, *prepared)
            continue
        try:
            wrong = _wrong(call, programs[0], LOOSE.get((name, dtype), ())[:2], device, threads)
        except KernelRefused as error:  # a target named in full, whose libraries were not queried before
            yield Sampled(name, dtype, call.op, "refused", why_refused(error))
            continue
        kernel = ", ".join(dict.fromkeys(c.kernel for c in prepared.entries[0].plans[0].calls))
        why = f"{wrong}: {call.sample} as {dict(call.attrs)}" if wrong else ""
        yield Sampled(name, dtype, call.op, "wrong" if wrong else "right", why, kernel)


def drawn(
    names: Iterable[str] = tuple(BRIDGES),
    dtypes: Sequence[str] = DTYPES,
    limit: int | None = 6,
    lacking: MutableMapping[str, str] | None = None,
) -> Iterator[tuple[str, str, OpInfoCall]]:
    """Yield entry, dtype and call of each sample that is a call of one of our ops.

    lacking: collects entries without samples in this PyTorch, or whose samples it cannot make, with the reason. Without it they raise errors.
    PyTorch releases differ in names, variants and dtypes.
    """
    for name in names:
        for dtype in dtypes:
            try:
                for call in calls(name, dtype, limit):
                    if not isinstance(call, NotComparable):
                        yield name, dtype, call
            except Exception as error:  # an error in PyTorch's own code
                if lacking is None:
                    raise
                lacking.setdefault(name, f"{type(error).__name__}: {error}"[:200])


def _programs(prepared: CompiledProgram | tuple[str, str]) -> list[CompiledProgram]:
    return [prepared] if isinstance(prepared, CompiledProgram) else []


def _compiled(call: OpInfoCall, target: Batch) -> CompiledProgram | tuple[str, str]:
    try:
        return compile_graph(graph_of(call), target=target, passes=0)
    except XpuError as error:
        return "refused", why_refused(error)
    except Exception as error:  # a defect of the compiler is a finding and does not stop the suite
        return "wrong", f"{type(error).__name__}: {error}: {call.sample} as {dict(call.attrs)}"


def _wrong(
    call: OpInfoCall, program: CompiledProgram | BuildError, tolerance: Any, device: Any, threads: int
) -> str:
    if isinstance(program, BuildError):
        return f"does not compile: {program}"
    try:
        with Executor(program, device, threads=threads) as executor:
            executor.bind({})
            outputs = executor.run_arrays(
                [np.array(o, order="C") for o in call.operands if isinstance(o, np.ndarray)]
            )
    except KernelRefused:
        raise
    except XpuError as error:
        return str(error)
    for number, (actual, expected) in enumerate(zip(outputs, call.want, strict=True)):
        difference = disagreement(np.asarray(actual), expected, tolerance or None)
        if difference:
            return f"result {number} {difference}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print counts; return 1 if a sample is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m xpuruntime.testing.conformance.opinfo.native", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="entries of the OpInfo bridges; all without one")
    parser.add_argument("--limit", type=int, default=6, help="samples of each variant and dtype; 0: all")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    options = parser.parse_args(arguments)
    lacking: dict[str, str] = {}
    names, dtypes = options.names or tuple(BRIDGES), options.dtypes.split(",")
    samples = list(check_samples(names, dtypes, options.limit or None, lacking=lacking))
    count = Counter(s.outcome for s in samples)
    ops = {s.op for s in samples if s.outcome == "right"}
    print(
        f"{len(samples)} samples: {dict(count)}; {len(ops)} of {len({s.op for s in samples})} ops have a kernel"
    )
    for reason, n in Counter(s.why for s in samples if s.outcome == "refused").most_common(60):
        print(f"  {n:5d}  {reason}")
    for name, why in lacking.items():
        print(f"not run: {name}: {why}")
    for sampled in samples:
        if sampled.outcome == "wrong":
            print(f"WRONG {sampled.name} {sampled.dtype} by {sampled.kernel}: {sampled.why}")
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
