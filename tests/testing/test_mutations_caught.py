"""Every comparison that is relied on notices a model that is broken in one place, on every engine and in the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

from support import mutate  # noqa: E402

from xpuruntime.frontends.onnx import import_onnx  # noqa: E402
from xpuruntime.numerics import compare_all, tolerance_for  # noqa: E402
from xpuruntime.testing.conformance.seeded import networks as models  # noqa: E402
from xpuruntime.testing.conformance.seeded.export import export_onnx  # noqa: E402
from xpuruntime.types import DType  # noqa: E402

NAMES = list(models.MODELS)
TOLERANCE = tolerance_for(DType.FLOAT32)
pytestmark = pytest.mark.filterwarnings("ignore")

# Damage that is none, by mathematics: it must not be caught, or this table is wrong.
EQUIVALENT = (
    # q @ (k + b) adds the same number to every score of a query, and a softmax does not see that (a rotary embedding would).
    (("vit", "bert"), "drop_bias", re.compile(r"(k_proj|self\.key)\.bias$")),
)
CONVOLUTIONAL = {
    "drop_bias", "drop_norm_scale", "drop_norm_statistic", "change_weight", "swap_channels", "change_activation", "change_padding",
    "change_stride", "change_epsilon",
}  # fmt: skip
ATTENTIVE = {
    "drop_bias", "drop_norm_scale", "drop_residual", "swap_heads", "change_weight", "swap_channels", "transpose_square",
    "change_activation", "change_epsilon",
}  # fmt: skip
# What must be found in each, so that a kind cannot silently cease to apply.
KINDS = {
    "resnet18": CONVOLUTIONAL | {"drop_residual", "transpose_square"},
    "resnet50": CONVOLUTIONAL | {"drop_residual", "transpose_square"},
    "mobilenet_v2": CONVOLUTIONAL | {"drop_residual"},
    "efficientnet_b0": CONVOLUTIONAL | {"drop_residual"},
    "densenet121": CONVOLUTIONAL | {"transpose_square"},
    "vit": ATTENTIVE,
    "bert": ATTENTIVE | {"drop_mask"},
    "qwen2": ATTENTIVE | {"drop_mask"},
}


def harmless(name: str, mutant: mutate.Mutant) -> bool:
    return any(
        name in names and kind == mutant.kind and where.search(mutant.where)
        for names, kind, where in EQUIVALENT
    )


def caught(name: str, run, model, feeds, mutants) -> set[str]:
    """Kinds that were seen; fails where a mutant agrees with the model, or a harmless one does not."""
    reference = run(model, feeds)
    kinds, wrong = set(), []
    for mutant in mutants:
        (result,) = compare_all(["scores"], [run(mutant.model, feeds)], [reference], TOLERANCE)
        kinds.add(mutant.kind)
        if result.ok != harmless(name, mutant):
            wrong.append(f"{mutant} ({result.max_rel:.2g})")
    assert wrong == []
    return kinds


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_onnx_on_onnxruntime(name: str, onnx_file, run) -> None:
    model = onnx.load(onnx_file(name))
    feeds = models.inputs(name, 3, seed=11)
    found = caught(name, run["onnxruntime"], model, feeds, mutate.mutants(model, per_kind=3))
    assert found == KINDS[name]
    assert found | set(mutate.not_applicable(model)) == set(mutate.KINDS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_ir_in_the_interpreter(name: str, onnx_file, run) -> None:
    model = tuple(import_onnx(onnx_file(name)))
    feeds = models.inputs(name, 2, seed=11)
    found = caught(name, run["interpreter"], model, feeds, mutate.mutants(model, per_kind=1))
    assert found == KINDS[name]


# Each mutant is compiled; two networks that hold every kind between them go with every run.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [n if n in ("resnet18", "bert") else pytest.param(n, marks=pytest.mark.conformance) for n in NAMES],
)
def test_onnx_on_the_native_engine(name: str, onnx_file, run) -> None:
    model = onnx.load(onnx_file(name))
    feeds = models.inputs(name, 2, seed=11)
    assert caught(name, run["native"], model, feeds, mutate.mutants(model, per_kind=1)) == KINDS[name]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenet_v2", "bert"])
def test_onnx_on_openvino(name: str, onnx_file, run) -> None:
    model = onnx.load(onnx_file(name))
    feeds = models.inputs(name, 3, seed=11)
    assert caught(name, run["openvino"], model, feeds, mutate.mutants(model, per_kind=1)) == KINDS[name]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["densenet121", "qwen2"])
def test_pytorch_modules(name: str, run) -> None:
    module, _ = models.build(name)
    feeds = models.inputs(name, 3, seed=11)
    found = caught(name, run["torch"], module, feeds, mutate.mutants(module, per_kind=2))
    assert found >= {
        "drop_bias",
        "drop_norm_scale",
        "change_weight",
        "swap_channels",
        "change_activation",
        "change_epsilon",
    }
    assert ("drop_norm_statistic" in found) == (name == "densenet121")


@pytest.mark.conformance
@pytest.mark.parametrize("optimize", [False, True], ids=["named", "optimized"])
@pytest.mark.parametrize("name", NAMES)
def test_every_place_of_every_model(name: str, optimize: bool, onnx_file, run) -> None:
    model = onnx.load(onnx_file(name, optimize=optimize) if optimize else onnx_file(name))
    feeds = models.inputs(name, 4, seed=11)
    caught(name, run["onnxruntime"], model, feeds, mutate.mutants(model))


@pytest.mark.conformance
@pytest.mark.parametrize("name", NAMES)
def test_every_place_in_the_interpreter(name: str, onnx_file, run) -> None:
    model = tuple(import_onnx(onnx_file(name)))
    caught(
        name, run["interpreter"], model, models.inputs(name, 4, seed=11), mutate.mutants(model, per_kind=10)
    )


# Qwen2's published size does not fit into one ONNX file (2 GiB); its small form above has every part of it.
@pytest.mark.conformance
@pytest.mark.parametrize("name", [n for n in NAMES if n != "qwen2"])
def test_the_published_sizes(name: str, tmp_path, run) -> None:
    model = onnx.load(export_onnx(name, tmp_path / "model.onnx", size="full"))
    feeds = models.inputs(name, 2, size="full", seed=11)
    module, _ = models.build(name, "full")
    one_by_one = [run["torch"](module, {k: v[i : i + 1] for k, v in feeds.items()}) for i in range(2)]
    (result,) = compare_all(
        ["scores"], [run["onnxruntime"](model, feeds)], [np.concatenate(one_by_one)], TOLERANCE
    )
    assert result.ok, result.reason
    del module
    assert caught(name, run["onnxruntime"], model, feeds, mutate.mutants(model, per_kind=1)) == KINDS[name]
