"""The compiler: from a graph, a policy and a target to a program. It needs no device, no vendor engine and no runtime."""

from __future__ import annotations

from .pipeline import compile  # noqa: A004

__all__ = ["compile"]
