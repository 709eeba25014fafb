"""Kernels with pins: one word in normal form, a mapping in files, candidates of their own, and refused by name where something is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpuruntime import KernelPolicy, PolicyError, Rule, load_policy
from xpuruntime.decisions import Reason, Support
from xpuruntime.policies import NodeFacts, Offer, choose, lint
from xpuruntime.policies.fields.pins import parted, pinned, plain_kernel, shown_kernel

PINNED = "cublasLt[algorithm=21,choice=2]"


def test_a_pinned_kernel_is_one_word_and_a_mapping_in_files(tmp_path: Path) -> None:
    policy = KernelPolicy(
        matmul=[{"kernel": "cublasLt", "choice": 2, "algorithm": 21}, "cublas"],  # type: ignore[list-item]
        conv={"kernel": "cudnn", "engine": 0},  # type: ignore[arg-type]
        rules=[Rule(op="matmul", node="head", use={"kernel": "cublasLt", "algorithm": 66})],  # type: ignore[arg-type]
    )
    assert policy.matmul == (PINNED, "cublas")
    assert policy.conv == ("cudnn[engine=0]",)
    assert policy.rules[0].use == "cublasLt[algorithm=66]"
    assert policy == KernelPolicy(
        matmul=[PINNED, "cublas"],
        conv="cudnn[engine=0]",
        rules=[Rule(op="matmul", node="head", use="cublasLt[algorithm=66]")],
    )
    assert policy.to_dict()["kernel"] == {
        "matmul": [{"kernel": "cublasLt", "algorithm": 21, "choice": 2}, "cublas"],
        "conv": {"kernel": "cudnn", "engine": 0},
        "rules": [{"op": "matmul", "node": "head", "use": {"kernel": "cublasLt", "algorithm": 66}}],
    }
    for name in ("p.yaml", "p.json"):
        policy.save(tmp_path / name)
        assert KernelPolicy.load(tmp_path / name) == policy
    assert (parted(PINNED), plain_kernel(PINNED)) == (
        ("cublasLt", {"algorithm": 21, "choice": 2}),
        "cublasLt",
    )
    assert pinned("cublasLt", {}) == "cublasLt" == shown_kernel("cublasLt")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{kernel: cublasLt, algoritm: 2}", "kernel.matmul.algoritm: no such pin; got 2. Did you mean 'algorithm'? Pins of cublasLt: algorithm, choice."),
        ("{kernel: cublas, algorithm: 2}", "kernel.matmul.algorithm: no such pin; got 2. cublas has no pins."),
        ("{kernel: cublasLt, algorithm: -1}", "kernel.matmul.algorithm: must be an integer from 0 to 2147483647; got -1."),
        ("{kernel: cublasLt, algorithm: yes it is}", "must be an integer"),
        ("{algorithm: 2}", "kernel.matmul: a mapping must name its kernel"),
        ("cublasLt[algorithm=]", "kernel.matmul: must be a kernel with pins, such as cublasLt[algorithm=21]"),
        ("cublaslt[algorithm=2]", "kernel.matmul.algorithm: no such pin"),
        ("cudnn[engine=2]", "kernel.matmul: no such kernel of matmul; got 'cudnn'"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_refused_with_what_is_known(written: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(f"version: 1\nkernel:\n  matmul: {written}\n")
    with pytest.raises(PolicyError) as refused:
        load_policy(str(file))
    assert said in str(refused.value)


FACTS = NodeFacts(node="fc", family="matmul")
OFFERS = [
    Offer("cublasLt", Support.yes()),
    Offer("cublas", Support.yes()),
    Offer(PINNED, Support.yes(), on_request=True, opt_in_reason="pins an algorithm"),
]


def test_a_pinned_kernel_is_a_candidate_of_its_own() -> None:
    chosen, decision = choose(KernelPolicy(), FACTS, OFFERS)
    assert chosen == "cublasLt"
    why = next(c for c in decision.rejected if c.name == PINNED)
    assert (why.code, why.reason) == (Reason.NOT_REQUESTED, "pins an algorithm, and no policy names it")
    assert choose(KernelPolicy(matmul=PINNED), FACTS, OFFERS)[0] == PINNED
    assert choose(KernelPolicy(rules=[Rule(use=PINNED)]), FACTS, OFFERS)[0] == PINNED


def test_who_forbids_a_kernel_forbids_it_with_pins_too() -> None:
    forbids = KernelPolicy(rules=[Rule(op="matmul", forbid="cublasLt")])
    assert choose(KernelPolicy(matmul=PINNED).merge(forbids), FACTS, OFFERS)[0] == "cublas"
    above = KernelPolicy(rules=[Rule(use=PINNED)])
    assert choose(forbids.merge(above), FACTS, OFFERS)[0] == PINNED  # a force of a higher layer
    both = KernelPolicy(matmul=PINNED, rules=forbids.rules)
    assert [f.code for f in lint(load_policy(both))] == ["forbidden_preference"]
    one_rule = KernelPolicy(rules=[Rule(op="matmul", prefer=[PINNED])])
    assert lint(load_policy(one_rule)) == ()
