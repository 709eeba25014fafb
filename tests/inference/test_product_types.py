"""Element types that the evidence of native code states for products with weights of few bits."""

from __future__ import annotations

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.inference.native.evidence_rows import _operands
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy


@pytest.mark.parametrize("word", ["int4", "int4_64", "int8"])
def test_rounded_rows_are_activations_of_8_bits(word: str) -> None:
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    for rows in (1, 4, 200):
        b = GraphBuilder("g")
        b.output("y", b.linear(b.input("x", f"float32[{rows}, 256]"), b.weight("w", "float32[256, 256]")))
        policy = KernelPolicy(weights=word, activations="int8")
        plan = xrt.compile(b.build(), weights={"w": weight}, target="cpu", policy=policy).entries[0].plans[0]
        types = {buffer.name: buffer.spec.dtype for buffer in plan.buffers}
        stated = [_operands(call, types) for call in plan.calls if call.kernel.startswith("matmul/")]
        assert stated == [("int8", word.partition("_")[0])]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("word", ["int4", "int4_64", "int8"])
@pytest.mark.parametrize("target", ["cuda:sm_90", "cpu"])
def test_few_rows_read_codes_and_many_rows_multiply_floats(target: str, word: str) -> None:
    """On CUDA, 17 to 64 rows read codes, too; more are multiplied with the weight as floats, which a stage before writes. It is no product itself."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float16)
    codes = word.partition("_")[0]
    for rows in (4, 40, 2048):
        b = GraphBuilder("g")
        b.output("y", b.linear(b.input("x", f"float16[{rows}, 256]"), b.weight("w", "float16[256, 256]")))
        program = xrt.compile(
            b.build(), weights={"w": weight}, target=target, policy=KernelPolicy(weights=word)
        )
        plan = program.entries[0].plans[0]
        types = {buffer.name: buffer.spec.dtype for buffer in plan.buffers}
        stated = [_operands(call, types) for call in plan.calls if call.kernel.startswith("matmul/")]
        widened = rows == 2048 and target.startswith("cuda")
        assert stated == ([("", ""), ("float16", "float16")] if widened else [("float16", codes)])
