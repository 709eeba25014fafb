"""Convolutional networks built from four pieces according to the papers, so that no model collection is needed.

ResNet (He et al. 2015), MobileNetV2 (Sandler et al. 2018), EfficientNet-B0 (Tan and Le 2019), DenseNet-121 (Huang et al. 2016):
Blocks, strides, widths and the order of layers follow the papers; ``width`` and ``depth`` scale them down for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

__all__ = ["densenet", "efficientnet", "mobilenet_v2", "resnet"]

# expansion, channels at full width, repeats, stride, kernel
MOBILENET_V2 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip

REACH6 = (2.4, 1.6)  # mean and spread before a ReLU6: a fifteenth is cut at 0, a little at 6


def resnet(blocks: Sequence[int], width: int, classes: int, *, bottleneck: bool = False) -> Any:
    """Return a ResNet with ``blocks`` per stage; bottleneck: 1x1, 3x3, 1x1 with four times the channels at the end."""
    from torch import nn

    layers: dict[str, Any] = {"stem": _conv(3, width, 7, 2, act="relu"), "pool": nn.MaxPool2d(3, 2, 1)}
    channels = width
    for stage, repeats in enumerate(blocks):
        inner, stride = width << stage, 1 if stage == 0 else 2
        out = inner * 4 if bottleneck else inner
        for k in range(repeats):
            step = stride if k == 0 else 1
            if bottleneck:
                body = _chain(
                    a=_conv(channels, inner, 1, act="relu"),
                    b=_conv(inner, inner, 3, step, act="relu"),
                    c=_conv(inner, out, 1),
                )
            else:
                body = _chain(a=_conv(channels, inner, 3, step, act="relu"), b=_conv(inner, out, 3))
            skip = _conv(channels, out, 1, step) if step > 1 or channels != out else None
            layers[f"stage{stage + 1}_{k}"] = _pieces().Residual(body, skip, nn.ReLU())
            channels = out
    return _chain(**layers, **_classifier(channels, classes))


def mobilenet_v2(width: float, depth: float, classes: int) -> Any:
    """Return a MobileNetV2: inverted residuals with depthwise convolutions and ReLU6; the last of each is linear."""
    return _inverted(MOBILENET_V2, width, depth, classes, act="relu6", gated=False)


def efficientnet(width: float, depth: float, classes: int) -> Any:
    """Return an EfficientNet: MobileNetV2's blocks with SiLU and squeeze-and-excitation (a quarter of the block's input channels)."""
    return _inverted(EFFICIENTNET_B0, width, depth, classes, act="silu", gated=True)


def densenet(blocks: Sequence[int], growth: int, classes: int) -> Any:
    """Return a DenseNet: every layer reads all layers before it. Norm and ReLU precede each convolution."""
    from torch import nn

    channels = 2 * growth
    layers: dict[str, Any] = {"stem": _conv(3, channels, 7, 2, act="relu"), "pool": nn.MaxPool2d(3, 2, 1)}
    for stage, repeats in enumerate(blocks):
        for k in range(repeats):
            body = _chain(a=_before(channels, 4 * growth, 1), b=_before(4 * growth, growth, 3))
            layers[f"stage{stage + 1}_{k}"] = _pieces().Concat(body)
            channels += growth
        if stage < len(blocks) - 1:
            half = channels // 2
            layers[f"down{stage + 1}"] = _chain(a=_before(channels, half, 1), pool=nn.AvgPool2d(2))
            channels = half
    layers["norm"], layers["act"] = nn.BatchNorm2d(channels), nn.ReLU()
    return _chain(**layers, **_classifier(channels, classes))


def _inverted(rows: Any, width: float, depth: float, classes: int, *, act: str, gated: bool) -> Any:
    def scaled(channels: int) -> int:
        return max(4, round(channels * width / 4) * 4)

    channels = scaled(32)
    layers: dict[str, Any] = {"stem": _conv(3, channels, 3, 2, act=act)}
    for stage, (expansion, full, repeats, stride, kernel) in enumerate(rows):
        out = scaled(full)
        for k in range(max(1, round(repeats * depth))):
            step, inner = stride if k == 0 else 1, channels * expansion
            parts = {"expand": _conv(channels, inner, 1, act=act)} if expansion > 1 else {}
            parts["depthwise"] = _conv(inner, inner, kernel, step, groups=inner, act=act)
            if gated:
                parts["gate"] = _squeeze(inner, max(4, channels // 4), act)
            parts["project"] = _conv(inner, out, 1)
            body = _chain(**parts)
            has_skip = step == 1 and channels == out
            layers[f"stage{stage + 1}_{k}"] = _pieces().Residual(body, None, None) if has_skip else body
            channels = out
    last = scaled(1280) if width >= 1 else scaled(1280) // 2
    layers["last"] = _conv(channels, last, 1, act=act)
    return _chain(**layers, **_classifier(last, classes))


def _conv(channels: int, out: int, kernel: int, stride: int = 1, *, groups: int = 1, act: str = "") -> Any:
    """Return convolution without bias, batch norm and activation, padded so that stride 1 keeps the size."""
    from torch import nn

    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(out)
    if act == "relu6":
        norm.reach = REACH6  # otherwise few values come near 6, and an error there would be missed
    return _chain(conv=conv, norm=norm, **({"act": _activation(act)} if act else {}))


def _before(channels: int, out: int, kernel: int) -> Any:
    from torch import nn

    conv = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return _chain(norm=nn.BatchNorm2d(channels), act=nn.ReLU(), conv=conv)


def _squeeze(channels: int, inner: int, act: str) -> Any:
    from torch import nn

    body = _chain(
        pool=nn.AdaptiveAvgPool2d(1),
        reduce=nn.Conv2d(channels, inner, 1),
        act=_activation(act),
        expand=nn.Conv2d(inner, channels, 1),
        gate=nn.Sigmoid(),
    )
    return _pieces().Gate(body)


def _classifier(channels: int, classes: int) -> dict[str, Any]:
    from torch import nn

    return {"mean": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "head": nn.Linear(channels, classes)}


def _activation(name: str) -> Any:
    from torch import nn

    return {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU}[name]()


def _chain(**layers: Any) -> Any:
    from torch import nn

    chain = nn.Sequential()
    for name, layer in layers.items():
        chain.add_module(name, layer)
    return chain


@cache
def _pieces() -> SimpleNamespace:
    """Return the three ways of combining a layer with its own input. They are made on first use, because they subclass torch's Module."""
    import torch
    from torch import nn

    class Residual(nn.Module):  # type: ignore[misc]
        """act(body(x) + skip(x))."""

        def __init__(self, body: Any, skip: Any, act: Any) -> None:
            super().__init__()
            self.body, self.skip, self.act = body, skip, act

        def forward(self, x: Any) -> Any:
            y = self.body(x) + (x if self.skip is None else self.skip(x))
            return y if self.act is None else self.act(y)

    class Gate(nn.Module):  # type: ignore[misc]
        """x * body(x)."""

        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return x * self.body(x)

    class Concat(nn.Module):  # type: ignore[misc]
        """x and body(x), concatenated by channels."""

        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return torch.cat([x, self.body(x)], 1)

    return SimpleNamespace(Residual=Residual, Gate=Gate, Concat=Concat)
