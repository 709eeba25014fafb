"""Linear layers as decoders have them: few rows, weights that come from memory once, and what stands around them in the same call.

``norm_linear`` has an RMS norm before the product (every call of the function makes the normed rows once, in its scratch) and, gated, an activation of
one half of the outputs times the other half after it: a task then computes a panel of the one half and the panel of the other that it meets.
Weights lie as for the plain products (``gemm``), so that prefill and decode share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.isa import IsaLevel
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..program.program import RecipeStep
from ..types import DType, TensorSpec
from .gemm import _packed, _quantized
from .gemm_tiling import tiling
from .kernel import Lowered, NodeCall, Operand, Packed, Stage
from .product import ACTIVATIONS, C_TYPES, Product, accumulator, sizes

__all__ = ["KERNELS", "Layer", "NormLinear"]

_ROWS = 16
"""Up to so many rows: normed rows are made again by every thread, and all rows pass over a panel while it is in cache."""
_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


@dataclass(frozen=True, slots=True)
class Layer:
    """A node as a product of m rows: n outputs of k inputs; ``halves`` is 2 where it is gated, and B then has twice as many columns."""

    m: int
    n: int
    k: int
    halves: int
    act: str
    eps: float
    dtype: DType
    bias: Operand | None
    residual: Operand | None
    scale: Operand | None

    @classmethod
    def of(cls, call: NodeCall) -> Layer:
        """Of ``linear``, ``fused_linear`` or ``norm_linear``."""
        x, weight = call.tensor(0).spec, call.tensor(1).spec
        (rows, k), halves = sizes(weight), 2 if call.attrs.get("gated") else 1
        act, eps = str(call.attrs.get("act", "none")), float(call.attrs.get("eps", 0.0))
        rest = (call.optional(i) for i in (2, 3, 4))
        return cls(
            math.prod(sizes(x)[:-1]), rows // halves, k, halves, act, eps, call.outputs[0].dtype, *rest
        )

    @property
    def storage(self) -> str:
        """The C type of what lies in memory."""
        return C_TYPES[self.dtype]

    @property
    def sums(self) -> str:
        """The C type of sums."""
        return accumulator(self.dtype)

    @property
    def operands(self) -> list[tuple[str, int]]:
        """Name and position of the operands beside x and the weight that are there."""
        given = (("bias", 2, self.bias), ("residual", 3, self.residual), ("norm", 4, self.scale))
        return [(name, at) for name, at, operand in given if operand is not None]

    def panels(self, columns: int) -> int:
        """Panels of B, of one half."""
        return math.ceil(self.n / columns)

    def even(self, columns: int) -> tuple[tuple[RecipeStep, ...], int]:
        """Steps that give each half of the outputs whole panels, where it has not, and how many outputs there are then."""
        whole = self.panels(columns) * columns
        if self.halves == 1 or whole == self.n:
            return (), self.n * self.halves
        return (
            RecipeStep("reshape", ("%in",), {"shape": [2, self.n, self.k]}),
            RecipeStep("pad", ("%0",), {"begin": [0, 0, 0], "end": [0, whole - self.n, 0]}),
            RecipeStep("reshape", ("%1",), {"shape": [2 * whole, self.k]}),
        ), 2 * whole

    # ── text ──

    def arguments(self, first: int) -> list[str]:
        """Lines that name the operands; ``first``: the argument that the first of them is."""
        kind = self.storage
        return [
            f"const {kind} *{name} = (const {kind} *)args[{first + i}];"
            for i, (name, _) in enumerate(self.operands)
        ]

    def epilogue(self, columns: int, scaled: str = "", gate_row: str = "r") -> list[str]:
        """Finished sums of row ``r`` of a panel to the result ``y``; of a gated layer the gate's are in ``gate``. scaled: numbers, one an output, that sums
        are multiplied with. gate_row: the row that the gate's sums count.
        """
        t = self.sums
        lines = [
            f"const int64_t col = panel * {columns}, outputs = {self.n} - col < {columns} ? {self.n} - col : {columns};",
            "for (int64_t j = 0; j < outputs; j += L) {",
            "    const int64_t n = outputs - j < L ? outputs - j : L;",
        ]
        halves = [
            ("x", f"gate + {gate_row} * {columns}", "col + j"),
            ("through", "sums", f"{self.n} + col + j"),
        ]
        for name, sums, at in halves if self.halves == 2 else [("x", "sums", "col + j")]:
            lines.append(f"    auto {name} = load<L>({sums} + j);")
            if scaled:
                lines.append(f"    {name} = {name} * gemm_load<{t}>({scaled} + {at}, n);")
            if self.bias is not None:
                lines.append(f"    {name} = {name} + gemm_load<{t}>(bias + {at}, n);")
        if self.residual is not None:
            lines.append(f"    x = x + gemm_load<{t}>(residual + r * {self.n} + col + j, n);")
        if self.act != "none":
            lines.append(f"    x = {ACTIVATIONS[self.act][0]};")
        if self.halves == 2:
            lines.append("    x = x * through;")
        return [*lines, f"    gemm_store<{t}>(y + r * {self.n} + col + j, x, n);", "}"]

    def keep_gate(self, columns: int) -> str:
        """Finished sums of row ``r`` of the gate, to where the epilogue finds them."""
        return f"for (int64_t j = 0; j < {columns}; j += L) store<L>(gate + r * {columns} + j, load<L>(sums + j));"

    def normed(self, storage: str, to: str) -> str:
        """The line that makes the normed rows."""
        t = self.sums
        return f"normed_rows<{t}, {self.storage}, {storage}>(x, {self.k}, norm, {self.m}, {self.k}, ({t}){self.eps!r}, {to});"

    @property
    def parts(self) -> frozenset[str]:
        """Parts of the prelude that the text uses."""
        return frozenset({"decoder", *ACTIVATIONS[self.act][1]})

    def grain(self, panel_bytes: int) -> int:
        """Tasks that are worth a thread: two microseconds of B at 20 GB/s."""
        return max(1, round(4e4 / max(panel_bytes, 1)))


def why_not(call: NodeCall) -> Support | None:
    """What no layer here takes: other dtypes, weights that are not known at load, values that do not lie in rows."""
    dtype, weight = call.outputs[0].dtype, call.tensor(1)
    if dtype not in _FLOATS:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"no {call.op} in {dtype.value}")
    if not weight.is_weight or not weight.spec.is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "packs weights at load, and the right side is none")
    lying = [call.outputs[0], *(o.spec for o in call.tensors)]
    if not all(s.is_dense for s in lying):
        return Support.no(Reason.SHAPE_UNSUPPORTED, "reads and writes dense rows only")
    residual = call.optional(3)
    if residual is not None and residual.spec.shape != call.outputs[0].shape:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "adds residuals of the result's shape only")
    return None


@dataclass(frozen=True, slots=True)
class NormLinear:
    """A row of the catalogue; ``int8``: with weights in int8, a scale per output."""

    name: str
    int8: bool = False
    on_request: bool = False
    ops: tuple[str, ...] = ("norm_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Dense floats of few rows, and a weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        m = Layer.of(call).m
        if m > _ROWS:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"for up to {_ROWS} rows, and there are {m}")
        if self.int8 and call.outputs[0].dtype is DType.FLOAT64:
            return Support.no(Reason.DTYPE_UNSUPPORTED, "no int8 weights beside float64")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage; a task is a panel of B and all rows."""
        layer = Layer.of(call)
        if not layer.m * layer.n:
            return Lowered(())
        isa: IsaLevel = target.isa  # type: ignore[attr-defined]
        item = 8 if layer.sums == "double" else 4
        b_type = "int8_t" if self.int8 else ""

        def product(outputs: int) -> Product:
            k = layer.k
            return Product(0, 1, (), (layer.m,), outputs, k, (k, 1), (1, k), (outputs, 1), b_type=b_type)

        t = tiling(product(layer.n * layer.halves), layer.dtype, True, True, isa, target.config.matmul_tile)
        first, outputs = layer.even(t.columns)
        weight = replace(call.tensor(1), spec=TensorSpec((outputs, layer.k), layer.dtype))
        packed = _packed(product(outputs), weight, t)
        panel_bytes = t.columns * layer.k * (1 if self.int8 else layer.dtype.bits // 8) * layer.halves
        stage = Stage(
            stem=f"{'norm_' if layer.scale else ''}matmul_{layer.m}x{layer.n * layer.halves}x{layer.k}"
            + ("" if layer.act == "none" else f"_{layer.act}"),
            source=self._source(layer, t),
            args=(
                "in0", "in1", *(f"in{at}" for _, at in layer.operands), *(("beside0",) if self.int8 else ()), "out0"
            ),
            tasks=layer.panels(t.columns),
            grain=layer.grain(panel_bytes),
            scratch_bytes=layer.m * (2 * layer.k + 2 * t.columns + 64) * item + 512,
            parts=layer.parts,
            flops=2 * layer.m * layer.n * layer.halves * layer.k,
            bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), call.outputs[0])),
        )  # fmt: skip
        return Lowered(
            (stage,),
            weights={1: after(first, _quantized(packed) if self.int8 else packed)},
            beside={"beside0": (1, _scales(layer))} if self.int8 else {},
            accumulates="float64" if item == 8 else "float32",
        )

    def _source(self, layer: Layer, tiling: Any) -> str:
        t, s, columns = layer.sums, layer.storage, tiling.columns
        b = "int8_t" if self.int8 else s
        made = layer.storage if tiling.pairs or layer.scale is None else layer.sums
        panel = tiling.depth(layer.k) * columns
        tile = {"R": tiling.rows, "NV": tiling.vectors, "U": tiling.unroll, "tail": layer.m % tiling.rows}
        last = 2 + len(layer.operands)
        lines = [
            f"// {'rms_norm, then ' if layer.scale else ''}[{layer.m}, {layer.k}] x [{layer.k}, {layer.n * layer.halves}] in {layer.dtype.value}"
            f"{', weights in int8' if self.int8 else ''}, sums in {t}"
            + (
                f"; the first half of the outputs, by {layer.act}, times the second"
                if layer.halves == 2
                else ""
            ),
            "struct KERNEL_product {",
            f"    typedef {t} T;",
            f"    typedef {made} A;",
            f"    typedef {b} B;",
            "    static constexpr int " + ", ".join(f"{n} = {v}" for n, v in tile.items()) + ";",
            f"    static constexpr int64_t k = {layer.k}, block = {tiling.block}, a_row = {layer.k}, a_k = 1, b_k = 0, b_n = 0;",
            f"    static constexpr bool packed = true, pairs = {str(tiling.pairs).lower()};",
            "};",
            'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
            f"    const {s} *x = (const {s} *)args[0];",
            f"    const {b} *b = (const {b} *)args[1];",
            *(f"    {line}" for line in layer.arguments(2)),
        ]
        if self.int8:
            lines.append(f"    const float *codes = (const float *)args[{last}];")
            last += 1
        lines += [f"    {s} *y = ({s} *)args[{last}];", f"    constexpr int L = GEMM_LANES<{t}>;"]
        if layer.halves == 2:
            lines += [f"    {t} *gate = ({t} *)scratch;", f"    scratch = gate + {layer.m * columns};"]
        if layer.scale is None:
            lines.append(f"    const {s} *a = x;")
        else:
            room = -(-layer.m * layer.k * (8 if t == "double" else 4) // 64) * 64
            lines += [
                f"    {made} *a = ({made} *)scratch;",
                f"    scratch = (char *)scratch + {room};",
                f"    {layer.normed(made, 'a')}",
            ]
        lines.append("    for (int64_t panel = begin; panel < end; ++panel) {")
        block = f"        gemm_block<KERNEL_product>(a, b + %s, {layer.m}, {columns}, scratch, [&](const {t} *sums, int64_t r) {{"
        at = f"panel * {panel}"
        if layer.halves == 2:
            lines += [block % at, f"            {layer.keep_gate(columns)}", "        });"]
            at = f"(panel + {layer.panels(columns)}) * {panel}"
        lines += [
            block % at,
            *(f"            {line}" for line in layer.epilogue(columns, "codes" if self.int8 else "")),
            "        });",
            "    }",
            "}",
            "",
        ]
        return "\n".join(lines)


def _scales(layer: Layer) -> Packed:
    spec = TensorSpec((layer.n * layer.halves,), DType.FLOAT32)
    return Packed((RecipeStep("scale_int8", ("%in",), {"dim": 0}),), spec)


def after(first: Sequence[RecipeStep], packed: Packed) -> Packed:
    """The same packing of what the steps make of the operand."""
    if not first:
        return packed
    own = [
        RecipeStep(s.op, tuple(f"%{i - 1}" if i and n == "%in" else n for n in s.inputs), s.attrs)
        for i, s in enumerate(first)
    ]
    base = len(own)
    rest = [
        RecipeStep(
            s.op, tuple(f"%{base - 1}" if n == "%in" else f"%{int(n[1:]) + base}" for n in s.inputs), s.attrs
        )
        for s in packed.steps
    ]
    return Packed((*own, *rest), packed.spec)


KERNELS: tuple[Any, ...] = (
    NormLinear("matmul/gemv"),
    NormLinear("matmul/generated"),
    NormLinear("matmul/int8_weights", int8=True, on_request=True),
)
