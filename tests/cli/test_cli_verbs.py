"""Every verb: what it answers, as text and as JSON."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import xpuruntime
from xpuruntime.program.plan import Plan
from xpuruntime.storage.store import Store

both = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnxruntime", "openvino"))),
    reason="needs onnxruntime and openvino",
)
ort = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="needs onnxruntime")


def test_version(xpu) -> None:
    assert xpu("--version").stdout == f"xpu {xpuruntime.__version__}\n"


def test_help_names_every_verb_and_exit_code(xpu) -> None:
    text = xpu("--help").stdout
    for word in (
        "devices",
        "doctor",
        "run",
        "compile",
        "inspect",
        "explain",
        "compare",
        "bench",
        "cache",
        "Exit codes",
        "130",
    ):
        assert word in text


@ort
def test_run_prints_specs_and_statistics(xpu, model: Path, x_file: Path) -> None:
    done = xpu("run", model, "--engine", "onnxruntime", "--input", f"x={x_file}", "--top-k", 2)
    assert done.code == 0
    assert "line on onnxruntime" in done.stdout
    assert "float32[1, 3]" in done.stdout
    assert "y[0] largest: 2 (7), 1 (5)" in done.stdout


@ort
def test_run_json(xpu, model: Path, x_file: Path) -> None:
    done = xpu("run", model, "-e", "onnxrt", "-i", x_file, "--json", "--receipt")
    assert done.code == 0
    document = done.json
    assert document["engine"] == "onnxruntime"
    assert document["outputs"][0]["values"] == [3, 5, 7]
    assert document["outputs"][0]["mean"] == 5
    assert document["receipt"]["confirmed"] is True
    assert document["inputs"] == {"source": str(x_file), "specs": {"x": "float32[1, 3]"}}


@ort
def test_run_writes_outputs_that_it_can_read_back(xpu, model: Path, x_file: Path, tmp_path: Path) -> None:
    done = xpu("run", model, "-e", "onnxruntime", "-i", x_file, "-o", tmp_path / "out.npz")
    assert done.code == 0
    assert "wrote" in done.stderr
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["y"].tolist() == [[3, 5, 7]]


@ort
def test_run_by_recipe_repeats_and_takes_shapes(xpu, model: Path) -> None:
    def values(*more: object) -> list[float]:
        return xpu("run", model, "-e", "onnxruntime", "--shape", "batch=2", "--json", *more).json["outputs"][
            0
        ]["values"]

    assert len(values()) == 6
    assert values() == values("--seed", 0)
    assert values() != values("--seed", 1)


@ort
def test_run_with_nan_is_still_json(xpu, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "nan.npy", np.array([[np.nan, np.inf, 1]], np.float32))
    document = xpu("run", model, "-e", "onnxruntime", "-i", tmp_path / "nan.npy", "--json", "--top-k", 1).json
    assert document["outputs"][0]["not_finite"] >= 2


@ort
def test_run_an_image(xpu, tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    import onnx
    from onnx import TensorProto, helper

    spec = [1, 3, 2, 2]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["y"])],
        "same",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, spec)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, spec)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "same.onnx")
    image_module.new("RGB", (2, 2), (255, 0, 51)).save(tmp_path / "red.png")
    options = ("--image-mean", "0.5", "--image-std", "0.5,0.5,0.1")
    done = xpu(
        "run", tmp_path / "same.onnx", "-e", "onnxruntime", "-i", tmp_path / "red.png", *options, "--json"
    )
    assert done.json["outputs"][0]["values"] == pytest.approx([1] * 4 + [-1] * 4 + [-3] * 4)


def test_inspect(xpu, model: Path) -> None:
    done = xpu("inspect", model, "--nodes")
    assert done.code == 0
    for text in ("float32[batch, 3]", "1 MatMul", "12 parameters in 2 tensors", "product"):
        assert text in done.stdout
    document = xpu("inspect", model, "--json").json
    assert document["families"]["matmul"] == {"MatMul": 1}
    assert {e["engine"] for e in document["engines"]} >= {"onnxruntime", "openvino"}


@ort
def test_explain_then_inspect_the_saved_plan(xpu, model: Path, tmp_path: Path) -> None:
    done = xpu("explain", model, "-e", "onnxruntime", "--save", tmp_path / "plan.json")
    assert done.code == 0
    assert "requested: named by the user" in done.stdout
    again = xpu("inspect", tmp_path / "plan.json")
    assert again.code == 0
    assert again.stdout == done.stdout
    assert Plan.from_json((tmp_path / "plan.json").read_text()).regions[0].engine == "onnxruntime"


@ort
def test_explain_json(xpu, model: Path, tmp_path: Path) -> None:
    done = xpu("explain", model, "-e", "onnxruntime", "--json")
    document = done.json
    assert document["chosen"]["name"] == "onnxruntime on cpu"
    assert document["chosen"]["code"] == "requested"
    assert Plan.from_json(document["plan"]).to_json() == document["plan"]
    (tmp_path / "answer.json").write_text(done.stdout)
    assert xpu("inspect", tmp_path / "answer.json", "--json").json == document["plan"]


@both
def test_explain_what_cannot_be_had(xpu, model: Path) -> None:
    done = xpu("explain", model, "--device", "npu", "--engine", "openvino", "--json")
    assert done.code == 6
    document = done.json
    assert document["chosen"] is None
    assert document["plan"] is None
    first = document["rejected"][0]
    assert first["name"] == "openvino on npu"
    assert first["code"] in ("no_device", "device_refused")
    assert first["reason"]
    assert all(c["code"] and c["reason"] for c in document["rejected"])
    assert document["error"]["exit_code"] == 6
    text = xpu("explain", model, "--device", "npu", "--engine", "openvino")
    assert text.code == 6
    assert "no usable candidate" in text.stdout


@both
def test_explain_with_fallback(xpu, model: Path) -> None:
    done = xpu("explain", model, "-d", "npu", "-e", "openvino", "--allow-fallback", "cpu", "--json")
    assert done.code == 0
    document = done.json
    assert document["chosen"]["code"] == "fallback"
    assert document["rejected"][0]["name"] == "openvino on npu"
    assert document["plan"]["warnings"]
    assert done.stderr.count("warning: ") == 1


@both
def test_compare_agrees(xpu, model: Path) -> None:
    done = xpu("compare", model, "--engines", "all", "--json", "--samples", 2)
    assert done.code == 0
    document = done.json
    assert document["ok"] is True
    assert document["samples"] == 2
    (output,) = document["pairs"][0]["outputs"]
    assert {"max_abs", "max_rel", "cosine", "argmax_equal", "tolerance", "ok"} <= set(output)
    assert xpu("compare", model).code == 0


@both
def test_compare_with_a_changed_weight(xpu, model: Path, other: Path) -> None:
    done = xpu("compare", model, "--reference", other, "--json")
    assert done.code == 1
    assert {p["first_difference"] for p in done.json["pairs"]} == {"y"}
    text = xpu("compare", model, "--reference", other)
    assert text.code == 1
    assert "first in output 'y'" in text.stdout
    assert xpu("compare", model, "--reference", other, "--tolerance", 0.01).code == 0
    assert xpu("compare", model, "--reference", model).code == 0


@both
def test_compare_against_the_reference_evaluator(xpu, model: Path) -> None:
    document = xpu("compare", model, "--against", "reference", "--samples", 1, "--json").json
    assert {p["reference"] for p in document["pairs"]} == {"onnx.reference"}


@both
def test_the_reference_evaluator_takes_old_models_that_list_weights_as_inputs(
    xpu, model: Path, tmp_path: Path
) -> None:
    import onnx

    old = onnx.load(model)
    old.ir_version = 3
    for tensor in reversed(old.graph.initializer):
        weight = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        old.graph.input.insert(0, weight)
    del old.opset_import[:]
    old.opset_import.append(onnx.helper.make_opsetid("", 8))
    onnx.save(old, tmp_path / "old.onnx")
    done = xpu("compare", tmp_path / "old.onnx", "--against", "reference", "--samples", 1, "--json")
    assert done.code == 0
    assert len(done.json["pairs"]) == 3


@both
def test_bench(xpu, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = xpu("bench", model, "--seconds", 0.6, "--threads", 1, "--json", "--plot", tmp_path / "b.svg")
    assert done.code == 0
    document = done.json
    assert [s["threads"] for s in document["ranked"]] == [1, 1, 1]
    assert document["ranked"][0]["median"] <= document["ranked"][1]["median"]
    assert document["ranked"][1]["ratio_to_best"]["interval"]["low"] > 0
    assert (tmp_path / "b.svg").stat().st_size > 1000
    text = xpu("bench", model, "--seconds", 0.2, "--engines", "openvino,onnxruntime")
    assert text.code == 0
    assert "control, two sessions of openvino" in text.stdout


@pytest.mark.parametrize("verb", ["devices", "doctor"])
def test_devices_and_doctor(xpu, verb: str) -> None:
    assert xpu(verb).code == 0
    assert xpu(verb, "--json").json


def test_doctor_finds_damage(xpu) -> None:
    store = Store()
    path = store.path("artifact", store.put("artifact", {}, b"x"))
    path.write_bytes(b"junk")
    done = xpu("doctor", "--json")
    assert done.code == 1
    assert done.json["healthy"] is False


def test_cache(xpu, own_store: Path) -> None:
    assert xpu("cache", "path").stdout == f"{own_store}\n"
    assert xpu("cache", "list", "--json").json["entries"] == []
    store = Store()
    keys = [store.put("artifact", {"n": n}, bytes(1000)) for n in range(3)]
    listed = xpu("cache", "list", "--json").json
    assert {e["key"] for e in listed["entries"]} == set(keys)
    assert listed["bytes"] > 3000
    assert keys[0][:12] in xpu("cache", "list").stdout
    assert xpu("cache", "verify").code == 0
    path = store.path("artifact", keys[1])
    path.write_bytes(path.read_bytes()[:-1])
    damaged = xpu("cache", "verify", "--json")
    assert damaged.code == 1
    assert "is truncated" in damaged.json["damaged"][0]["what"]
    assert len(xpu("cache", "trim", "--to", "1.5KiB", "--json").json["removed"]) == 2
    assert xpu("cache", "clear", "--json").json["entries"] == 0
    assert not path.exists()
