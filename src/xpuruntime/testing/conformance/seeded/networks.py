"""Seeded models in PyTorch and ONNX whose weights expose errors of compilers and engines.

    module, inputs = models.build("resnet18")             # small, for tests
    module, inputs = models.resnet18()                    # the size of its paper
    path = export_onnx("bert", "build/models/bert.onnx")   # of ``export``
    feeds = models.inputs("bert", 100, seed=1)            # NumPy, the first axis counts examples

Every model maps its inputs to float32 scores, one row per example (the decoder: per token). No weight is zero, one, or equal
to another (``seeding``), so that dropping or changing any part of a model changes its results; ``mutate`` does exactly that.
Needs torch; the transformers also the ``transformers`` package. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ....protocols import Array
from . import convolutional as nets
from .weights import draw, seed_weights

__all__ = [
    "MODELS",
    "SeededModel",
    "bert",
    "build",
    "densenet121",
    "efficientnet_b0",
    "inputs",
    "mobilenet_v2",
    "qwen2",
    "resnet18",
    "resnet50",
    "vit",
]

Built: TypeAlias = "tuple[Any, tuple[Any, ...]]"
_EXAMPLES = 128  # for statistics, if they are small
_ELEMENTS = 1 << 22  # of an input for statistics


def resnet18(*, width: int = 64, image: int = 224, classes: int = 1000, seed: int = 0) -> Built:
    """Return ResNet-18. image: side in pixels, at least 64 (the last stage is 1/32 of it)."""
    return _finished(nets.resnet((2, 2, 2, 2), width, classes), _images(image), "head", seed)


def resnet50(*, width: int = 64, image: int = 224, classes: int = 1000, seed: int = 0) -> Built:
    """Return ResNet-50 (stride in the 3x3 convolution of a block)."""
    net = nets.resnet((3, 4, 6, 3), width, classes, bottleneck=True)
    return _finished(net, _images(image), "head", seed)


def mobilenet_v2(
    *, width: float = 1.0, depth: float = 1.0, image: int = 224, classes: int = 1000, seed: int = 0
) -> Built:
    """Return MobileNetV2. width, depth: factors on channels and repeats."""
    return _finished(nets.mobilenet_v2(width, depth, classes), _images(image), "head", seed)


def efficientnet_b0(
    *, width: float = 1.0, depth: float = 1.0, image: int = 224, classes: int = 1000, seed: int = 0
) -> Built:
    """Return EfficientNet-B0. width, depth: factors on channels and repeats."""
    return _finished(nets.efficientnet(width, depth, classes), _images(image), "head", seed)


def densenet121(
    *, growth: int = 32, blocks: tuple[int, ...] = (6, 12, 24, 16), image: int = 224, classes: int = 1000, seed: int = 0
) -> Built:  # fmt: skip
    """Return DenseNet-121. growth: channels that each layer adds."""
    return _finished(nets.densenet(blocks, growth, classes), _images(image), "head", seed)


def vit(
    *, hidden: int = 768, layers: int = 12, heads: int = 12, patch: int = 16, image: int = 224, classes: int = 1000, seed: int = 0
) -> Built:  # fmt: skip
    """Return a vision transformer (Dosovitskiy et al. 2020) of ``transformers``."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        patch_size=patch,
        image_size=image,
        num_labels=classes,
    )
    return _finished(_scores(ViTForImageClassification(config)), _images(image), "model.classifier", seed)


def bert(
    *, hidden: int = 768, layers: int = 12, heads: int = 12, vocabulary: int = 30522, length: int = 128, classes: int = 1000,
    seed: int = 0,
) -> Built:  # fmt: skip
    """Return a BERT encoder (Devlin et al. 2018) of ``transformers`` with a classifier on its first token. Inputs: tokens and their mask."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=length,
        num_labels=classes,
    )
    net = _scores(BertForSequenceClassification(config))
    return _finished(net, _tokens(vocabulary, length), "model.classifier", seed)


def qwen2(
    *, hidden: int = 896, layers: int = 24, heads: int = 14, kv_heads: int = 2, inner: int = 4864, vocabulary: int = 151936,
    length: int = 128, seed: int = 0,
) -> Built:  # fmt: skip
    """Return a Qwen2 decoder of ``transformers`` (RMS norms, rotary embedding, grouped heads, SiLU gate; biases in q, k, v).

    Its outputs are scores of the next token at every position, [batch, length, vocabulary].
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        max_position_embeddings=length,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return _finished(_scores(Qwen2ForCausalLM(config)), _tokens(vocabulary, length), "", seed)


