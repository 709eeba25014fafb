"""StopStrings: text that ends before the first of some strings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """A filter of streamed text. Text that may be the beginning of a stop string is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Return the text that can be shown; after a stop string, only what is before it, and ``stopped`` is True."""
        text = self._held + text
        found = [at for at in (text.find(s) for s in self._strings) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        longest = max(map(len, self._strings), default=1) - 1
        keep = next(
            (
                n
                for n in range(min(longest, len(text)), 0, -1)
                if any(s.startswith(text[-n:]) for s in self._strings)
            ),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Return the text that was held back."""
        text, self._held = self._held, ""
        return text
