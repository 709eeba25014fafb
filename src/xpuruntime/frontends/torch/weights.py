"""Weights of a PyTorch model by name: arrays over the tensors' own memory, made when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ModelError
from ...protocols import Array
from ...types import DType

__all__ = ["TorchWeights", "identity", "to_array"]


class TorchWeights(Mapping[str, Array]):
    """Tensors as arrays by name. Raises ModelError for a tensor on the meta device, which has a type and no content."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> Array:
        return to_array(self.tensors[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def to_array(tensor: Any, name: str = "tensor") -> Array:
    """A tensor's elements as an array: its own memory where it is dense and on the CPU, a copy elsewhere. Raises ModelError."""
    if tensor.is_meta or not _has_content(tensor):
        raise ModelError(
            f"weight {name!r}",
            "has no content: its tensor is on the meta device",
            do="Load the model's weights, or give the array by name.",
        )
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    try:
        return dense.numpy()  # type: ignore[no-any-return]
    except TypeError:  # bfloat16 and float8: NumPy has them from ml_dtypes, PyTorch does not know that
        import torch

        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        bits = {8: torch.uint8, 16: torch.int16}[dtype.bits]
        return dense.view(bits).numpy().view(dtype.numpy)  # type: ignore[no-any-return]


def _has_content(tensor: Any) -> bool:
    """False for the fake tensors of an export."""
    return type(tensor).__name__ != "FakeTensor"


def identity(tensor: Any) -> object:
    """Equal for two tensors that are the same elements of the same memory: tied weights."""
    if tensor.is_meta or not _has_content(tensor) or not tensor.numel():
        return id(tensor)
    storage = tensor.untyped_storage()
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
    return (storage.data_ptr(), str(tensor.device), str(tensor.dtype), layout)
