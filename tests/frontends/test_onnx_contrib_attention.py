"""ONNX Runtime's attention ops beside ONNX Runtime: caches, windows, soft caps, sinks, rotation and packed operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support.contrib.attention import CASES, NORMED, grouped, multi
from support.contrib.case import (
    Case,
    differences,
    feeds_of,
    floats,
    model_of,
    ours,
    proto_of,
    theirs,
    typed,
)  # fmt: skip

from xpuruntime import InferenceSession
from xpuruntime.errors import UnavailableError


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_attention_equals_onnx_runtime(case: Case) -> None:
    model, feeds = model_of(case)
    for got, want in zip(ours(model, feeds), theirs(model, feeds), strict=True):
        assert differences(got, want) <= 2e-5


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.note in ("one step of examples of several lengths", "prompt, sinks", "cache, flags, bias", "scales of columns, flags")],
    ids=lambda c: c.name,
)  # fmt: skip
def test_the_native_engine_runs_it(case: Case) -> None:
    model, feeds = model_of(case)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        for got, want in zip(sess.run(feeds).values(), theirs(model, feeds), strict=True):
            assert differences(got, want) <= 1e-4


def test_packed_operands_are_those_apart() -> None:
    """ONNX Runtime packs them on CUDA only."""
    q, k, v = floats(2, 5, 3, 4), floats(2, 7, 3, 4), floats(2, 7, 3, 4)

    def flat(x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], -1)

    model, feeds = model_of(multi(flat(q), flat(k), flat(v), note=""))
    (want,) = theirs(model, feeds)
    packed = multi(flat(q), np.stack([k, v], 3), note="")
    assert differences(ours(typed(packed, [want]), feeds_of(packed))[0], want) <= 1e-6
    model, feeds = model_of(multi(flat(q), flat(k[:, :5]), flat(v[:, :5]), note=""))
    (want,) = theirs(model, feeds)
    packed = multi(np.stack([q, k[:, :5], v[:, :5]], 3), note="")
    assert differences(ours(typed(packed, [want]), feeds_of(packed))[0], want) <= 1e-6


def test_queries_and_keys_are_normalized_before_their_rotation() -> None:
    """ONNX Runtime does it on GPUs only: its result for operands that were normalized before."""

    def normalized(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        heads = x.reshape(*x.shape[:2], -1, weight.size).astype(np.float64)
        scaled = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3) * weight
        return scaled.reshape(x.shape).astype(np.float32)

    operands = list(NORMED.operands)
    for at, weight in ((0, 14), (1, 15)):
        operands[at] = normalized(operands[at], operands[weight])
    plain = NORMED._replace(operands=(*operands[:14], None, None))
    model, feeds = model_of(plain)
    wants = theirs(model, feeds)
    for got, want in zip(ours(typed(NORMED, wants), feeds_of(NORMED)), wants, strict=True):
        assert differences(got, want) <= 2e-5


PADDED: list[dict[str, Any]] = [
    {"rotary": 8},
    {"local_window_size": 2},
    {"sink": True, "softcap": 2.0},
    {"causal": 0},
    {"bias": (1, 6, 6, 6)},
]


@pytest.mark.parametrize("words", PADDED, ids=lambda w: next(iter(w)))
@pytest.mark.parametrize("past", [None, 9])
def test_a_padded_prompt_is_that_of_onnx_runtime(words: dict[str, Any], past: int | None) -> None:
    """Queries behind the end of their example see all of its keys. With a window, what ONNX Runtime gives for them depends on the kernel that it takes."""
    ends = (5, 2, 0)
    model, feeds = model_of(grouped(6, past, 6, ends, note="padded", **words))
    for got, want in zip(ours(model, feeds), theirs(model, feeds), strict=True):
        for g, w, end in zip(got, want, ends, strict=True):
            rows = end + 1 if g.ndim == 2 and "local_window_size" in words else g.shape[0]
            assert differences(g[:rows], w[:rows]) <= 2e-5


@pytest.mark.parametrize(
    ("words", "by"),
    [({}, "onnxruntime"), ({"local_window_size": 2, "sink": True}, "the reference interpreter")],
)
def test_a_padded_prompt_passes_the_self_check(words: dict[str, Any], by: str) -> None:
    """Seeded lengths are shorter than the prompt. Where ONNX Runtime differs, every value is that of the interpreter, which decides."""
    model, feeds = model_of(grouped(6, None, 6, (5, 5), note="padded", **words))
    always = {"version": 1, "execution": {"self_check": "always"}}
    with InferenceSession(model, engine="native", device="cpu", exec_policy=always) as sess:
        decision = sess.plan.decision("self_check")
        assert decision is not None
        assert decision.chosen is not None
        assert decision.chosen.name == by
        for got, want in zip(sess.run(feeds).values(), theirs(model, feeds), strict=True):
            assert differences(got, want) <= 1e-4


@pytest.mark.parametrize(
    ("attributes", "outputs", "reason"),
    [
        (
            {"sliding_window_cache": 1, "local_window_size": 4},
            (0, 1, 2),
            "'sliding_window_cache' is 1; only 0",
        ),
        ({"qk_output": 1}, (0, 1, 2, 3), "scores as outputs"),
    ],
)
def test_a_form_that_is_not_lowered_says_why(attributes: Any, outputs: Any, reason: str) -> None:
    case = grouped(1, 6, 7, (6,), note="", **attributes)._replace(outputs=outputs)
    infos = [_info(i, s) for i, s in zip(outputs, [(1, 1, 96), (1, 2, 7, 16), (1, 2, 7, 16), (1, 6, 1, 7)], strict=False)]  # fmt: skip
    with pytest.raises(UnavailableError, match=reason):
        InferenceSession(proto_of(case, infos).SerializeToString(), engine="native", device="cpu")


def _info(position: int, shape: tuple[int, ...]) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(f"o{position}", TensorProto.FLOAT, shape)
