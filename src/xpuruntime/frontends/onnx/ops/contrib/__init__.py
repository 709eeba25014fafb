"""The table of ONNX Runtime's own ops (``com.microsoft``), which its optimizers, quantizers and exporters write."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.tables import joined
from ..context import OpLowering
from . import activation, aliases, attention, fused, group_query, layout, packed, quant

__all__ = ["DEFAULT_DOMAIN", "LOWERINGS"]

_FILES = (activation, aliases, attention, fused, group_query, layout, packed, quant)

LOWERINGS: Mapping[str, OpLowering] = joined("ONNX Runtime op", tuple(file.LOWERINGS for file in _FILES))
"""Op -> its lowering."""
DEFAULT_DOMAIN = fused.DEFAULT_DOMAIN
"""Ops that ONNX Runtime's optimizer writes in the default domain, although ONNX does not define them."""
