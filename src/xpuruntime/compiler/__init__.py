"""The compiler: graph, policy and target in, program out. Needs no device, no vendor, and never the runtime."""

from __future__ import annotations

from .pipeline import compile  # noqa: A004

__all__ = ["compile"]
