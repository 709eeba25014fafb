"""Shortcuts of ``torch.export`` that give the same program: parts of tracing that take PyTorch a third of an export of many layers.

**The stack of a node.** PyTorch reads it anew for every node, some fifty frames with their lines of code. Here each place is read once per export.
**The sizes of results.** PyTorch computes a batch norm's by its formula, about 25 ops, for every new size, and those of layer norms and
linear layers by several. Here they are known for dense inputs in eval mode. Anything else takes PyTorch's way.

Both replace private functions of PyTorch during an export, and leave out what another release of PyTorch does not have. The replacements give
every caller the same results, so that other threads may trace meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["composite_ops_listed_once", "tracing_shortcuts"]


@contextlib.contextmanager
def tracing_shortcuts(torch: Any) -> Iterator[None]:
    """Trace with the shortcuts. The caller holds ``TRACING``."""
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (*_stacks(), *_results(torch)):
            stack.callback(_restore, owner, name, replacement, getattr(owner, name))
            setattr(owner, name, replacement)
        yield


@contextlib.contextmanager
def composite_ops_listed_once() -> Iterator[None]:
    """Have PyTorch list the composite ops of its C++ registry once. It lists all of them again for each namespace, at each use of a table of
    decompositions.
    """
    from torch._export import utils

    name = "_materialize_cpp_cia_ops"
    original: Callable[[], None] | None = getattr(utils, name, None)
    if original is None:
        yield
        return
    listed = False

    def once() -> None:
        nonlocal listed
        if not listed:
            original()
            listed = True

    setattr(utils, name, once)
    try:
        yield
    finally:
        _restore(utils, name, once, original)


def _restore(owner: Any, name: str, replacement: Any, original: Any) -> None:
    if vars(owner).get(name) is replacement:  # not replaced by somebody else meanwhile
        setattr(owner, name, original)


# ── the stack of a node ──


def _stacks() -> Iterator[tuple[Any, str, Any]]:
    """Yield the class that records the stack of a node, and one that knows the frames that it saw before."""
    from torch.fx import proxy

    original: Any = getattr(proxy, "CapturedTraceback", None)
    if not hasattr(original, "summary"):
        return
    known: dict[tuple[str, int, str], traceback.FrameSummary] = {}

    class KnownFrames(original):  # type: ignore[misc]
        """A stack of Python frames, innermost first."""

        __slots__ = ("frames",)

        @staticmethod
        def extract(*, script: bool = False, cpp: bool = False, skip: int = 0) -> Any:
            """Return the stack of the caller."""
            if script or cpp or skip:
                return original.extract(script=script, cpp=cpp, skip=skip)
            stack = KnownFrames(None)
            stack.frames = list(_frames(sys._getframe(1)))
            return stack

        def summary(self) -> traceback.StackSummary:
            """Return the frames, outermost first, with their lines of code."""
            return traceback.StackSummary(_summary(place, known) for place in reversed(self.frames))

    yield proxy, "CapturedTraceback", KnownFrames


def _frames(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def _summary(
    place: tuple[str, int, str], known: dict[tuple[str, int, str], traceback.FrameSummary]
) -> traceback.FrameSummary:
    if place not in known:
        known[place] = traceback.FrameSummary(*place)
    return known[place]


# ── the sizes of results ──


def _results(torch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the method that computes the sizes of an op's results, and one that knows those of some ops."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    original: Callable[..., Any] | None = vars(FakeTensorMode).get("_dispatch_impl")
    if original is None:
        return
    aten = torch.ops.aten
    rules: dict[int, Callable[..., _Result]] = {  # the hash of an op is a function of Python
        id(aten.batch_norm.default): _batch_norm,
        id(aten.layer_norm.default): _layer_norm,
        id(aten.linear.default): _linear,
    }

    def dispatch(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        rule = rules.get(id(func))
        if rule is not None and not kwargs and not torch.is_grad_enabled() and _is_fake_only(mode):
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            if _are_alike(tensors, FakeTensor, mode) and (result := rule(*args)) is not None:
                x, (shape, strides) = args[0], result
                with mode:
                    return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
        return original(mode, func, types, args, kwargs)

    yield FakeTensorMode, "_dispatch_impl", dispatch


def _is_fake_only(mode: Any) -> bool:
    """Return whether a mode computes no values next to the sizes."""
    return not getattr(mode, "propagate_real_tensors", True)


def _are_alike(tensors: Sequence[Any], fake: type[Any], mode: Any) -> bool:
    """Return whether they are tensors of this mode without content, whose sizes are numbers, of one float type on one device."""
    return all(
        type(t) is fake
        and t.fake_mode is mode
        and t.constant is None
        and not t._has_symbolic_sizes_strides
        and t.is_floating_point()
        and t.dtype is tensors[0].dtype
        and t.device == tensors[0].device
        and t.numel() > 0
        for t in tensors
    )


_Result: TypeAlias = "tuple[Sequence[int], Sequence[int]] | None"
"""Shape and strides; None where they are not known here."""


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: Any, *_: Any) -> _Result:
    if training is not False or mean is None or variance is None or x.dim() < 2:
        return None
    if any(v is not None and v.shape != x.shape[1:2] for v in (weight, bias, mean, variance)):
        return None
    return (x.shape, x.stride()) if _is_contiguous(x) or _has_channels_last(x) else None


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, *_: Any) -> _Result:
    normalized = tuple(shape)
    if not normalized or tuple(x.shape[-len(normalized) :]) != normalized or not _is_contiguous(x):
        return None
    if any(v is not None and tuple(v.shape) != normalized for v in (weight, bias)):
        return None
    return x.shape, x.stride()


def _linear(x: Any, weight: Any, bias: Any = None) -> _Result:
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        return None
    if (
        not _is_contiguous(x)
        or not _is_contiguous(weight)
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        return None
    shape = (*x.shape[:-1], weight.shape[0])
    return shape, _strides(shape, range(len(shape)))


def _is_contiguous(x: Any) -> bool:
    """Return whether the strides are those of a new tensor. Dims of size 1 may have others."""
    return bool(x.stride() == _strides(x.shape, range(x.dim())))


def _has_channels_last(x: Any) -> bool:
    """Return the same for a new tensor with the channels last."""
    return x.dim() in (4, 5) and bool(x.stride() == _strides(x.shape, (0, *range(2, x.dim()), 1)))


def _strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dims have this order in memory, the outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], step = step, step * shape[dim]
    return tuple(strides)
