"""What PyTorch's samples leave out: negative and wrong indices, ONNX's own forms, numbers next to half types, resize's coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import IrError
from xpuruntime.ir import interp

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def one(op: str, *operands: Any, **attrs: Any) -> Any:
    (y,) = interp.apply(op, *operands, **attrs)
    return y


READS: dict[str, Any] = {
    "gather": lambda i: one("gather", X, np.array([[i, 0, 1, 1]]), dim=0)[0, 0],
    "index_select": lambda i: one("index_select", X, np.array([i]), dim=0)[0, 0],
    "gather_nd": lambda i: one("gather_nd", X, np.array([[i, 0]]))[0],
    "index": lambda i: one("index", X, np.array([i]))[0, 0],
    "embedding": lambda i: one("embedding", X, np.array([i]))[0, 0],
}
WRITES: dict[str, Any] = {
    "scatter": lambda i: one("scatter", X, np.array([[i]]), np.array([[-1]], np.float32), dim=0)[:, 0],
    "scatter_nd": lambda i: one("scatter_nd", X, np.array([[i, 0]]), np.array([-1], np.float32))[:, 0],
    "index_put": lambda i: one("index_put", X, np.array([-1], np.float32), np.array([i]), np.array([0]))[
        :, 0
    ],
    "index_copy": lambda i: one("index_copy", X, np.array([i]), np.full((1, 4), -1, np.float32), dim=0)[:, 0],
}


@pytest.mark.parametrize("op", READS)
def test_reads_from_the_end(op: str) -> None:
    assert READS[op](-1) == X[-1, 0]
    for outside in (3, -4):
        with pytest.raises(IrError, match=f"{op}.*index {outside} is out of range for a dim of 3"):
            READS[op](outside)


def test_an_index_select_without_wrap_has_no_negative_index() -> None:
    assert one("index_select", X, np.array([2]), dim=0, wrap=False)[0, 0] == X[2, 0]
    for outside in (-1, 3):
        with pytest.raises(IrError, match=f"index {outside} is out of range for a dim of 3"):
            one("index_select", X, np.array([outside]), dim=0, wrap=False)


@pytest.mark.parametrize("op", WRITES)
def test_writes_from_the_end(op: str) -> None:
    assert WRITES[op](-1).tolist() == [0, 4, -1]
    for outside in (3, -4):
        with pytest.raises(IrError, match=f"{op}.*index {outside} is out of range for a dim of 3"):
            WRITES[op](outside)


@pytest.mark.parametrize(
    ("reduce", "include_self", "want"),
    [
        ("none", True, [7, 10, 10]),
        ("add", True, [24, 10, 10]),
        ("add", False, [14, 10, 10]),
        ("mul", True, [490, 10, 10]),
        ("amax", True, [10, 10, 10]),
        ("amax", False, [7, 10, 10]),
        ("amin", False, [7, 10, 10]),
        ("mean", True, [8, 10, 10]),
        ("mean", False, [7, 10, 10]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "uint8", "int64"])
def test_scatter_twice_into_one_place(reduce: str, include_self: bool, want: list[int], dtype: str) -> None:
    from xpuruntime.types import DType

    kind = DType(dtype).numpy
    x, src = np.array([10, 10, 10]).astype(kind), np.array([7, 7]).astype(kind)
    y = one("scatter", x, np.array([0, 0]), src, dim=0, reduce=reduce, include_self=include_self)
    if dtype == "uint8":
        want = [w % 256 for w in want]
    assert y.dtype == kind
    wanted = np.array(want, np.float64).astype(kind)
    np.testing.assert_array_equal(y.astype(np.float64), wanted.astype(np.float64))


def test_scatter_nd_into_the_whole() -> None:
    y = one("scatter_nd", X, np.zeros((2, 0), np.int64), np.stack([X, X + 1]), reduce="add")
    np.testing.assert_array_equal(y, 3 * X + 1)


def test_one_hot() -> None:
    values = np.array([-1, 5], np.int32)
    y = one("one_hot", np.array([0, -1, 7]), values, depth=3)
    assert y.tolist() == [[5, -1, -1], [-1, -1, 5], [-1, -1, -1]]
    first = one("one_hot", np.array([0, 2]), values, depth=3, dim=0)
    assert first.tolist() == [[5, -1], [-1, -1], [-1, 5]]


def test_tensor_scatter() -> None:
    past, update = (
        np.zeros((2, 1, 4, 1), np.float32),
        np.array([1, 2], np.float32).reshape(1, 1, 2, 1).repeat(2, 0),
    )
    y = one("tensor_scatter", past, update, np.array([1, 2]))
    assert y[..., 0].tolist() == [[[0, 1, 2, 0]], [[0, 0, 1, 2]]]
    y = one("tensor_scatter", past, update, np.array([3, 0]), mode="circular")
    assert y[..., 0].tolist() == [[[2, 0, 0, 1]], [[1, 2, 0, 0]]]
    with pytest.raises(IrError, match="index 4 is out of range for a dim of 4"):
        one("tensor_scatter", past, update, np.array([3, 0]))


@pytest.mark.parametrize("time", [0, 1])
def test_reverse_sequence(time: int) -> None:
    x = np.arange(8).reshape(2, 4)
    y = one("reverse_sequence", x if time else x.T, np.array([3, 1]), time_dim=time, batch_dim=1 - time)
    assert (y if time else y.T).tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]


def test_what_is_found_is_counted_at_run_time() -> None:
    from xpuruntime.types import dim

    count = dim("u0")
    x = np.array([[2.0, 1.0, 1.0], [3.0, 4.0, 3.0]])
    values, first, inverse, counts = interp.apply("unique", x, count=count, sorted=False, outputs=4)
    assert values.tolist() == [2, 1, 3, 4]
    assert first.tolist() == [0, 1, 3, 4]
    assert inverse.tolist() == [0, 1, 1, 2, 3, 2]
    assert counts.tolist() == [1, 2, 2, 1]
    assert one("unique", x, count=count, dim=1).tolist() == [[1, 1, 2], [3, 4, 3]]
    assert one("compress", x, np.array([False, True]), count=count, dim=0).tolist() == [[3, 4, 3]]
    assert one("compress", x, np.array([True, False, True]), count=count).tolist() == [2, 1]


def test_non_max_suppression() -> None:
    from xpuruntime.types import dim

    boxes = np.array([[[0, 0, 1, 1], [0.1, 0, 1.1, 1], [0, 10, 1, 11], [1, 11, 0, 10]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6, 0.5]]], np.float32)
    limits = [np.array(v) for v in (3, np.float32(0.5), np.float32(0.0))]
    kept = one("non_max_suppression", boxes, scores, *limits, count=dim("u0"))
    assert kept.tolist() == [[0, 0, 0], [0, 0, 2]]
    centered = np.array([[[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [10.5, 0.5, 1, 1]]], np.float32)
    kept = one(
        "non_max_suppression", centered, scores[..., :3], *limits, count=dim("u0"), center_point_box=True
    )
    assert kept.tolist() == [[0, 0, 0], [0, 0, 2]]


def test_a_number_beside_bfloat16_keeps_its_precision() -> None:
    """As PyTorch's kernels: 0.1 is rounded to float32 in a product, to bfloat16 in a comparison."""
    torch = pytest.importorskip("torch")
    x = torch.arange(1, 257, dtype=torch.float32).to(torch.bfloat16)
    array = x.view(torch.int16).numpy().view(np.dtype("bfloat16"))
    want = (x * 0.1).view(torch.int16).numpy()
    np.testing.assert_array_equal(one("mul", array, 0.1).view(np.int16), want)
    assert not np.array_equal(one("mul", array, np.array(0.1).astype(array.dtype)).view(np.int16), want)
    tenth = torch.tensor([0.1], dtype=torch.bfloat16)
    assert (tenth == 0.1).item() is True
    assert one("eq", tenth.view(torch.int16).numpy().view(array.dtype), 0.1).tolist() == [True]


