"""ATen ops that no OpInfo samples, called and compared with PyTorch's own functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.ir import interp
from xpuruntime.testing.conformance.opinfo import disagreement, to_numpy

torch = pytest.importorskip("torch")
F = torch.nn.functional


def same(got: tuple[Any, ...], want: Any) -> None:
    assert not disagreement(got[0], to_numpy(want))


def random(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype or torch.float32
    )


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [((5, 6), (2, 3), (1, 1), (0, 0), (1, 1)), ((8, 7), (3, 2), (2, 3), (1, 2), (2, 1)), ((4, 4), (4, 4), (1, 1), (0, 0), (1, 1))],
)  # fmt: skip
def test_col2im(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    image = random(2, 3, *size)
    columns = F.unfold(image, kernel, dilation=dilation, padding=padding, stride=stride)
    attrs = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    got = interp.apply("col2im", to_numpy(columns), output_size=size, **attrs)
    same(got, F.fold(columns, size, kernel, dilation=dilation, padding=padding, stride=stride))


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 6, 5), (1, 1, 3, 4, 2)])
def test_affine_grid(size: tuple[int, ...], align: bool) -> None:
    n = len(size) - 2
    theta = random(size[0], n, n + 1)
    got = interp.apply("affine_grid", to_numpy(theta), size=size, align_corners=align)
    same(got, F.affine_grid(theta, list(size), align_corners=align))


def test_the_largest_value_stays_in_range_when_both_roundings_go_up() -> None:
    """127.5 rounds to 128, and the zero point is 128."""
    y, scale, zero = interp.apply("dynamic_quantize_linear", np.array([-127.5, 127.5], np.float32))
    assert (y.tolist(), float(scale), int(zero)) == ([0, 255], 1.0, 128)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(("dtype", "name"), [(torch.qint8, "int8"), (torch.quint8, "uint8")])
def test_quantize_by_tensor_and_by_channel(dtype: Any, name: str) -> None:
    """With even zero points: PyTorch adds them before it rounds, ONNX after, which differs for halves."""
    x = random(3, 4, 5) * 40
    x[0, 0, :4] = torch.tensor([0.25, -0.25, 0.75, 1000.0])  # halves and saturation
    zero = np.array(4, name)
    got = interp.apply("quantize_linear", to_numpy(x), np.array(0.5, np.float32), zero, dtype=name)
    same(got, torch.quantize_per_tensor(x, 0.5, 4, dtype).int_repr())
    back = interp.apply("dequantize_linear", got[0], np.array(0.5, np.float32), zero)
    same(back, torch.quantize_per_tensor(x, 0.5, 4, dtype).dequantize())
    scales, zeros = torch.tensor([0.5, 0.25, 2.0, 1.0], dtype=torch.float64), torch.tensor([0, 2, 4, 6])
    per_channel = torch.quantize_per_channel(x, scales, zeros, 1, dtype)
    operands = (to_numpy(scales.float()), to_numpy(zeros).astype(name))
    got = interp.apply("quantize_linear", to_numpy(x), *operands, dtype=name, axis=1)
    same(got, per_channel.int_repr())
    same(interp.apply("dequantize_linear", got[0], *operands, axis=1), per_channel.dequantize())


def test_fake_quantize() -> None:
    x = random(3, 4) * 10
    got = interp.apply(
        "fake_quantize",
        to_numpy(x),
        np.array(0.1, np.float32),
        np.array(2, np.int32),
        quant_min=-128,
        quant_max=127,
    )
    same(got, torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -128, 127))
    scale, zero = torch.tensor([0.1, 0.2, 0.3, 0.05]), torch.tensor([0, 1, 15, 3], dtype=torch.int32)
    got = interp.apply(
        "fake_quantize", to_numpy(x), to_numpy(scale), to_numpy(zero), quant_min=0, quant_max=15, axis=1
    )
    same(got, torch.fake_quantize_per_channel_affine(x, scale, zero, 1, 0, 15))


@pytest.mark.parametrize("padding", [(1, 0, 2, 3), (0, 0, 1, 1)])
def test_padding_of_each_side(padding: tuple[int, ...]) -> None:
    """All begins, then all ends: convolution and pools against an explicit pad."""
    x, w = random(2, 3, 7, 8), random(4, 3, 3, 2)
    top, left, bottom, right = padding
    around = F.pad(x, (left, right, top, bottom))
    attrs = {"stride": (2, 1), "padding": padding, "dilation": (1, 2)}
    got = interp.apply("convolution", to_numpy(x), to_numpy(w), **attrs)
    same(got, F.conv2d(around, w, stride=(2, 1), dilation=(1, 2)))
    got = interp.apply("avg_pool", to_numpy(x), kernel_size=(3, 2), **{**attrs, "dilation": (1, 1)})
    same(got, F.avg_pool2d(around, (3, 2), (2, 1)))
    got = interp.apply("max_pool", to_numpy(x), kernel_size=(3, 2), **attrs)
    low = F.pad(x, (left, right, top, bottom), value=-torch.inf)
    same(got, F.max_pool2d(low, (3, 2), (2, 1), dilation=(1, 2)))


@pytest.mark.parametrize(
    ("kernel", "padding"), [((3, 2), (2, 0, 0, -2)), ((3, 2), (1, -2, -2, -2)), ((1, 2), (-2, -1, -2, -2))]
)
def test_windows_beyond_what_negative_padding_crops(kernel: Any, padding: tuple[int, ...]) -> None:
    """With ceil_mode the last window reaches beyond the cropped operand: it reads no cropped element, and begins at none."""
    x = random(2, 3, 9, 8).requires_grad_()
    top, left, bottom, right = padding
    attrs = {
        "kernel_size": kernel,
        "stride": (3, 3),
        "padding": padding,
        "ceil_mode": True,
        "dilation": (1, 1),
    }
    low = F.pad(x, (left, right, top, bottom), value=-torch.inf)
    same(interp.apply("max_pool", to_numpy(x), **attrs), F.max_pool2d(low, kernel, 3, ceil_mode=True))
    mean = F.avg_pool2d(F.pad(x, (left, right, top, bottom)), kernel, 3, ceil_mode=True)
    same(interp.apply("avg_pool", to_numpy(x), **attrs), mean)
    grad = random(*mean.shape)
    got = interp.apply("avg_pool_backward", to_numpy(grad), to_numpy(x), **attrs)
    same(got, torch.autograd.grad(mean, x, grad)[0])


def test_a_window_of_minus_infinity_points_inside() -> None:
    x = torch.full((1, 1, 3, 3), -torch.inf)
    attrs = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    values, places = interp.apply("max_pool", to_numpy(x), outputs=2, **attrs)
    want, want_places = F.max_pool2d(x, 2, 2, 1, return_indices=True)
    assert not disagreement(values, to_numpy(want))
    assert not disagreement(places, to_numpy(want_places))


@pytest.mark.parametrize(
    ("mode", "aten", "coordinates"),
    [("linear", "bilinear", "align_corners"), ("cubic", "bicubic", "half_pixel"), ("cubic", "bicubic", "align_corners")],
)  # fmt: skip
@pytest.mark.parametrize("size", [(12, 16), (3, 5)])
def test_no_number_stays_with_the_taps_of_a_resize(
    mode: str, aten: str, coordinates: str, size: tuple[int, int]
) -> None:
    x = random(1, 2, 6, 8)
    x[0, 0, 0, 7], x[0, 0, 3, 2], x[0, 1, 5, 0] = torch.inf, torch.nan, -torch.inf
    got = interp.apply(
        "resize", to_numpy(x), size=[1, 2, *size], mode=mode, coordinates=coordinates, cubic_a=-0.75
    )
    same(got, F.interpolate(x, size, mode=aten, align_corners=coordinates == "align_corners"))


def test_deformed_by_nothing_is_a_convolution() -> None:
    x, w, b = random(2, 4, 6, 7), random(6, 2, 3, 3), random(6)
    attrs = {"stride": (1, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2}
    want = F.conv2d(x, w, b, stride=(1, 2), padding=1, groups=2)
    offset = torch.zeros(2, 2 * 2 * 9, *want.shape[2:])
    got = interp.apply(
        "deform_convolution", *map(to_numpy, (x, w, offset, b)), None, offset_groups=2, **attrs
    )
    same(got, want)


def test_deformed_by_one_place_reads_the_neighbor() -> None:
    x, w = random(1, 1, 5, 5), torch.ones(1, 1, 1, 1)
    offset = torch.zeros(1, 2, 5, 5)
    offset[:, 1] = 1.5  # to the right by one and a half
    mask = torch.full((1, 1, 5, 5), 2.0)
    right = F.pad(x, (0, 3))[..., 1:]
    got = interp.apply(
        "deform_convolution",
        *map(to_numpy, (x, w, offset)),
        None,
        to_numpy(mask),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
    )
    same(got, right[..., :5] + right[..., 1:6])
