"""KernelPolicy and Rule as values: normal form, refusal, merging."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from xpuruntime.errors import PolicyError
from xpuruntime.families import FAMILIES
from xpuruntime.policies import KernelPolicy, NodeFacts, Rule
from xpuruntime.policies.vocabulary import KERNELS
from xpuruntime.types import DType, dim


def test_the_specification_s_example():
    policy = KernelPolicy(matmul="cublasLt", conv="cudnn", attention="flash_v2")
    assert policy.matmul == ("cublasLt",)
    assert policy.to_dict() == {
        "version": 1,
        "kernel": {"matmul": "cublasLt", "conv": "cudnn", "attention": "flash_v2"},
    }


def test_one_keyword_per_family_with_kernels():
    names = {f.name for f in dataclasses.fields(KernelPolicy)}
    assert names - {"weights", "activations", "batch_invariant", "rules", "under", "origin"} == set(KERNELS)
    assert set(KERNELS) <= set(FAMILIES)


def test_normal_form_makes_equal_what_means_the_same():
    assert (
        KernelPolicy(matmul="cublas") == KernelPolicy(matmul=["cublas"]) == KernelPolicy(matmul=("cublas",))
    )
    assert KernelPolicy(matmul="auto") == KernelPolicy() == KernelPolicy(matmul=())
    assert Rule(op="matmul", shape="(M<=16)", use="gemv") == Rule(
        op=["matmul"], shape=" M <= 16 ", use="gemv"
    )
    assert Rule(dtype="bf16", forbid="naive") == Rule(dtype="bfloat16", forbid=["naive"])
    assert Rule(use="gemv", workspace_bytes="32 MiB").workspace_bytes == 32 * 2**20
    assert KernelPolicy(rules=[{"op": "conv", "use": "cudnn"}]) == KernelPolicy(
        rules=(Rule(op="conv", use="cudnn"),)
    )


def test_frozen_hashable_picklable_and_readable():
    policy = KernelPolicy(matmul=["a", "b"], rules=[Rule(op="matmul", use="gemv")]).merge(
        KernelPolicy(conv="cudnn")
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.matmul = "c"
    for same in (
        pickle.loads(pickle.dumps(policy)),
        copy.copy(policy),
        copy.deepcopy(policy),
        eval(repr(policy)),
    ):
        assert same == policy
        assert hash(same) == hash(policy)
        assert same.digest() == policy.digest()
    assert repr(KernelPolicy(matmul="gemv")) == "KernelPolicy(matmul='gemv')"
    named = KernelPolicy(origin="p.yaml")
    assert pickle.loads(pickle.dumps(named)).origin == "p.yaml"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: KernelPolicy(matmull="x"),
            "[KernelPolicy] matmull: unknown key. Did you mean 'matmul'? Known keys: "
            + ", ".join([*KERNELS, "weights", "activations", "batch_invariant", "rules", "under"])
            + ".",
        ),
        (
            lambda: KernelPolicy(matmul=3),
            "[KernelPolicy] matmul: must be a kernel name, such as cublasLt; got 3.",
        ),
        (
            lambda: KernelPolicy(matmul=[]),
            "[KernelPolicy] matmul: must be one value or a list of 1 to 64 values; got [].",
        ),
        (
            lambda: KernelPolicy(matmul=["a", "a"]),
            "[KernelPolicy] matmul[1]: is listed twice; got 'a'.",
        ),
        (
            lambda: KernelPolicy(rules=[Rule(use="gemv"), {"usee": "gemv"}]),
            "[KernelPolicy] rules[1].usee: unknown key. Did you mean 'use'? Known keys: op, node, dtype, shape, phase, use, "
            "prefer, forbid, workspace_bytes, deterministic, "
            "weights, activations, reason.",
        ),
        (
            lambda: KernelPolicy(rules="x"),
            "[KernelPolicy] rules: must be a list of at most 1000 rules; got 'x'.",
        ),
        (
            lambda: KernelPolicy(under=[{"under": [{"matmul": "gemv"}]}]),
            "[KernelPolicy] under[0].under: a lower layer cannot have layers of its own. List all layers one after another.",
        ),
        (
            lambda: Rule(op="matmul"),
            "[Rule] a rule demands nothing. Add use, prefer, forbid, workspace_bytes, deterministic or weights.",
        ),
        (
            lambda: Rule(use="a", prefer="b"),
            "[Rule] prefer: has no effect together with use. Keep one of the two.",
        ),
        (
            lambda: Rule(use="a", forbid=["b", "a"]),
            "[Rule] forbid: forbids 'a', which the same rule names. Remove one.",
        ),
        (
            lambda: Rule(op="matmull", use="a"),
            "[Rule] op: no such op family; got 'matmull'. Did you mean 'matmul'? Known: "
            + ", ".join(FAMILIES)
            + ".",
        ),
        (
            lambda: Rule(phase="decoding", use="a"),
            "[Rule] phase: no such phase; got 'decoding'. Did you mean 'decode'? Known: inference, prefill, decode, sample, train_forward, train_backward.",
        ),
        (
            lambda: Rule(op="matmul", shape="m < 3", use="gemv"),
            "[Rule] shape: no such dim 'm'; got 'm < 3'. Did you mean 'M'? What matmul ops have: M, N, K, rank, elements, batch.",
        ),
        (
            lambda: Rule(shape="M < 3", use="gemv"),
            "[Rule] shape: no such dim 'M'; got 'M < 3'. What every op has (set `op` for more): rank, elements, batch.",
        ),
        (
            lambda: Rule(op="matmul", shape="M", use="gemv"),
            "[Rule] shape: 'M' is not a comparison, or comparisons joined by and, or, not; got 'M'. Write for example 'M <= 16 and K % 8 == 0'.",
        ),
        (
            lambda: Rule(node="re:(", use="a"),
            "[Rule] node: not a regular expression (missing ), unterminated subpattern at position 0); got 're:('.",
        ),
        (
            lambda: Rule(use="a", workspace_bytes="many"),
            "[Rule] workspace_bytes: must be bytes, such as 33554432 or '32 MiB'; got 'many'.",
        ),
        (
            lambda: Rule(use="a", workspace_bytes="99999999999 TiB"),
            "[Rule] workspace_bytes: must be bytes, such as 33554432 or '32 MiB'; got '99999999999 TiB'.",
        ),
        (
            lambda: Rule(use="a", workspace_bytes=-1),
            "[Rule] workspace_bytes: must be an integer from 0 to 9007199254740992; got -1.",
        ),
        (
            lambda: Rule(use="a", reason="two\nlines"),
            "[Rule] reason: must be one line of text, at most 500 characters; got 'two\\nlines'.",
        ),
    ],
)
def test_refusals_say_what_and_where(make, text):
    with pytest.raises(PolicyError) as caught:
        make()
    assert str(caught.value) == text


def _facts(**changes):
    return dataclasses.replace(
        NodeFacts(node="/layers.3/mlp/fc1", family="matmul", dims={"M": 4, "K": 64}), **changes
    )


@pytest.mark.parametrize(
    ("rule", "facts", "matches"),
    [
        ({}, {}, True),
        ({"op": "matmul"}, {}, True),
        ({"op": ["conv", "matmul"]}, {}, True),
        ({"op": "conv"}, {}, False),
        ({"node": "/layers.*/mlp/*"}, {}, True),
        ({"node": "/layers.?/mlp/fc1"}, {}, True),
        ({"node": "mlp"}, {}, False),
        ({"node": ["mlp", "*fc1"]}, {}, True),
        ({"node": "re:/layers\\.[0-9]+/.*"}, {}, True),
        ({"node": "re:layers"}, {}, False),
        ({"node": "conv_7"}, {"sources": ("conv_7", "relu_8")}, True),
        ({"dtype": "bfloat16"}, {"dtype": DType.BFLOAT16}, True),
        ({"dtype": ["fp16", "bf16"]}, {"dtype": DType.FLOAT32}, False),
        ({"dtype": "fp16"}, {"dtype": None}, False),
        ({"op": "matmul", "shape": "M <= 16"}, {}, True),
        ({"op": "matmul", "shape": "M <= 16"}, {"dims": {"M": 17}}, False),
        ({"op": "matmul", "shape": "M <= 16"}, {"dims": {"M": dim("m")}}, False),
        ({"op": "matmul", "shape": "not M <= 16"}, {"dims": {"M": dim("m")}}, False),
        ({"phase": "inference"}, {"phase": "inference"}, True),
        ({"phase": "inference"}, {"phase": "decode"}, True),
        ({"phase": "decode"}, {"phase": "inference"}, False),
        ({"phase": "inference"}, {"phase": "train_forward"}, False),
        ({"phase": ["prefill", "train_backward"]}, {"phase": "train_backward"}, True),
    ],
)
def test_matching(rule, facts, matches):
    assert Rule(**rule, forbid="naive").matches(_facts(**facts)) is matches


def test_merge_keeps_layers_apart_and_is_a_monoid():
    a = KernelPolicy(matmul="cublas", rules=[Rule(op="conv", use="cudnn")])
    b = KernelPolicy(matmul="cublasLt")
    c = KernelPolicy(attention="naive")
    empty = KernelPolicy()
    assert a.merge(b).layers == (b, a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(empty) == empty.merge(a) == a
    assert a.merge(a) == a
    assert empty.merge(empty) == empty
    assert a.merge(b) != b.merge(a)
