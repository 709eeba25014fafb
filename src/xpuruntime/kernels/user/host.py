"""Kernels that are Python functions: calls of the library ``python``, which the runtime answers with what is registered in its process.

A program names such a function and the digest of its code; it does not travel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.target import CodegenTarget
from ..kernel import LoweredCall, NodeCall, Operand, Stage
from .kernel import arguments_of, plain_attrs, specs_of

if TYPE_CHECKING:
    from .kernel import UserKernel

__all__ = ["HostBody"]


@dataclass(frozen=True, slots=True)
class HostBody:
    """A function by the name under which it is registered (``softmax/mine@cpu``) and the digest of its code."""

    function: str
    digest: str

    def refuses(self, call: NodeCall, target: CodegenTarget) -> str:
        """Return why attributes that are graphs or tensors are refused: they have no plain form."""
        plain = plain_attrs(call)
        odd = [name for name in call.attrs if name not in plain]
        return f"its attribute {odd[0]} is nothing that a Python function is handed" if odd else ""

    def lower(self, kernel: UserKernel, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one call; ``options`` describes how operands and attributes are passed."""
        place = iter(range(len(call.tensors)))
        operands = [{"buffer": next(place)} if isinstance(i, Operand) else i for i in call.inputs]
        how = {"operands": operands, "attrs": plain_attrs(call), "results": len(call.outputs)}
        stage = Stage(
            stem=self.function,
            source="",
            args=tuple(name for name, _, _ in arguments_of(call)),
            library="python",
            options={"digest": self.digest, "kernel": kernel.name, "call": json.dumps(how, sort_keys=True)},
            bytes=sum(s.size_bytes or 0 for s in specs_of(call)),
        )
        return LoweredCall((stage,), accumulates=kernel.accumulates, deterministic=bool(kernel.deterministic))
