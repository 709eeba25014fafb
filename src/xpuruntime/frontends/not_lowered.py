"""The exception of ops that the IR cannot represent exactly."""

from __future__ import annotations

__all__ = ["NotLowered"]


class NotLowered(Exception):
    """A node that no table entry represents exactly; it is decomposed, inlined or becomes opaque.

    value: the operand whose content would have to be known, if that is the reason.
    """

    def __init__(self, reason: str, value: str = "") -> None:
        super().__init__(reason)
        self.reason, self.value = reason, value
