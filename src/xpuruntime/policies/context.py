"""``with with_policy(policy):`` a policy for everything that is decided inside the block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .load import PolicyLike, load_policy
from .policy import Policy

__all__ = ["current_policy", "with_policy"]

_current: ContextVar[Policy] = ContextVar("xpuruntime_policy", default=Policy())  # noqa: B039  - frozen


def current_policy() -> Policy:
    """What the enclosing ``with_policy`` blocks say together; the empty policy outside of any."""
    return _current.get()


@contextmanager
def with_policy(policy: PolicyLike) -> Iterator[Policy]:
    """Lay a policy over the enclosing ones for the length of the block (or of the decorated function).

    Takes whatever ``load_policy`` takes, and gives the merged policy. It applies to the thread or the async task that runs the block, and
    to tasks started inside; a new thread starts without it. Raises PolicyError.
    """
    token = _current.set(_current.get().merge(load_policy(policy)))
    try:
        yield _current.get()
    finally:
        _current.reset(token)
