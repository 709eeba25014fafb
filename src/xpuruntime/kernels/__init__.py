"""Kernels: implementations of ops, by family. ``catalogue`` knows which exist; ``kernel`` says what one is."""

from __future__ import annotations

from .catalogue import has_kernel, offers

__all__ = ["has_kernel", "offers"]
