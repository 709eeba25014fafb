"""Every word of a policy reaches a kernel, an engine or a precision of this release, or is refused as not implemented."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

import xpuruntime as xrt
from xpuruntime.engines import ENGINES as OWN_ENGINES
from xpuruntime.engines.onnxruntime import kernel_options as onnxruntime_options
from xpuruntime.engines.openvino import kernel_options as openvino_options
from xpuruntime.errors import PolicyError
from xpuruntime.inference.native import engine as native
from xpuruntime.ir import OPS, GraphBuilder
from xpuruntime.kernels.catalogue import TARGET_KERNELS, kernels
from xpuruntime.policies.choose import Offer, choose
from xpuruntime.policies.rule import NodeFacts
from xpuruntime.policies.vocabulary import (
    ENGINE_ALIASES,
    ENGINES,
    KERNELS,
    KERNELS_NOT_IMPLEMENTED,
    PHASES,
    PRECISIONS,
    PRECISIONS_NOT_IMPLEMENTED,
)
from xpuruntime.targets import DEVICE_KINDS, DeviceId

DOC = Path(__file__).parents[2] / "docs" / "reference" / "policies.md"
ABSENT = [(family, word) for family, words in KERNELS_NOT_IMPLEMENTED.items() for word in words]


def in_catalogue() -> dict[tuple[str, str], set[str]]:
    """(family, word) -> the kinds of target that have a kernel of it; ``ported``: targets that bring their own."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind in TARGET_KERNELS:
        for kernel in kernels(kind):
            for op in kernel.ops:
                found[OPS[op].family, kernel.name.partition("/")[2]].add(kind or "ported")
    return found


