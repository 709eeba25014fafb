"""Sessions: where compiling and running join. Its public names load on first use.

from xpuruntime.inference import InferenceSession
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from . import ops
    from .partitioned.dag_executor import DAGExecutor
    from .session import InferenceSession
    from .user_kernels import kernel, register_kernel

__all__ = ["DAGExecutor", "InferenceSession", "kernel", "ops", "register_kernel"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DAGExecutor": "xpuruntime.inference.partitioned.dag_executor",
        "InferenceSession": "xpuruntime.inference.session",
        "kernel": "xpuruntime.inference.user_kernels",
        "ops": "xpuruntime.inference.ops",
        "register_kernel": "xpuruntime.inference.user_kernels",
    },
)
