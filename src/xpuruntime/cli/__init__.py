"""The command line ``xpu``: one file per verb. It asks the workbench and prints; nothing imports it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``xpu`` with ``sys.argv``."""
    import sys

    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # outside of a verb: while Python is still importing, or already leaving
        sys.exit(130)
