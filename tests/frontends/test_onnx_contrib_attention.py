"""ONNX Runtime's attention ops beside ONNX Runtime: caches, windows, soft caps, sinks, rotation and packed operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support.contrib.attention import CASES, grouped, multi
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
    if case.op == "GroupQueryAttention":  # random lengths would have no meaning
        case = case._replace(inputs=tuple(i for i in case.inputs if i != 5))
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


def test_a_padded_prompt_is_right_up_to_its_length() -> None:
    """Rows behind the end of an example have no meaning in ONNX Runtime."""
    case = grouped(6, None, 6, (5, 2), rotary=8, note="padded")
    model, feeds = model_of(case)
    got, want = ours(model, feeds), theirs(model, feeds)
    for g, w in zip(got, want, strict=True):
        rows = 1 if g.ndim == 3 else 2
        assert differences(g[0], w[0]) <= 2e-5
        assert differences(np.take(g[1], range(3), rows - 1), np.take(w[1], range(3), rows - 1)) <= 2e-5


@pytest.mark.parametrize(
    ("attributes", "outputs", "reason"),
    [
        ({"sliding_window_cache": 1, "local_window_size": 4}, (0, 1, 2), "keep only a window"),
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
