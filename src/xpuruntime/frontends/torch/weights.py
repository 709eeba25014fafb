"""Weights of a PyTorch model by name, as arrays that share memory with the tensors, and the pair of them and a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import ModelError
from ...ir import Graph
from ...protocols import Array
from ...types import DType

__all__ = ["TorchImport", "TorchWeights", "tensor_key", "to_array"]


class TorchWeights(Mapping[str, Array]):
    """Tensors as arrays by name. Raises ModelError for a tensor on the meta device, which has no content."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> Array:
        return to_array(self.tensors[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


class TorchImport(NamedTuple):
    """A graph and its weights by name."""

    graph: Graph
    weights: TorchWeights


def to_array(tensor: Any, name: str = "tensor") -> Array:
    """Return a tensor's elements as an array: shared memory if it is contiguous and on the CPU, else a copy. Raise ModelError."""
    if tensor.is_meta or not _has_content(tensor):
        raise ModelError(
            f"weight {name!r}",
            "has no content: its tensor is on the meta device",
            do="Load the model's weights, or pass the array by name.",
        )
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    try:
        return dense.numpy()  # type: ignore[no-any-return]
    except TypeError:  # NumPy has bfloat16 and float8 through ml_dtypes, which PyTorch does not know
        import torch

        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        bits = {8: torch.uint8, 16: torch.int16}[dtype.bits]
        return dense.view(bits).numpy().view(dtype.numpy)  # type: ignore[no-any-return]


def _has_content(tensor: Any) -> bool:
    """Return False for the fake tensors of an export."""
    return type(tensor).__name__ != "FakeTensor"


def tensor_key(tensor: Any) -> object:
    """Return a key that is equal for tensors with the same elements of the same memory: tied weights."""
    if tensor.is_meta or not _has_content(tensor) or not tensor.numel():
        return id(tensor)
    storage = tensor.untyped_storage()
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
    return (storage.data_ptr(), str(tensor.device), str(tensor.dtype), layout)
