"""The words that every form of a model shares: a site where something can be broken, a use of a weight, the kinds of damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from xpuruntime.protocols import Array

__all__ = ["EPSILON", "KINDS", "Form", "NotApplicableError", "Site", "Use"]

# kind -> what a model without it cannot have: the reason when there is no site for it.
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
"""What an epsilon becomes. Variances here are of order one, so nothing smaller could be told from rounding."""


class NotApplicableError(ValueError):
    """No valid model would remain if the site were changed; the text says why."""


@dataclass(frozen=True)
class Site:
    """One thing to break. ``make`` gives a changed copy of the model, or raises NotApplicableError.

    kind:   a key of ``KINDS``.
    where:  the node, or the weight.
    change: what is different then, as one clause.
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
    heads: of a kernel: into how many heads its channels are split; 0 where they are not.
    """

    weight: str
    node: str
    role: str
    axis: int = 0
    heads: int = 0


class Form(Protocol):
    """A model in one of its forms, as the edits see it. The model itself is never changed."""

    def uses(self) -> list[Use]:
        """Every use of a floating-point weight whose role is known, in the order of nodes."""
        ...

    def array(self, weight: str) -> Array:
        """The weight's elements."""
        ...

    def with_array(self, weight: str, array: Array) -> Any:
        """A copy of the model with other elements."""
        ...

    def structure(self) -> Iterator[Site]:
        """Sites that are no weights: adds, masks, activations, attributes."""
        ...
