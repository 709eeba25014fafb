"""``expert_linear`` on CUDA with matrices of codes in groups of inputs, as ``quantized`` has them for linear layers.

Few rows: each pair of a row and a slot is one product, which reads the codes of the chosen matrix alone. For many rows without a gate, a first
stage writes the matrices of all experts as floats to a workspace, and the GEMM of rows grouped by expert multiplies them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....codegen.target import CodegenTarget
from ....decisions import Support
from ....storage.blocks import GroupForm
from ...kernel import Kernel, LoweredCall, NodeCall
from ...spec.experts import ExpertProduct, supports_groups
from ...spec.linear import LinearLayer
from ..heavy import shared_limit
from .experts import ExpertGemm, expert_operands, reporting, row_text
from .gemv_problem import GemvProblem
from .quantized import by_floats, product_stage, quantized_config
from .quantized_tiles import QuantizedTiles

__all__ = ["KERNELS", "QuantizedExperts"]


@dataclass(frozen=True, slots=True)
class QuantizedExperts(Kernel):
    """Products with chosen experts, whose matrices are in groups of one form. Only a policy that names the kernel uses it.

    form: the groups that matrices are quantized to; None: those of the blocks that they are stored in.
    """

    name: str
    form: GroupForm | None
    on_request: bool = True
    ops: tuple[str, ...] = ("expert_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of at most 32 bits, and constant matrices."""
        products = ExpertGemm().supports(call, target)
        return supports_groups(call, self.form) if products else products

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage of pairs, or to the matrices as floats and their products."""
        p, form = ExpertProduct.of(call), self.form or call.tensor(1).groups
        if not p.pairs * p.n:
            return LoweredCall(())
        layer = LinearLayer(p.pairs, p.n, p.k, p.halves, p.act, 0.0, p.dtype, None, None, None)
        tiles = QuantizedTiles(layer, form, p.experts)
        config = quantized_config(replace(layer, m=1), form, shared_limit(target), alone=p.pairs == 1)
        if config is None or not (p.few or p.halves == 2):
            lowered = by_floats(call, tiles, ExpertGemm().lower(call, target))
        else:
            matrix = p.halves * tiles.tiles * tiles.steps * tiles.bytes
            begin = [
                "griddep_wait();  // the experts may be those that the previous launch chose",
                "const int64_t pair = blockIdx.y;",
                # The product reads row ``pair`` of its operand.
                f"const auto *const left = a + ({row_text(p, 'pair')} - pair) * {p.k};",
                f"const auto *const right = b + index_in(ids[pair], {p.experts}) * {matrix};",
            ]
            problem = GemvProblem(
                p.pairs, p.n, p.k, p.k, p.k, p.dtype, expert_operands(call), (), f"(int64_t)row * {p.n} + column", False, 1.0, p.act, p.halves == 2,
            )  # fmt: skip
            stage = product_stage(call, tiles, config, problem, begin)
            lowered = LoweredCall((reporting(stage, "movement"),))
        return replace(lowered, weights={1: tiles.packed(stored=self.form is None)})


KERNELS: tuple[Any, ...] = (
    *(
        QuantizedExperts("matmul/int4_weights" + suffix, GroupForm(4, group, "bfloat16"))
        for suffix, group in (("", 32), ("_64", 64), ("_128", 128))
    ),
    QuantizedExperts("matmul/stored_weights", None),
)
