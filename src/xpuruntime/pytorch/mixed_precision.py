"""autocast: PyTorch's automatic mixed precision, with a table of precisions per op family."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any

import torch

from ..errors import PolicyError
from ..policies import ExecutionPolicy, current_policy
from ..policies.precedence import autocast_policy

__all__ = ["as_autocast", "autocast", "precision_of"]

_LOW, _WIDE, _OWN = "low", "float32", "own"
_NONE: Mapping[str, str] = MappingProxyType({})
_table: ContextVar[Mapping[str, str]] = ContextVar("xpuruntime_autocast", default=_NONE)


class autocast:  # noqa: N801  - the specification's name, as torch.autocast
    """Run ops in float16 or bfloat16 where that is safe, as ``torch.autocast`` does.

    fp16, bf16: the precision; exactly one is True.
    table:      precisions by op family, over those of the policy: ``{"norm": "low"}``.
    enabled:    False makes the block an ordinary one.

    PyTorch's own operators follow ``torch.autocast`` on the host and on CUDA devices. Ops that the policy takes follow a table: the
    argument, over ``execution.autocast`` of the policy, over the built-in one (``policies/builtin/autocast.yaml``). Gradients of float16 may underflow: scale the loss with ``GradScaler``. Raises PolicyError.
    """

    def __init__(
        self,
        *,
        fp16: bool = False,
        bf16: bool = False,
        table: Mapping[str, str] | None = None,
        enabled: bool = True,
    ) -> None:
        flags: dict[str, object] = {"fp16": fp16, "bf16": bf16, "enabled": enabled}
        for name, value in flags.items():
            if not isinstance(value, bool):
                do = "Give True or False."
                raise PolicyError("autocast", f"{name} must be a bool", got=repr(value), do=do)
        if enabled and fp16 == bf16:
            got = f"fp16={fp16}, bf16={bf16}"
            raise PolicyError("autocast", "needs one precision", got=got, do="Give fp16=True or bf16=True.")
        self.dtype = torch.float16 if fp16 else torch.bfloat16
        self.table = _NONE if table is None else _checked(table)
        self.enabled = enabled
        self._stack: list[ExitStack] = []

    def __enter__(self) -> autocast:
        stack = ExitStack()
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        for device in devices:
            stack.enter_context(torch.autocast(device, dtype=self.dtype, enabled=self.enabled))
        token = _table.set(self.table)
        stack.callback(_table.reset, token)
        self._stack.append(stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.pop().close()

    def __call__(self, function: Any) -> Any:
        """Return a function whose calls run inside the block."""
        import functools

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped


def precision_of(family: str) -> str:
    """Return the precision of an op family inside an autocast block: that of its table, of the policy, or the built-in one."""
    for table in (_table.get(), current_policy().execution.autocast, autocast_policy().execution.autocast):
        if table and family in table:
            return table[family]
    return _OWN


def as_autocast(family: str, *tensors: torch.Tensor | None) -> tuple[Any, ...]:
    """Return the operands of an op in the precision that autocast gives its family. Outside of autocast they are unchanged."""
    first = next(t for t in tensors if t is not None)
    kind = first.device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    precision = precision_of(family)
    if precision == _OWN:
        widest = first.dtype
        for t in tensors:
            widest = widest if t is None else torch.promote_types(widest, t.dtype)
        dtype = widest
    else:
        dtype = torch.float32 if precision == _WIDE else torch.get_autocast_dtype(kind)
    return tuple(t if t is None or t.dtype is torch.float64 else t.to(dtype) for t in tensors)


def _checked(table: Mapping[str, str]) -> Mapping[str, str]:
    return ExecutionPolicy(autocast=table).autocast or _NONE
