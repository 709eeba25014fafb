"""``sample_token`` on CPUs: a thread samples whole rows (``templates/sampled_token_row.h``)."""

from __future__ import annotations

from ...codegen.c_types import C_TYPES
from ...codegen.loops.points import for_tasks
from ...codegen.target import CodegenTarget
from ..kernel import NodeCall, Stage
from ..spec.product import sizes
from ..spec.sample_token import SampleToken
from .abi import function
from .moves import moves_stage

__all__ = ["KERNELS"]

_BINS = 2048


class CpuSampleToken(SampleToken):
    """One task per row."""

    def __init__(self) -> None:
        super().__init__(moves_stage)

    def sampled(self, call: NodeCall, target: CodegenTarget) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
        """Return one stage. A thread needs 16 bytes per token."""
        logits = call.tensor(0).spec
        batch, vocab = sizes(logits)
        kind, step = C_TYPES[logits.dtype], logits.physical.strides[0]
        counts, after = (s.physical.strides[0] for s in (call.tensor(1).spec, call.outputs[1]))
        settings, numbers = (call.tensor(i).spec.physical.strides[0] for i in (2, 3))
        args = ("in0", "in1", "in2", "in3", "out0", "out1")
        kinds = (kind, "int32_t", "float", "int64_t", "int64_t", "int32_t")
        lines = [
            f"{'' if name.startswith('out') else 'const '}{k} *const {name} = ({k} *)args[{i}];"
            for i, (name, k) in enumerate(zip(args, kinds, strict=True))
        ]
        body = [
            f"const sampled::Row row = sampled::row_of(in2 + task * {settings}, in3 + task * {numbers});",
            f"const int64_t token = sampled::token_of(in0 + task * {step}, in1 + task * {counts}, row, {vocab}, (char *)scratch);",
            f"out0[task * {call.outputs[0].physical.strides[0]}] = token;",
            f"if (row.counted && token >= 0) out1[task * {after} + token] += 2;",
        ]
        stage = Stage(
            stem=f"sample_token_{batch}x{vocab}",
            source=function("\n".join(f"  {line}" for part in (*lines, for_tasks(body)) for line in part.splitlines())),
            args=args,
            tasks=batch,
            scratch_bytes=16 * (vocab + _BINS),
            parts=frozenset({"sampled_token_row"}),
            flops=20 * batch * vocab,
            bytes=(logits.size_bytes or 0),
        )  # fmt: skip
        return (stage,), ()


KERNELS = (CpuSampleToken(),)
