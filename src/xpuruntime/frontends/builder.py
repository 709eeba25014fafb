"""The builder of an imported graph: names as its author would find them."""

from __future__ import annotations

from ..ir import GraphBuilder

__all__ = ["Builder"]


class Builder(GraphBuilder):
    """Names of inner values follow the node they come from, and never take a name that the imported model uses.

    reserved: those names. stem: the node that is lowered now; empty between nodes.
    """

    def __init__(self, name: str, reserved: set[str]) -> None:
        super().__init__(name)
        self.reserved, self.stem = reserved, ""

    def fresh(self, stem: str) -> str:
        """A name that neither the graph nor the imported model has."""
        base = f"{self.stem}.{stem}" if self.stem else stem
        while True:
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}_{number}" if number else base
            if name not in self.values and name not in self.reserved:
                return name
