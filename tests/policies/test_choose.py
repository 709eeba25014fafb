"""choose: each demand, each reason, each conflict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.decisions import Decision, Reason, Support
from xpuruntime.errors import KernelUnavailable, PolicyError
from xpuruntime.policies import KernelPolicy, NodeFacts, Offer, Rule, choose
from xpuruntime.policies.choose import vendor_keeps_to

FACTS = NodeFacts(node="mm0", family="matmul", dims={"M": 4, "N": 64, "K": 64}, phase="decode")
NO_DEVICE = Support.no(Reason.DEVICE_MISMATCH, "drives cuda only", do="Name a CUDA device.")
OFFERS = (
    Offer("cublas", Support.yes(), workspace_bytes=100),
    Offer("cublasLt", Support.yes(), workspace_bytes=1000, deterministic=True),
    Offer("gemv", Support.yes()),
    Offer("flashy", NO_DEVICE),
)


def decide(policy=None, offers=OFFERS, facts=FACTS):
    name, decision = choose(policy or KernelPolicy(), facts, offers)
    assert decision.chosen is not None
    assert name == decision.chosen.name
    return decision


def codes(decision):
    return {c.name: c.code for c in decision.rejected}


def test_default_order():
    d = decide()
    assert (d.chosen.name, d.chosen.code) == ("cublas", Reason.DEFAULT)
    assert codes(d) == {
        "cublasLt": "lower_preference",
        "gemv": "lower_preference",
        "flashy": "device_mismatch",
    }
    assert (d.question, d.subject) == ("kernel matmul", "mm0")


def test_keyword_prefers_in_order_and_records_strangers():
    d = decide(KernelPolicy(matmul=["onednn", "flashy", "gemv"]))
    assert (d.chosen.name, d.chosen.code) == ("gemv", Reason.PREFERRED)
    assert d.chosen.reason == "matmul= of the policy prefers it"
    assert codes(d) == {
        "cublas": "lower_preference",
        "cublasLt": "lower_preference",
        "flashy": "device_mismatch",
        "onednn": "not_applicable",
    }
    assert decide(KernelPolicy(conv="cudnn")).chosen.name == "cublas"


def test_use_forces_and_says_who():
    rule = Rule(op="matmul", shape="M <= 16", use="gemv", reason="bound by memory")
    d = decide(KernelPolicy(matmul="cublasLt", rules=[rule], origin="p.yaml"))
    assert (d.chosen.name, d.chosen.code) == ("gemv", Reason.FORCED)
    assert d.chosen.reason == "rules[0] of p.yaml (op=matmul, shape=M <= 16: bound by memory) forces it"
    assert codes(d) == {"cublas": "not_requested", "cublasLt": "not_requested", "flashy": "device_mismatch"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flashy", "[node mm0] rules[0] of the policy (every op) forces 'flashy', which is unavailable; got drives cuda only. Name a CUDA device."),
        (
            "onednn",
            "[node mm0] rules[0] of the policy (every op) forces 'onednn', which is unavailable; got no kernel of this name computes "
            "matmul here (rules[0] of the policy (every op) names it). Remove the rule, or write prefer instead of use.",
        ),
    ],
)  # fmt: skip
def test_use_of_what_cannot_be_had(name, text):
    with pytest.raises(KernelUnavailable) as caught:
        choose(KernelPolicy(rules=[Rule(use=name)]), FACTS, OFFERS)
    assert str(caught.value) == text
    decision = caught.value.decision
    assert decision.chosen is None
    assert {c.name for c in decision.rejected} == {o.name for o in OFFERS} | {name}


def test_forbid_and_workspace():
    d = decide(KernelPolicy(rules=[Rule(forbid="cublas"), Rule(op="matmul", workspace_bytes=500)]))
    assert d.chosen.name == "gemv"
    assert codes(d) == {"cublas": "forbidden", "cublasLt": "workspace_exceeded", "flashy": "device_mismatch"}
    by_name = {c.name: c for c in d.rejected}
    assert by_name["cublas"].reason == "rules[0] of the policy (every op) forbids it"
    assert (
        by_name["cublasLt"].reason
        == "needs 1000 bytes of workspace; rules[1] of the policy (op=matmul) allows 500"
    )
    assert by_name["cublasLt"].facts == {"workspace_bytes": 1000, "deterministic": True}


def test_the_device_limits_workspace_too():
    facts = NodeFacts(node="mm0", family="matmul", workspace_bytes=99)
    d = decide(facts=facts)
    assert d.chosen.name == "gemv"
    assert {c.name: c.reason for c in d.rejected}[
        "cublas"
    ] == "needs 100 bytes of workspace; the device allows 99"


def test_a_forced_kernel_over_the_limit_is_unavailable():
    with pytest.raises(KernelUnavailable, match="needs 1000 bytes of workspace"):
        choose(KernelPolicy(rules=[Rule(use="cublasLt", workspace_bytes=500)]), FACTS, OFFERS)


def test_nothing_left():
    with pytest.raises(KernelUnavailable) as caught:
        choose(KernelPolicy(rules=[Rule(forbid=["cublas", "cublasLt", "gemv"])]), FACTS, OFFERS)
    text = str(caught.value)
    assert text.startswith("[node mm0] no usable kernel for matmul; got cublas: rules[0] of the policy (")
    assert text.endswith("; flashy: drives cuda only. Name a CUDA device.")
    with pytest.raises(KernelUnavailable, match="got no candidate"):
        choose(KernelPolicy(), FACTS, [])


def test_a_kernel_that_changes_results_is_taken_only_where_it_is_named():
    offers = [Offer("exact", Support.yes(), 3.0), Offer("rough", Support.yes(), 1.0, on_request=True)]
    d = decide(offers=offers)
    assert d.chosen.name == "exact"
    assert [(c.code, c.reason) for c in d.rejected] == [
        (Reason.NOT_REQUESTED, "changes results, and no policy names it")
    ]
    assert decide(KernelPolicy(matmul="rough"), offers=offers).chosen.name == "rough"
    assert decide(KernelPolicy(rules=[Rule(use="rough")]), offers=offers).chosen.name == "rough"
    with pytest.raises(KernelUnavailable, match="rough: changes results"):
        choose(KernelPolicy(rules=[Rule(forbid=["exact"])]), FACTS, offers)


def test_measured_times_decide_when_all_are_measured():
    offers = [Offer("a", Support.yes(), 3.0), Offer("b", Support.yes(), 2.0), Offer("c", NO_DEVICE, 1.0)]
    d = decide(offers=offers)
    assert (d.chosen.name, d.chosen.code) == ("b", Reason.FASTEST)
    assert {c.name: c.reason for c in d.rejected} == {"a": "3 us, slower than 2 us", "c": "drives cuda only"}
    half = [Offer("a", Support.yes(), 3.0), Offer("b", Support.yes())]
    assert decide(offers=half).chosen.code is Reason.DEFAULT
    assert decide(KernelPolicy(matmul="a"), offers=offers).chosen.name == "a"
    assert decide(offers=[Offer("a", Support.yes())]).chosen.code is Reason.ONLY_ONE


def test_two_uses_of_one_layer_are_an_error_and_of_two_layers_are_not():
    low = KernelPolicy(rules=[Rule(op="matmul", use="cublas")], origin="low")
    high = KernelPolicy(rules=[Rule(phase="decode", use="gemv")], origin="high")
    both = KernelPolicy(rules=[*low.rules, *high.rules])
    with pytest.raises(PolicyError) as caught:
        choose(both, FACTS, OFFERS)
    assert str(caught.value) == (
        "[node mm0] rules[1] of the policy (phase=decode) forces 'gemv', while rules[0] of the policy (op=matmul) forces 'cublas'. "
        "Make the conditions of the two rules exclude each other."
    )
    assert decide(low.merge(high)).chosen.name == "gemv"
    assert decide(high.merge(low)).chosen.name == "cublas"
    same = KernelPolicy(rules=[Rule(use="gemv"), Rule(op="matmul", use="gemv")])
    assert decide(same).chosen.name == "gemv"
    with pytest.raises(
        PolicyError, match=r"forces 'gemv', which rules\[1\] of the policy \(every op\) forbids"
    ):
        choose(KernelPolicy(rules=[Rule(use="gemv"), Rule(forbid="gemv")]), FACTS, OFFERS)


def test_between_layers_the_higher_one_wins():
    forbids = KernelPolicy(rules=[Rule(forbid="gemv")])
    forces = KernelPolicy(rules=[Rule(use="gemv")])
    assert decide(forbids.merge(forces)).chosen.code is Reason.FORCED
    d = decide(forces.merge(forbids))
    assert (d.chosen.name, codes(d)["gemv"]) == ("cublas", "forbidden")
    prefers = KernelPolicy(matmul="cublasLt")
    assert decide(KernelPolicy(matmul="gemv").merge(prefers)).chosen.name == "cublasLt"
    assert decide(KernelPolicy(rules=[Rule(prefer="gemv")]).merge(prefers)).chosen.name == "cublasLt"
    assert decide(forces.merge(prefers)).chosen.name == "gemv", "force beats preference in whatever layer"
    assert decide(forbids.merge(KernelPolicy(matmul="gemv"))).chosen.name == "cublas"
    wide = KernelPolicy(rules=[Rule(workspace_bytes=10)]).merge(
        KernelPolicy(rules=[Rule(workspace_bytes=2000)])
    )
    assert decide(wide).chosen.name == "cublas"


def test_a_rule_s_preference_stands_before_the_keyword():
    assert (
        decide(KernelPolicy(matmul="cublasLt", rules=[Rule(op="matmul", prefer="gemv")])).chosen.name
        == "gemv"
    )


def test_an_offer_twice_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="offered twice"):
        choose(KernelPolicy(), FACTS, [OFFERS[0], OFFERS[0]])


_kernels = st.sampled_from(["a", "b", "c", "d"])
_rules = st.builds(
    lambda demand, names, op: Rule(op=op, **{demand: names[0] if demand == "use" else names}),
    st.sampled_from(["use", "prefer", "forbid"]),
    st.lists(_kernels, min_size=1, max_size=3, unique=True),
    st.sampled_from(["matmul", "conv", ["matmul", "conv"]]),
)
_policies = st.builds(
    lambda rules, kw: KernelPolicy(matmul=kw, rules=rules),
    st.lists(_rules, max_size=3),
    st.just("auto") | _kernels,
)
_supports = st.sampled_from([Support.yes(), Support.yes(), NO_DEVICE])
_offers = st.lists(
    st.builds(Offer, _kernels, _supports, st.none() | st.floats(1, 9)), max_size=4, unique_by=lambda o: o.name
)


@given(st.lists(_policies, max_size=3), _offers)
def test_laws(policies, offers):
    policy = KernelPolicy()
    for p in policies:
        policy = policy.merge(p)
    try:
        name, decision = choose(policy, FACTS, offers)
    except PolicyError:
        assert any(len({r.use for r in p.rules if r.use}) > 1 or _fights(p) for p in policies)
        return
    except KernelUnavailable as error:
        name, decision = None, error.decision
    assert Decision.from_json(decision.to_json()) == decision
    named = [*([decision.chosen.name] if decision.chosen else []), *(c.name for c in decision.rejected)]
    assert len(named) == len(set(named)), "no candidate is listed twice"
    assert {o.name for o in offers} <= set(named)
    assert all(c.reason for c in decision.rejected)
    usable = {o.name for o in offers if o.support}
    assert name is None or name in usable
    top = policies[-1].rules if policies else ()
    mine = [r for r in top if "matmul" in r.op]
    for rule in mine:
        assert name not in rule.forbid
        assert rule.use in (None, name) or name is None
    if name is None and not any(r.use or r.forbid for p in policies for r in p.rules):
        assert not usable


def _fights(policy):
    return {r.use for r in policy.rules} & {n for r in policy.rules for n in r.forbid}


def test_deterministic_kernels_only():
    """Who says nothing of its bits is out, too; a higher layer may lift the demand."""
    offers = [Offer("fast", Support.yes(), deterministic=False), Offer("mute", Support.yes()), OFFERS[1]]
    exact = KernelPolicy(rules=[Rule(op="matmul", deterministic=True)])
    name, d = choose(exact, FACTS, offers)
    assert name == "cublasLt"
    assert codes(d) == {"fast": "forbidden", "mute": "forbidden"}
    assert [c.reason for c in d.rejected] == [
        "is not deterministic; rules[0] of the policy (op=matmul) demands deterministic kernels",
        "does not report if it is deterministic; rules[0] of the policy (op=matmul) demands deterministic kernels",
    ]
    lifted = exact.merge(KernelPolicy(rules=[Rule(deterministic=False)]))
    assert choose(lifted, FACTS, offers)[0] == "fast"


def test_batch_invariant_kernels_only():
    facts = NodeFacts(node="fc1", family="matmul")
    offers = [
        Offer("fast", Support.yes(), batch_invariant=False),
        Offer("kept", Support.yes(), batch_invariant=True),
    ]
    name, decision = choose(KernelPolicy(batch_invariant=True), facts, offers)
    assert name == "kept"
    assert [c.reason for c in decision.rejected] == [
        "does not promise a row the same bits in every batch; batch_invariant of the policy demands it"
    ]
    lifted = KernelPolicy(batch_invariant=True).merge(KernelPolicy(batch_invariant=False))
    assert choose(lifted, facts, offers)[0] == "fast"
    assert not vendor_keeps_to(KernelPolicy(batch_invariant=True), facts, "tensorrt")
