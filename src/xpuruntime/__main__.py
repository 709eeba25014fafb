"""Entry point of ``python -m xpuruntime``: the same as ``xpu``."""

from __future__ import annotations

from .cli import main

main()
