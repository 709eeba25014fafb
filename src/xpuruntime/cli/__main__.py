"""Entry point of ``python -m xpuruntime.cli``: the same as ``xpu``."""

from __future__ import annotations

from . import main

main()
