"""The command line ``xpu``: one file per verb. It asks the workbench and prints; nothing imports it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``xpu`` with ``sys.argv``."""
    from .app import app

    app()
