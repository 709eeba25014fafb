"""What run() takes: everything right passes unchanged, everything wrong says who, what, got, do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import InputError
from xpuruntime.inference.execution.inputs import Feeds
from xpuruntime.types import DType, TensorSpec, dim

SPECS = (
    TensorSpec((2, 3), DType.FLOAT32, "image"),
    TensorSpec((dim("n"),), DType.INT64, "ids"),
)
RIGHT = {"image": np.zeros((2, 3), np.float32), "ids": np.arange(4)}


def feeds(*specs: TensorSpec) -> Feeds:
    return Feeds("session('m')", specs or SPECS)


def test_right_arrays_pass_untouched_and_stay_numpy() -> None:
    checked, back = feeds().check(RIGHT)
    assert all(checked[k] is RIGHT[k] for k in RIGHT)
    assert back is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"imag": RIGHT["image"]}, ["no input of that name", "'imag'", "Did you mean 'image'?"]),
        ({"image": np.zeros((2, 3))}, ["input 'image'", "must be float32", "float64", "astype('float32')"]),
        ({"image": np.zeros((2, 3), ">f4")}, ["byte order", "astype('float32')"]),
        ({"image": np.zeros(3, np.float32)}, ["must have 2 dimensions", "got 1, shape [3]"]),
        ({"image": np.zeros((2, 4), np.float32)}, ["axis 1 must be 3", "got 4, shape [2, 4]"]),
        ({"image": [[0.0] * 3] * 2}, ["must be a NumPy array or a DLPack tensor", "list", "numpy.asarray"]),
        ({"ids": np.zeros(4, np.int32)}, ["input 'ids'", "must be int64", "int32"]),
        ({"ids": np.ma.array(np.arange(4), mask=[0, 1, 0, 1])}, ["a value everywhere", "2 masked", "filled"]),
    ],
)
def test_wrong_arrays_are_named_with_what_to_do(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        feeds().check({**RIGHT, **change})
    for word in ["session('m')", *words]:
        assert word in str(caught.value)


def test_an_input_with_an_initializer_takes_no_value() -> None:
    """ONNX Runtime lets callers override such a default since IR version 4; here it is a constant of the compiled program."""
    checked = Feeds("session('m')", SPECS, defaults=frozenset({"scale"}))
    with pytest.raises(InputError, match=r"is a constant of the session and takes no value; got 'scale'\. Leave 'scale' out, or remove"):  # fmt: skip
        checked.check({**RIGHT, "scale": np.float32(2)})


def test_a_masked_array_without_a_mask_is_an_array() -> None:
    checked, _ = feeds().check({**RIGHT, "ids": np.ma.array(np.arange(4))})
    assert np.array_equal(checked["ids"], np.arange(4))


def test_a_missing_input_names_its_spec() -> None:
    with pytest.raises(InputError, match=r"input 'ids' is missing.*Add 'ids': int64\[n\]"):
        feeds().check({"image": RIGHT["image"]})
    with pytest.raises(InputError, match=r"input 'image' is missing; got no inputs\. Add 'image'"):
        feeds().check({})
    with pytest.raises(InputError, match=r"input 'image' is missing; got only 'ids'\."):
        feeds().check({"ids": RIGHT["ids"]})


def test_a_list_of_the_wrong_length_names_the_order() -> None:
    with pytest.raises(InputError, match=r"takes 2 inputs; got 1\. Give them in this order: image, ids"):
        feeds().named([1])


@given(
    st.integers(0, 4).flatmap(lambda rank: st.lists(st.integers(0, 3), min_size=rank, max_size=rank)),
    st.sampled_from([d for d in DType if d.numpy.kind in "biufc"]),
)
def test_odd_and_empty_shapes_and_strides_pass_unchanged(shape: list[int], dtype: DType) -> None:
    spec = TensorSpec(tuple(dim(f"d{i}") for i in range(len(shape))), dtype, "x")
    array = np.ones([2 * d for d in shape], dtype.numpy)[tuple(slice(None, None, 2) for _ in shape)]
    checked, _ = feeds(spec).check({"x": array})
    assert checked["x"] is array or np.array_equal(checked["x"], array)


def test_nan_and_inf_pass() -> None:
    array = np.array([[np.nan, np.inf, -np.inf]] * 2, np.float32)
    assert feeds().check({**RIGHT, "image": array})[0]["image"] is array


def test_text_is_taken_as_str_or_object() -> None:
    spec = TensorSpec((2,), DType.STRING, "x")
    for array in (np.array(["a", "b"]), np.array(["a", "b"], object)):
        assert feeds(spec).check({"x": array})[0]["x"].tolist() == ["a", "b"]
    with pytest.raises(InputError, match="must hold text"):
        feeds(spec).check({"x": np.zeros(2)})


def test_unknown_rank_takes_any_shape() -> None:
    spec = TensorSpec((dim("..."),), DType.FLOAT32, "x")
    for shape in ((), (3,), (2, 0, 4)):
        assert feeds(spec).check({"x": np.zeros(shape, np.float32)})[0]["x"].shape == shape


class Dlpack:
    """A tensor of a library nobody knows, which speaks DLPack and nothing else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **_: object) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_any_dlpack_tensor_is_read_without_a_copy() -> None:
    array = np.ones((2, 3), np.float32)
    checked, _ = feeds().check({**RIGHT, "image": Dlpack(array)})
    assert np.shares_memory(checked["image"], array)


