"""A module and its example inputs from ``FILE.py:FUNCTION``, for commands that need a PyTorch module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from ..errors import ModelError

__all__ = ["call_model_function"]


def call_model_function(text: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Import a Python file and call its function, which takes nothing and returns a module and its example inputs.

    The file's code runs with the rights of this process. Raises ModelError.
    """
    path, separator, function = text.rpartition(":")
    if not separator or not path.endswith(".py") or not function.isidentifier():
        raise ModelError(
            "model", "must be FILE.py:FUNCTION", got=repr(text), do="Write 'nets.py:make_model'."
        )
    result = _call(Path(path), function)
    module, inputs = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module) or not isinstance(inputs, tuple | list):
        got = type(result).__name__
        do = "Return (module, example_input), or (module, (input, ...))."
        raise ModelError(text, "must return a module and its example inputs", got=got, do=do)
    return module, tuple(inputs)


def _call(path: Path, function: str) -> Any:
    if not path.is_file():
        raise ModelError(f"model {path}", "there is no such file", do="Check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except Exception as error:
        what = f"cannot be imported: {type(error).__name__}"
        raise ModelError(
            f"model {path}", what, got=str(error)[:300], do="Make it importable first."
        ) from error
    call = vars(loaded).get(function)
    if not callable(call):
        names = ", ".join(n for n, v in vars(loaded).items() if callable(v) and not n.startswith("_"))
        raise ModelError(f"model {path}", f"has no function {function!r}", do=f"It has: {names[:300]}.")
    try:
        return call()
    except Exception as error:
        what = f"{function}() failed with {type(error).__name__}"
        raise ModelError(
            f"model {path}", what, got=str(error)[:300], do="Make the call work first."
        ) from error
