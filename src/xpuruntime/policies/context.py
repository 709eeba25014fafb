"""``with_policy``: a context manager that sets a policy for all decisions inside its block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .files.load import PolicyLike, load_policy
from .policy import Policy

__all__ = ["current_policy", "replace_policy", "with_policy"]

_current: ContextVar[Policy] = ContextVar("xpuruntime_policy", default=Policy())  # noqa: B039  - frozen


def current_policy() -> Policy:
    """Return the merged policy of the enclosing ``with_policy`` blocks; the empty policy outside of any."""
    return _current.get()


def replace_policy(policy: Policy) -> Policy:
    """Set the policy of this thread or async task until it is replaced again. Return the one before."""
    before = _current.get()
    _current.set(policy)
    return before


@contextmanager
def with_policy(policy: PolicyLike) -> Iterator[Policy]:
    """Merge a policy over the enclosing ones inside the block (or the decorated function).

    Takes what ``load_policy`` takes, and yields the merged policy. It applies to the thread or async task that runs the block, and
    to tasks started inside. A new thread starts without it. Raises PolicyError.
    """
    token = _current.set(_current.get().merge(load_policy(policy)))
    try:
        yield _current.get()
    finally:
        _current.reset(token)
