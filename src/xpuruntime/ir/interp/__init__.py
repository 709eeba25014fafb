"""The reference interpreter: runs any graph with NumPy and ml_dtypes. Tests compare with it, so exactness comes before speed.

    from xpuruntime.ir import interp
    outputs = interp.run(graph, {"x": array}, weights={"w": array})     # by output name
    values = interp.trace(graph, feeds, weights=...)                     # every value in the graph, by name
    (y,) = interp.evaluate(node, {"x": array})                           # one node
    (y,) = interp.apply("softmax", array, dim=-1)                        # one op

There is one file per op family, one function per op, and one table (``RULES``). ``numbers`` documents rounding.
"""

from __future__ import annotations

from .evaluate import RULES, apply, evaluate, run, trace
from .rule import InterpRule

__all__ = ["RULES", "InterpRule", "apply", "evaluate", "run", "trace"]
