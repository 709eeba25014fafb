"""Recurrent layers with constant weights on CPUs: one GEMM for the inputs of all steps, then the steps over packed panels (``recurrent_packed.h``).

The gates of a vector of units are adjacent in a panel, so the product of a panel ends in the cell itself and no gate is stored. A task runs
all steps of a few samples, so that a panel is read from cache for several of them. It supports float32 and float64 with ONNX's own
activations, without clip and peepholes; ``rnn/generated`` has a general text for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...codegen.loops.points import storage
from ...codegen.target import CodegenTarget
from ...program.program import RecipeStep
from ...types import DType, TensorSpec
from ..kernel import LoweredCall, NodeCall, Operand, Packed, Stage
from ..spec.movement.elements import STATUS
from ..spec.product import Product, Term, sizes
from .abi import function, isa_of
from .matmul.gemm import after, lower_product
from .matmul.gemm_tiling import registers

__all__ = ["lower_packed"]

_FUNCTIONS = {"tanh": "tanh({})", "sigmoid": "sigmoid({})", "relu": "relu({})"}
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_CELLS = {
    "rnn": ("h = {f0};",),
    "gru": ("const V z = {s0}, r = {s1}, candidate = {f1};", "h = (splat<V>(1) - z) * candidate + z * h;"),
    "lstm": ("const V i = {s0}, o = {s1}, f = {s2};", "c = f * c + i * {f1};", "h = o * {f2};"),
}
_MAX_ROWS, _MAX_SAMPLES = 4, 8
"""Samples of a register tile, and of a task. More samples reuse a panel more often; fewer make more tasks."""


def lower_packed(call: NodeCall, names: Sequence[str], target: CodegenTarget) -> LoweredCall | None:
    """Return the GEMM and the steps; None if the node is not supported."""
    isa = isa_of(target)
    if not isa.vector_bytes or not _fits(call, names):
        return None
    dtype, x = call.tensor(0).spec.dtype, sizes(call.tensor(0).spec)
    first, hidden, gates = call.attrs["batch_first"], call.attrs["hidden_size"], _GATES[call.op]
    batch, length = (x[0], x[1]) if first else (x[1], x[0])
    directions, lanes = sizes(call.tensor(2).spec)[0], isa.lanes(dtype.bits // 8)
    if not batch * length * hidden * x[2]:
        return None
    blocks = -(-hidden // lanes)
    columns = directions * blocks * gates * lanes
    inputs_ = _input_product(call, target, columns, (directions, gates, hidden, blocks, lanes))
    max_rows = max(1, min(_MAX_ROWS, (registers(isa) - gates - 2) // gates))
    rows = max(1, min(max_rows, batch * directions // 4))
    samples = rows * max(1, min(_MAX_SAMPLES, batch * directions // 2) // rows)
    unroll = max(1, min(4, registers(isa) * 3 // 4 // (rows * gates)))
    text, args = _text(call, names, (batch, length, directions, blocks, samples, rows, unroll))
    units, item = blocks * lanes, dtype.bits // 8
    stage = Stage(
        stem=f"{call.op}_{hidden}",
        source=text,
        args=args,
        tasks=directions * -(-batch // samples),
        scratch_bytes=max(STATUS, samples * (3 * units + gates * lanes) * item + 64),
        parts=frozenset({"recurrent_packed", "movement"}),
        flops=2 * batch * length * directions * gates * hidden * hidden,
        bytes=sum(s.size_bytes or 0 for s in (*call.outputs, *(t.spec for t in call.tensors))),
    )
    r = _interleaved((directions, gates, hidden, blocks, lanes), hidden, dtype, panels=True)
    extra_weights = dict(inputs_.extra_weights)
    if call.op == "gru":
        extra_weights["extra1"] = (3, _last_bias(call, (directions, gates, hidden, blocks, lanes)))
    return LoweredCall(
        (*inputs_.stages, stage),
        temps=(batch * length * columns * item + 64,),
        weights={**inputs_.weights, 2: r},
        extra_weights=extra_weights,
        accumulates="float64" if dtype is DType.FLOAT64 else "float32",
    )


def _fits(call: NodeCall, names: Sequence[str]) -> bool:
    weights = [call.tensor(1), call.tensor(2), *([call.tensor(3)] if call.optional(3) else [])]
    supported = call.attrs["clip"] is None and not (call.op == "lstm" and call.optional(7))
    if call.op == "gru":
        supported &= bool(call.attrs["linear_before_reset"]) and call.optional(3) is not None
    if call.op == "lstm":
        supported &= not call.attrs["input_forget"]
    per_direction = {"rnn": 1, "gru": 2, "lstm": 3}[call.op]
    same_activations = all(names[i].lower() == names[i % per_direction].lower() for i in range(len(names)))
    gate = call.op == "rnn" or names[0].lower() == "sigmoid"
    floats = call.tensor(0).spec.dtype in (DType.FLOAT32, DType.FLOAT64)
    return (
        floats and supported and same_activations and gate and all(w.is_weight for w in weights)
        and all(n.lower() in _FUNCTIONS for n in names)
    )  # fmt: skip


def _interleaved(sizes_: tuple[int, ...], size: int, dtype: DType, *, panels: bool) -> Packed:
    """Return steps from [directions, gates * hidden, size] to an order where the gates of a vector of units are adjacent.

    The result is rows [columns, size], or panels [directions, blocks, size, gates * lanes], with zeros beyond the units.
    """
    d, g, h, blocks, lanes = sizes_
    steps = [
        RecipeStep("reshape", ("%in",), {"shape": [d, g, h, size]}),
        RecipeStep("pad", ("%0",), {"begin": [0] * 4, "end": [0, 0, blocks * lanes - h, 0]}),
        RecipeStep("reshape", ("%1",), {"shape": [d, g, blocks, lanes, size]}),
        RecipeStep("permute", ("%2",), {"order": [0, 2, 4, 1, 3] if panels else [0, 2, 1, 3, 4]}),
    ]
    shape = (d, blocks, size, g * lanes) if panels else (d * blocks * g * lanes, size)
    steps.append(RecipeStep("reshape", ("%3",), {"shape": list(shape)}))
    return Packed(tuple(steps), TensorSpec(shape, dtype))


def _input_product(
    call: NodeCall, target: CodegenTarget, columns: int, sizes_: tuple[int, ...]
) -> LoweredCall:
    """Return the GEMM of all inputs with the weights of all gates, plus biases, into ``temp0``."""
    x, dtype = call.tensor(0), call.tensor(0).spec.dtype
    rows, size = math.prod(sizes(x.spec)[:2]), sizes(x.spec)[2]
    weight = Operand("w", TensorSpec((columns, size), dtype), True)
    bias = Operand("b", TensorSpec((columns,), dtype), True) if call.optional(3) else None
    y = TensorSpec((rows, columns), dtype)
    node = NodeCall(call.node, (x, weight, bias), (y,))
    terms = (Term(2, bias, (0, 1)),) if bias else ()
    product = Product(
        0, 1, (), (rows,), columns, size, (size, 1), (1, size), (columns, 1), terms,
    )  # fmt: skip
    lowered = lower_product(node, product, target)
    names = {"in2": "extra0", "out0": "temp0"}
    stages = tuple(
        replace(s, stem=f"{call.op}_inputs", args=tuple(names.get(a, a) for a in s.args))
        for s in lowered.stages
    )
    packed = after(_interleaved(sizes_, size, dtype, panels=False).steps, lowered.weights[1])
    extra_weights = {"extra0": (3, _biases(call, sizes_, dtype))} if bias else {}
    return LoweredCall(stages, weights={1: packed}, extra_weights=extra_weights)


def _split_biases(sizes_: tuple[int, ...]) -> list[RecipeStep]:
    """Return the steps to both biases as [directions, 2, gates, blocks, lanes]."""
    d, g, h, blocks, lanes = sizes_
    return [
        RecipeStep("reshape", ("%in",), {"shape": [d, 2, g, h]}),
        RecipeStep("pad", ("%0",), {"begin": [0] * 4, "end": [0, 0, 0, blocks * lanes - h]}),
        RecipeStep("reshape", ("%1",), {"shape": [d, 2, g, blocks, lanes]}),
    ]


def _biases(call: NodeCall, sizes_: tuple[int, ...], dtype: DType) -> Packed:
    """Return the sum of both biases in the columns' order; of a GRU's last gate only the input's."""
    d, g, _, blocks, lanes = sizes_
    steps = _split_biases(sizes_)
    if call.op == "gru":
        steps += [
            RecipeStep("slice", ("%2",), {"dim": 1, "begin": 0, "end": 1}),
            RecipeStep("slice", ("%2",), {"dim": 1, "begin": 1, "end": 2}),
            RecipeStep("slice", ("%4",), {"dim": 2, "begin": 0, "end": g - 1}),
            RecipeStep("pad", ("%5",), {"begin": [0] * 5, "end": [0, 0, 1, 0, 0]}),
            RecipeStep("add", ("%3", "%6"), {}),
        ]
    else:
        steps.append(RecipeStep("sum", ("%2",), {"dim": 1, "keepdim": True}))
    at = len(steps) - 1
    steps.append(RecipeStep("permute", (f"%{at}",), {"order": [0, 3, 1, 2, 4]}))
    steps.append(RecipeStep("reshape", (f"%{at + 1}",), {"shape": [d * blocks * g * lanes]}))
    return Packed(tuple(steps), TensorSpec((d * blocks * g * lanes,), dtype))


