"""The graph builder of the importers."""

from __future__ import annotations

from ..ir import GraphBuilder
from ..types import Dim, dim

__all__ = ["ImportBuilder"]


class ImportBuilder(GraphBuilder):
    """A graph builder that names inner values after the imported node, and never takes a name of the imported model.

    reserved: names of the imported model. stem: name of the node that is being lowered; empty between nodes.
    outer: the builder of the enclosing graph, if this graph is a body.
    """

    def __init__(self, name: str, reserved: set[str], outer: ImportBuilder | None = None) -> None:
        super().__init__(name)
        self.reserved, self.stem = reserved, ""
        self.outer = outer
        self._issued: set[str] = set() if outer is None else outer._issued

    def fresh(self, stem: str) -> str:
        """Return a name that neither the graph nor the imported model has."""
        base = f"{self.stem}.{stem}" if self.stem else stem
        while True:
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}_{number}" if number else base
            if name not in self.values and name not in self.reserved:
                return name

    def sizes(self, count: int) -> list[Dim]:
        """Return unused symbols for sizes that are known only at run time. No graph of the model has them, bodies included."""
        taken = set(self._issued)
        builder: ImportBuilder | None = self
        while builder is not None:
            specs = (v.spec for v in builder.values.values() if v.spec is not None and not v.spec.is_static)
            taken.update(*(spec.symbols for spec in specs))
            builder = builder.outer
        fresh: list[Dim] = []
        number = 0
        while len(fresh) < count:
            name = f"u{number}"
            symbol = dim(name)
            if name not in taken and isinstance(symbol, Dim):
                fresh.append(symbol)
                self._issued.add(name)
            number += 1
        return fresh
