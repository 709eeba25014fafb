"""What candidates are measured on: the inputs that the user gave as examples, else seeded ones.

Seeded inputs are right for speed and mostly for results, but a model may be ill-conditioned on what it never sees in use: engines then differ
there by more than they may, and a right one is passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...protocols import Array, ModelSource
from .inputs import Feeds
from .seeded_inputs import sample_feeds

__all__ = ["digest_of", "examples_of", "measuring_feeds"]


def examples_of(model: ModelSource, given: Any) -> dict[str, Array] | None:
    """``example_inputs`` of a session as arrays by input name; None without any.

    given: tensors by input name, one tensor, or a sequence of them in the model's order. Raises InputError for what a run would refuse, but where a
    PyTorch module was only traced with them: arguments that are no inputs are None, too.
    """
    if given is None:
        return None
    traced = model.format == "graph"
    feeds = Feeds(f"session({model.name!r}): example_inputs", model.inputs)
    names = [s.name for s in model.inputs]
    try:
        by_name = isinstance(given, Mapping) and (not traced or set(given) == set(names))
        values = given.values() if isinstance(given, Mapping) else given
        listed = list(values) if isinstance(given, Mapping | Sequence) else [given]
        return feeds.check(dict(given) if by_name else feeds.named(listed))[0]
    except InputError:
        if traced:
            return None
        raise


def measuring_feeds(model: ModelSource, examples: Mapping[str, Array] | None) -> tuple[dict[str, Array], str]:
    """The inputs, and their name in a decision's text. Raises InputError where none can be made."""
    if examples is not None:
        return dict(examples), "the given inputs"
    return sample_feeds(model.inputs), "seeded inputs"


def digest_of(examples: Mapping[str, Array] | None) -> str | None:
    """Of names, types and bytes: a choice that was measured on others is another choice."""
    if examples is None:
        return None
    found = hashlib.sha256()
    for name in sorted(examples):
        value = examples[name]
        found.update(f"{name}\0{value.dtype}\0{value.shape}\0".encode() + value.tobytes())
    return found.hexdigest()
