"""PyTorch's samples of its ops as modules, for tests of frontends that import modules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....protocols import Array
from ....types import DType
from .calls import to_numpy

__all__ = ["ModuleCall", "module_calls", "opinfo_names"]


@dataclass(frozen=True)
class ModuleCall:
    """One call of an op, as a module in eval mode of the sample's tensors.

    inputs: tensors for calling the module; other values are fixed in it. want: PyTorch's results, flat.
    """

    module: Any
    inputs: tuple[Any, ...]
    want: tuple[Array, ...]
    sample: str


def opinfo_names() -> tuple[str, ...]:
    """Return every op in PyTorch's sample database."""
    return tuple(dict.fromkeys(info.name for info in _database()))


def module_calls(name: str, dtype: str, limit: int | None = None) -> Iterator[ModuleCall]:
    """Yield the samples of an OpInfo (all its variants) in one dtype. limit: the most samples of each variant, spread over them.

    Samples that PyTorch itself refuses to run are left out, and those of sparse and nested tensors and of types that the IR lacks.
    """
    import torch

    kind = getattr(torch, dtype)
    for info in _database():
        if info.name != name or not info.supports_dtype(kind, "cpu"):
            continue
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(info.sample_inputs("cpu", kind, requires_grad=False))
            if limit is not None and len(samples) > limit:
                samples = [samples[i * len(samples) // limit] for i in range(limit)]
            for sample in samples:
                call = _call(info, sample)
                if call is not None:
                    yield call


def _call(info: Any, sample: Any) -> ModuleCall | None:
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensor_indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = tuple(leaves[i] for i in tensor_indices)

    class Sample(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *tensors: Any) -> Any:
            full = list(leaves)
            for i, tensor in zip(tensor_indices, tensors, strict=True):
                full[i] = tensor
            first, args, kwargs = pytree.tree_unflatten(full, spec)
            return info.op(first, *args, **kwargs)

    module = Sample().eval()
    try:
        results = module(*(t.clone() for t in inputs))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError):
        return None
    flat = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor | bool | int | float)]
    if any(t.layout != torch.strided or t.is_nested for t in (*inputs, *flat) if isinstance(t, torch.Tensor)):
        return None
    known = {dtype.value for dtype in DType}
    if any(str(t.dtype).removeprefix("torch.") not in known for t in flat if isinstance(t, torch.Tensor)):
        return None
    want = tuple(to_numpy(r if isinstance(r, torch.Tensor) else torch.tensor(r)) for r in flat)
    description = ", ".join(
        f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}" if isinstance(v, torch.Tensor) else repr(v)
        for v in leaves
    )
    return ModuleCall(module, inputs, want, description)


def _database() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return op_db
