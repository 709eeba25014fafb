"""Triangular systems of gated delta rules, exported as PyTorch computes them in eval mode.

The gated delta rules of transformers call ``torch.linalg.solve_triangular``, except during an export: then they substitute rows one after
another, in about 600 nodes per layer, because not every target of an export has a solver. The IR has one.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

__all__ = ["solves_as_in_eval"]

_QUESTION = "is_torchdynamo_exporting"
"""The function of transformers that says if an export is going on."""
_SOLVER = "solve_triangular"


@contextlib.contextmanager
def solves_as_in_eval(model: Any) -> Iterator[None]:
    """Have functions of the model's files that solve triangular systems except in an export solve them, in calls of this thread.

    The caller holds the lock of exports. Other functions of these files get the true answer.
    """
    replaced: list[tuple[ModuleType, Callable[[], bool], Callable[[], bool]]] = []
    try:
        for file in _files(model):
            functions = _solving(file)
            if functions:
                original = getattr(file, _QUESTION)
                answer = _answer(original, functions, threading.get_ident())
                replaced.append((file, original, answer))
                setattr(file, _QUESTION, answer)
        yield
    finally:
        for file, original, answer in replaced:
            if getattr(file, _QUESTION, None) is answer:
                setattr(file, _QUESTION, original)


def _files(model: Any) -> list[ModuleType]:
    """Return the Python modules with the question that define the model's layers, or classes that these are derived from."""
    names = dict.fromkeys(c.__module__ for layer in model.modules() for c in type(layer).__mro__)
    files = (sys.modules.get(name) for name in names)
    return [file for file in files if file is not None and callable(vars(file).get(_QUESTION))]


def _solving(file: ModuleType) -> frozenset[CodeType]:
    """Return the code of the functions of a file that both ask and solve."""
    codes = set()
    for value in list(vars(file).values()):
        if inspect.isroutine(value) or hasattr(value, "__wrapped__"):
            code = getattr(_unwrapped(value), "__code__", None)
            if code is not None and {_QUESTION, _SOLVER} <= set(code.co_names):
                codes.add(code)
    return frozenset(codes)


def _unwrapped(function: Any) -> Any:
    try:
        return inspect.unwrap(function)
    except ValueError:  # a cycle
        return function


def _answer(original: Callable[[], bool], solving: frozenset[CodeType], thread: int) -> Callable[[], bool]:
    """Return the question with the answer no for functions that solve."""

    def is_torchdynamo_exporting() -> bool:
        asks = sys._getframe(1).f_code
        if threading.get_ident() == thread and asks in solving:
            return False
        return original()

    return is_torchdynamo_exporting
