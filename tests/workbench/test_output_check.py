from __future__ import annotations

import numpy as np
import pytest

from xpuruntime.workbench.output_check import check_outputs

RIGHT, WRONG, WORSE = [np.array([1.0, 2.0])], [np.array([1.0, 2.5])], [np.array([9.0, 2.0])]


def test_all_agree() -> None:
    verdict = check_outputs({"a": RIGHT, "b": RIGHT}, ["y"], {"y": 1e-6})
    assert (verdict.by, verdict.right, verdict.wrong) == ("each other", ("a", "b"), {})


def test_the_reference_outvotes_everybody() -> None:
    verdict = check_outputs({"a": WRONG, "b": WRONG, "c": RIGHT}, ["y"], {"y": 1e-6}, RIGHT)
    assert verdict.by == "onnx.reference"
    assert verdict.right == ("c",)
    assert verdict.wrong["a"].startswith("output 'y' disagrees with onnx.reference: max|d|/max|ref| 0.25")


def test_a_majority_decides_without_reference() -> None:
    verdict = check_outputs({"a": WRONG, "b": RIGHT, "c": RIGHT}, ["y"], {"y": 1e-6})
    assert (verdict.by, verdict.right, list(verdict.wrong)) == ("the majority", ("b", "c"), ["a"])


@pytest.mark.parametrize("outputs", [{"a": RIGHT, "b": WRONG}, {"a": RIGHT, "b": WRONG, "c": WORSE}])
def test_without_majority_nobody_is_called_right(outputs) -> None:
    verdict = check_outputs(outputs, ["y"], {"y": 1e-6})
    assert (verdict.by, verdict.right) == ("nobody", ())
    assert set(verdict.wrong) == set(outputs)
    assert all(verdict.wrong.values())


def test_one_alone_is_not_doubted() -> None:
    assert check_outputs({"a": WRONG}, ["y"], {"y": 1e-6}).right == ("a",)