def by_options() -> dict[tuple[str, str], set[str]]:
    """(family, word) -> the vendor engines that have an option for it."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, module in (("onnxruntime", onnxruntime_options), ("openvino", openvino_options)):
        for kind in DEVICE_KINDS:
            for pair in module.kernel_options(DeviceId(kind)):
                found[pair].add(name)
    return found


CATALOGUE, OPTIONS = in_catalogue(), by_options()


def test_every_kernel_word_is_had_and_every_kernel_has_its_word() -> None:
    words = {(family, word) for family, names in KERNELS.items() for word in names}
    assert words - CATALOGUE.keys() - OPTIONS.keys() == set(), "words without a kernel"
    missing = {(f, w) for f, w in CATALOGUE.keys() | OPTIONS.keys() if f in KERNELS} - words
    assert missing == set(), "kernels that no policy can name"
    assert words & set(ABSENT) == set()


@pytest.mark.parametrize(("family", "word"), ABSENT)
def test_a_word_without_a_kernel_is_refused_when_it_is_read(family: str, word: str) -> None:
    say = rf"no such kernel of {family} \(not_implemented\); got '{word}'. It has: .*generated|ported"
    for demand in (
        {family: word},
        {"rules": [{"op": family, "use": word}]},
        {"rules": [{"op": family, "prefer": [word]}]},
        {"rules": [{"op": family, "forbid": word}]},
    ):
        with pytest.raises(PolicyError, match=say):
            xrt.load_policy({"version": 1, "kernel": demand})
    with pytest.raises(PolicyError, match=say):
        xrt.load_policy(xrt.KernelPolicy(**{family: word}))


def test_a_policy_with_such_a_word_stops_every_compile() -> None:
    b = GraphBuilder("one")
    b.output("y", b.softmax(b.input("x", "float32[2, 4]"), dim=-1))
    with pytest.raises(
        PolicyError, match=r"kernel\.softmax: this release does not implement this kernel of softmax"
    ):
        xrt.compile(b.build(), policy=xrt.KernelPolicy(softmax="cudnn"))


def test_beside_other_words_it_is_recorded() -> None:
    b = GraphBuilder("one")
    b.output("y", b.softmax(b.input("x", "float32[2, 4]"), dim=-1))
    program = xrt.compile(b.build(), policy=xrt.KernelPolicy(softmax=["cudnn", "generated"]))
    (decision,) = [d for d in program.decisions if d.question == "kernel softmax"]
    assert decision.chosen is not None
    assert decision.chosen.name == "generated"
    assert [(c.name, c.code.value) for c in decision.rejected] == [("cudnn", "not_implemented")]


def test_a_kernel_of_a_user_may_have_the_word() -> None:
    @xrt.kernel("softmax/cudnn", op="softmax")
    def softmax(x, *, dim, **_):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    from xpuruntime.plugins.registered import unregister

    try:
        xrt.load_policy({"version": 1, "kernel": {"softmax": "cudnn"}})
    finally:
        unregister("softmax/cudnn")
    facts = NodeFacts(node="n", family="softmax")
    _, decision = choose(xrt.KernelPolicy(softmax=["cudnn"]), facts, [Offer("generated", xrt.Support.yes())])
    assert decision.rejected[0].code is xrt.Reason.NOT_IMPLEMENTED


def test_an_unknown_phase_is_refused() -> None:
    rule = {"op": "matmul", "prefer": "generated", "phase": "training"}
    with pytest.raises(PolicyError, match="no such phase; got 'training'"):
        xrt.load_policy({"version": 1, "kernel": {"rules": [rule]}})
    b = GraphBuilder("one")
    b.output("y", b.relu(b.input("x", "float32[2]")))
    with pytest.raises(PolicyError, match="no such phase; got 'training'"):
        xrt.compile(b.build(), phase="training")


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_compiles_and_its_rules_count(phase: str) -> None:
    b = GraphBuilder("one")
    b.output("y", b.mm(b.input("x", "float32[1, 4]"), b.input("w", "float32[4, 4]")))
    policy = {"version": 1, "kernel": {"rules": [{"op": "matmul", "prefer": "generated", "phase": phase}]}}
    program = xrt.compile(b.build(), policy=policy, phase=phase)
    (decision,) = [d for d in program.decisions if d.question == "kernel matmul"]
    assert decision.chosen is not None
    assert f"phase={phase}" in decision.chosen.reason


@pytest.mark.parametrize("word", PRECISIONS_NOT_IMPLEMENTED)
def test_a_precision_that_nothing_computes_in_is_refused(word: str) -> None:
    with pytest.raises(PolicyError, match=rf"this release has no precision '{word}' \(not_implemented\)"):
        xrt.ExecutionPolicy(precision=word)


def test_every_precision_is_had_somewhere() -> None:
    own = {"model", *(p.value for p in native.PRECISIONS)}
    of_models = {"int8", "int4"}  # what a quantized model computes in (inference/selection/integers.py)
    assert set(PRECISIONS) == own | of_models
    assert not set(PRECISIONS) & set(PRECISIONS_NOT_IMPLEMENTED)


@pytest.mark.parametrize("word", [*ENGINES, *ENGINE_ALIASES])
def test_every_engine_is_there(word: str) -> None:
    from xpuruntime.engines import lookup

    name = ENGINE_ALIASES.get(word, word)
    assert name in OWN_ENGINES
    assert lookup(word).name == name


def table(heading: str) -> list[list[str]]:
    text = DOC.read_text(encoding="utf-8").partition(heading)[2]
    rows = re.search(r"(?:^\|.*\n)+", text, re.M)
    assert rows, heading
    return [[c.strip() for c in row.strip("|").split("|")] for row in rows[0].splitlines()[2:]]


def test_the_page_lists_every_word_with_what_has_it() -> None:
    def listed(words: object) -> str:
        return ", ".join(f"`{w}`" for w in words) or "-"  # type: ignore[attr-defined]

    wanted = []
    for family, words in KERNELS.items():
        has = {kind: [w for w in words if kind in CATALOGUE.get((family, w), ())] for kind in ("cpu", "cuda")}
        vendors = [w for w in words if (family, w) in OPTIONS]
        absent = KERNELS_NOT_IMPLEMENTED.get(family, ())
        wanted.append([f"`{family}`", *map(listed, (has["cpu"], has["cuda"], vendors, absent))])
    assert table("## Kernel names") == wanted
