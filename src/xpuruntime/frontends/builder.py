"""The graph builder of the importers."""

from __future__ import annotations

from ..ir import GraphBuilder

__all__ = ["ImportBuilder"]


class ImportBuilder(GraphBuilder):
    """A graph builder that names inner values after the imported node, and never takes a name of the imported model.

    reserved: names of the imported model. stem: name of the node that is being lowered; empty between nodes.
    """

    def __init__(self, name: str, reserved: set[str]) -> None:
        super().__init__(name)
        self.reserved, self.stem = reserved, ""

    def fresh(self, stem: str) -> str:
        """Return a name that neither the graph nor the imported model has."""
        base = f"{self.stem}.{stem}" if self.stem else stem
        while True:
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}_{number}" if number else base
            if name not in self.values and name not in self.reserved:
                return name
