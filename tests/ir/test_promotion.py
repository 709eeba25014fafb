from __future__ import annotations

import itertools

import pytest

from xpuruntime.ir.ops._types import promote, promote_types
from xpuruntime.ir.schema import Mismatch
from xpuruntime.types import DType, TensorSpec

torch = pytest.importorskip("torch")

PLAIN = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
SHAPES = {"tensor": (2,), "zero_dim": ()}
NUMBERS = (True, 3, 2.5)


def of(dtype) -> DType:
    name = str(dtype).removeprefix("torch.")
    return DType("complex64" if name == "complex32" else name)  # we have no half-precision complex


@pytest.mark.parametrize(("a", "b"), itertools.product(PLAIN, PLAIN))
def test_pairs_as_torch(a: str, b: str) -> None:
    assert promote_types(DType(a), DType(b)) is of(torch.promote_types(getattr(torch, a), getattr(torch, b)))


@pytest.mark.parametrize(("a", "b"), itertools.product(PLAIN, PLAIN))
def test_tensors_with_and_without_dims_as_torch(a: str, b: str) -> None:
    for left, right in itertools.product(SHAPES.values(), SHAPES.values()):
        want = torch.result_type(
            torch.ones(left, dtype=getattr(torch, a)), torch.ones(right, dtype=getattr(torch, b))
        )
        assert promote([TensorSpec(left, DType(a)), TensorSpec(right, DType(b))]) is of(want)


@pytest.mark.parametrize(("dtype", "number"), itertools.product(PLAIN, NUMBERS))
def test_numbers_as_torch(dtype: str, number: float) -> None:
    for shape in SHAPES.values():
        want = torch.result_type(torch.ones(shape, dtype=getattr(torch, dtype)), number)
        assert promote([TensorSpec(shape, DType(dtype)), number]) is of(want)


def test_no_common_type() -> None:
    with pytest.raises(Mismatch, match="no common type"):
        promote_types(DType.FLOAT8_E5M2, DType.FLOAT8_E4M3FN)
    with pytest.raises(Mismatch, match="no common type"):
        promote_types(DType.UINT64, DType.INT8)
    with pytest.raises(Mismatch, match="strings have no arithmetic"):
        promote_types(DType.STRING, DType.INT8)
