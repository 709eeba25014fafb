"""The self check on models that choose: equal scores may be chosen among in any order, other scores may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import WrongResult
from xpuruntime.inference.self_check.ties import has_tie, is_tie
from xpuruntime.ir import GraphBuilder, Node
from xpuruntime.policies import ExecutionPolicy

torch = pytest.importorskip("torch")
nn = torch.nn
ALWAYS = ExecutionPolicy(self_check="always")


def choice(op: str, **attrs: Any) -> Node:
    b = GraphBuilder("g")
    x = b.input("x", "float32[2, 5]")
    made = b.call(op, x, **attrs)
    b.output("y", made if isinstance(made, str) else made[-1])
    return next(n for n in b.build() if n.op == op)


SCORES = np.array([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 1.0, 1.0 + 1e-7, -5.0, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("op", "attrs", "got", "want", "tied"),
    [
        ("topk", {"k": 2}, [[2, 4], [1, 2]], [[1, 2], [2, 1]], True),
        ("topk", {"k": 2}, [[2, 2], [1, 2]], [[1, 2], [2, 1]], False),
        ("topk", {"k": 2}, [[2, 0], [1, 2]], [[1, 2], [2, 1]], False),
        ("topk", {"k": 2}, [[2, 9], [1, 2]], [[1, 2], [2, 1]], False),
        ("topk", {"k": 2}, [[2, -1], [1, 2]], [[1, 2], [2, 1]], False),
        ("topk", {"k": 3, "sorted": False}, [[0, 2, 4], [4, 1, 2]], [[4, 0, 1], [2, 4, 1]], True),
        ("topk", {"k": 3, "sorted": True}, [[0, 2, 4], [4, 1, 2]], [[4, 0, 1], [2, 4, 1]], False),
        ("argmax", {"dim": 1}, [4, 1], [1, 2], True),
        ("argmax", {"dim": 1}, [4, 0], [1, 2], False),
        ("argmax", {"dim": 1, "keepdim": True}, [[4], [1]], [[1], [2]], True),
        ("argmax", {}, 4, 1, True),
        ("argmax", {}, 0, 1, False),
        ("max", {"dim": 0}, [0, 0, 0, 0, 0], [0, 0, 0, 1, 0], False),
    ],
)
def test_what_is_a_tie(op: str, attrs: dict[str, Any], got: Any, want: Any, tied: bool) -> None:
    assert is_tie(choice(op, **attrs), SCORES, np.array(got), np.array(want), 1e-6) is tied


@pytest.mark.parametrize(
    ("op", "attrs", "near"),
    [
        ("topk", {"k": 1}, True),
        ("topk", {"k": 1, "largest": False}, False),
        ("argmin", {"dim": 1}, False),
        ("argmax", {}, True),
        ("sort", {}, True),
        ("max", {"dim": 0}, False),
    ],
)
def test_where_scores_are_equal(op: str, attrs: dict[str, Any], near: bool) -> None:
    assert has_tie(choice(op, **attrs), SCORES, 1e-6) is near


class Boxes(nn.Module):
    """Scores of which most are 0: PyTorch and we choose others of them."""

    def forward(self, x: Any) -> Any:
        values, places = (x.relu() * 2).topk(40)
        return values, places, places.float() * 3


def verdict(session: Any) -> Any:
    (found,) = (d for d in session.plan.decisions if d.question == "self_check")
    return found


def test_infinite_scores_are_a_tie() -> None:
    scores = np.array([1.0, np.inf, np.inf, 2.0, -np.inf])
    assert has_tie(choice("argmax", dim=1), scores[None], 0.0)
    assert not has_tie(choice("argmin", dim=1), scores[None], 0.0)
    assert not has_tie(choice("argmax", dim=1), scores[None, 2:], 0.0)


def test_equal_scores_are_not_wrong() -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    model = Boxes().eval()
    assert any(
        not np.array_equal(model(x)[1][i], np.argsort(-x.relu()[i].numpy(), kind="stable")[:40])
        for i in range(4)
    )
    with xrt.InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=ALWAYS) as session:
        found = verdict(session)
    assert found.chosen.code is Reason.NOT_CHECKED
    assert "node 'topk' chooses among scores that are equal" in found.chosen.reason


def test_a_wrong_kernel_before_a_choice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            return self.layer(x).topk(3)

    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    model = Router().eval()
    with xrt.InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=ALWAYS) as session:
        assert verdict(session).chosen.code is Reason.CHECKED
        calls = session._executable.only.plan.calls
        kernel = next(call.kernel for call in calls if call.kernel.startswith("matmul/"))
    monkeypatch.setenv("XPU_TEST_WRONG_KERNEL", f"{kernel}:tile")
    with pytest.raises(WrongResult, match="linear"):
        xrt.InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=ALWAYS)


def test_no_vendor_is_called_wrong_for_another_order_of_equal_scores() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with xrt.InferenceSession(
        Boxes().eval(), example_inputs=(x,), engine="auto", device="cpu", exec_policy=ALWAYS
    ) as session:
        rejected = [c for d in session.plan.decisions for c in d.rejected]
        assert verdict(session).chosen.code is Reason.NOT_CHECKED
    assert Reason.WRONG_RESULT not in {c.code for c in rejected}


def test_a_tie_excuses_no_output_that_does_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            return x.relu().topk(40).indices, self.layer(x)

    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    model = Two().eval()
    with xrt.InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=ALWAYS) as session:
        assert verdict(session).chosen.code is Reason.NOT_CHECKED
        calls = session._executable.only.plan.calls
        kernel = next(call.kernel for call in calls if call.kernel.startswith("matmul/"))
    monkeypatch.setenv("XPU_TEST_WRONG_KERNEL", f"{kernel}:tile")
    with pytest.raises(WrongResult):
        xrt.InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=ALWAYS)
