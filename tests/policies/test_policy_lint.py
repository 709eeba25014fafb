"""Lint: each finding, and that findings are true: proven against choose."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xpuruntime.decisions import Support
from xpuruntime.errors import KernelUnavailable, PolicyError
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, NodeFacts, Offer, Policy, Rule, choose, lint
from xpuruntime.policies.lint import CODES
from xpuruntime.policies.vocabulary import KERNELS


def found(policy):
    policy = policy if isinstance(policy, Policy) else Policy(kernel=policy)
    return [(f.code, f.path[1:], f.text) for f in lint(policy)]


def rules(*items):
    return KernelPolicy(rules=[Rule(**i) for i in items])


@pytest.mark.parametrize(
    ("policy", "finding"),
    [
        (
            rules({"op": "matmul", "shape": "M <= 16", "use": "gemv"}, {"op": "matmul", "shape": "M >= 16", "use": "cublas"}),
            ("conflict", ("rules", 1, "use"), "forces 'cublas' where rules[0] forces 'gemv' (for example matmul, M=16)"),
        ),
        (
            rules({"use": "naive"}, {"op": "conv", "node": "conv1", "use": "cudnn"}),
            ("conflict", ("rules", 1, "use"), "forces 'cudnn' where rules[0] forces 'naive' (for example conv)"),
        ),
        (
            rules({"node": "layers.*", "use": "naive"}, {"node": "layers.3", "use": "cudnn"}),
            ("conflict", ("rules", 1, "use"), "forces 'cudnn' where rules[0] forces 'naive' (for example any op)"),
        ),
        (
            rules({"op": "conv", "forbid": "cudnn"}, {"phase": "decode", "use": "cudnn"}),
            ("conflict", ("rules", 1, "use"), "forces 'cudnn', which rules[0] forbids (for example conv)"),
        ),
        (
            rules({"op": "matmul", "shape": "M < 8 and M > 8", "use": "gemv"}),
            ("never", ("rules", 0, "shape"), "no shape satisfies 'M < 8 and M > 8'"),
        ),
        (
            rules({"op": "matmul", "use": "gemv"}, {"op": "matmul", "shape": "M < 8", "prefer": "cublas"}),
            ("shadowed", ("rules", 1), "never has an effect: rules[0] forces 'gemv' wherever it matches"),
        ),
        (
            rules({"op": "matmul", "shape": "M < 4", "prefer": "cublas"}, {"op": "matmul", "shape": "M < 8", "use": "gemv"}),
            ("shadowed", ("rules", 0), "never has an effect: rules[1] forces 'gemv' wherever it matches"),
        ),
        (
            rules({"op": ["matmul", "conv"], "forbid": "naive"}, {"op": "conv", "dtype": "fp16", "forbid": "naive"}),
            ("shadowed", ("rules", 1), "never has an effect: rules[0] demands the same wherever it matches"),
        ),
        (
            KernelPolicy(matmul=["gemv", "int8_weights"]),
            ("deprecated", ("matmul",), "'int8_weights' is deprecated"),
        ),
        (
            rules({"op": "rope", "forbid": list(KERNELS["rope"])}),
            ("forbids_all", ("rules",), "every known kernel of rope is forbidden"),
        ),
        (
            KernelPolicy(matmul=["gemv", "cublas"], rules=[Rule(op="matmul", forbid="gemv")]),
            ("forbidden_preference", ("matmul",), "'gemv' is preferred, but a rule forbids it"),
        ),
        (
            rules({"op": "conv", "phase": "decode", "prefer": ["cudnn", "naive"]}, {"forbid": "cudnn"}),
            ("forbidden_preference", ("rules", 0, "prefer"), "'cudnn' is preferred, but a rule forbids it"),
        ),
        (
            Policy(execution=ExecutionPolicy(engine="openvino", engine_options={"qnn": {}, "openvino": {}})),
            ("unused_options", ("engine_options", "qnn"), "has no effect with engine 'openvino'"),
        ),
        (
            KernelPolicy().merge(rules({"use": "a"}, {"use": "b"})).merge(KernelPolicy(matmul="gemv")),
            ("conflict", ("under", 0, "rules", 1, "use"), "forces 'b' where rules[0] forces 'a' (for example any op)"),
        ),
    ],
)  # fmt: skip
def test_findings(policy, finding):
    assert found(policy) == [finding]
    assert finding[0] in CODES


@pytest.mark.parametrize(
    "policy",
    [
        KernelPolicy(),
        rules(
            {"op": "matmul", "shape": "M <= 16", "use": "gemv"},
            {"op": "matmul", "shape": "M > 16", "use": "cublas"},
        ),
        rules({"op": "matmul", "use": "gemv"}, {"op": "conv", "use": "cudnn"}),
        rules({"phase": "prefill", "use": "naive"}, {"phase": "decode", "use": "generated"}),
        rules({"dtype": "fp16", "use": "naive"}, {"dtype": "fp32", "use": "generated"}),
        rules(
            {"node": "a*", "use": "naive"}, {"node": "*b", "use": "generated"}
        ),  # may meet: only choose can tell
        rules({"node": "a", "use": "naive"}, {"node": "b", "use": "generated"}),
        rules(
            {"op": "matmul", "shape": "M * N < 0", "use": "gemv"}
        ),  # not decided: two names in one comparison
        rules({"use": "naive"}, {"use": "naive", "workspace_bytes": 1}),
    ],
)
def test_what_is_not_proven_is_not_said(policy):
    assert found(policy) == []


def test_every_code_is_tested():
    (cases,) = (mark.args[1] for mark in test_findings.pytestmark)
    assert {finding[0] for _, finding in cases} == set(CODES)


def test_many_dims_end_in_time():
    shape = " and ".join(
        f"{n} != {i}" for i, n in enumerate(["C", "H", "W", "K", "R", "S", "rank", "elements", "batch"] * 2)
    )
    policy = rules(
        {"op": "conv", "shape": shape, "use": "cudnn"},
        {"op": "conv", "shape": f"not ({shape})", "use": "naive"},
    )
    assert [code for code, _, _ in found(policy)] == []


def test_a_thousand_rules_end_in_time():
    """The size that a tuner may write: one rule per shape."""
    policy = rules(
        *(
            {"op": "matmul", "shape": f"M == {i} and N == {i % 7}", "use": ("gemv", "cublas")[i % 2]}
            for i in range(1000)
        )
    )
    assert found(policy) == []


_conditions = st.recursive(
    st.builds(
        "{} {} {}".format,
        st.sampled_from("MN"),
        st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
        st.integers(0, 4),
    ),
    lambda i: (
        st.builds("({} {} {})".format, i, st.sampled_from(["and", "or"]), i) | st.builds("not ({})".format, i)
    ),
    max_leaves=3,
)
_rule = st.builds(
    lambda shape, phase, demand, name: Rule(op="matmul", shape=shape, phase=phase, **{demand: name}),
    st.none() | _conditions,
    st.sampled_from([(), "decode", "prefill", "inference", ("decode", "train_forward")]),
    st.sampled_from(["use", "prefer", "forbid"]),
    st.sampled_from(["gemv", "cublas"]),
)


def outcome(policy, facts):
    offers = [Offer(n, Support.yes()) for n in ("naive", "gemv", "cublas")]
    try:
        return choose(policy, facts, offers)[0]
    except PolicyError:
        return "conflict"
    except KernelUnavailable:
        return "nothing"


@given(st.lists(_rule, min_size=1, max_size=3))
def test_findings_are_true(items):
    """A conflict is met by some node; a rule that never matches or is shadowed can be removed without any change."""
    policy = KernelPolicy(rules=items)
    nodes = [
        NodeFacts(node="n", family="matmul", dims={"M": m, "N": n}, phase=phase)
        for m in range(7)
        for n in range(7)
        for phase in ("inference", "prefill", "decode", "train_forward", "train_backward")
    ]
    findings = lint(Policy(kernel=policy))
    outcomes = [outcome(policy, f) for f in nodes]
    assert ("conflict" in outcomes) == any(f.is_error for f in findings)
    assume("conflict" not in outcomes)
    for finding in findings:
        if finding.code in ("never", "shadowed"):
            i = finding.path[2]
            without = KernelPolicy(rules=[r for j, r in enumerate(items) if j != i])
            assert [outcome(without, f) for f in nodes] == outcomes, finding