def _last_bias(call: NodeCall, sizes_: tuple[int, ...]) -> Packed:
    """Return the recurrent bias of the last gate as [directions, blocks, lanes]."""
    d, g, _, blocks, lanes = sizes_
    steps = (
        *_split_biases(sizes_),
        RecipeStep("slice", ("%2",), {"dim": 1, "begin": 1, "end": 2}),
        RecipeStep("slice", ("%3",), {"dim": 2, "begin": g - 1, "end": g}),
        RecipeStep("reshape", ("%4",), {"shape": [d, blocks, lanes]}),
    )
    return Packed(steps, TensorSpec((d, blocks, lanes), call.tensor(0).spec.dtype))


def _text(call: NodeCall, names: Sequence[str], numbers: tuple[int, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the function that runs the steps, and its arguments."""
    batch, length, directions, blocks, samples, rows, unroll = numbers
    kind = storage(call.tensor(0).spec.dtype)
    hidden, first = call.attrs["hidden_size"], call.attrs["batch_first"]
    args = ["temp0", "in2"]
    fields = {"x_gates": 0, "panels": 1}
    optional = [("recurrent_bias", "extra1" if call.op == "gru" else None)]
    optional += [(n, f"in{at}" if call.optional(at) else None) for n, at in (("h0", 5), ("c0", 6))]
    lengths = call.optional(4)
    optional.append(("lengths", None if lengths is None else "in4"))
    outs = [(n, f"out{i}" if i < len(call.outputs) else None) for i, n in enumerate(("y", "h", "c"))]
    for name, arg in (*optional, *outs):  # results after operands
        if arg is not None:
            fields[name] = len(args)
            args.append(arg)
    counts = "(const int64_t *)nullptr"
    if lengths is not None:
        counts = f"(const {storage(lengths.spec.dtype)} *)args[{fields['lengths']}]"
    order = ("x_gates", "panels", "recurrent_bias", "h0", "c0", "y", "h", "c")
    values = ", ".join(
        "nullptr" if n not in fields else f"({'' if n in 'yhc' else 'const '}{kind} *)args[{fields[n]}]" for n in order
    )  # fmt: skip
    per_direction = {"rnn": 1, "gru": 2, "lstm": 3}[call.op]
    f = [_FUNCTIONS[n.lower()] for n in names[:per_direction]]
    last = {"rnn": "g[0]", "gru": "x_gate + r * g[2]", "lstm": "g[3]"}[call.op]
    expressions = {f"s{i}": f[0].format(f"g[{i}]") for i in range(3)}
    expressions |= {
        "f0": f[0].format(last),
        "f1": f[min(1, per_direction - 1)].format(f"(V)({last})"),
        "f2": f[-1].format("c"),
    }
    constants = {
        "batch": batch, "length": length, "hidden": hidden, "blocks": blocks, "directions": directions,
        "x_sample": length if first else 1, "x_step": 1 if first else batch,
        "y_sample": (length * directions if first else 1) * hidden,
        "y_step": (directions if first else directions * batch) * hidden,
        "y_direction": (1 if first else batch) * hidden,
        "s_sample": (directions if first else 1) * hidden, "s_direction": (1 if first else batch) * hidden,
    }  # fmt: skip
    lines = [
        f"// {call.op}: {call.tensor(0).spec}, {hidden} units, {directions} direction(s); weights packed at load",
        "struct KERNEL_cell {",
        f"    typedef {kind} T;",
        f"    static constexpr int G = {_GATES[call.op]}, N = {samples}, R = {rows}, U = {unroll};",
        *(f"    static constexpr int64_t {n} = {v};" for n, v in constants.items()),
        f"    static constexpr bool reverse = {str(call.attrs['direction'] == 'reverse').lower()},"
        f" linear_before_reset = {str(call.op == 'gru').lower()};",
        "    template <class V> static INLINE_MEMBER void cell(const V (&g)[G], V x_gate, V &h, V &c) {",
        *(f"        {line.format(**expressions)}" for line in _CELLS[call.op]),
        "    }",
        "};",
    ]
    body = [
        f"const RecurrentOperands<{kind}> operands = {{{values}}};",
        "for (int64_t task = begin; task < end; ++task) {",
        f"  const int64_t wrong = recurrent_task<KERNEL_cell>(operands, {counts}, task, scratch);",
        f"  if (wrong) {{ fail(scratch, DOES_NOT_FIT, wrong, {length}); return; }}",
        "}",
    ]
    return "\n".join(lines) + "\n" + function("\n".join(f"  {line}" for line in body)), tuple(args)
