"""The policy field ``activations``: which word a node gets next to ``weights``, what it excludes, and which kernel it selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Support
from xpuruntime.inference.self_check.opening import differs_by_demand
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.catalogue import kernels_of
from xpuruntime.policies import KernelPolicy, NodeFacts, Offer, Policy, Rule, choose, load_policy
from xpuruntime.policies.choose import vendor_keeps_to, weights_of
from xpuruntime.policies.files import document
from xpuruntime.policies.lint import lint
from xpuruntime.policies.matching import ambiguities, demands_of
from xpuruntime.policies.policy import from_document
from xpuruntime.policies.vocabulary import ACTIVATIONS, INTEGER_KERNELS, WEIGHT_KERNELS, WEIGHTS

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
        # A rule that says weights says activations: model, unless it says the word itself.
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
        # A rule with activations alone leaves the weights to the keyword.
        (
            KernelPolicy(weights="int4", activations="int8", rules=[Rule(node="[ab]", activations="model")]),
            ["int4_weights", "int4_weights", "int4_by_int8", "int4_by_int8"],
        ),
        # Of several rules that match, the first decides, for each word.
        (
            KernelPolicy(
                rules=[
                    Rule(node="a", activations="model"),
                    Rule(node="[ab]", weights="int4", activations="int8"),
                    Rule(node="[bc]", weights="int4_64"),
                ]
            ),
            ["int4_weights", "int4_by_int8", "int4_weights_64", "gemv"],
        ),
        # A higher layer decides before a lower one, its keyword before rules of the lower one.
        (INTEGERS.merge(KernelPolicy(activations="model")), ["int4_weights"] * 4),
        (INTEGERS.merge(KernelPolicy(weights="int4_64")), ["int4_weights_64"] * 4),
        (INTEGERS.merge(KernelPolicy(weights="model")), ["gemv"] * 4),
        (KernelPolicy(weights="int8").merge(INTEGERS), ["int4_by_int8"] * 4),
        (KernelPolicy(activations="model").merge(INTEGERS), ["int4_by_int8"] * 4),
        (
            INTEGERS.merge(KernelPolicy(rules=[Rule(node="a", activations="model"), Rule(node="b", weights="int4")])),
            ["int4_weights", "int4_weights", "int4_by_int8", "int4_by_int8"],
        ),
        (
            KernelPolicy(rules=[Rule(node="a", weights="int4", activations="int8")]).merge(
                KernelPolicy(activations="model")
            ),
            ["int4_weights", "gemv", "gemv", "gemv"],
        ),
        # Words come before preferences, and use comes before words.
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
        # Without the words, the name of a kernel selects it.
        (KernelPolicy(matmul="stored_by_int8"), ["stored_by_int8"] * 4),
    ],
)  # fmt: skip
def test_activations_follow_the_precedence_of_weights(policy: KernelPolicy, kernels: list[str]) -> None:
    assert [chosen(policy, name) for name in "abcd"] == kernels


def test_the_reason_names_the_words_that_apply() -> None:
    stored = weights_of(KernelPolicy(weights="int4", activations="int8", origin="p.yaml"), node())
    assert stored is not None
    assert (stored.weights, stored.activations) == ("int4", "int8")
    assert (stored.by.path, stored.by.text) == (
        ("kernel", "weights"),
        "weights: int4, activations: int8 of p.yaml",
    )
    off = weights_of(INTEGERS.merge(KernelPolicy(activations="model")), node())
    assert off is not None
    assert (off.activations, off.by.text) == ("model", "weights: int4 of the policy")
    assert weights_of(KernelPolicy(activations="model"), node()) is None


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
            "[KernelPolicy] activations: int8 needs weights of 4 bits, or stored ones, in the same place; got no weights. Write "
            "weights: int4 or int4_64 or int4_128 or stored, or remove activations: int8.",
        ),
        (lambda: KernelPolicy(weights="model", activations="int8"), "[KernelPolicy] activations: int8 needs weights of 4 bits, or stored ones, in the same place; got weights: model. "),
        (lambda: KernelPolicy(weights="fp8", activations="int8"), "got weights: fp8. "),
        (lambda: KernelPolicy(weights="int8", activations="int8"), "got weights: int8. "),
        (lambda: Rule(activations="int8"), "[Rule] activations: int8 needs weights of 4 bits, or stored ones, in the same place; got no weights. "),
        (lambda: Rule(weights="int8", activations="int8"), "got weights: int8. "),
        (
            lambda: KernelPolicy(weights="int4", rules=[{"activations": "int8"}]),
            "[KernelPolicy] rules[0].activations: int8 needs weights of 4 bits",
        ),
        (
            lambda: load_policy({"version": 1, "kernel": {"activations": "int8"}}),
            "kernel.activations: int8 needs weights of 4 bits",
        ),
        (lambda: KernelPolicy(activations="int9"), "[KernelPolicy] activations: no such type of activations; got 'int9'. Did you mean 'int8'? Known: model, int8."),
        (lambda: Rule(activations="model", use="gemv"), "[Rule] activations: has no effect together with use. Keep one of the two."),
        (
            lambda: Rule(op="conv", activations="model"),
            "[Rule] activations: only ops of the family matmul have such activations; got ('conv',). Write op: matmul, or remove activations.",
        ),
        (
            lambda: Rule(weights="int4", activations="int8", forbid="int4_by_int8"),
            "[Rule] forbid: forbids 'int4_by_int8', which computes weights: int4 with activations: int8. Remove one.",
        ),
        (
            lambda: load_policy({"version": 1, "kernel": {"weights": "int4", "activations": "int8"}, "execution": {"precision": "int8"}}),
            "integer arithmetic of a quantized model",
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
            with pytest.raises(xrt.PolicyError, match="in the same place"):
                KernelPolicy(weights=word, activations="int8")
        KernelPolicy(weights=word, activations="model")


def test_a_rule_may_forbid_the_floats() -> None:
    """The kernel of floats is what remains where integers are not supported."""
    Rule(weights="int4", activations="int8", forbid="int4_weights")


def test_text_gives_back_the_words() -> None:
    policy = Policy(
        kernel=KernelPolicy(
            weights="int4",
            activations="int8",
            rules=[Rule(node="a", activations="model"), Rule(weights="stored", activations="int8")],
        )
    )
    data = policy.to_dict()
    assert data["kernel"]["activations"] == "int8"
    assert [r.get("activations") for r in data["kernel"]["rules"]] == ["model", "int8"]
    for write, read in (
        (document.to_json_text, document.parse_json),
        (document.to_yaml_text, document.parse_yaml),
    ):
        assert from_document(read(write(data))[0]) == policy
    without = Policy(kernel=KernelPolicy(weights="int4", rules=policy.kernel.rules))
    assert policy.digest() != without.digest()


def test_the_kernels_are_not_deprecated_words(recwarn: pytest.WarningsRecorder) -> None:
    policy = KernelPolicy(
        matmul=[*INTEGER_KERNELS.values()], rules=[Rule(node="a", use="int4_by_int8"), Rule(forbid="stored_by_int8")]
    )  # fmt: skip
    assert [f for f in lint(Policy(kernel=policy)) if f.code == "deprecated"] == []
    load_policy({"version": 1, "kernel": {"matmul": "int4_by_int8"}})
    assert not [w for w in recwarn if issubclass(w.category, DeprecationWarning)]


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
        (Rule(activations="model"), Rule(weights="int4", activations="int8"), True),
        (Rule(activations="model"), Rule(weights="int4"), False),
        (Rule(weights="int4"), Rule(weights="int4", activations="model", node="*"), False),
    ],
)
def test_rules_that_differ_in_activations_are_ambiguous(first: Rule, second: Rule, differ: bool) -> None:
    demands = demands_of(KernelPolicy(rules=[first, second]))
    assert [forced for _, _, forced in ambiguities(demands, node())] == [False] * differ


def test_a_word_of_any_rule_counts() -> None:
    assert INTEGERS.integer_weights() == "int4"
    assert KernelPolicy(weights="int4").integer_weights() == ""
    assert INTEGERS.merge(KernelPolicy(activations="model")).integer_weights() == ""
    assert INTEGERS.merge(KernelPolicy(weights="int8")).integer_weights() == ""
    rule = Rule(node="a", weights="stored", activations="int8")
    assert KernelPolicy(weights="int8", rules=[rule]).integer_weights() == "stored"


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

    with pytest.raises(xrt.PolicyError, match="weights: int4"):
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
    xrt.compile(_linear(), weights=weights, target="cuda:sm_90", policy=plain)


def test_a_cpu_has_the_kernels() -> None:
    names = {k.name for k in kernels_of("linear", "cpu")}
    assert {f"matmul/{kernel}" for kernel in INTEGER_KERNELS.values()} <= names
    weights = {"w": np.ones((32, 64), np.float16)}
    program = xrt.compile(_linear(), weights=weights, target="cpu", policy=INTEGERS)
    (call,) = [c for c in program.entries[0].plans[0].calls if c.kernel.startswith("matmul/")]
    assert call.kernel == "matmul/int4_by_int8"
