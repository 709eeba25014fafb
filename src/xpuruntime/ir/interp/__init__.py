"""The interpreter: runs any graph with NumPy and ml_dtypes alone. It is the oracle of every test, so it is exact before fast.

    from xpuruntime.ir import interp
    outputs = interp.run(graph, {"x": array}, weights={"w": array})     # by output name
    values = interp.trace(graph, feeds, weights=...)                     # every value in the graph, by name
    (y,) = interp.evaluate(node, {"x": array})                           # one node
    (y,) = interp.apply("softmax", array, dim=-1)                        # one op

One file per op family, one function per op, one table (``RULES``). The rule of rounding is told in ``numbers``.
"""

from __future__ import annotations

from .evaluate import apply, evaluate
from .rule import Rule
from .run import run, trace
from .table import RULES

__all__ = ["RULES", "Rule", "apply", "evaluate", "run", "trace"]
