"""The kernel policy of a training loop: set for a thread or async task, or for a block."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..errors import PolicyError
from ..policies import KernelPolicy, Policy, current_policy, load_policy
from ..policies.context import replace_policy
from .numbered_policies import publish
from .routing import install, uninstall

__all__ = ["PolicyScope", "kernel_policy", "reset_kernel_policy", "set_kernel_policy"]


class PolicyScope:
    """A policy that was set. ``undo()``, or leaving it as a context manager, restores the one before."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._before: Policy | None = replace_policy(policy)
        publish(policy)
        install()

    def undo(self) -> None:
        """Restore the policy that was set before this one. Further calls do nothing."""
        if self._before is not None:
            replace_policy(self._before)
            publish(self._before)
            self._before = None
            uninstall()

    def __enter__(self) -> PolicyScope:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"PolicyScope({self.policy!r})"


def set_kernel_policy(policy: Any = None, /, **families: Any) -> PolicyScope:
    """Set the kernels that training ops of this thread or async task use. Modules that exist already follow it.

    policy:   what ``load_policy`` takes: a policy object, a mapping, or the path of a JSON or YAML file.
    families: kernels to prefer by op family, as of ``KernelPolicy``: ``attention="flash_v2", matmul=["cublasLt", "generated"]``.

    The policy is merged over the current one. It holds until it is undone; as a context manager it holds inside the block. A new
    thread starts without it; async tasks inherit it. Raises PolicyError.
    """
    merged = current_policy()
    if policy is not None:
        merged = merged.merge(load_policy(policy))
    if families:
        for family, kernels in families.items():
            if not isinstance(kernels, str | list | tuple):
                do = "Give a name, or a list of names."
                raise PolicyError(
                    "set_kernel_policy", f"{family} needs names of kernels", got=repr(kernels), do=do
                )
        named: dict[str, Any] = {f: (k,) if isinstance(k, str) else tuple(k) for f, k in families.items()}
        merged = merged.merge(load_policy(Policy(kernel=KernelPolicy(**named))))
    if words := merged.kernel.stored_words():
        raise PolicyError(
            "set_kernel_policy",
            "training has no weights in fewer bits",
            got=str(words),
            do="Remove weights; they are for inference, where weights are constant.",
        )
    return PolicyScope(merged)


def kernel_policy() -> KernelPolicy:
    """Return the kernel policy of this thread or async task."""
    return current_policy().kernel


def reset_kernel_policy() -> None:
    """Remove every policy that ``set_kernel_policy`` set in this thread or async task."""
    replace_policy(Policy())
    publish(Policy())
    uninstall(every=True)
