"""The command line ``xpu``, one file per command. It calls the workbench and prints the results; no other package imports it."""

from __future__ import annotations

__all__ = ["main"]

# Objects between two garbage collections. Most objects that imports make live until exit, and Python's default (700) searches them often.
_GC_THRESHOLD = 50_000


def main() -> None:
    """Run ``xpu`` with ``sys.argv``."""
    import atexit
    import gc
    import os
    import sys

    gc.set_threshold(_GC_THRESHOLD)
    atexit.register(gc.freeze)  # The process ends: the interpreter need not search all objects for cycles.

    if sys.stderr is None:  # The process was started with stderr closed: discard messages, run the command.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # Names may contain characters outside the stream's encoding.
            stream.reconfigure(errors="backslashreplace")
    try:
        from .app import app

        app()
    except KeyboardInterrupt:  # Raised during imports or at exit, where no command handles it.
        sys.exit(130)
