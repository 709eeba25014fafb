"""Values of a model on an engine that is a black box: the model is cut so that they are its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...frontends.model_file import open_model
from ...protocols import Array, ModelSource
from ...types import DType
from .observer import ObservedNode
from .onnx_cut import OnnxCuts

if TYPE_CHECKING:
    from ...inference.session import InferenceSession

__all__ = ["EngineValues"]

Open = Callable[[ModelSource], "InferenceSession"]


class EngineValues:
    """The observer of a session. Values between nodes are outputs of a cut: the nodes up to them, built by the same engine.

    An engine may fuse differently at the border of a cut, so a fault of a fusion can disappear there.

    whole: the session of the whole model, which gives its outputs. open: opens a session on a cut.
    """

    def __init__(self, label: str, precision: DType, cuts: OnnxCuts, feeds: Mapping[str, Array], whole: InferenceSession, open: Open) -> None:  # noqa: A002  # fmt: skip
        self.label, self.precision, self.runs = label, precision, 0
        self.cuts, self._feeds, self._whole, self._open = cuts, dict(feeds), whole, open
        self.order: Sequence[str] = cuts.values
        self.reads: Mapping[str, Sequence[str]] = {v: n.inputs for n in cuts.nodes for v in n.outputs}
        self.outputs: Sequence[str] = tuple(s.name for s in cuts.model.outputs)

    def values(self, names: Sequence[str]) -> dict[str, Array]:
        """Return values by name from one run: of the whole model for its outputs, else of a cut."""
        self.runs += 1
        if set(names) <= set(self.outputs):
            outputs: dict[str, Any] = self._whole.run(self._feeds)
            return {n: outputs[n] for n in names}
        proto = self.cuts.cut((), names)
        source = open_model(proto, name=self.cuts.model.name)
        with self._open(source) as session:
            found: dict[str, Any] = session.run({s.name: self._feeds[s.name] for s in source.inputs})
        return {n: found[n] for n in names}

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value, if inference knows it."""
        return self.cuts.shape_of(name)

    def dtype_of(self, name: str) -> DType | None:
        """Return the element type of a value, if the package knows it."""
        return self.cuts.dtype_of(name)

    def bytes_of(self, name: str) -> int | None:
        """Return the size of a value, if inference knows it."""
        return self.cuts.bytes_of(name)

    def node_of(self, name: str) -> ObservedNode:
        """Return the node that computes a value."""
        node = self.cuts.nodes[self.cuts.maker[name]]
        return ObservedNode((node.name,), (node.op,))

    def close(self) -> None:
        """Close the session of the whole model."""
        with suppress(Exception):
            self._whole.close()
