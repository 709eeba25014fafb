"""Products of matrices as code for CPUs: one description, ``Product``, for every op that is a matrix product.

The left side A gives rows, the right side B comes in panels of ``columns`` columns: packed when weights are loaded, or by each task.
A task is one panel of one batch times a block of rows, so tasks are many and even. How it computes stands in ``templates/gemm.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..codegen.isa import IsaLevel
from ..codegen.target import CodegenTarget
from ..program.program import RecipeStep
from ..types import DType, TensorSpec
from .kernel import Lowered, NodeCall, Operand, Packed, Stage, operand_ref

__all__ = [
    "ACTIVATIONS",
    "C_TYPES",
    "STREAMED_ROWS",
    "TILE",
    "Product",
    "Term",
    "accumulator",
    "by_tiles",
    "even_stride",
    "lower_product",
    "offset_text",
    "sizes",
    "strides_in",
]

C_TYPES: dict[DType, str] = {
    DType.FLOAT64: "double",
    DType.FLOAT32: "float",
    DType.BFLOAT16: "bf16",
    DType.FLOAT16: "f16",
    **{d: f"{d.value}_t" for d in DType if d.is_integer and d.bits >= 8},
}
"""Dtypes that products are computed in, as the prelude calls them."""

ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("x", ()),
    "relu": ("relu(x)", ("arith",)),
    "relu6": ("act::relu6::of(x)", ("conv_act",)),
    "gelu": ("gelu(x)", ("erf",)),
    "gelu_tanh": ("gelu_tanh(x)", ("exp",)),
    "silu": ("silu(x)", ("exp",)),
    "sigmoid": ("sigmoid(x)", ("exp",)),
    "tanh": ("tanh(x)", ("exp",)),
    "hardswish": ("act::hardswish::of(x)", ("conv_act",)),
    "leaky_relu": ("act::leaky_relu::of(x)", ("conv_act",)),
}
"""What a fused op may apply to its result ``x``: the expression, and the parts of the prelude that have its functions."""

_L2_SHARE = 384 * 1024
"""Bytes of B that a block of k may fill: most of the 512 KiB of second-level cache that the smallest current server core has."""

_L1_SHARE = 32 * 1024
"""Bytes of B that a block of k may fill where tiles multiply: two thirds of the first cache of every core that has them."""

_L2_WHOLE = 2 * 1024 * 1024
"""Bytes of the second cache of cores that have tiles."""

_L2_ROWS = 1280 * 1024
"""Bytes of A's rows that stay there while panels of B pass by."""

_L2_PANELS = 512 * 1024
"""Bytes of panels that may be read again for every block of rows."""

STREAMED_ROWS = 4
"""Up to so many rows B is read from memory once and nothing else takes time: its speed is that of memory."""


def accumulator(dtype: DType) -> str:
    """The C type of sums: float for what is narrower, integers modulo 2^32 or 2^64."""
    if dtype.is_float:
        return "double" if dtype is DType.FLOAT64 else "float"
    return "uint64_t" if dtype.bits == 64 else "uint32_t"


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    """A static shape as integers."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def strides_in(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in memory of a value that broadcasts to ``shape``: 0 along dims that it lacks or that are 1 in it."""
    own, steps = sizes(spec), spec.physical.strides
    lead = len(shape) - len(own)
    return (0,) * lead + tuple(0 if d == 1 else s for d, s in zip(own, steps, strict=True))


