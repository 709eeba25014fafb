"""``python -m xpuruntime.cli`` is ``xpu``."""

from __future__ import annotations

from . import main

main()
