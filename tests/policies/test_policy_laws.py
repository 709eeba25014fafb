"""Laws of policies on random ones: files give back what was saved, merging is a monoid, copies are equal."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.families import FAMILIES
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, Policy, Rule
from xpuruntime.policies.files import document
from xpuruntime.policies.policy import from_document
from xpuruntime.policies.vocabulary import (
    ACTIVATIONS,
    ENGINES,
    INTEGER_KERNELS,
    KERNELS,
    PHASES,
    PRECISIONS,
    WEIGHTS,
)
from xpuruntime.targets import DEVICE_KINDS

_line = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=12
).filter(lambda t: t.isprintable() and t.strip()) | st.sampled_from(
    ["YES", "null", "1e5", "~", "- a", "a: b", "# no", "'", '"', "{", "0x1F", "é*", "re:a|b"]
)
_names = st.sampled_from(["cublas", "cublasLt", "gemv", "naive", "mylib.gemm", "null.x", "on"])


def _some(values, least=1):
    return st.lists(values, min_size=least, max_size=3, unique=True)


def _fields(cls, **strategies):
    return st.fixed_dictionaries({}, optional=strategies).map(lambda kw: cls(**kw))


def _rule(demand, names, conditions, reason):
    values = (
        {"use": names[0]}
        if demand == "use"
        else {demand: names}
        if demand not in ("limit", "weights", "integers")
        else {}
    )
    limit = {"workspace_bytes": 2**20 + len(names)} if demand == "limit" else {}
    values = {"weights": "int4"} if demand == "weights" else values
    values = {"weights": "stored", "activations": "int8"} if demand == "integers" else values
    conditions = {k: v for k, v in conditions.items() if k != "op"} if "weights" in values else conditions
    return Rule(**conditions, **values, **limit, **reason)


_rules = st.builds(
    _rule,
    st.sampled_from(["use", "prefer", "forbid", "limit", "weights", "integers"]),
    _some(_names),
    st.fixed_dictionaries(
        {},
        optional={
            "op": _some(st.sampled_from(sorted(FAMILIES))),
            "node": _some(_line.filter(lambda t: not t.startswith("re:") or t == "re:a|b")),
            "dtype": _some(st.sampled_from(["float32", "bf16", "int8", "string"])),
            "shape": st.sampled_from(["rank==4", "elements % 8 == 0 and not batch > 1", "1 < rank < 4"]),
            "phase": _some(st.sampled_from(sorted(PHASES))),
        },
    ),
    st.fixed_dictionaries({}, optional={"reason": _line}),
)
_words = st.fixed_dictionaries({}, optional={"weights": st.sampled_from([*WEIGHTS])}) | st.fixed_dictionaries(
    {"weights": st.sampled_from([*INTEGER_KERNELS])},
    optional={"activations": st.sampled_from([*ACTIVATIONS])},
)
_layers = st.builds(
    lambda fields, words: KernelPolicy(**fields, **words),
    st.fixed_dictionaries(
        {},
        optional={
            **{f: _some(_names) for f in KERNELS if f in ("matmul", "conv", "rope")},
            "rules": st.lists(_rules, max_size=3),
        },
    ),
    _words,
)
_kernel = st.lists(_layers, max_size=3).map(lambda ls: _merged(KernelPolicy(), ls))
_execution = _fields(
    ExecutionPolicy,
    target=st.sampled_from([*DEVICE_KINDS, "cuda:3"]),
    engine=st.sampled_from([*ENGINES, "auto", "onnxrt"]),
    precision=st.sampled_from([*PRECISIONS]),
    static_shape=st.booleans(),
    fixed_shapes=st.dictionaries(
        _line, st.integers(0, 4096) | st.lists(st.integers(0, 4096), max_size=4), max_size=3
    ),
    allow_fallback=_some(st.sampled_from(["cpu", "npu", "gpu"]), least=0),
    optimization_level=st.integers(0, 3),
    caching=st.booleans(),
    compile_timeout_s=st.floats(1e-9, 1e6),
    run_timeout_s=st.integers(1, 10**6),
    engine_options=st.dictionaries(
        st.sampled_from(ENGINES),
        st.dictionaries(_line, _line | st.just("") | st.integers(-5, 5) | st.floats(-1e9, 1e9), max_size=3),
        max_size=3,
    ),
    engine_order=st.dictionaries(
        st.sampled_from(sorted(DEVICE_KINDS)), _some(st.sampled_from(ENGINES)), max_size=2
    ),
    place=st.dictionaries(_line, st.sampled_from(ENGINES), max_size=3),
    self_check=st.sampled_from(["first_open", "always", "off"]),
    autocast=st.dictionaries(
        st.sampled_from(["matmul", "norm", "batch_norm"]),
        st.sampled_from(["low", "float32", "own"]),
        max_size=3,
    ),
    transfers=st.fixed_dictionaries(
        {},
        optional={
            "h2d": st.sampled_from(["any", "io_only"]),
            "d2h": st.sampled_from(["any", "io_only"]),
            "sync": st.sampled_from(["any", "none"]),
        },
    ),
    tune=st.just("on_build") | st.fixed_dictionaries({"on_build": st.floats(0, 1e6)}),
    strict=st.booleans(),
)
_policies = st.builds(lambda k, e: Policy(kernel=k, execution=e), _kernel, _execution)


def _merged(first, rest):
    for policy in rest:
        first = first.merge(policy)
    return first


@given(_policies)
def test_text_gives_back_what_was_written(policy):
    data = policy.to_dict()
    for write, read in (
        (document.to_json_text, document.parse_json),
        (document.to_yaml_text, document.parse_yaml),
    ):
        text = write(data)
        back, lines = read(text)
        assert back == data
        assert from_document(back) == policy
        assert from_document(back).digest() == policy.digest()
        assert set(lines.values()) <= set(range(1, text.count("\n") + 2))
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_files_give_back_what_was_saved(tmp_path, suffix):
    """A file with a contradiction is refused, so policies with one are left out."""
    from hypothesis import settings

    from xpuruntime.policies.lint import weights_clash

    @settings(max_examples=25)
    @given(
        _policies.filter(
            lambda p: (
                not any(r.use or r.prefer or r.forbid for layer in p.kernel.layers for r in layer.rules)
                and not weights_clash(p)
            )
        )
    )
    def check(policy):
        clean = Policy(kernel=KernelPolicy(rules=policy.kernel.rules), execution=policy.execution)
        clean.save(tmp_path / f"p.{suffix}")
        assert Policy.load(tmp_path / f"p.{suffix}") == clean

    check()


@given(_policies, _policies, _policies)
def test_merge_is_a_monoid(a, b, c):
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(Policy()) == Policy().merge(a) == a
    assert a.merge(a) == a
    assert a.merge(b).merge(b) == a.merge(b)


@given(_policies, _policies)
def test_the_upper_one_wins(low, high):
    merged = low.merge(high).execution
    for name, value in high.execution.set_fields().items():
        if name not in ("fixed_shapes", "engine_options", "engine_order", "place", "autocast", "transfers"):
            assert getattr(merged, name) == value
    for engine in high.execution.engine_options or {}:
        assert high.execution.options_for(engine).items() <= merged.options_for(engine).items()


@given(_policies)
def test_copies_are_equal(policy):
    for same in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), eval(repr(policy))):
        assert same == policy
        assert hash(same) == hash(policy)


@given(_policies, _policies)
def test_equal_means_equal_digest(a, b):
    assert (a == b) == (a.digest() == b.digest())
