"""Limits of a policy on transfers inside a training step: copies between the host and a device, and waits of the host for a value."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..compiler.transfers import transfer_error
from ..policies import current_policy, load_policy
from .capture.obstacles import REMEDIES, REMEDY, Watching, user_line

__all__ = ["transfer_limits"]

_ANY = "any"
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
_WAITS: Mapping[str, str] = {
    "aten._local_scalar_dense": "the host reads its value",
    "aten.equal": "the host reads whether the values are equal",
    "aten.nonzero": "its values decide the size of its result",
    "aten.masked_select": "its values decide the size of its result",
    "aten._unique2": "its values decide the size of its result",
    "aten.unique_dim": "its values decide the size of its result",
    "aten.unique_consecutive": "its values decide the size of its result",
    "aten.bincount": "its values decide the size of its result",
}
"""Operators for whose result the host waits, and why. On a CPU they count as well: a step without them has none on a GPU."""
_INDEXED = frozenset({"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"})
"""Operators whose second argument may hold masks. The host waits for the number of elements that a mask chooses."""


@contextmanager
def transfer_limits(policy: Any = None) -> Iterator[None]:
    """Hold the block, a training step, to ``transfers`` of a policy; by default that of ``set_kernel_policy``.

    ``h2d`` and ``d2h`` ``io_only``: no copy between the host and a device inside the block, so the batch is moved before it and results
    are read after it. ``sync: none``: the host waits for no value. Counters that optimizers keep on the host are no values of the step.
    Raises PolicyError at the operator that breaks a limit, forward or backward, with its line and a remedy. Operators inside a captured
    CUDA graph or a function of ``torch.compile`` are not seen one by one.
    """
    limits = (current_policy() if policy is None else load_policy(policy)).execution.transfers or {}
    held = {field: word for field, word in limits.items() if word != _ANY}
    if not held:
        yield
        return
    with _Limits(held):
        yield


class _Limits(Watching):
    """A mode that raises for operators that break a limit."""

    def __init__(self, limits: Mapping[str, str]) -> None:
        super().__init__()
        self._limits = limits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        broken = _broken(str(func), args, kwargs)
        field = next((f for f in broken if f in self._limits), "")
        if field:
            stack = traceback.extract_stack()
            where = user_line(stack)
            if not _by_optimizer(stack, where):
                text = f"{func} {broken[field]}{f', at {where}' if where else ''}"
                do = f"{REMEDIES.get(str(func), REMEDY)} Or allow it with {field}: any."
                raise transfer_error("training step", field, self._limits[field], [text], do)
        return func(*args, **kwargs)


def _by_optimizer(stack: traceback.StackSummary, user: str) -> bool:
    """Return True if an optimizer calls the operator itself, and not the user's closure that it calls."""
    for frame in reversed(stack):
        if frame.filename.startswith(_OPTIMIZERS):
            return True
        if user.startswith(f"{frame.filename}:{frame.lineno}:"):
            return False
    return False


def _broken(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that a call concerns, with the reason."""
    op = name.rpartition(".")[0]
    if op in _WAITS:
        return {"sync": _WAITS[op]}
    if op in _INDEXED and any(
        isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
    ):
        return {"sync": "a mask decides how many elements it reads or writes"}
    if op == "aten.repeat_interleave" and kwargs.get("output_size") is None:
        return {"sync": "its counts decide the size of its result"}
    source, to, waits = None, None, not kwargs.get("non_blocking", False)
    if op == "aten._to_copy" and kwargs.get("device") is not None:
        source, to = args[0].device, torch.device(kwargs["device"])
    elif op == "aten.copy_" and isinstance(args[1], torch.Tensor):
        source, to = args[1].device, args[0].device
        waits = waits and not any(args[2:3])
    if source is None or to is None or (source.type == "cpu") == (to.type == "cpu"):
        return {}
    text = f"copies {list(args[0].shape)} from {source} to {to}"
    if source.type == "cpu":
        return {"h2d": text}
    return {"d2h": text} | ({"sync": f"{text}, for which the host waits"} if waits else {})
