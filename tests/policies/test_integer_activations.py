"""The policy field ``activations``: the pair with ``weights`` that a node gets, what it excludes, and which kernel it selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.decisions import Support
from xpuruntime.inference.self_check.opening import differs_by_demand
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.catalogue import kernels_of
from xpuruntime.policies import KernelPolicy, NodeFacts, Offer, Policy, Rule, choose, load_policy
from xpuruntime.policies.choose import RuleRef, vendor_keeps_to, weights_of
from xpuruntime.policies.files import document
from xpuruntime.policies.lint import lint
from xpuruntime.policies.matching import ambiguities, demands_of
from xpuruntime.policies.policy import from_document
from xpuruntime.policies.vocabulary import ACTIVATIONS, INTEGER_KERNELS, WEIGHT_KERNELS, WEIGHTS
from xpuruntime.testing.conformance.native_batch import batch_of

YES = Support.yes()
NO = Support.no(xrt.Reason.SHAPE_UNSUPPORTED, "too many rows")
NAMES = [*WEIGHT_KERNELS.values(), *INTEGER_KERNELS.values()]
OFFERS = [Offer("gemv", YES), *(Offer(k, YES, on_request=True) for k in NAMES)]
INTEGERS = KernelPolicy(weights="int4", activations="int8")


def node(name: str = "a", family: str = "matmul") -> NodeFacts:
    return NodeFacts(node=name, family=family)


def chosen(policy: KernelPolicy, name: str = "a", family: str = "matmul") -> str:
    return choose(policy, node(name, family), OFFERS)[0]


@pytest.mark.parametrize("word", INTEGER_KERNELS)
def test_a_word_selects_its_kernel(word: str) -> None:
    for activations in (None, *ACTIVATIONS):
        kernel = (INTEGER_KERNELS if activations == "int8" else WEIGHT_KERNELS)[word]
        assert chosen(KernelPolicy(weights=word, activations=activations)) == kernel
        rule = Rule(op="matmul", weights=word, activations=activations)
        assert chosen(KernelPolicy(rules=[rule])) == kernel
        assert chosen(KernelPolicy(weights=word, activations=activations), family="conv") == "gemv"


@pytest.mark.parametrize(
    ("policy", "kernels"),
    [
        # The pair of the first rule that says weights decides, else that of the keyword.
        (
            KernelPolicy(
                weights="int4",
                activations="int8",
                rules=[
                    Rule(node="a", weights="int8"),
                    Rule(node="b", weights="int4_64"),
                    Rule(node="c", weights="stored", activations="int8"),
                ],
            ),
            ["int8_weights", "int4_weights_64", "stored_by_int8", "int4_by_int8"],
        ),
        (
            KernelPolicy(
                rules=[
                    Rule(node="a", weights="int4"),
                    Rule(node="[ab]", weights="int4", activations="int8"),
                    Rule(node="[bc]", weights="int4_64"),
                ]
            ),
            ["int4_weights", "int4_by_int8", "int4_weights_64", "gemv"],
        ),
        # A rule excludes a layer from the rounding: with the same weights, or with the model's own.
        (
            KernelPolicy(
                weights="int4",
                activations="int8",
                rules=[Rule(node="a", weights="int4"), Rule(node="b", weights="model"), Rule(node="c", weights="int4", activations="model")],
            ),
            ["int4_weights", "gemv", "int4_weights", "int4_by_int8"],
        ),
        # A higher layer decides before a lower one, its keyword before rules of the lower one.
        (INTEGERS.merge(KernelPolicy(weights="int4")), ["int4_weights"] * 4),
        (INTEGERS.merge(KernelPolicy(weights="int4_64", activations="model")), ["int4_weights_64"] * 4),
        (INTEGERS.merge(KernelPolicy(weights="model")), ["gemv"] * 4),
        (INTEGERS.merge(KernelPolicy(matmul="gemv")), ["int4_by_int8"] * 4),
        (KernelPolicy(weights="int8").merge(INTEGERS), ["int4_by_int8"] * 4),
        (KernelPolicy(rules=[Rule(node="a", weights="int4")]).merge(INTEGERS), ["int4_by_int8"] * 4),
        (
            INTEGERS.merge(KernelPolicy(rules=[Rule(node="b", weights="int4")])),
            ["int4_by_int8", "int4_weights", "int4_by_int8", "int4_by_int8"],
        ),
        # The pair comes before preferences, and use comes before the pair.
        (
            KernelPolicy(matmul=["stored_by_int8", "int4_weights_64", "gemv"]).merge(INTEGERS),
            ["int4_by_int8"] * 4,
        ),
        (
            KernelPolicy(weights="int4", matmul=["int4_by_int8", "gemv"]),
            ["int4_weights"] * 4,
        ),
        (
            KernelPolicy(weights="int4", activations="int8", rules=[Rule(node="a", use="gemv")]),
            ["gemv", *["int4_by_int8"] * 3],
        ),
        # Where a rule forbids the kernel of integers, that of floats computes the same weights.
        (
            KernelPolicy(weights="int4", activations="int8", rules=[Rule(node="a", forbid="int4_by_int8")]),
            ["int4_weights", *["int4_by_int8"] * 3],
        ),
        (
            KernelPolicy(weights="int8", activations="int8", rules=[Rule(node="a", forbid="int8_by_int8"), Rule(node="b", weights="int8")]),
            ["int8_weights", "int8_weights", *["int8_by_int8"] * 2],
        ),
        # Without the words, the name of a kernel selects it.
        (KernelPolicy(matmul="stored_by_int8"), ["stored_by_int8"] * 4),
    ],
)  # fmt: skip
def test_activations_belong_to_their_weights(policy: KernelPolicy, kernels: list[str]) -> None:
    assert [chosen(policy, name) for name in "abcd"] == kernels


def test_the_reason_names_the_pair_and_what_says_it() -> None:
    rule = Rule(node="a", weights="int4")
    policy = KernelPolicy(weights="int4", activations="int8", rules=[rule], origin="p.yaml")
    assert weights_of(policy, node("b")) == (
        ("int4", "int8"),
        RuleRef(("kernel", "weights"), "weights: int4, activations: int8 of p.yaml"),
    )
    by_rule = RuleRef(("kernel", "rules", 0), "rules[0] of p.yaml (node=a)")
    assert weights_of(policy, node("a")) == (("int4", None), by_rule)
    assert weights_of(KernelPolicy(matmul="gemv"), node()) is None


def test_model_is_the_same_as_no_word() -> None:
    policy = KernelPolicy(
        weights="int4", activations="model", rules=[Rule(weights="int8", activations="model")]
    )
    assert policy == KernelPolicy(weights="int4", rules=[Rule(weights="int8")])
    assert policy.to_dict()["kernel"] == {"weights": "int4", "rules": [{"weights": "int8"}]}


def test_the_kernel_of_floats_is_the_next_choice() -> None:
    _, decision = choose(INTEGERS, node(), OFFERS)
    codes = {c.name: (c.code.value, c.reason) for c in decision.rejected}
    assert codes["int4_weights"] == ("lower_preference", "'int4_by_int8' is earlier in the preference order")
    assert codes["int8_weights"][0] == "not_requested"


def test_where_integers_are_not_supported_the_weights_keep_their_bits() -> None:
    offers = [
        Offer("gemv", YES),
        Offer("int4_by_int8", NO, on_request=True),
        Offer("int4_weights", YES, on_request=True),
    ]
    name, decision = choose(INTEGERS, node(), offers)
    assert name == "int4_weights"
    assert [c.reason for c in decision.rejected if c.name == "int4_by_int8"] == ["too many rows"]
    assert choose(INTEGERS, node(), [*offers[:2], Offer("int4_weights", NO, on_request=True)])[0] == "gemv"
    forbidden = KernelPolicy(rules=[Rule(forbid="int4_weights")]).merge(INTEGERS)
    assert choose(forbidden, node(), offers)[0] == "gemv"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: KernelPolicy(activations="int8"),
            "[KernelPolicy] activations: needs weights in the same policy; got 'int8'. Write weights in the same policy, or remove activations.",
        ),
        (
            lambda: Rule(activations="model"),
            "[Rule] activations: needs weights in the same rule; got 'model'. Write weights in the same rule, or remove activations.",
        ),
        (lambda: INTEGERS.merge(KernelPolicy(activations="model")), "[KernelPolicy] activations: needs weights in the same policy"),
        (
            lambda: KernelPolicy(weights="int4", rules=[{"activations": "int8"}]),
            "[KernelPolicy] rules[0].activations: needs weights in the same rule",
        ),
        (
            lambda: load_policy({"version": 1, "kernel": {"activations": "int8"}}),
            "kernel.activations: needs weights in the same policy",
        ),
        (
            lambda: KernelPolicy(weights="model", activations="int8"),
            "[KernelPolicy] activations: no kernel multiplies such weights by activations of 8 bits; got weights: model. "
            "Write weights: int8 or int4 or int4_64 or int4_128 or stored, or remove activations.",
        ),
        (lambda: KernelPolicy(activations="int9"), "[KernelPolicy] activations: no such type of activations; got 'int9'. Did you mean 'int8'? Known: model, int8."),
        (lambda: Rule(weights="int4", activations="int8", use="gemv"), "[Rule] weights: has no effect together with use. Keep one of the two."),
        (lambda: Rule(op="conv", weights="int4", activations="int8"), "[Rule] weights: only ops of the family matmul have such weights"),
        (
            lambda: Rule(weights="int4", activations="int8", forbid="int4_by_int8"),
            "[Rule] forbid: forbids 'int4_by_int8', which computes weights: int4, activations: int8. Remove one.",
        ),
        (
            lambda: load_policy({"version": 1, "kernel": {"weights": "int4", "activations": "int8"}, "execution": {"precision": "int8"}}),
            "weights: int4, activations: int8 is for models of floats",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_is_an_error(make: Any, text: str) -> None:
    with pytest.raises(xrt.PolicyError) as caught:
        make()
    assert text in str(caught.value)


def test_words_that_have_no_integer_kernel_are_the_other_ones() -> None:
    for word in WEIGHTS:
        if word in INTEGER_KERNELS:
            KernelPolicy(weights=word, activations="int8")
        else:
            with pytest.raises(xrt.PolicyError, match=f"got weights: {word}. Write"):
                KernelPolicy(weights=word, activations="int8")
            with pytest.raises(xrt.PolicyError, match=f"got weights: {word}. Write"):
                Rule(weights=word, activations="int8")


def test_a_rule_may_forbid_the_floats() -> None:
    """The kernel of floats is what remains where integers are not supported."""
    Rule(weights="int4", activations="int8", forbid="int4_weights")


def test_text_gives_back_the_words() -> None:
    rules = [Rule(node="a", weights="int8"), Rule(weights="stored", activations="int8")]
    policy = Policy(kernel=KernelPolicy(weights="int4", activations="int8", rules=rules))
    data = policy.to_dict()
    assert data["kernel"]["activations"] == "int8"
    assert [r.get("activations") for r in data["kernel"]["rules"]] == [None, "int8"]
    for write, read in (
        (document.to_json_text, document.parse_json),
        (document.to_yaml_text, document.parse_yaml),
    ):
        assert from_document(read(write(data))[0]) == policy
    without = Policy(kernel=KernelPolicy(weights="int4", rules=policy.kernel.rules))
    assert policy.digest() != without.digest()


def test_the_kernels_are_deprecated_words() -> None:
    policy = KernelPolicy(
        matmul="int4_by_int8", rules=[Rule(node="a", use="stored_by_int8"), Rule(forbid="int4_64_by_int8")]
    )
    told = {f.path: f.do for f in lint(Policy(kernel=policy)) if f.code == "deprecated"}
    assert told == {
        ("kernel", "matmul"): "Write weights: int4, activations: int8 instead.",
        ("kernel", "rules", 0, "use"): "Write weights: stored, activations: int8 instead.",
        ("kernel", "rules", 1, "forbid"): "Write weights: int4_64 instead.",
    }
    with pytest.warns(DeprecationWarning, match="Write weights: int4, activations: int8 instead"):
        load_policy({"version": 1, "kernel": {"matmul": "int4_by_int8"}})


def test_lint_compares_the_words_of_rules() -> None:
    same = Rule(op="matmul", weights="int4", activations="int8")
    narrow = Rule(op="matmul", shape="M < 8", weights="int4", activations="int8")
    other = Rule(op="matmul", shape="M < 8", weights="int4")
    shadowed = [f.path for f in lint(Policy(kernel=KernelPolicy(rules=[same, narrow])))]
    assert shadowed == [("kernel", "rules", 1)]
    assert lint(Policy(kernel=KernelPolicy(rules=[same, other]))) == ()


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (Rule(weights="int4", activations="int8"), Rule(weights="int4"), True),
        (Rule(weights="int4", activations="int8"), Rule(weights="int4", activations="int8", node="*"), False),
        (Rule(weights="int4"), Rule(weights="int4", activations="model", node="*"), False),
        (Rule(weights="int4", activations="int8"), Rule(prefer="gemv"), False),
    ],
)
def test_rules_that_differ_in_activations_are_ambiguous(first: Rule, second: Rule, differ: bool) -> None:
    demands = demands_of(KernelPolicy(rules=[first, second]))
    assert [forced for _, _, forced in ambiguities(demands, node())] == [False] * differ


def test_vendor_engines_refuse_it() -> None:
    answer = vendor_keeps_to(INTEGERS, node(), "onnxruntime")
    assert not answer
    assert answer.reason == (
        "onnxruntime does not store the weights of a in int4, which weights: int4, activations: int8 of the policy demands"
    )


@pytest.mark.parametrize("kernel", INTEGER_KERNELS.values())
def test_no_reference_rounds_activations(kernel: str) -> None:
    assert differs_by_demand(["matmul/gemv", f"matmul/{kernel}"]) == (
        f"kernel matmul/{kernel} rounds the activations as the policy demands, which no reference does"
    )


def test_training_refuses_it() -> None:
    pytest.importorskip("torch")
    from xpuruntime.pytorch import set_kernel_policy

    with pytest.raises(xrt.PolicyError, match="got weights: int4, activations: int8"):
        set_kernel_policy(INTEGERS)


def _linear() -> Graph:
    b = GraphBuilder("net")
    b.output("y", b.linear(b.input("x", "float16[3, 64]"), b.weight("w", "float16[32, 64]"), None))
    return b.build()


@pytest.mark.parametrize("word", INTEGER_KERNELS)
def test_a_target_without_such_kernels_is_an_error(word: str) -> None:
    """CUDA has the weights, but not the integers."""
    weights = {"w": np.ones((32, 64), np.float16)}
    for policy in (
        KernelPolicy(weights=word, activations="int8"),
        KernelPolicy(rules=[Rule(op="matmul", weights=word, activations="int8")]),
    ):
        with pytest.raises(xrt.KernelUnavailable) as caught:
            xrt.compile(_linear(), weights=weights, target="cuda:sm_90", policy=policy)
        said = str(caught.value)
        assert said.startswith("[node ")
        assert (
            f"demands weights in {word} with activations in int8, for which cuda:sm_90 has no kernel" in said
        )
        assert said.endswith("Remove activations, write activations: model, or run on the cpu.")
    plain = KernelPolicy(weights=word, activations="model")
    xrt.compile(_linear(), weights=weights, target=batch_of(cuda_target("cuda:sm_90")), policy=plain)


def test_a_cpu_has_the_kernels() -> None:
    names = {k.name for k in kernels_of("linear", "cpu")}
    assert {f"matmul/{kernel}" for kernel in INTEGER_KERNELS.values()} <= names
    weights = {"w": np.ones((32, 64), np.float16)}
    program = xrt.compile(_linear(), weights=weights, target="cpu", policy=INTEGERS)
    (call,) = [c for c in program.entries[0].plans[0].calls if c.kernel.startswith("matmul/")]
    assert call.kernel == "matmul/int4_by_int8"


def test_the_family_activation_is_not_the_field() -> None:
    text = "kernel.activation: no such kernel of activation; got 'int8'. Did you mean the field activations: int8?"
    with pytest.raises(xrt.PolicyError, match=text):
        load_policy({"version": 1, "kernel": {"weights": "int4", "activation": "int8"}})
