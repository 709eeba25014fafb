"""Text of the arguments of ops, from which they follow."""

from __future__ import annotations

import hashlib
from typing import Any

from ..weights import to_array

__all__ = ["MOST_BYTES", "NotTraced", "content_word", "form", "form_of", "plain_word"]

MOST_BYTES = 16 << 20
"""Bytes of a tensor whose content may be part of a key."""
_BY_REPR = (bool, int, float, complex, str, type(None))
"""Exact classes whose ``repr`` tells class and value, the sign of zero included."""
_TORCH = ("dtype", "device", "layout", "memory_format")


class NotTraced(Exception):
    """The module does something that a trace does not describe completely."""


def plain_word(value: Any) -> str:
    """Return the text of a value without tensors. Raise NotTraced."""
    cls = type(value)
    if cls in _BY_REPR:
        return repr(value)
    if cls.__module__ == "torch" and cls.__name__ in _TORCH:
        return str(value)
    if cls is slice:
        return f"slice({plain_word(value.start)},{plain_word(value.stop)},{plain_word(value.step)})"
    raise NotTraced(f"an argument of class {cls.__name__}")


def form(shape: Any, strides: Any, offset: int, dtype: Any, device: Any) -> str:
    """Return what tensors without content differ in as text."""
    return f"{tuple(shape)}{strides}{offset} {dtype} {device}"


def form_of(tensor: Any) -> str:
    """Return the form of a tensor of the user."""
    return form(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device)


def content_word(tensor: Any) -> str:
    """Return a digest of the elements of a tensor of the host, with its form. Raise NotTraced for another tensor and for a large one."""
    import torch

    cls = type(tensor)
    if cls is not torch.Tensor and cls is not torch.nn.Parameter:
        raise NotTraced(f"a tensor of class {cls.__name__}")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_complex():
        raise NotTraced(f"a constant that is {tensor.dtype}, {tensor.layout}, on {tensor.device}")
    if tensor.numel() * tensor.element_size() > MOST_BYTES:
        raise NotTraced(f"a constant of {tensor.numel()} elements")
    with torch._C._DisableTorchDispatch():  # the modes of the recording would return no content
        elements = to_array(tensor).tobytes()
    return f"const {form_of(tensor)} {hashlib.sha256(elements).hexdigest()}"
