"""``xpu certify``: the command, its exit codes, and files that hold no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXACT = {
    "version": 1,
    "kernel": {"rules": [{"deterministic": True}, {"op": "matmul", "use": "generated"}]},
    "execution": {"optimization_level": 0},
}
NETS = """
import torch


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.randn(2, 8)


def wrong():
    return 3


def broken():
    raise ValueError("no data")
"""


def test_the_command_prints_a_certificate(xpu, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "exact.json").write_text(json.dumps(EXACT))
    done = xpu("certify", f"{tmp_path}/nets.py:make", "--policy", tmp_path / "exact.json", "--json")
    assert done.code == 0
    assert done.json["equal"] is True
    for model, text in (
        ("nets.py", "must be FILE.py:FUNCTION"),
        (f"{tmp_path}/none.py:make", "there is no such file"),
        (f"{tmp_path}/nets.py:absent", "has no function 'absent'"),
        (f"{tmp_path}/nets.py:wrong", "must return a module and its example inputs"),
        (f"{tmp_path}/nets.py:broken", r"broken() failed with ValueError"),
    ):
        failed = xpu("certify", model)
        assert failed.code == 3
        assert text in failed.stderr