def test_a_tensor_on_a_device_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"must lie in host memory; got a tensor on cuda.*value\.cpu\(\)"):
        feeds().check({**RIGHT, "image": Dlpack(np.ones((2, 3), np.float32), (2, 0))})


class TestTorch:
    torch = pytest.importorskip("torch", reason="torch is an extra")

    @pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8", "bool", "float8_e4m3fn"])
    def test_tensors_go_in_without_a_copy_and_come_back_equal(self, name: str) -> None:
        torch = self.torch
        tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
        spec = TensorSpec((2, 3), DType(name), "x")
        checked, back = feeds(spec).check({"x": tensor})
        assert checked["x"].dtype == spec.dtype.numpy
        assert checked["x"].ctypes.data == tensor.data_ptr()
        assert back is not None
        again = back(checked["x"])
        assert again.dtype == tensor.dtype
        assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))

    def test_gradients_and_strides_do_not_matter(self) -> None:
        tensor = self.torch.ones(3, 2, requires_grad=True).T
        checked, _ = feeds(SPECS[0]).check({"image": tensor})
        assert checked["image"].shape == (2, 3)

    def test_a_wrong_dtype_is_put_right_in_torch_s_words(self) -> None:
        wrong = {"image": self.torch.zeros(2, 3, dtype=self.torch.float64)}
        text = r"input 'image'\] must be float32; got float64\. Use value\.to\(torch\.float32\)\."
        with pytest.raises(InputError, match=text):
            feeds().check({**RIGHT, **wrong})

    @pytest.mark.parametrize(
        ("dtype", "change", "text"),
        [
            ("float32", {"device": "meta"}, "meta"),
            ("float32", {"layout": "sparse_coo"}, "Sparse layout"),
            ("bfloat16", {"layout": "sparse_coo"}, "storage"),
        ],
    )
    def test_tensors_without_plain_values_are_refused(
        self, dtype: str, change: dict[str, str], text: str
    ) -> None:
        options = {key: getattr(self.torch, v) if key == "layout" else v for key, v in change.items()}
        tensor = self.torch.zeros(2, 3, dtype=getattr(self.torch, dtype), **options)
        with pytest.raises(InputError, match=rf"input 'image' cannot be read through DLPack; got .*{text}"):
            feeds().check({**RIGHT, "image": tensor})


def test_bfloat16_of_ml_dtypes_is_a_plain_array() -> None:
    spec = TensorSpec((2,), DType.BFLOAT16, "x")
    array = np.ones(2, ml_dtypes.bfloat16)
    assert feeds(spec).check({"x": array})[0]["x"] is array
