"""The inputs that candidates are measured on: the user's example inputs, otherwise seeded ones.

Seeded inputs suit timing and most comparisons. A model may still be ill-conditioned on inputs that it never sees in use: engines then differ
by more than the tolerance, and a correct engine is rejected.
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


def examples_of(model: ModelSource, example: Any) -> dict[str, Array] | None:
    """Return the ``example_inputs`` of a session as arrays by input name, or None without any.

    example: tensors by input name, one tensor, or a sequence in the model's order. Raises InputError for inputs that a run would refuse. Example
    arguments of a traced PyTorch module that are no inputs of the model give None instead.
    """
    if example is None:
        return None
    traced = model.format == "graph"
    feeds = Feeds(f"session({model.name!r}): example_inputs", model.inputs, defaults=model.defaults)
    names = [s.name for s in model.inputs]
    try:
        by_name = isinstance(example, Mapping) and (not traced or set(example) == set(names))
        values = example.values() if isinstance(example, Mapping) else example
        listed = list(values) if isinstance(example, Mapping | Sequence) else [example]
        return feeds.check(dict(example) if by_name else feeds.named(listed))[0]
    except InputError:
        if traced:
            return None
        raise


def measuring_feeds(model: ModelSource, examples: Mapping[str, Array] | None) -> tuple[dict[str, Array], str]:
    """Return the inputs and what a decision's text calls them. Raises InputError if none can be made."""
    if examples is not None:
        return dict(examples), "the given inputs"
    return sample_feeds(model.inputs), "seeded inputs"


def digest_of(examples: Mapping[str, Array] | None) -> str | None:
    """Return the digest of names, types and bytes. A choice measured on other inputs is a different choice."""
    if examples is None:
        return None
    digest = hashlib.sha256()
    for name in sorted(examples):
        value = examples[name]
        digest.update(f"{name}\0{value.dtype}\0{value.shape}\0".encode() + value.tobytes())
    return digest.hexdigest()
