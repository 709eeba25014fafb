"""DeviceBuffer: layouts, padding, DLPack both ways, devices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime.errors import DeviceUnavailable, InputError
from xpuruntime.runtime import CpuBackend, Device, DeviceBuffer, MemoryPool, NPUBuffer, empty_pinned
from xpuruntime.types import DType, Layout, TensorSpec


@st.composite
def laid_out(draw: Any) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    alloc = tuple(d + draw(st.integers(0, 3)) for d in shape)
    dtype = draw(st.sampled_from([DType.FLOAT32, DType.BFLOAT16, DType.BOOL, DType.INT64, DType.INT4]))
    return TensorSpec(shape, dtype, "v", Layout(order, alloc))


@given(laid_out())
def test_arrays_come_back_from_any_layout(spec: TensorSpec) -> None:
    shape = [int(d) for d in spec.shape if isinstance(d, int)]
    array = (np.arange(int(np.prod(shape))) % 5).reshape(shape).astype(spec.dtype.numpy)
    buffer = DeviceBuffer.from_numpy(array, "cpu", spec=spec)
    back = buffer.to_numpy()
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()
    assert buffer.size_bytes == spec.size_bytes
    assert (buffer.shape, buffer.alloc_shape) == (spec.shape, spec.alloc_shape)
    assert buffer.address % 64 == 0


def test_padding_is_zero_and_lies_as_the_layout_says() -> None:
    spec = TensorSpec((1, 2, 2), DType.FLOAT32, "x", Layout((0, 2, 1), (1, 4, 2)))
    buffer = DeviceBuffer.from_numpy(np.array([[[1, 2], [3, 4]]], np.float32), spec=spec)
    raw = buffer.backend.download(buffer.native_handle, buffer.size_bytes).view(np.float32)
    assert raw.tolist() == [1, 3, 0, 0, 2, 4, 0, 0]


def test_the_guides_methods_of_a_backend() -> None:
    backend = CpuBackend()
    padded = backend.allocate_buffer(np.ones((2, 3), np.float32), alloc_shape=(2, 8))
    assert (padded.alloc_shape, padded.size_bytes) == ((2, 8), 64)
    assert padded.to_numpy().tolist() == [[1, 1, 1]] * 2
    zeros = backend.allocate_zeros((2, 2), "bfloat16", (2, 4))
    assert zeros.dtype == ml_dtypes.bfloat16
    assert zeros.to_numpy().astype(float).tolist() == [[0, 0]] * 2
    backend.synchronize()


def test_a_buffer_read_by_another_spec() -> None:
    buffer = DeviceBuffer.from_numpy(np.arange(6, dtype=np.float32))
    assert buffer.to_numpy(spec=TensorSpec((2, 3), DType.FLOAT32)).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InputError, match="takes 28 bytes; got 24 bytes"):
        buffer.to_numpy(spec=TensorSpec((7,), DType.FLOAT32))


def test_a_copy_and_a_view() -> None:
    buffer = DeviceBuffer.from_numpy(np.zeros(3, np.float32))
    copy = buffer.to_numpy()
    buffer.numpy()[:] = 1
    assert copy.tolist() == [0, 0, 0]
    assert np.asarray(buffer).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("spec", "array", "text"),
    [
        (TensorSpec((3,), DType.FLOAT32, "x"), np.zeros(4, np.float32), r"takes an array float32\[3\]"),
        (TensorSpec((3,), DType.FLOAT32, "x"), np.zeros(3), r"takes an array float32\[3\]"),
        (TensorSpec((xrt.types.dim("n"),), DType.FLOAT32, "x"), np.zeros(3, np.float32), "has no size"),
    ],
)
def test_what_does_not_fit_is_refused(spec: TensorSpec, array: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        DeviceBuffer.from_numpy(array, spec=spec)


@pytest.mark.parametrize("name", ["float32", "bool", "int64", "bfloat16", "float16"])
def test_dlpack_both_ways(name: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, name))
    buffer = DeviceBuffer.from_dlpack(tensor)
    assert buffer.spec.dtype.value == name
    assert buffer.to_numpy().tolist() == tensor.tolist()
    back = torch.from_dlpack(buffer)
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)
    buffer.numpy()[0, 0] = 1
    assert back[0, 0] == 1  # the same memory
    transposed = DeviceBuffer.from_numpy(
        buffer.to_numpy(), spec=TensorSpec((2, 3), buffer.spec.dtype, "", Layout((1, 0), (2, 3)))
    )
    assert torch.equal(torch.from_dlpack(transposed), back)


def test_a_tensor_that_needs_gradients_says_so() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="detach it from gradients"):
        DeviceBuffer.from_dlpack(torch.zeros(2, requires_grad=True))


def test_the_memory_outlives_the_buffer() -> None:
    torch = pytest.importorskip("torch")
    views = [torch.from_dlpack(DeviceBuffer.from_numpy(np.full(1000, i, np.float32))) for i in range(20)]
    assert [int(v.sum()) for v in views] == [1000 * i for i in range(20)]


def test_devices() -> None:
    assert repr(Device()) == "Device('cpu')"
    assert NPUBuffer is DeviceBuffer
    with pytest.raises(DeviceUnavailable, match="has no backend for native programs"):
        Device("npu")
    with pytest.raises(DeviceUnavailable, match="no such device"):
        Device("cpus")


@pytest.mark.parametrize(
    "shape", [None, "abc", b"ab", -1, (1, -3), (1.0, 2), True, (True, 2), [[1]], {"a": 1}, 2.5]
)
def test_shapes_of_pinned_arrays_and_buffers_are_whole_numbers(shape: Any) -> None:
    for allocate in (empty_pinned, MemoryPool("cpu").allocate):
        with pytest.raises(
            InputError, match=r"needs a shape of whole numbers; got .*\. Give \(1, 3, 224, 224\)"
        ):
            allocate(shape)


@pytest.mark.parametrize("dtype", ["foo", None, 5, [1]])
def test_types_of_pinned_arrays_and_buffers_are_types(dtype: Any) -> None:
    for allocate in (empty_pinned, MemoryPool("cpu").allocate):
        with pytest.raises(
            InputError, match=r"needs a type of elements; got .*\. Give a name such as 'float32'"
        ):
            allocate((1, 3), dtype)


def test_pinned_arrays_are_of_devices_that_have_them() -> None:
    for shape in (3, np.int64(3), (np.int32(1), 3), [1, 3]):
        with pytest.raises(DeviceUnavailable, match=r"has no page-locked memory .* Use cuda\.$"):
            empty_pinned(shape, device="cpu")
    with pytest.raises(InputError, match="more bytes than a process can have"):
        empty_pinned((2**40, 2**40))
    with pytest.raises(InputError, match="text or of types below a byte; got string"):
        empty_pinned(3, "str")
    with pytest.raises(InputError, match="more bytes than a process can have"):
        MemoryPool("cpu").allocate((2**40, 2**40))
    assert MemoryPool("cpu").allocate((np.int64(2), 3)).shape == (2, 3)
