"""Seeded models hide nothing: no weight is neutral, no branch vanishes, every input says something else."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.testing.conformance.seeded import networks as models  # noqa: E402

NAMES = list(models.MODELS)
pytestmark = pytest.mark.filterwarnings("ignore")


def scores(name: str, module, count: int, seed: int) -> np.ndarray:
    """One row per example; of a decoder, the scores after the last token that its mask keeps."""
    feeds = [torch.from_numpy(a) for a in models.inputs(name, count, seed=seed).values()]
    with torch.no_grad():
        out = module(*feeds)
    return (out if out.ndim == 2 else out[torch.arange(count), feeds[1].sum(1) - 1]).numpy()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_inputs_reach_twenty_classes(name: str) -> None:
    module, _ = models.build(name)
    assert not module.training
    assert len(set(scores(name, module, 100, seed=5).argmax(-1).tolist())) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_activations_stay_of_order_one_and_no_branch_vanishes(name: str) -> None:
    module, _ = models.build(name)
    spreads: dict[str, float] = {}
    shares: dict[str, float] = {}

    def watch(path: str):
        def hook(layer, inputs, output) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                spreads[path] = float(output.std())
            if type(layer).__name__ == "Residual":
                shares[path] = spreads[f"{path}.body"] / float(
                    (layer.skip or torch.nn.Identity())(inputs[0]).std()
                )

        return hook

    for path, layer in module.named_modules():
        layer.register_forward_hook(watch(path))
    scores(name, module, 32, seed=6)
    assert len(spreads) > 20
    assert {p: s for p, s in spreads.items() if not 0.02 < s < 12} == {}
    assert {p: s for p, s in shares.items() if s < 0.1} == {}
    assert bool(shares) == (name in ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_no_weight_is_neutral(name: str) -> None:
    """A few numbers may round to 1 by chance; no tensor is near all zeros, all ones, or all alike."""
    module, _ = models.build(name)
    state = {k: v.numpy() for k, v in module.state_dict().items() if v.is_floating_point()}
    assert any(k.endswith("bias") for k in state)
    for key, array in state.items():
        assert np.isin(array, (0.0, 1.0)).mean() < 0.2, key
        assert array.std() > 0.01, key


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_not_amplified(name: str) -> None:
    """float32 against float64: an order below the tolerance between engines, or no comparison of engines could use the model."""
    module, _ = models.build(name)
    feeds = [torch.from_numpy(a) for a in models.inputs(name, 8, seed=7).values()]
    with torch.no_grad():
        narrow = module(*feeds).double()
        wide = module.double()(*(f.double() if f.is_floating_point() else f for f in feeds))
    assert float((narrow - wide).abs().max() / wide.abs().max()) < 1e-5


def test_the_seed_decides() -> None:
    one, same, other = (models.build("resnet18", seed=s)[0].state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one if one[k].is_floating_point())
    images = [models.inputs("resnet18", 2, seed=s)["image"] for s in (0, 0, 1)]
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])
    assert not np.array_equal(images[0][0], images[0][1])


@pytest.mark.parametrize("name", ["resnet18", "bert", "qwen2"])
def test_inputs_are_what_the_model_takes(name: str) -> None:
    _, example = models.build(name)
    feeds = models.inputs(name, 5)
    assert [tuple(x.shape[1:]) for x in example] == [a.shape[1:] for a in feeds.values()]
    assert [str(x.dtype).removeprefix("torch.") for x in example] == [str(a.dtype) for a in feeds.values()]
    if "mask" in feeds:
        kept = feeds["mask"].sum(1)
        assert set(feeds["mask"].ravel()) == {0, 1}
        assert kept.min() >= feeds["mask"].shape[1] // 2
        assert len(set(kept.tolist())) > 1
        assert (feeds["tokens"][:, 0] == 0).all()


def test_an_unknown_name_or_size() -> None:
    with pytest.raises(KeyError, match="alexnet"):
        models.build("alexnet")
    with pytest.raises(KeyError, match="medium"):
        models.build("resnet18", "medium")
