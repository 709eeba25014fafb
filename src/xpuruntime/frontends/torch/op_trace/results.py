"""Results of ops by the forms of their operands, so that a later trace asks PyTorch for none that an earlier one knew.

PyTorch computes the sizes of results in Python, which takes up to some milliseconds for a new size. A result is known for an op that makes new tensors,
returns views of its first operand, or writes to it and returns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .words import form

__all__ = ["KnownResults", "Result", "kind_of"]


class Result(NamedTuple):
    """A tensor that an op returns. text: its form."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any
    device: Any
    text: str


def kind_of(schema: Any, changes_form: bool) -> str:
    """Return ``new``, ``view`` or ``same`` for what an op returns; empty for another op."""
    operands = [a.alias_info for a in schema.arguments]
    returns = [r.alias_info for r in schema.returns]
    if not returns:
        return ""
    if not any(operands) and not any(returns):
        return "new"
    if operands[0] is None or any(operands[1:]) or not all(returns) or changes_form:
        return ""
    if operands[0].is_write:
        return "same" if len(returns) == 1 else ""
    return "view"


class KnownResults:
    """Results by op and operands. Plain data are those of ``data``."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        self.data: dict[str, Any] = dict(data or {})
        self._read: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return a Result, or a list or tuple of them; None if unknown. Raise anything for data of another kind."""
        known = self._read.get(key)
        if known is None and (data := self.data.get(key)) is not None:
            known = self._read[key] = _parsed(data)
        return known

    def learn(self, key: str, result: Any, kind: str, operand: Any) -> None:
        """Keep what an op returned if it is of the kind that its schema tells."""
        import torch

        parts = result if isinstance(result, tuple | list) else (result,)
        if not parts or not all(isinstance(p, torch.Tensor) and p.constant is None for p in parts):
            return
        if kind == "view" and not all(_is_plain_view(p, operand) for p in parts):
            return
        if kind == "same" and result is not operand:
            return
        rows = [
            [*map(list, (p.shape, p.stride())), p.storage_offset(), str(p.dtype), str(p.fake_device)]
            for p in parts
        ]
        container = type(result).__name__ if isinstance(result, tuple | list) else ""
        self.data[key] = [container, rows]


def _is_plain_view(part: Any, operand: Any) -> bool:
    same = part.untyped_storage()._cdata == operand.untyped_storage()._cdata
    return same and part.dtype == operand.dtype and part is not operand


def _parsed(data: Any) -> Any:
    import torch

    container, rows = data
    results: Sequence[Result] = [
        Result(
            tuple(map(int, shape)),
            tuple(map(int, strides)),
            int(offset),
            _dtype(torch, dtype),
            torch.device(device),
            form_text,
        )
        for shape, strides, offset, dtype, device in rows
        for form_text in [form(tuple(shape), tuple(strides), offset, dtype, device)]
    ]
    return {"": lambda r: r[0], "tuple": tuple, "list": list}[container](results)


def _dtype(torch: Any, name: str) -> Any:
    dtype = getattr(torch, name.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype
