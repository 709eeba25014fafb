"""Compiled programs for a GPU as plain data, which ``tests/gpu/cuda_cases.py`` runs with CuPy alone, without the CUDA backend.

    python -m support.cuda_cases FOLDER [--nodes STEP]

A case holds the kernel sources, the launches in order, the location of every buffer, the content of inputs and packed weights, and the
expected outputs with their tolerance.
"""

from __future__ import annotations

import argparse
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import Graph, interp
from xpuruntime.numerics import tolerance_for
from xpuruntime.program.program import BufferAllocation, BufferKind, CompiledProgram
from xpuruntime.protocols import Array
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.testing.conformance.native_batch import batch_of
from xpuruntime.types import DType

from .speed_graphs import speed_graphs

__all__ = ["Case", "graph_cases", "node_cases", "pack", "speed_cases"]

Case = dict[str, Any]
_GROUP = 24
"""Number of cases whose sources are compiled together."""


def node_cases(target: str, step: int = 1, group: int = _GROUP) -> Iterator[list[Case]]:
    """Yield the ONNX suite's node cases that compile, in groups."""
    from xpuruntime.testing.conformance.onnx_backend.native import NativeVerdict, _compiled
    from xpuruntime.testing.conformance.onnx_backend.suite import cases

    remaining = iter([*cases("node")][::step])
    while group_cases := list(islice(remaining, group)):
        gathering = batch_of(cuda_target(target))
        compiled = [_compiled(case, gathering, 3) for case in group_cases]
        jobs = [job for item in compiled if not isinstance(item, NativeVerdict) for job in item]
        source = gathering.text()
        yield [
            written(
                j.case.name,
                j.program,
                source,
                j.feeds,
                j.expected,
                j.weights,
                j.case.rtol or 1e-3,
                j.case.atol or 1e-7,
            )
            for j in jobs
        ]


def graph_cases(
    target: str, graphs: Iterable[tuple[str, Graph, Mapping[str, Array], Mapping[str, Array]]]
) -> Iterator[Case]:
    """Yield a case per graph with feeds and weights. The interpreter computes the expected outputs; the tolerance is that of ``numerics``."""
    for name, graph, feeds, weights in graphs:
        gathering = batch_of(cuda_target(target))
        program = compile_graph(graph, target=gathering)
        want = interp.run(graph, feeds, weights=weights)
        source = gathering.text()
        far = max((tolerance_for(DType.of(v.dtype)) for v in want.values()), default=0.0)
        outputs = [want[s.name] for s in program.output_specs]
        yield written(name, program, source, feeds, outputs, weights, max(far, 2e-5), 0.0, peak=True)


def written(
    name: str, program: CompiledProgram, source: str, feeds: Mapping[str, Array], expected: Sequence[Any],
    weights: Mapping[str, Array], rtol: float, atol: float, *, peak: bool = False,
) -> Case:  # fmt: skip
    """Return a program's first plan and its data as a case. ``peak``: the error is relative to the largest value."""
    entry = program.entries[0]
    plan = entry.plans[0]
    recipes = {r.name: r for r in program.recipes}
    states = {s.name: s for s in program.states}
    arrays = {w.name: w.array() for w in program.weights if w.data is not None} | dict(weights)
    data: dict[str, bytes] = {
        b: np.ascontiguousarray(feeds[s.name]).tobytes()
        for b, s in zip(entry.input_buffers, entry.inputs, strict=True)
    }
    for b in plan.buffers:
        if b.kind is BufferKind.WEIGHT and b.root == b.name:
            data[b.name] = np.ascontiguousarray(run_recipe(recipes[b.name], arrays)).tobytes()
        elif b.kind is BufferKind.STATE and b.root == b.name:
            init = states[b.name].init
            initial = run_recipe(recipes[init], arrays) if init else np.zeros(b.size_bytes, np.uint8)
            data[b.name] = np.ascontiguousarray(initial).tobytes()
    return {
        "name": name,
        "source": source,
        "calls": [
            (
                c.symbol,
                [*c.inputs, *c.outputs],
                [(p.type, p.value) for p in c.params],
                dict(c.options),
                c.library,
            )
            for c in plan.calls
        ],
        "buffers": {b.name: (b.kind.value, b.root, b.offset, b.size_bytes) for b in plan.buffers},
        "arena": plan.arena_bytes,
        "data": data,
        "outputs": [
            (b, s.dtype.value, np.asarray(e))
            for b, s, e in zip(entry.output_buffers, entry.outputs, expected, strict=True)
        ],
        "rtol": rtol,
        "atol": atol,
        "peak": peak,
    }


def speed_cases(target: str) -> Iterator[Case]:
    """Yield large graphs of one kernel as cases without data or expected outputs. ``bytes`` is the minimum memory traffic."""
    for name, graph in speed_graphs():
        gathering = batch_of(cuda_target(target))
        plan = compile_graph(graph, target=gathering).entries[0].plans[0]
        yield {
            "name": name,
            "source": gathering.text(),
            "calls": [
                (c.symbol, [*c.inputs, *c.outputs], [], dict(c.options), c.library) for c in plan.calls
            ],
            "buffers": {n.name: _plain(n) for n in plan.buffers},
            "arena": plan.arena_bytes,
            "bytes": sum(c.bytes for c in plan.calls),
        }


def _plain(b: BufferAllocation) -> tuple[str, str, int, int]:
    return b.kind.value, b.root, b.offset, b.size_bytes


def pack(folder: Path, groups: Mapping[str, Sequence[Case]]) -> None:
    """Write one file per group of cases."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in groups.items():
        (folder / f"{name}.pickle").write_bytes(zlib.compress(pickle.dumps(list(cases), protocol=4), 6))


def main() -> None:
    """Write all groups to the folder."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("folder", type=Path)
    parse.add_argument("--nodes", type=int, default=1, help="take every STEP-th node case")
    parse.add_argument("--target", default="cuda:sm_90")
    options = parse.parse_args()
    groups: dict[str, list[Case]] = {
        f"nodes{i:03}": cases for i, cases in enumerate(node_cases(options.target, options.nodes)) if cases
    }
    groups["speed"] = list(speed_cases(options.target))
    groups["networks"] = list(_networks(options.target))
    pack(options.folder, groups)


def _networks(target: str) -> Iterator[Case]:
    import torch

    import xpuruntime as xrt
    from xpuruntime.testing.conformance.seeded import networks as models

    for name in models.MODELS:
        module, _ = models.build(name, "small")
        feeds = [np.ascontiguousarray(v) for v in models.inputs(name, 1, size="small", seed=3).values()]
        tensors = tuple(map(torch.from_numpy, feeds))
        graph = xrt.extract_ir(module, tensors, model_name=name)
        gathering = batch_of(cuda_target(target))
        program = compile_graph(graph, target=gathering)
        arrays = {n: t.detach().numpy() for n, t in (*module.named_parameters(), *module.named_buffers())}
        with torch.inference_mode():
            want = module(*tensors).numpy()
        source = gathering.text()
        inputs = {s.name: v for s, v in zip(program.input_specs, feeds, strict=True)}
        yield written(name, program, source, inputs, [want], arrays, 1e-5, 0.0, peak=True)


if __name__ == "__main__":
    main()