@dataclass(frozen=True)
class SeededModel:
    """An entry of the registry.

    make:   from keywords to (module in eval mode, example inputs of batch 1).
    small:  keywords that make it small enough for every test run; the defaults are the published size.
    images: True if it reads images [batch, 3, image, image] float32; otherwise tokens and mask, both [batch, length] int64.
    """

    make: Callable[..., Built]
    small: Mapping[str, Any]
    images: bool = True
    input_names: tuple[str, ...] = field(default=("image",))


_TEXT: Mapping[str, Any] = {"images": False, "input_names": ("tokens", "mask")}

MODELS: dict[str, SeededModel] = {
    "resnet18": SeededModel(resnet18, {"width": 8, "image": 64, "classes": 100}),
    "resnet50": SeededModel(resnet50, {"width": 8, "image": 64, "classes": 100}),
    "mobilenet_v2": SeededModel(mobilenet_v2, {"width": 0.25, "depth": 0.5, "image": 64, "classes": 100}),
    "efficientnet_b0": SeededModel(
        efficientnet_b0, {"width": 0.25, "depth": 0.5, "image": 64, "classes": 100}
    ),
    "densenet121": SeededModel(
        densenet121, {"growth": 12, "blocks": (2, 3, 3, 2), "image": 64, "classes": 100}
    ),
    "vit": SeededModel(vit, {"hidden": 64, "layers": 2, "heads": 4, "patch": 8, "image": 32, "classes": 100}),
    "bert": SeededModel(
        bert,
        {"hidden": 64, "layers": 2, "heads": 4, "vocabulary": 96, "length": 16, "classes": 100},
        **_TEXT,
    ),
    "qwen2": SeededModel(
        qwen2,
        {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "inner": 112, "vocabulary": 96, "length": 16},
        **_TEXT,
    ),
}


def build(name: str, size: str = "small", *, seed: int = 0) -> Built:
    """Return a model of the registry, ``small`` or ``full``: (module in eval mode, example inputs of batch 1). Raises KeyError for an unknown name."""
    row = MODELS[name]
    return row.make(**_keywords(row, size), seed=seed)


def inputs(name: str, count: int = 1, *, size: str = "small", seed: int = 0) -> dict[str, Array]:
    """Return inputs by name for ``count`` examples that differ in content and contrast; texts also in length."""
    row = MODELS[name]
    defaults = {**(row.make.__kwdefaults__ or {}), **_keywords(row, size)}
    source = _images(defaults["image"]) if row.images else _tokens(defaults["vocabulary"], defaults["length"])
    return dict(zip(row.input_names, source(count, seed), strict=True))


def _keywords(row: SeededModel, size: str) -> dict[str, Any]:
    return {"small": dict(row.small), "full": {}}[size]


Source: TypeAlias = "Callable[[int, int], tuple[Array, ...]]"


def _images(size: int) -> Source:
    """Return a source of images with a color, a texture and noise. The texture repeats every 32 pixels, the step of the last stage, so every
    position sees the same texture and the mean over positions tells images apart as well as the positions do.
    """

    def source(count: int, seed: int) -> tuple[Array, ...]:
        color = draw(seed, "colour", (count, 3, 1, 1))  # words: recognise, colour
        coarse = np.kron(draw(seed, "texture", (count, 3, 8, 8)), np.ones((4, 4), np.float32))
        texture = np.tile(coarse, (-(-size // 32),) * 2)[..., :size, :size]
        noise = draw(seed, "noise", (count, 3, size, size))
        return ((0.5 * color + texture + 0.2 * noise).astype(np.float32),)

    return source


def _tokens(vocabulary: int, length: int) -> Source:
    """Return a source of tokens: token 0, then any. The mask ends the text after at least half of the positions and before the last one."""

    def source(count: int, seed: int) -> tuple[Array, ...]:
        random = np.random.Generator(np.random.Philox(key=seed))
        tokens = random.integers(0, vocabulary, (count, length))
        tokens[:, 0] = 0
        ends = random.integers(length // 2, length, count)
        return tokens, (np.arange(length) < ends[:, None]).astype(np.int64)

    return source


def _finished(module: Any, source: Source, head: str, seed: int) -> Built:
    """Return the module with its weights, and an example."""
    import torch

    example = source(1, seed + 1)
    count = min(_EXAMPLES, _ELEMENTS // example[0].size) if head else 1
    batch = tuple(torch.from_numpy(a) for a in source(count, seed))
    seed_weights(module, batch, seed=seed, head=head)
    return module, tuple(torch.from_numpy(a) for a in example)


def _scores(model: Any) -> Any:
    """Return a ``transformers`` model that outputs its scores only."""
    from torch import nn

    class Scores(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return self.model(*inputs).logits

    return Scores()
