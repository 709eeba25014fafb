"""The specification's Python blocks, with the names of its packages mapped and nothing else changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.ir import Graph, GraphBuilder

SPEC = Path(__file__).parent / "spec"
_FILES = {
    "design": "gpukit_design_specification.md",
    "architecture": "xpuruntime_architecture.md",
    "readme": "npu_simulation_readme.md",
    "guide": "backend_porting_guide.md",
}
_PACKAGES = re.compile(r"\b(gpukit|npu_compiler\.compiled_program|npu_compiler|npu_runtime|torch_ir)\b")
_PART = re.compile(
    r"^#+ (?:(Step \d)|(\d[\d.a-z]*?)\.?)[: ][^\n]*$|^\*\*(\w+)\*\*[^\n]*:$|^```python\n(.*?)^```$",
    re.M | re.S,
)


def mapped(text: str) -> str:
    """A block with the specification's packages as ours."""
    return _PACKAGES.sub("xpuruntime", text)


def blocks() -> dict[str, str]:
    """``design 7.3``, ``readme 3a``, ``guide Step 4 Executor`` -> the block, mapped."""
    found: dict[str, str] = {}
    for document, file in _FILES.items():
        heading = label = ""
        for step, number, word, code in _PART.findall((SPEC / file).read_text(encoding="utf-8")):
            if step or number:
                heading, label = step or number, ""
            elif word:
                label = word
            else:
                key = " ".join(filter(None, (document, heading, label)))
                assert key not in found, key
                found[key] = mapped(code)
    return found


BLOCKS = blocks()


def linear_graph(name: str = "input") -> Graph:
    """A small model with one input of that name, as the compiler's examples expect it."""
    b = GraphBuilder("guide")
    x = b.input(name, "float32[4, 16]")
    b.output("output", b.relu(b.linear(x, b.weight("w", "float32[8, 16]"))))
    return b.build()


def arrays(graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    """Seeded feeds and weights of a graph."""
    rng = np.random.default_rng(2)

    def array(spec: Any) -> Any:
        return rng.standard_normal([int(d) for d in spec.shape], np.float32)

    return {s.name: array(s) for s in graph.input_specs}, {w.name: array(w.spec) for w in graph.weights}
