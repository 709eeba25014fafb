"""Types that all forms of a model share: a site that can be broken, a use of a weight, and the kinds of change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from xpuruntime.protocols import Array

__all__ = ["EPSILON", "KINDS", "Form", "NotApplicableError", "Site", "Use"]

# kind -> the reason if a model has no site of that kind
KINDS: Mapping[str, str] = {
    "drop_bias": "no bias is added",
    "drop_norm_scale": "no norm has a scale",
    "drop_norm_statistic": "no norm reads stored statistics",
    "drop_residual": "no two computed tensors of one shape are added",
    "drop_mask": "no softmax reads masked scores",
    "swap_heads": "no product is split into heads",
    "change_weight": "it has no weights",
    "swap_channels": "no weight has two output channels",
    "transpose_square": "no weight is square",
    "change_activation": "it has no activation of the table",
    "change_padding": "no convolution or pool is padded",
    "change_stride": "no stride can be changed such that the shapes still fit",
    "change_epsilon": "no norm has an epsilon",
}

EPSILON = 1e-2
"""New value of an epsilon. Variances are of order one, so the effect of a smaller value would be lost in rounding."""


class NotApplicableError(ValueError):
    """The changed model would not be valid. The text has the reason."""


@dataclass(frozen=True)
class Site:
    """One place to break. ``make`` returns a changed copy of the model, or raises NotApplicableError.

    kind:   a key of ``KINDS``.
    where:  name of the node or weight.
    change: description of the change, as one clause.
    """

    kind: str
    where: str
    change: str
    make: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}: {self.change}"


@dataclass(frozen=True)
class Use:
    """One use of a weight.

    role:  ``kernel`` (of a product or convolution), ``table`` (rows picked by index), ``bias``, ``scale``, ``mean``, ``variance``,
           ``epsilon`` (a scalar added before a root).
    axis:  of a kernel: its output channels.
    heads: of a kernel: number of heads that its channels are split into; 0 if they are not split.
    """

    weight: str
    node: str
    role: str
    axis: int = 0
    heads: int = 0


class Form(Protocol):
    """A model as the edits see it. The model itself is never changed."""

    def uses(self) -> list[Use]:
        """Return every use of a floating-point weight whose role is known, in the order of nodes."""
        ...

    def array(self, weight: str) -> Array:
        """Return the weight's elements."""
        ...

    def with_array(self, weight: str, array: Array) -> Any:
        """Return a copy of the model with other elements of the weight."""
        ...

    def structure(self) -> Iterator[Site]:
        """Yield the sites other than weights: adds, masks, activations, attributes."""
        ...
