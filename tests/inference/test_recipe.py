"""Seeded inputs: the same everywhere, of the asked shapes, safe as indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import InputError
from xpuruntime.inference.execution.seeded_inputs import sample_feeds
from xpuruntime.types import DType, TensorSpec, dim

NUMERIC = [d for d in DType if d is not DType.STRING]


@given(st.sampled_from(NUMERIC), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 2**31))
def test_same_seed_same_arrays_of_the_asked_spec(dtype: DType, shape: list[int], seed: int) -> None:
    spec = TensorSpec(tuple(shape), dtype, "x")
    one, two = (sample_feeds([spec], seed=seed)["x"] for _ in range(2))
    assert one.shape == tuple(shape)
    assert one.dtype == dtype.numpy
    assert one.tobytes() == two.tobytes()


def test_another_seed_gives_other_values() -> None:
    spec = TensorSpec((8,), DType.FLOAT32, "x")
    assert not np.array_equal(sample_feeds([spec], seed=1)["x"], sample_feeds([spec], seed=2)["x"])


def test_symbols_get_sizes_by_name_or_by_hand_and_agree_between_inputs() -> None:
    ids = TensorSpec((dim("batch"), dim("seq")), DType.INT64, "input_ids")
    mask = TensorSpec((dim("batch"), dim("seq")), DType.INT64, "attention_mask")
    made = sample_feeds([ids, mask], symbols={"batch": 3})
    assert made["input_ids"].shape == made["attention_mask"].shape == (3, 16)
    assert made["attention_mask"].all()
    assert set(np.unique(made["input_ids"])) <= {0, 1}


def test_bytes_are_any_byte() -> None:
    made = sample_feeds(
        [TensorSpec((4096,), DType.INT32, "file_bytes"), TensorSpec((64,), DType.INT4, "byte_pairs")]
    )
    assert (made["file_bytes"].min(), made["file_bytes"].max()) == (0, 255)
    assert set(np.unique(made["byte_pairs"].astype(int))) <= {0, 1}


def test_an_unknown_symbol_is_an_error_that_names_the_known_ones() -> None:
    spec = TensorSpec((dim("batch"), 2), DType.FLOAT32, "x")
    with pytest.raises(InputError, match=r"no symbolic dim of that name; got 'bach'.*batch"):
        sample_feeds([spec], symbols={"bach": 1})


def test_derived_dims_follow_their_symbols() -> None:
    n = dim("n")
    made = sample_feeds(
        [TensorSpec((n,), DType.FLOAT32, "a"), TensorSpec((2 * n + 1,), DType.FLOAT32, "b")], symbols={"n": 5}
    )
    assert made["a"].shape == (5,)
    assert made["b"].shape == (11,)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT64, DType.BOOL, DType.STRING, DType.COMPLEX64])
@pytest.mark.parametrize(
    "size", [2**47, 2**62, 10**30]
)  # beyond the address space: fails wherever memory is overcommitted
def test_what_no_memory_holds_names_the_input_its_shape_and_the_option(dtype: DType, size: int) -> None:
    text = rf"\[input 'x'\] is too large to be made here; got shape \[{size}, 2\] of {dtype.value}: .*--shape NAME=SIZE"
    with pytest.raises(InputError, match=text):
        sample_feeds([TensorSpec((dim("n"), 2), dtype, "x")], symbols={"n": size})
    with pytest.raises(InputError, match="Give the input itself"):
        sample_feeds([TensorSpec((size, 2), dtype, "x")])
