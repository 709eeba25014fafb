"""A pinned algorithm passes from a policy file through the plan to the library's options, and changes only its own calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cuda_doubles import leave_text_uncompiled

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.errors import KernelUnavailable
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.program.program import KernelCall


@pytest.fixture(autouse=True)
def libraries_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_text_uncompiled(monkeypatch)


def net() -> ir.Graph:
    b = ir.GraphBuilder("net")
    x = b.input("x", "float16[1, 16, 8, 8]")
    y = b.convolution(
        x, b.weight("k", "float16[16, 16, 3, 3]"), stride=[1, 1], padding=[1, 1], dilation=[1, 1]
    )
    y = b.view(y, size=[16, 64])
    y = b.mm(y, b.weight("w", "float16[64, 64]"))
    b.output("y", b.mm(y, b.weight("v", "float16[64, 32]")))
    return b.build()


def calls(policy: Any) -> dict[str, KernelCall]:
    program = xrt.compile(net(), target="cuda:sm_90", policy=policy)
    return {c.kernel: c for c in program.entries[0].plans[0].calls if c.library}


def test_a_policy_file_pins_the_algorithm_and_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "pinned.yaml"
    file.write_text(
        "version: 1\nkernel:\n  matmul: {kernel: cublasLt, algorithm: 21, choice: 1}\n  conv: {kernel: cudnn, engine: 5}\n"
    )
    plain = calls({"version": 1, "kernel": {"matmul": "cublasLt", "conv": "cudnn"}})
    pinned = calls(str(file))
    assert set(plain) == {"matmul/cublasLt", "conv/cudnn"}
    assert set(pinned) == {"matmul/cublasLt[algorithm=21,choice=1]", "conv/cudnn[engine=5]"}
    product, conv = pinned.values() if next(iter(pinned)).startswith("matmul") else reversed(pinned.values())
    was, asked = dict(plain["matmul/cublasLt"].options), dict(product.options)
    assert (was.pop("algorithm"), was.pop("choice")) == (-1, 0)
    assert (asked.pop("algorithm"), asked.pop("choice")) == (21, 1)
    assert was == asked
    assert (plain["conv/cudnn"].options["engine"], conv.options["engine"]) == (-1, 5)


def test_a_rule_pins_one_node_alone() -> None:
    rule = {"op": "matmul", "shape": "N == 32", "use": {"kernel": "cublasLt", "algorithm": 66}}
    found = calls({"version": 1, "kernel": {"matmul": "cublasLt", "rules": [rule]}})
    assert {n: c.options["n"] for n, c in found.items() if n.startswith("matmul")} == {
        "matmul/cublasLt": 64,
        "matmul/cublasLt[algorithm=66]": 32,
    }


def test_a_forced_pin_where_the_kernel_is_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"op": "matmul", "use": {"kernel": "cublasLt", "algorithm": 66}}
    policy = {"version": 1, "kernel": {"rules": [rule]}}
    with pytest.raises(
        KernelUnavailable,
        match=r"forces 'cublasLt\[algorithm=66\]', which is unavailable; got no kernel of this name",
    ):
        xrt.compile(net(), target="cpu", policy=policy)
    monkeypatch.setattr(libraries, "installed", lambda library: False)
    with pytest.raises(KernelUnavailable, match="cublasLt is not installed"):
        calls(policy)
