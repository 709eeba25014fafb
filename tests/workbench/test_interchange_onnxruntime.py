"""Layer rules, next to the installed ONNX Runtime: what it accepts, what it refuses, and what runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime.errors import PolicyError
from xpuruntime.policies.policy import Policy
from xpuruntime.workbench.interchange import read_foreign, write_foreign
from xpuruntime.workbench.interchange.layer_rules import BY_ANNOTATION, BY_NAME, deciding_rule, parse_rules
from xpuruntime.workbench.interchange.source_text import SourceText

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

VERSION = tuple(int(p) for p in ort.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(
    VERSION < (1, 31), reason="layer rules were tested with ONNX Runtime 1.31, and older ones lack some"
)
NAMES = ("encoder.0", "encoder.1", "encoder.norm", "head")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a chain of four nodes, annotated by layer."""
    nodes = []
    for i, (name, op) in enumerate(zip(NAMES, ("Sigmoid", "Tanh", "Softmax", "Sigmoid"), strict=True)):
        node = onnx.helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=name)
        node.metadata_props.add(key="layer_ann", value="enc_norm" if "norm" in name else name[:3])
        nodes.append(node)
    values = [onnx.helper.make_tensor_value_info(f"v{i}", 1, [2, 3]) for i in (0, 4)]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:])
    path = tmp_path_factory.mktemp("layers") / "m.onnx"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path
    )
    return path


def opens(model: Path, option: str, value: str) -> bool:
    """Return True if ONNX Runtime accepts the setting."""
    settings_ = ort.SessionOptions()
    settings_.log_severity_level = 4
    settings_.add_session_config_entry(option, value)
    try:
        ort.InferenceSession(model, settings_, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


VALUES = [
    "cpu(a)", "cpu(a,=a);gpu(b)", "cpu(a,a)", "cpu(=a,=a)", "cpu(a);cuda(a)", "cpu", "cpu(", "cpu)", ")cpu(", "(a)", " ( a )", "cpu()",
    "cpu(=)", ";;", "cpu(a)x", "cpu(a)(b)", "cpu(a) gpu(a)", "=cpu(a)", "cpu(a(b)", "cpu( = a )", "nonsense(a)", "cpu(a;b)",
]  # fmt: skip


@pytest.mark.parametrize("option", [BY_ANNOTATION, BY_NAME])
@pytest.mark.parametrize("value", VALUES)
def test_what_onnxruntime_refuses_is_an_error_and_nothing_else(model: Path, option: str, value: str) -> None:
    try:
        parse_rules(SourceText("s", f"{option}={value}"))
        accepted = True
    except PolicyError:
        accepted = False
    assert accepted == opens(model, option, value)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(["cpu", "gpu", "(", ")", ",", ";", "=", " ", "a", "b"]), max_size=10))
def test_drawn_settings(model: Path, parts: list[str]) -> None:
    test_what_onnxruntime_refuses_is_an_error_and_nothing_else(model, BY_ANNOTATION, "".join(parts))


@pytest.mark.parametrize(
    ("option", "value", "text", "expected"),
    [
        (BY_ANNOTATION, "cpu(=enc); npu(en)", "enc", "npu(en)"),  # a prefix is before a whole annotation
        (BY_ANNOTATION, "cpu(e); npu(en)", "enc", "cpu(e)"),  # the first of several prefixes
        (BY_ANNOTATION, "npu(encoder); cpu(=enc)", "enc", "cpu(=enc)"),
        (BY_ANNOTATION, "cpu(e)", "", None),
        (BY_NAME, "cpu(enc); npu(coder.0)", "encoder.0", "npu(coder.0)"),  # the longest part
        (BY_NAME, "cpu(abc); npu(bcd)", "abcd", "cpu(abc)"),
        (BY_NAME, "cpu(x)", "abcd", None),
    ],
)
def test_which_rule_decides(option: str, value: str, text: str, expected: str | None) -> None:
    _, rules = parse_rules(SourceText("s", f"{option}={value}"))
    rule = deciding_rule(option, rules, text)
    assert (None if rule is None else str(rule)) == expected


