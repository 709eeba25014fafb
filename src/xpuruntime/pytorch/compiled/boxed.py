"""boxed: a graph as a function of a list that it empties, so that a tensor's memory is free after its last reader.

A caller of a plain function keeps all arguments until it returns. Backward would keep every value of forward until its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import CodeGen

from ..deterministic import library_obeys
from ..numbered_policies import NumberedPolicy

__all__ = ["boxed"]


class _ListArguments(CodeGen):  # type: ignore[misc]  # PyTorch is untyped here
    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **more: Any) -> str:
        """Return the head of the graph's function: it takes its arguments out of a list."""
        names = [v.partition(":")[0].partition("=")[0].strip() for v in free_vars if v != "self"]
        lines = [f"def {self._func_name}(self, arguments){maybe_return_annotation}:"]
        if names:
            lines += [f"    {', '.join(names)}, = arguments", "    arguments.clear()"]
        return "\n".join(lines)


def boxed(module: GraphModule, numbered: Callable[[], NumberedPolicy]) -> Callable[[list[Any]], Any]:
    """Return the function of a graph module as PyTorch's autograd calls it. The module's own function changes.

    numbered: returns the numbered of a call.
    """
    module.graph.set_codegen(_ListArguments())
    module.recompile()

    def run(arguments: list[Any]) -> Any:
        with library_obeys(numbered()):
            return module.forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # PyTorch's mark of such a function
    return run