def offset_text(index: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """The C expression of the place of row-major ``index`` over ``shape`` in memory with these strides; "0" when nothing moves."""
    dims: list[list[int]] = []  # [extent, stride], neighbours that lie in a row joined
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if dims and dims[-1][1] == stride * extent:
            dims[-1] = [dims[-1][0] * extent, stride]
        else:
            dims.append([extent, stride])
    texts, inner = [], 1
    for at, (extent, stride) in reversed(list(enumerate(dims))):
        if stride:
            part = index if inner == 1 else f"{index} / {inner}"
            if at:
                part = f"{part} % {extent}"
            texts.append(
                f"{part} * {stride}" if stride != 1 else part if at == 0 and inner == 1 else f"({part})"
            )
        inner *= extent
    return " + ".join(reversed(texts)) or "0"


@dataclass(frozen=True, slots=True)
class Term:
    """``factor`` times an operand, added to the product; strides over the product's batch, row and column dims."""

    position: int
    operand: Operand
    strides: tuple[int, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """y[batch, rows, n] = act(alpha * sum over k of a[.., k] * b[k, ..] + terms).

    batch: dims over which both sides may change; rows: dims of the left side's rows (several where a batch became rows).
    a_strides: over (*batch, *rows, k); b_strides: over (*batch, k, n); y_strides: over (*batch, *rows, n).
    b_type: what B is stored in where that is not y's type; then its columns have scales, the argument after the terms.
    """

    a: int
    b: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    n: int
    k: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    terms: tuple[Term, ...] = ()
    alpha: float = 1.0
    act: str = "none"
    b_type: str = ""

    @property
    def m(self) -> int:
        """Rows of the left side."""
        return math.prod(self.rows)

    @property
    def batches(self) -> int:
        """Products in all."""
        return math.prod(self.batch)

    def flat(self) -> Product:
        """The same with the batch as rows, where B is one matrix for all of the batch and A's rows lie evenly."""
        lead = len(self.batch)
        if not lead or any(self.b_strides[:lead]) or len(self.rows) != 1:
            return self
        rows = (*self.batch, *self.rows)
        if even_stride(rows, self.a_strides[:-1]) is None:
            return self
        return Product(
            self.a, self.b, (), rows, self.n, self.k,
            self.a_strides, self.b_strides[lead:], self.y_strides, self.terms, self.alpha, self.act, self.b_type,
        )  # fmt: skip


def even_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride between neighbours of all these dims together, None when there is none."""
    step, extent = 0, 1
    for d, s in zip(reversed(shape), reversed(strides), strict=True):
        if d == 1:
            continue
        if extent == 1:
            step = s
        elif s != step * extent:
            return None
        extent *= d
    return step


@dataclass(frozen=True, slots=True)
class _Tiling:
    """Figures of the code: see ``gemm_block``."""

    rows: int
    vectors: int
    lanes: int
    unroll: int
    block: int
    task_rows: int
    pairs: bool
    tiles: bool = False
    across: bool = False  # tasks go over all panels before the next rows

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def word(self) -> int:
        """What a panel's k is a multiple of."""
        return TILE if self.tiles else 2 if self.pairs else 1

    def depth(self, k: int) -> int:
        """Rows of a packed panel."""
        return math.ceil(k / self.word) * self.word


def registers(isa: IsaLevel) -> int:
    """Vector registers of a level."""
    return 32 if isa.vector_bytes == 64 or isa.architecture == "aarch64" else 16


TILE = 32
"""Rows, columns and depth of the product of tiles (``tile_product``)."""


def by_tiles(p: Product, dtype: DType, streamed: bool, isa: IsaLevel) -> bool:
    """Whether the tile registers multiply: bfloat16, A's rows along k, and more than memory's speed to win."""
    plain = dtype is DType.BFLOAT16 and not p.b_type and p.a_strides[-1] == 1
    return plain and not streamed and p.m > STREAMED_ROWS and "amx-bf16" in isa.features


def _tile_tiling(p: Product, packed: bool) -> _Tiling:
    """Blocks of k whose panel stays in the first cache while the task's rows pass by it; one block where few do. Where A as a whole
    outgrows the second cache, or all of B is small, all panels pass by a block of rows before the next: of A and of the result.
    """
    rows, row_bytes = math.ceil(p.m / TILE), 2 * TILE * max(p.k, 1)
    panels = p.batches * math.ceil(p.n / TILE)
    blocks = max(1, min(math.ceil(64 / max(1, panels)), rows // (1 if packed else 4)), math.ceil(rows / 16))
    outgrows = rows * row_bytes > _L2_ROWS
    across = packed and (outgrows or panels * row_bytes <= _L2_PANELS)
    if packed and outgrows:
        blocks = max(blocks, math.ceil(rows / max(1, _L2_ROWS // row_bytes)))
    per_task = math.ceil(rows / blocks)
    depth = max(1, math.ceil(p.k / TILE))
    if per_task > 1:
        depth = math.ceil(depth / math.ceil(depth * 2 * TILE * TILE / _L1_SHARE))
    return _Tiling(
        TILE, 2, TILE // 2, 1, depth * TILE, per_task * TILE, pairs=True, tiles=True, across=across
    )


def _tiling(
    p: Product, dtype: DType, packed: bool, streamed: bool, isa: IsaLevel, matmul_tile: int
) -> _Tiling:
    """R rows x NV vectors of sums, NV of B and one of A must fit the registers; columns beyond the matrix are work for nothing."""
    if by_tiles(p, dtype, streamed, isa):
        return _tile_tiling(p, packed)
    acc_bytes = 8 if accumulator(dtype) in ("double", "uint64_t") else 4
    lanes = isa.lanes(acc_bytes)
    regs = registers(isa)
    most = min(4, max(1, (regs - 1) // (matmul_tile + 1)))
    vectors = min(
        range(most, 0, -1), key=lambda v: math.ceil(p.n / (v * lanes)) * v * (1 + 0.04 * (most - v))
    )
    rows = max(1, min(matmul_tile * most // vectors, p.m, (regs - 1 - vectors) // vectors))
    pairs = dtype is DType.BFLOAT16 and not p.b_type and "avx512bf16" in isa.features and p.a_strides[-1] == 1
    unroll = max(1, min(4, regs * 3 // 4 // (rows * vectors))) if streamed else 1
    if p.m <= rows and packed:
        block = max(p.k, 1)
    else:
        item = dtype.bits // 8
        block = max(64, min(_L2_SHARE // (vectors * lanes * item), p.k + p.k % 2) // 2 * 2)
        if not pairs and acc_bytes != item:
            block = min(block, 1024)
    # Rows of a task: enough tasks for many threads, but enough rows that packing or loading a panel pays.
    panels = p.batches * math.ceil(p.n / (vectors * lanes))
    tiles = math.ceil(p.m / rows)
    least = math.ceil((32 if packed else 96) / rows)
    blocks = max(1, min(math.ceil(64 / max(1, panels)), tiles // least, tiles))
    blocks = max(blocks, math.ceil(tiles * rows / 512))
    return _Tiling(rows, vectors, lanes, unroll, block, math.ceil(tiles / blocks) * rows, pairs)


def _packed(p: Product, weight: Operand, t: _Tiling) -> Packed:
    """[batch, k, n] -> [batch, panels, k, columns], or [batch, panels, k / 2, columns, 2]; zeros beyond."""
    columns = t.columns
    by_rows = p.b_strides[-1] != 1 and math.prod(sizes(weight.spec)) == p.n * p.k  # a linear's weight: [n, k]
    batch = 1 if by_rows else max(1, math.prod(sizes(weight.spec)) // max(1, p.n * p.k))
    order = (0, 2, 1) if by_rows else (0, 1, 2)
    panels = math.ceil(p.n / columns)
    k = t.depth(p.k)
    given = (batch, p.n, p.k) if by_rows else (batch, p.k, p.n)
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": list(given)}),
        RecipeStep("permute", ("%0",), {"order": list(order)}),
        RecipeStep("pad", ("%1",), {"begin": [0, 0, 0], "end": [0, k - p.k, panels * columns - p.n]}),
    ]
    split = [batch, k // 2, 2, panels, columns] if t.pairs else [batch, k, panels, columns]
    moved = [0, 3, 1, 4, 2] if t.pairs else [0, 2, 1, 3]
    steps.append(RecipeStep("reshape", ("%2",), {"shape": split}))
    steps.append(RecipeStep("permute", ("%3",), {"order": moved}))
    return Packed(tuple(steps), TensorSpec(tuple(split[i] for i in moved), weight.spec.dtype))


def lower_product(
    call: NodeCall, product: Product, target: CodegenTarget, *, streamed: bool = False, stem: str = ""
) -> Lowered:
    """The one stage of a product, with B packed where it is a weight; ``streamed``: few rows, B comes from memory."""
    p = product.flat()
    if not p.m * p.n * p.batches:
        return Lowered(())
    y = call.outputs[0]
    b = call.tensor(p.b)
    isa: IsaLevel = target.isa  # type: ignore[attr-defined]
    t = _tiling(p, y.dtype, b.is_weight, streamed, isa, target.config.matmul_tile)
    source = _source(call, p, t, y.dtype, b.is_weight)
    panels, blocks = math.ceil(p.n / t.columns), math.ceil(p.m / t.task_rows)
    item, acc = y.dtype.bits // 8, 8 if accumulator(y.dtype) in ("double", "uint64_t") else 4
    task_flops = 2 * t.task_rows * t.columns * p.k
    task_bytes = t.columns * p.k * (1 if p.b_type else item)
    # Two microseconds of work are worth a thread: at 100 GFLOP/s, or 20 GB/s of B.
    microseconds = max(task_flops / 1e5, task_bytes / 2e4, 0.02)
    args = [operand_ref("in", p.a), operand_ref("in", p.b)]
    args += [operand_ref("in", x.position) for x in p.terms]
    scratch = t.task_rows * t.columns * acc + 128
    if not t.pairs and (item != acc or not y.dtype.is_float):
        scratch += t.task_rows * t.block * acc + 64
    if t.tiles:
        scratch = (TILE if t.block >= p.k else t.task_rows) * TILE * 4 + TILE * TILE * 2 + 64
    if not b.is_weight:
        scratch += (t.block + 2) * t.columns * item
    stage = Stage(
        stem=stem or f"matmul_{p.m}x{p.n}x{p.k}" + ("" if p.act == "none" else f"_{p.act}"),
        source=source,
        args=(*args, "out0"),
        tasks=p.batches * panels * blocks,
        grain=max(1, round(2 / microseconds)),
        scratch_bytes=scratch,
        parts=frozenset({"gemm_amx" if t.tiles else "gemm", *ACTIVATIONS[p.act][1]}),
        flops=2 * p.batches * p.m * p.n * p.k,
        bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), y)),
    )
    accumulates = _ACCUMULATES[accumulator(y.dtype)]
    if p.b_type:
        stage = replace(stage, args=(*args, "beside0", "out0"))
        scale = Packed((RecipeStep("scale_int8", ("%in",), {"dim": 0}),), TensorSpec((p.n,), DType.FLOAT32))
        codes = _quantized(_packed(p, b, t))
        return Lowered(
            (stage,), weights={p.b: codes}, beside={"beside0": (p.b, scale)}, accumulates=accumulates
        )
    weights = {p.b: _packed(p, b, t)} if b.is_weight else {}
    return Lowered((stage,), weights=weights, accumulates=accumulates)


def _quantized(packed: Packed) -> Packed:
    """The same packing of a linear's weight in int8: each row of it, a column of B, by its own scale."""
    first = RecipeStep("quantize_int8", ("%in",), {"dim": 0})
    rest = [
        replace(s, inputs=tuple("%0" if i == "%in" else f"%{int(i[1:]) + 1}" for i in s.inputs))
        for s in packed.steps
    ]
    return Packed((first, *rest), replace(packed.spec, dtype=DType.INT8))


_ACCUMULATES = {"float": "float32", "double": "float64", "uint32_t": "int32", "uint64_t": "int64"}


def _source(call: NodeCall, p: Product, t: _Tiling, dtype: DType, packed: bool) -> str:
    """The text of the function; shapes and strides stand in it as numbers."""
    s, acc, lead = C_TYPES[dtype], accumulator(dtype), len(p.batch)
    b = p.b_type or s
    panels, blocks = math.ceil(p.n / t.columns), math.ceil(p.m / t.task_rows)
    a_row = even_stride(p.rows, p.a_strides[lead:-1]) or 0
    constants = {
        "R": t.rows, "NV": t.vectors, "U": t.unroll, "tail": p.m % t.rows,
        "k": p.k, "block": t.block, "a_row": a_row, "a_k": p.a_strides[-1],
        "b_k": p.b_strides[-2], "b_n": p.b_strides[-1],
    }  # fmt: skip
    b_at = _b_offset(p, call.tensor(p.b), t, panels, packed)
    rows = f"{p.m}" if blocks == 1 else f"row + {t.task_rows} < {p.m} ? {t.task_rows} : {p.m} - row"
    first, second = (panels, blocks) if t.across else (blocks, panels)
    inner, rest = f"task % {first}", f"task / {first} % {second}"
    a_at = _joined(offset_text("batch", p.batch, p.a_strides[:lead]), f"row * {a_row}")
    lines = [
        f"// {call.op}: [{p.batches}, {p.m}, {p.k}] x [{p.k}, {p.n}] in {dtype.value}, sums in {acc}"
        f"; {t.rows} x {t.columns} tiles, B {'packed at load' if packed else 'packed by the task'}",
        "struct KERNEL_product {",
        f"    typedef {acc} T;",
        f"    typedef {s} A;",
        f"    typedef {b} B;",
        "    static constexpr int "
        + ", ".join(f"{n} = {constants[n]}" for n in ("R", "NV", "U", "tail"))
        + ";",
        "    static constexpr int64_t "
        + ", ".join(f"{n} = {constants[n]}" for n in ("k", "block", "a_row", "a_k", "b_k", "b_n"))
        + ";",
        f"    static constexpr bool packed = {str(packed).lower()}, pairs = {str(t.pairs).lower()};",
        *_of_tiles(p, t),
        "};",
        'extern "C" void KERNEL(void *const *args, const void *, int64_t begin, int64_t end, void *scratch) {',
        f"    const {s} *a = (const {s} *)args[0];",
        f"    const {b} *b = (const {b} *)args[1];",
    ]
    lines += [f"    const {s} *term{at} = (const {s} *)args[{at + 2}];" for at in range(len(p.terms))]
    if p.b_type:
        lines.append(f"    const {acc} *scale = (const {acc} *)args[{len(p.terms) + 2}];")
    lines += [
        f"    {s} *y = ({s} *)args[{len(p.terms) + (3 if p.b_type else 2)}];",
        f"    constexpr int L = GEMM_LANES<{acc}>;",
        *(["    Tiles tiles;"] if t.tiles else []),
        "    for (int64_t task = begin; task < end; ++task) {",
        f"        const int64_t row = {rest if t.across else inner} * {t.task_rows}, panel = {inner if t.across else rest},"
        f" batch = task / {blocks * panels};",
        f"        const int64_t col = panel * {t.columns}, columns = {_least(f'{p.n} - col', t.columns, p.n)}, rows = {rows};",
        f"        gemm_block{'_tiles' * t.tiles}<KERNEL_product>({'tiles, ' * t.tiles}a + {a_at}, b + {b_at}, rows, columns, scratch,",
        f"                                   [&](const {acc} *sums, int64_t r) {{",
        *(f"            {x}" for x in _epilogue(p, s, acc)),
        "        });",
        "    }",
        "}",
        "",
    ]
    return "\n".join(lines)


def _of_tiles(p: Product, t: _Tiling) -> list[str]:
    """What ``gemm_block_tiles`` wants to know besides. Where B outgrows the second cache, its next block is fetched in equal parts
    while this one is multiplied.
    """
    if not t.tiles:
        return []
    lines = 2 * TILE * TILE // 64
    fetched = 2 * p.n * t.depth(p.k) > _L2_WHOLE
    ahead = math.ceil(lines / math.ceil(min(t.task_rows, p.m) / TILE)) if fetched else 0
    return [
        f"    static constexpr int64_t ahead = {ahead};",
        f"    static constexpr bool alone = {str(t.block >= p.k).lower()};",
    ]


def _least(text: str, most: int, total: int) -> str:
    return f"{most}" if total % most == 0 else f"{text} < {most} ? {text} : {most}"


def _joined(*offsets: str) -> str:
    kept = [f"({o})" if " " in o and "+" in o else o for o in offsets if o != "0"]
    return " + ".join(kept) or "0"


def _b_offset(p: Product, b: Operand, t: _Tiling, panels: int, packed: bool) -> str:
    lead = len(p.batch)
    if not packed:
        return _joined(offset_text("batch", p.batch, p.b_strides[:lead]), f"col * {p.b_strides[-1]}")
    k = t.depth(p.k)
    matrix = max(1, p.k * p.n)
    strides = [s // matrix * panels * k * t.columns for s in p.b_strides[:lead]]
    return _joined(offset_text("batch", p.batch, strides), f"panel * {k * t.columns}")


def _epilogue(p: Product, storage: str, acc: str) -> list[str]:
    """The finished sums of one row: terms, activation, store; a register at a time."""
    lead = len(p.batch)

    def place(strides: Sequence[int]) -> str:
        return _joined(
            offset_text("batch", p.batch, strides[:lead]), offset_text("(row + r)", p.rows, strides[lead:-1])
        )

    lines = [f"const {storage} *at{i} = term{i} + {place(x.strides)};" for i, x in enumerate(p.terms)]
    lines += [
        f"{storage} *to = y + {place(p.y_strides)} + col;",
        "for (int64_t j = 0; j < columns; j += L) {",
        "    const int64_t n = columns - j < L ? columns - j : L;",
        "    auto x = load<L>(sums + j);",
    ]
    if p.b_type:
        lines.append(f"    x = x * gemm_load<{acc}>(scale + col + j, n);")
    if p.alpha != 1:
        lines.append(f"    x = x * {_number(p.alpha, acc)};")
    for i, term in enumerate(p.terms):
        step = term.strides[-1]
        if step == 0:
            value = f"splat<vec<{acc}, L>>(raw<{acc}>(load<1>(at{i})))"
        elif step == 1:
            value = f"gemm_load<{acc}>(at{i} + col + j, n)"
        else:
            value = f"raw<{acc}>(gather<L>(at{i} + (col + j) * {step}, {step}, n))"
        lines.append(
            f"    x = x + {value}" + (";" if term.factor == 1 else f" * {_number(term.factor, acc)};")
        )
    if p.act != "none":
        lines.append(f"    x = {ACTIVATIONS[p.act][0]};")
    lines += [f"    gemm_store<{acc}>(to + j, x, n);", "}"]
    return lines


def _number(value: float, acc: str) -> str:
    """A literal of the sums' type; integers take the whole part."""
    return f"({acc}){value!r}" if acc in ("float", "double") else f"({acc}){int(value)}ll"