def test_annotations_become_places_that_run(model: Path, tmp_path: Path) -> None:
    setting = tmp_path / "s.txt"
    setting.write_text("OpenVINOExecutionProvider(=enc)\n; cpu(enc_norm, hea); cuda(nothing)")
    result = read_foreign("onnxruntime-layers", setting, model=model)
    place = dict(result.policy.execution.place or {})
    assert place == {
        "encoder.0": "openvino",
        "encoder.1": "openvino",
        "encoder.norm": "onnxruntime",
        "head": "onnxruntime",
    }
    assert [(i.line, i.column, i.outcome.value) for i in result.items] == [
        (1, 27, "carried"), (2, 7, "carried"), (2, 17, "carried"), (2, 28, "not carried")
    ]  # fmt: skip
    with xrt.InferenceSession(
        model, policy={**result.policy.to_dict()}, engine="onnxruntime", threads=1
    ) as session:
        placed = {
            n.name: r.engine for r in session.plan.regions for n in session.plan.nodes if n.region == r.id
        }
        got = session.run(v0=np.ones((2, 3), np.float32))["v4"]
    assert {n: placed[n] for n in NAMES} == place
    plain = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, plain.run(None, {"v0": np.ones((2, 3), np.float32)})[0], rtol=1e-5)


def test_parts_of_names_become_one_pattern(model: Path, tmp_path: Path) -> None:
    setting = tmp_path / "s.txt"
    setting.write_text(f"{BY_NAME}=cpu(coder.); cpu(norm)")
    result = read_foreign("onnxruntime-layers", setting, model=model)
    place = dict(result.policy.execution.place or {})
    assert place == {"*coder.*": "onnxruntime"}, (
        "coder. is longer than norm, so it decides every encoder node"
    )
    assert result.items[1].reason == "it decides no node of the model"
    written = write_foreign("onnxruntime-layers", result.policy)
    assert written.text == f"{BY_NAME}=cpu(coder.)\n"
    assert opens(model, BY_NAME, written.text.partition("=")[2])


def test_a_part_that_is_also_an_op_names_its_nodes(model: Path, tmp_path: Path) -> None:
    """A place matches ops and families, too, so *norm* would also place every norm."""
    setting = tmp_path / "s.txt"
    setting.write_text(f"{BY_NAME}=cpu(norm)")
    place = read_foreign("onnxruntime-layers", setting, model=model).policy.execution.place
    assert dict(place or {}) == {"encoder.norm": "onnxruntime"}


def test_places_become_annotations_and_come_back(model: Path, tmp_path: Path) -> None:
    place = {"encoder.?": "openvino", "softmax": "onnxruntime", "torch_only": "torch"}
    policy = Policy(execution=xrt.ExecutionPolicy(target="cpu", place=place))
    annotated = tmp_path / "a.onnx"
    written = write_foreign("onnxruntime-layers", policy, model=model, annotated=annotated)
    assert (
        written.text == f"{BY_ANNOTATION}=OpenVINOExecutionProvider(=xpu.openvino); cpu(=xpu.onnxruntime)\n"
    )
    assert [i.text for i in written.lost] == ["execution.place: {torch_only: torch}"]
    kept = {n.name: [p.value for p in n.metadata_props] for n in onnx.load(annotated).graph.node}
    assert kept == {
        "encoder.0": ["xpu.openvino"], "encoder.1": ["xpu.openvino"], "encoder.norm": ["xpu.onnxruntime"], "head": []
    }  # fmt: skip
    assert opens(annotated, BY_ANNOTATION, written.text.partition("=")[2].strip())
    setting = tmp_path / "s.txt"
    setting.write_text(written.text)
    again = read_foreign("onnxruntime-layers", setting, model=annotated).policy.execution.place
    assert dict(again or {}) == {
        "encoder.0": "openvino",
        "encoder.1": "openvino",
        "encoder.norm": "onnxruntime",
    }


def test_without_a_model_nothing_is_guessed(tmp_path: Path) -> None:
    setting = tmp_path / "s.txt"
    setting.write_text("cpu(a) gpu(b); dml(c)")
    result = read_foreign("onnxruntime-layers", setting)
    assert result.policy == Policy()
    reasons = [i.reason for i in result.items]
    assert reasons[0] == "which nodes a pattern matches depends on the model"
    assert reasons[1] == "ONNX Runtime ignores what follows ')'"
    assert "has no engine and device here" in reasons[2]


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("cpu(a)")
    with pytest.raises(xrt.ModelError, match="cannot be read as ONNX"):
        read_foreign("onnxruntime-layers", path, model=path)
