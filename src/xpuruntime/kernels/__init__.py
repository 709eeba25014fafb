"""Kernels: implementations of ops, by family. ``catalogue`` lists them, ``kernel`` defines their interface.

Users register their own kernels here: ``register_kernel`` and ``verify_kernel``, with ``Launch`` and ``Tasks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .catalogue import has_kernel, offers
from .user.kernel import Launch, Tasks

if TYPE_CHECKING:
    from ..inference.user_kernels import register_kernel
    from ..inference.verify_kernel import verify_kernel

__all__ = ["Launch", "Tasks", "has_kernel", "offers", "register_kernel", "verify_kernel"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "register_kernel": "xpuruntime.inference.user_kernels",
        "verify_kernel": "xpuruntime.inference.verify_kernel",
    },
)
