"""Definitions of ops: the attributes that each op has, in every domain."""

from __future__ import annotations

from .check import undeclared, why_not_supported
from .onnx_runtime import ATTRIBUTES, AttributeRule

__all__ = ["ATTRIBUTES", "AttributeRule", "undeclared", "why_not_supported"]
