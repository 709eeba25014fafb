"""``xpu lint POLICY MODEL``: each finding, the coverage of rules, and that errors are exactly the policies that do not compile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.compiler.demands import Demands
from xpuruntime.compiler.lower import lower
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.errors import InputError, KernelUnavailable, PolicyError
from xpuruntime.kernels import offers
from xpuruntime.passes import laid_out, run_passes
from xpuruntime.policies import Policy, load_policy
from xpuruntime.policies.files.document import to_yaml_text
from xpuruntime.workbench.review.policy_review import PolicyReview, review_policy

onnx = pytest.importorskip("onnx")

SIZES = {"batch": 8}


def save_model(path: Path) -> Path:
    """Two matrix products, a bias, a relu and a softmax; ``x`` float32[batch, 16]."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="fc1"),
        helper.make_node("Add", ["a", "b1"], ["s"], name="bias"),
        helper.make_node("Relu", ["s"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["c"], name="fc2"),
        helper.make_node("Softmax", ["c"], ["y"], name="top"),
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", d]) for n, d in (("x", 16), ("y", 8))]
    weights = [weight("w1", 16, 32), weight("b1", 32), weight("w2", 32, 8)]
    graph = helper.make_graph(nodes, "mlp", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "mlp.onnx")


def saved(folder: Path, kernel: dict[str, Any], execution: dict[str, Any] | None = None) -> Path:
    path = folder / "p.yaml"
    data = {"version": 1, "kernel": kernel} | ({} if execution is None else {"execution": execution})
    path.write_text(to_yaml_text(data))
    return path


def found(review: PolicyReview) -> list[tuple[str, str, bool]]:
    return [(f.code, f.to_json()["at"], f.is_error) for f, _ in review.findings]


@pytest.mark.parametrize(
    ("rules", "finding", "text"),
    [
        ([{"op": "conv", "prefer": "onednn"}], ("unreachable", False), "matches none of the 5 nodes of the model"),
        ([{"node": "relu", "op": "activation", "prefer": "generated"}], ("unreachable", False),
         "matches 1 node (relu), but none of them gets a kernel of its own"),
        ([{"op": "matmul", "use": "gemv"}], ("inapplicable", True),
         "forces 'gemv', which does not compute 2 nodes of 2 (fc1, fc2): for fc1, at most 4 rows are supported, got 8"),
        ([{"op": "matmul", "prefer": "gemv"}], ("inapplicable", False), "prefers 'gemv', which does not compute 2 nodes of 2"),
        ([{"node": "fc1", "prefer": "generated"}, {"op": "matmul", "prefer": "onednn"}], ("ambiguous", False),
         "prefers 'onednn' where rules[0] prefers 'generated' for 1 node (fc1); the earlier rule decides"),
        ([{"node": "fc1", "weights": "model"}, {"op": "matmul", "weights": "int4"}], ("ambiguous", False),
         "says weights: int4 where rules[0] says weights: model for 1 node (fc1); the earlier rule decides"),
        ([{"node": "fc1", "weights": "int8", "prefer": "naive"}, {"node": "fc1", "weights": "int8", "prefer": "generated"}], ("ambiguous", False),
         "prefers 'generated' where rules[0] prefers 'naive' for 1 node (fc1)"),
        ([{"op": "matmul", "weights": "int4", "activations": "int8"}], ("unavailable", True),
         "rules[0] of p.yaml (op=matmul) demands weights in int4 with activations in int8, for which cuda:sm_90 has no kernel"),
        ([{"node": "re:fc[12]", "use": "generated"}, {"node": "re:[a-f]c1", "use": "onednn"}], ("ambiguous", True),
         "contradicts rules[0] (node=re:fc[12]) for 1 node (fc1)"),
        ([{"op": "softmax", "forbid": "generated"}, {"op": "softmax", "forbid": "ported"}], ("unavailable", True),
         "no kernel of softmax is left for 1 node (top)"),
    ],
)  # fmt: skip
def test_each_finding(
    tmp_path: Path, model: Path, rules: list[dict[str, Any]], finding: tuple[str, bool], text: str
) -> None:
    review = review_policy(saved(tmp_path, {"rules": rules}), model, target="cuda:sm_90", shapes=SIZES)
    told = [(f.code, f.is_error, f.text) for f, _ in review.findings if f.code == finding[0]]
    assert [t[:2] for t in told] == [finding]
    assert text in told[0][2]
    assert review.ok is not finding[1]


def test_rules_with_different_weights_are_told_apart_by_their_words(tmp_path: Path, model: Path) -> None:
    rules = [
        {"node": "fc1", "weights": "int8"},
        {"op": "matmul", "weights": "int4", "activations": "int8", "prefer": "gemv"},
    ]
    review = review_policy(saved(tmp_path, {"rules": rules}), model, target="cpu", shapes=SIZES)
    told = [f.text for f, _ in review.findings if f.code == "ambiguous"]
    assert told == [
        "says weights: int4, activations: int8 where rules[0] says weights: int8 for 1 node (fc1); the earlier rule decides"
    ]


def test_findings_have_the_line_of_their_rule(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "version: 1\nkernel:\n  rules:\n    - op: conv\n      prefer: naive\n    - op: matmul\n      use: gemv\n"
        "execution:\n  place:\n    head*: native\n"
    )
    review = review_policy(path, model, target="cuda:sm_90", shapes=SIZES)
    lines = {(f.code, line) for f, line in review.findings}
    assert lines == {("inapplicable", 6), ("unreachable", 4), ("unreachable", 10)}
    assert "does not compute" in review.findings[0][0].text  # errors come first


def test_coverage_counts_the_nodes_of_each_rule(tmp_path: Path, model: Path) -> None:
    kernel = {
        "softmax": "generated",
        "rules": [
            {"node": "fc1", "prefer": "generated"},
            {"op": "matmul", "forbid": "onednn"},
            {"dtype": "fp16", "deterministic": True},
        ],
    }
    review = review_policy(saved(tmp_path, kernel), model, target="cpu:x86-64-v2", shapes=SIZES)
    rows = {r.to_json()["at"]: (r.matches, r.chooses, r.excludes) for r in review.rules}
    assert rows["kernel.rules[0]"] == (("fc1",), ("fc1",), ())
    assert rows["kernel.rules[1]"][:2] == (("fc1", "fc2"), ())
    assert rows["kernel.rules[2]"] == ((), (), ())
    assert rows["kernel.softmax"] == (("top",), ("top",), ())
    assert review.nodes == ("fc1", "fc2", "top")
    assert review.untouched == ()
    fewer = review_policy(
        saved(tmp_path, {"softmax": "generated"}), model, target="cpu:x86-64-v2", shapes=SIZES
    )
    assert fewer.untouched == ("fc1", "fc2")


def test_without_sizes_only_matching_is_checked(tmp_path: Path, model: Path) -> None:
    kernel = {"rules": [{"op": "matmul", "shape": "M <= 4", "use": "gemv"}, {"op": "rnn", "prefer": "naive"}]}
    kernel["rules"][1]["prefer"] = "generated"
    review = review_policy(saved(tmp_path, kernel), model, target="cuda:sm_90")
    assert found(review) == [
        ("undecided", "kernel.rules[0]", False),
        ("unchecked", "", False),
        ("unreachable", "kernel.rules[1]", False),
    ]
    assert "fc1, fc2" in review.findings[0][0].text
    assert review.nodes == ()


def test_a_conflict_that_needs_no_model_is_a_finding_here_and_an_error_elsewhere(tmp_path: Path) -> None:
    path = saved(tmp_path, {"rules": [{"op": "matmul", "use": "gemv"}, {"op": "matmul", "use": "naive"}]})
    review = review_policy(path)
    assert found(review) == [("conflict", "kernel.rules[1].use", True)]
    with pytest.raises(PolicyError, match="rules"):
        load_policy(path)


def test_nodes_of_a_saved_graph_have_the_names_of_their_values(tmp_path: Path) -> None:
    b = ir.GraphBuilder("attention")
    q, k, v = (b.input(n, "float32[1, 2, 8, 16]") for n in "qkv")
    b.output("y", b.attention(q, k, v))
    graph = tmp_path / "attention.json"
    ir.save(b.build(), graph)
    path = saved(tmp_path, {"rules": [{"op": "attention", "use": "naive"}]})
    review = review_policy(path, graph, target="cuda:sm_90")
    assert review.ok
    (rule,) = review.rules
    assert len(rule.matches) == 1
    assert rule.chooses == rule.matches


@pytest.mark.parametrize("target", ["gpu:unknown", "cuda:sm_1"])
def test_an_unknown_target_is_named(tmp_path: Path, model: Path, target: str) -> None:
    with pytest.raises(Exception, match=r"target|device|sm_1") as raised:
        review_policy(saved(tmp_path, {"softmax": "generated"}), model, target=target, shapes=SIZES)
    assert hasattr(raised.value, "exit_code")


# ── errors are exactly the policies that do not compile ──


def random_kernel_policy(draw: random.Random) -> dict[str, Any]:
    rules = []
    for _ in range(draw.randint(1, 4)):
        conditions: dict[str, Any] = draw.choice(
            [{"op": "matmul"}, {"node": "fc1"}, {"node": "fc*"}, {"op": "softmax"}, {}, {"op": "matmul", "shape": "N > 8"}]
        )  # fmt: skip
        softmax = conditions.get("op") == "softmax"
        words = ["generated"] if softmax else ["gemv", "generated", "naive", "onednn", "cublasLt"]
        demand = draw.choice(
            [{"use": draw.choice(words)}, {"prefer": draw.choice(words)}, {"forbid": draw.choice(words)},
             {"workspace_bytes": draw.choice([0, 1 << 20])}, {"deterministic": True}]
        )  # fmt: skip
        rules.append({**conditions, **demand})
    return {"rules": rules}


def compiles(graph: ir.Graph, policy: Policy, target: CodegenTarget) -> bool:
    """Lower the graph as ``compile`` does, without assembling code."""
    demands = Demands(policy, [target], "inference")
    try:
        fused = run_passes(graph, 3, context=demands.context())
        laid, layouts = laid_out(fused, target.config.channel_alignment_bytes, target.any_layout)
        lower(laid, layouts, target, policy.kernel, offers)
    except (KernelUnavailable, PolicyError):
        return False
    return True


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cuda:sm_90"])
def test_errors_are_the_policies_that_do_not_compile(tmp_path: Path, model: Path, target: str) -> None:
    from xpuruntime.frontends.onnx.importer import import_onnx

    graph = ir.specialize(import_onnx(model)[0], SIZES)
    outcomes = set()
    for seed in range(24):
        path = saved(tmp_path, random_kernel_policy(random.Random(seed)))
        review = review_policy(path, model, target=target, shapes=SIZES)
        try:
            policy = load_policy(path)
        except PolicyError:  # a conflict that is found without a model
            assert not review.ok, path.read_text()
            continue
        outcome = compiles(graph, policy, resolve_target(target))
        assert review.ok == outcome, path.read_text()
        outcomes.add(outcome)
    assert outcomes == {True, False}


def test_an_unknown_dim_is_an_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(InputError, match=r"no symbolic dim of that name; got 'seq'\. Name one of batch"):
        review_policy(saved(tmp_path, {"softmax": "generated"}), model, shapes={"seq": 1})