@pytest.mark.parametrize(
    ("coordinates", "want"),
    [
        ("half_pixel", [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]),
        ("pytorch_half_pixel", [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]),
        ("align_corners", [i * 3 / 7 for i in range(8)]),
        ("asymmetric", [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]),
        ("tf_half_pixel_for_nn", [0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3, 3]),
    ],
)
def test_a_ramp_shows_where_resize_reads(coordinates: str, want: list[float]) -> None:
    """Linear interpolation of 0, 1, 2, 3 gives the place that was read, within the borders."""
    y = one("resize", np.arange(4.0), size=[8], mode="linear", coordinates=coordinates)
    np.testing.assert_allclose(y, want)


def test_symmetric_coordinates_keep_the_center() -> None:
    """4 * 0.6 = 2.4 is rounded to 2: half_pixel leans to the left, half_pixel_symmetric reads around the middle."""
    x = np.arange(4.0)
    attrs: dict[str, Any] = {"size": [2], "scales": [0.6], "mode": "linear"}
    lean = one("resize", x, coordinates="half_pixel", **attrs)
    even = one("resize", x, coordinates="half_pixel_symmetric", **attrs)
    assert lean.mean() < 1.4
    np.testing.assert_allclose(even.mean(), 1.5)
    np.testing.assert_allclose(np.diff(even), 1 / 0.6)


def test_crop_and_resize() -> None:
    y = one(
        "resize",
        np.arange(4.0),
        size=[4],
        mode="linear",
        coordinates="tf_crop_and_resize",
        roi=[0.5, 1.5],
        extrapolation_value=-9,
    )
    np.testing.assert_allclose(y, [1.5, 2.5, -9, -9])


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("round_prefer_floor", [0, 0, 1, 1, 2]),
        ("round_prefer_ceil", [0, 1, 1, 2, 2]),
        ("floor", [0, 0, 1, 1, 2]),
        ("ceil", [0, 1, 1, 2, 2]),
    ],
)
def test_nearest_of_a_half(mode: str, want: list[int]) -> None:
    attrs: dict[str, Any] = {"mode": "nearest", "coordinates": "asymmetric", "nearest": mode}
    assert one("resize", np.arange(3), size=[5], scales=[2.0], **attrs).tolist() == want
