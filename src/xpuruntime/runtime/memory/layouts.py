"""Conversion between logical arrays and buffer memory: layout, padding and packed sub-byte types."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...storage.tensor_files import pack_bits, unpack_bits
from ...types import TensorSpec

__all__ = ["flat_bytes", "from_memory", "memory_shape", "to_memory"]

Array: TypeAlias = NDArray[Any]


def memory_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the extents in memory, outermost first: the padded shape in the layout's order. The memory is row-major in this shape."""
    physical = spec.physical
    return tuple(physical.alloc[d] for d in physical.order)


def to_memory(array: Array, spec: TensorSpec) -> Array:
    """Return a logical array in the memory layout of its buffer: the shape ``memory_shape(spec)``, or packed bytes for sub-byte types.

    The result may be a strided view. Raises InputError if the array's shape or dtype differs from the spec.
    """
    if tuple(array.shape) != spec.shape or array.dtype != spec.dtype.numpy:
        raise InputError(
            f"buffer {spec.name or spec}",
            f"takes an array {spec}",
            got=f"{array.dtype}{list(array.shape)}",
            do="Give an array of that type and shape.",
        )
    physical = spec.physical
    if physical.alloc != array.shape:
        padded = np.zeros(memory_shape(spec), array.dtype)
        inside = tuple(slice(array.shape[d]) for d in physical.order)
        padded[inside] = array.transpose(physical.order)
        array = padded
    else:
        array = array.transpose(physical.order)
    return pack_bits(array, spec.dtype) if spec.dtype.bits < 8 else array


def flat_bytes(array: Array) -> Array:
    """Return the elements' bytes in row-major order; a view if they are contiguous."""
    if not array.flags.c_contiguous and array.dtype.itemsize in (1, 2, 4, 8):
        array = array.view(f"u{array.dtype.itemsize}")
        while array.itemsize < 8 and array.strides[-1] == array.itemsize and array.shape[-1] % 2 == 0:
            array = array.view(f"u{2 * array.itemsize}")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_memory(buffer: Array, spec: TensorSpec) -> Array:
    """Return the logical array of a buffer (contiguous, of the spec's ``size_bytes``); a view except for sub-byte types.

    Raises InputError if the buffer has another size.
    """
    flat = buffer.reshape(-1).view(np.uint8)
    if flat.size != spec.size_bytes:
        raise InputError(
            f"buffer {spec.name or spec}",
            f"takes {spec.size_bytes} bytes",
            got=f"{flat.size} bytes",
            do="Give an array of that size.",
        )
    shape, physical = memory_shape(spec), spec.physical
    memory = (
        unpack_bits(flat, spec.dtype, shape)
        if spec.dtype.bits < 8
        else flat.view(spec.dtype.numpy).reshape(shape)
    )
    logical_order = tuple(int(i) for i in np.argsort(physical.order))
    logical = memory.transpose(logical_order)
    return logical[tuple(slice(d) for d in spec.shape if isinstance(d, int))]
