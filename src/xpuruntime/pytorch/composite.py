"""PyTorch's functions that are written in Python, such as ``F.multi_head_attention_forward`` and ``Tensor.backward``.

Such a function first asks for modes, and calls itself again under them. PyTorch takes a mode off while it handles a function, so a mode would not see
the calls inside. ``without_check`` returns the function without the question, to be called with the mode on.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["leave_to_python", "without_check"]

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class _Globals(dict[str, Any]):
    """The globals of a function, in which no mode and no subclass of Tensor is found."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(dict.fromkeys(_CHECKS, _nothing), __builtins__=names["__builtins__"])
        self._names = names

    def __missing__(self, name: str) -> Any:
        return self._names[name]


def _nothing(*_: Any) -> bool:
    return False


_codes: list[types.CodeType] = []


@functools.lru_cache(maxsize=1024)
def without_check(function: Any) -> Callable[..., Any] | None:
    """Return the function without its check for modes; None for one that is not written in Python, or that checks nothing."""
    if type(function) is not types.FunctionType or not set(_CHECKS) & set(function.__code__.co_names):
        return None
    code = function.__code__.replace()  # a copy, which PyTorch's compiler can be told to leave alone
    names = _Globals(function.__globals__)
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    _codes.append(code)
    leave_to_python()
    return copy


def leave_to_python(*codes: types.CodeType) -> None:
    """Have ``torch.compile`` leave these frames, and those of all copies, to Python, if PyTorch's compiler is loaded.

    Where a module's frame runs eagerly after a graph break, each of them would otherwise become a graph of its own, up to PyTorch's limit.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None:
        for code in (*codes, *_codes):
            compiler.skip_code(code)
