"""Random cases of ONNX Runtime's own ops: a result is that of ONNX Runtime, or the node is refused with a reason."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from support.contrib.case import GPU_ONLY, feeds_of, typed
from support.contrib.random_cases import DRAWS, Draw
from support.contrib.random_cases.outcome import disagreement, outcome

from xpuruntime import InferenceSession
from xpuruntime.frontends.onnx.ops import DOMAINS

SEEDS = range(1000, 1008)


@pytest.mark.parametrize("op", sorted(DRAWS))
def test_random_cases_are_those_of_onnx_runtime(op: str) -> None:
    compared = 0
    for seed in SEEDS:
        case = DRAWS[op](Draw(seed))
        wants, gots, reason = outcome(case)
        assert gots is not None or reason
        assert "do not match the op" not in reason, (seed, case, reason)
        if wants is not None and gots is not None:
            assert not (why := disagreement(case, gots, wants)), (seed, case, why)
            compared += 1
    assert compared


def test_every_op_is_drawn() -> None:
    assert DRAWS.keys() == (DOMAINS["com.microsoft"].keys() | {"SimplifiedLayerNormalization"}) - GPU_ONLY


@pytest.mark.parametrize("op", sorted(DRAWS)[::4])
def test_the_native_engine_computes_a_random_case(op: str) -> None:
    """The first case that both sides compute."""
    off = {"version": 1, "execution": {"self_check": "off"}}
    for seed in SEEDS:
        case = DRAWS[op](Draw(seed))
        wants, gots, _ = outcome(case)
        if wants is None or gots is None:
            continue
        with InferenceSession(
            typed(case, list(wants)), engine="native", device="cpu", exec_policy=off
        ) as sess:
            values = list(sess.run(feeds_of(case)).values())
        assert not (why := disagreement(case, values, wants)), (seed, case, why)
        return
    pytest.fail("no case is computed")
