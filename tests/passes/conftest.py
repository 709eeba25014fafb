"""What tests of passes share: a golden comparison of graphs as text that also runs both graphs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from support.graph_equivalence import difference

from xpuruntime import ir
from xpuruntime.passes import find_passes


def lines(graph: ir.Graph) -> str:
    """The nodes as text, names of weights and inputs included, sources not."""
    return "\n".join(part.split("  #")[0] for n in graph.nodes for part in str(n).splitlines())


@pytest.fixture
def golden() -> Callable[..., ir.Graph]:
    """``golden(name, before, after)``: the pass turns one text into the other, again changes nothing, and both compute the same."""

    def check(name: str, before: str, after: str, *, tolerance: float | None = None) -> ir.Graph:
        (step,) = find_passes([name])
        graph = ir.parse(f'graph "test" {{\n{textwrap.dedent(before)}\n}}')
        result = step.run(graph, None)
        ir.verify(result)
        assert lines(result) == textwrap.dedent(after).strip()
        assert step.run(result, None) == result
        static = ir.specialize(graph, dict.fromkeys(graph.symbols, 3))
        assert (
            difference(static, ir.specialize(result, dict.fromkeys(graph.symbols, 3)), tolerance=tolerance)
            == ""
        )
        sources = {s for n in graph.nodes for s in n.sources}
        assert {s for n in result.nodes for s in n.sources} <= sources
        return result

    return check
