"""`xpu compare MODEL --reference BROKEN` says no and names the output, whatever was broken; a lost mask too, without a hint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

from support import mutate  # noqa: E402
from support.onnx_models import build_model, small_classifier  # noqa: E402

from xpuruntime.cli.app import app  # noqa: E402


def attention(seed: int = 0) -> onnx.ModelProto:
    """Softmax of scores under an additive mask made from the input ``attention_mask``; a bias, a residual, a norm."""
    from onnx import TensorProto, helper

    r = np.random.default_rng(seed)
    weights = {
        "wq": r.standard_normal((8, 8)), "wk": r.standard_normal((8, 8)), "b": r.standard_normal(8), "scale": np.exp(r.standard_normal(8)),
        "shift": r.standard_normal(8), "one": np.array(1.0), "low": np.array(-1e4),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="q"),
        helper.make_node("MatMul", ["x", "wk"], ["k0"], name="k0"),
        helper.make_node("Transpose", ["k0"], ["k"], name="k", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"], name="scores"),
        helper.make_node("Cast", ["attention_mask"], ["m"], name="m", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "m"], ["hidden"], name="hidden"),
        helper.make_node("Mul", ["hidden", "low"], ["bias"], name="bias"),
        helper.make_node("Add", ["scores", "bias"], ["masked"], name="masked"),
        helper.make_node("Softmax", ["masked"], ["p"], name="p", axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y0"], name="y0"),
        helper.make_node("Add", ["y0", "b"], ["y1"], name="y1"),
        helper.make_node("Add", ["y1", "x"], ["y2"], name="y2"),
        helper.make_node("LayerNormalization", ["y2", "scale", "shift"], ["y"], name="y", axis=-1),
    ]
    return build_model(
        nodes,
        [("x", TensorProto.FLOAT, [1, 6, 8]), ("attention_mask", TensorProto.INT64, [1, 1, 6])],
        [("y", TensorProto.FLOAT, [1, 6, 8])],
        {k: v.astype(np.float32) for k, v in weights.items()},
    )


MODELS = {"attention": (attention, "y"), "classifier": (small_classifier, "output")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_compare_says_no_to_every_mutant_and_yes_to_the_model(name: str, tmp_path: Path) -> None:
    make, output = MODELS[name]
    model = make()
    mine, broken = tmp_path / "model.onnx", tmp_path / "broken.onnx"
    onnx.save(model, mine)

    def verdict() -> tuple[int, dict]:
        done = CliRunner().invoke(
            app,
            ["compare", str(mine), "--reference", str(broken), "--engines", "onnxruntime,openvino", "--json"],
        )
        return done.exit_code, json.loads(done.stdout)

    onnx.save(model, broken)
    code, report = verdict()
    assert (code, report["ok"]) == (0, True)
    kinds = set()
    for mutant in mutate.mutants(model):
        onnx.save(mutant.model, broken)
        code, report = verdict()
        assert (code, report["ok"]) == (1, False), mutant
        assert all(p["first_difference"] == output for p in report["pairs"]), mutant
        kinds.add(mutant.kind)
    if name == "attention":
        assert kinds >= {"drop_mask", "drop_residual", "drop_bias", "drop_norm_scale", "change_epsilon"}
