"""Facts of ops, from their schemas, that say how to record them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from .results import kind_of

__all__ = ["OpFacts", "op_facts"]

_NAMESPACES = ("aten", "prims")
"""Ops whose meaning belongs to PyTorch's release. Others may change with the user's code."""
_SAME = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift_fresh_copy")
"""Ops whose result has the elements of their operand; for constants alone in another memory."""
_LIFTS = ("aten::lift_fresh", "aten::lift_fresh_copy")
_CHANGES_MEMORY = ("aten::set_", "aten::set_data", "aten::resize_", "aten::resize_as_")
_DRAWLESS = "aten::_scaled_dot_product"
"""Attention, which draws only for a dropout; its other arguments are recorded."""
_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")
"""Reads of a constant's content, which is recorded where the constant is used. Other tensors of a recording have no content to read."""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts of one overload.

    refused: why a trace cannot have it. written: positions and names of arguments that it changes. kind: as ``results.kind_of`` returns it.
    same: in ``_SAME``. lifts: makes a tensor of a constant. reads: in ``_READS``. changes_form: changes sizes or strides of its operand.
    """

    name: str
    refused: str = ""
    written: tuple[Any, ...] = ()
    kind: str = ""
    same: bool = False
    lifts: bool = False
    reads: bool = False
    changes_form: bool = False


@functools.cache
def op_facts(func: Any) -> OpFacts:
    """Return the facts of an op."""
    import torch

    if not isinstance(func, torch._ops.OpOverload) or func.namespace not in _NAMESPACES:
        return OpFacts(str(func), f"the op {func}")
    schema, tags = func._schema, func.tags
    name = f"{schema.name}.{func._overloadname}"
    draws = torch.Tag.nondeterministic_seeded in tags and not schema.name.startswith(_DRAWLESS)
    if draws or schema.name in _CHANGES_MEMORY:
        return OpFacts(name, f"the op {name}")
    changes_form = torch.Tag.inplace_view in tags
    written = tuple(
        a.name if a.kwarg_only else i
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    return OpFacts(
        name,
        written=written,
        kind=kind_of(schema, changes_form),
        same=schema.name in _SAME,
        lifts=schema.name in _LIFTS,
        reads=schema.name in _READS,
        changes_form=changes_form,
    )
