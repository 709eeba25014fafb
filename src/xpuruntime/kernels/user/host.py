"""Users' kernels that are Python functions: calls of the library ``python``, which the runtime resolves among its process's registered functions.

A program stores the function's name and the digest of its code, but not the function.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...codegen.target import CodegenTarget
from ...ir import OPS
from ..kernel import LoweredCall, NodeCall, Operand, Stage
from .kernel import arguments_of, plain_attrs, specs_of

if TYPE_CHECKING:
    from .kernel import UserKernel

__all__ = ["HostBody"]


@dataclass(frozen=True, slots=True)
class HostBody:
    """A function: the name under which it is registered (``softmax/mine@cpu``) and the digest of its code.

    keywords: the names that it takes; None: any.
    """

    function: str
    digest: str
    keywords: frozenset[str] | None = None

    @classmethod
    def of(cls, name: str, digest: str, function: Callable[..., Any]) -> HostBody:
        """Return the body of a Python function."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a function of C without a signature
            return cls(name, digest)
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        return cls(name, digest, None if takes_any else frozenset(p.name for p in parameters))

    def refuses(self, call: NodeCall, target: CodegenTarget) -> str:
        """Return why the node is refused: an attribute that is a graph or a tensor cannot be passed to Python."""
        plain = plain_attrs(call)
        unsupported = [name for name in call.attrs if name not in plain]
        return f"attribute {unsupported[0]} cannot be passed to a Python function" if unsupported else ""

    def lower(self, kernel: UserKernel, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one call. ``options`` describes how operands and attributes are passed."""
        buffer = iter(range(len(call.tensors)))
        operands = [{"buffer": next(buffer)} if isinstance(i, Operand) else i for i in call.inputs]
        call_format = {"operands": operands, "attrs": self._attrs(call), "results": len(call.outputs)}
        stage = Stage(
            stem=self.function,
            source="",
            args=tuple(name for name, _, _ in arguments_of(call)),
            library="python",
            options={
                "digest": self.digest,
                "kernel": kernel.name,
                "call": json.dumps(call_format, sort_keys=True),
            },
            bytes=sum(s.size_bytes or 0 for s in specs_of(call)),
        )
        return LoweredCall(
            (stage,),
            accumulates=kernel.accumulates,
            deterministic=bool(kernel.deterministic),
            batch_invariant=False,
        )

    def _attrs(self, call: NodeCall) -> dict[str, object]:
        """Return the attributes to pass. One that has its default is left out if the function does not take it: it may be newer than the function."""
        attrs, known = plain_attrs(call), self.keywords
        if known is None or call.op not in OPS:
            return attrs
        defaults = OPS[call.op].attrs
        return {
            name: value
            for name, value in attrs.items()
            if name in known
            or name not in defaults
            or defaults[name].required
            or call.attrs[name] != defaults[name].default
        }
