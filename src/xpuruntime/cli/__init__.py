"""The command line ``xpu``: one file per verb. It asks the workbench and prints; nothing imports it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run ``xpu`` with ``sys.argv``."""
    import os
    import sys

    if (
        sys.stderr is None
    ):  # it was closed at the start: what is said there goes nowhere, and the verb still works
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name may hold what the stream's encoding does not
            stream.reconfigure(errors="backslashreplace")
    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # outside of a verb: while Python is still importing, or already leaving
        sys.exit(130)
