"""Step 5: compile for the edge accelerator and run on it; the interpreter says whether it is right."""

from __future__ import annotations

import numpy as np

from xpuruntime.compiler import compile as compile_program
from xpuruntime.ir import Graph, GraphBuilder, interp

from .edge_backend import EdgeBackend
from .edge_target import EdgeTarget


def classifier() -> Graph:
    """Two linear layers and a softmax."""
    b = GraphBuilder("classifier")
    x = b.input("input", "float32[4, 16]")
    hidden = b.relu(b.linear(x, b.weight("w1", "float32[32, 16]"), b.weight("b1", "float32[32]")))
    logits = b.linear(hidden, b.weight("w2", "float32[10, 32]"), b.weight("b2", "float32[10]"))
    b.output("output", b.softmax(logits, dim=-1))
    return b.build()


def main() -> None:
    graph = classifier()
    rng = np.random.default_rng(0)
    weights = {w.name: rng.standard_normal([int(d) for d in w.spec.shape], np.float32) for w in graph.weights}
    x = rng.standard_normal((4, 16), np.float32)

    program = compile_program(graph, target=EdgeTarget())
    backend = EdgeBackend()
    executor = backend.create_executor(program)
    outputs = executor.run({"input": x}, weights=weights)

    output = outputs["output"].to_numpy(spec=program.output_specs[0])
    expected = interp.run(graph, {"input": x}, weights=weights)["output"]
    print(*(c.symbol for c in executor.plan.calls), sep="\n")
    print(f"max|d|/max|ref| = {np.abs(output - expected).max() / np.abs(expected).max():.1e}")


if __name__ == "__main__":
    main()
