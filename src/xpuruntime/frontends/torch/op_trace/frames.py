"""The places of the user's code that ops come from. Nodes of an imported graph have names and lines that follow from them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["Places", "code_text"]

_PACKAGE = str(Path(__file__).parent) + os.sep


class Places:
    """Stacks of frames as text. Frames of PyTorch, whose release is part of every key, are left out.

    The files of this package's ``op_trace`` end a stack: what calls them is not the module's.
    """

    def __init__(self) -> None:
        import torch

        self._root = str(Path(torch.__file__).parent) + os.sep
        self._codes: dict[int, tuple[CodeType, int]] = {}
        self._texts: list[str] = []

    def of(self, frame: FrameType | None) -> tuple[int, ...]:
        """Return the number of the code and the instruction of each frame of the user, innermost first."""
        place: list[int] = []
        codes = self._codes
        while frame is not None:
            code = frame.f_code
            known = codes.get(id(code))
            number = known[1] if known is not None else self._number(code)
            if number >= 0:
                place += (number, frame.f_lasti)
            elif number == _END:
                break
            frame = frame.f_back
        return tuple(place)

    def digest(self) -> str:
        """Return the digest of all code that was seen, in order."""
        return hashlib.sha256("\n".join(self._texts).encode("utf-8", "surrogatepass")).hexdigest()

    def _number(self, code: CodeType) -> int:
        if code.co_filename.startswith(_PACKAGE):
            number = _END
        elif code.co_filename.startswith(self._root):
            number = _OF_TORCH
        else:
            number = len(self._texts)
            self._texts.append(code_text(code))
        self._codes[id(code)] = code, number
        return number


_OF_TORCH, _END = -1, -2


def code_text(code: CodeType) -> str:
    """Return a code object with its file and lines as text."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(code_text(constant))
        elif isinstance(constant, frozenset):
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(repr(constant))
    parts = (
        code.co_filename, code.co_qualname, code.co_code.hex(),
        code.co_linetable.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants,
    )  # fmt: skip
    return repr(parts)
