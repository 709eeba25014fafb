"""autocast: PyTorch's automatic mixed precision, with a table of precisions per op family."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any

import torch

from ..errors import PolicyError
from ..families import FAMILIES

__all__ = ["PRECISIONS", "as_autocast", "autocast"]

LOW, WIDE, OWN = "low", "float32", "own"
PRECISIONS: Mapping[str, str] = MappingProxyType(
    {
        "matmul": LOW,
        "conv": LOW,
        "attention": LOW,
        "rnn": LOW,
        "norm": WIDE,
        "softmax": WIDE,
    }
)
"""Op family -> precision under autocast: ``low`` (that of the block), ``float32``, or ``own`` (the operands' own, as for families that
are not listed). They are those of ``torch.autocast`` on CUDA."""

_table: ContextVar[Mapping[str, str]] = ContextVar("xpuruntime_autocast", default=PRECISIONS)


class autocast:  # noqa: N801  - the specification's name, as torch.autocast
    """Run ops in float16 or bfloat16 where that is safe, as ``torch.autocast`` does.

    fp16, bf16: which precision; exactly one of them.
    table:      precisions by op family that differ from ``PRECISIONS``: ``{"norm": "low"}``.
    enabled:    False makes the block an ordinary one.

    PyTorch's own operators follow ``torch.autocast`` on the host and on CUDA devices. Ops of ``xpuruntime.pytorch.ops`` follow the table.
    Gradients of float16 may underflow: scale the loss with ``GradScaler``. Raises PolicyError.
    """

    def __init__(
        self,
        *,
        fp16: bool = False,
        bf16: bool = False,
        table: Mapping[str, str] | None = None,
        enabled: bool = True,
    ) -> None:
        if enabled and fp16 == bf16:
            got = f"fp16={fp16}, bf16={bf16}"
            raise PolicyError("autocast", "needs one precision", got=got, do="Give fp16=True or bf16=True.")
        self.dtype = torch.float16 if fp16 else torch.bfloat16
        self.table = {**PRECISIONS, **_checked(table or {})}
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


def as_autocast(family: str, *tensors: torch.Tensor | None) -> tuple[Any, ...]:
    """Return the operands of an op in the precision that autocast gives its family. Outside of autocast they are unchanged."""
    first = next(t for t in tensors if t is not None)
    kind = first.device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    precision = _table.get().get(family, OWN)
    if precision == OWN:
        widest = first.dtype
        for t in tensors:
            widest = widest if t is None else torch.promote_types(widest, t.dtype)
        dtype = widest
    else:
        dtype = torch.float32 if precision == WIDE else torch.get_autocast_dtype(kind)
    return tuple(t if t is None or t.dtype is torch.float64 else t.to(dtype) for t in tensors)


def _checked(table: Mapping[str, str]) -> Mapping[str, str]:
    words = (LOW, WIDE, OWN)
    for family, word in table.items():
        if family not in FAMILIES:
            do = f"Known: {', '.join(FAMILIES)}."
            raise PolicyError("autocast", "no such op family", got=repr(family), do=do)
        if word not in words:
            do = f"Use one of: {', '.join(words)}."
            raise PolicyError("autocast", f"no such precision for {family}", got=repr(word), do=do)
    return table
