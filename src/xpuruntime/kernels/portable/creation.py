"""Tensors made without an operand, random bits, one-hot, and dropout without effect. The pass ``expand_random`` writes other random ops as arithmetic."""

from __future__ import annotations

import math

import numpy as np

from ...codegen.loops.boxes import bits_type, element_bytes
from ...codegen.loops.points import address, number, offset, storage, unravel
from ...decisions import Reason, Support
from ...ir.attributes import Const
from ...types import DType
from ..kernel import NodeCall
from ..spec.support import FLOATS, INTEGERS, NUMBERS, computes, refuse
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _table(call: NodeCall) -> TaskText:
    """Return the text of a constant of the graph as a table of bits."""
    values = call.attrs["value"].numpy() if isinstance(call.attrs.get("value"), Const) else None
    spec, y = call.outputs[0], result(call)
    if values is None:
        values = np.array([int(v) for v in call.attrs["values"]], np.int64)
    unit = element_bytes(spec.dtype)
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{unit}").tolist()
    kind = bits_type(spec.dtype)
    text = ", ".join(f"{b}u" if unit < 8 else f"{b}ull" for b in bits) or "0"
    body = [
        *unravel(y.shape),
        f"(({kind} *)out0)[{offset(y, [f'i{d}' for d in range(len(y.shape))])}] = values[task];",
    ]
    return TaskText(body, math.prod(y.shape), [f"static const {kind} values[] = {{{text}}};"])


def _arange(call: NodeCall) -> TaskText:
    """Return the text of ``start + i * step``: exact for integers, in double for fractions."""
    a, y = call.attrs, result(call)
    start, step = a["start"], a["step"]
    whole_numbers = all(isinstance(v, int) for v in (start, step, a["end"]))
    value = (
        f"{number(int(start))} + task * {number(int(step))}"
        if whole_numbers
        else f"{number(float(start))} + (double)task * {number(float(step))}"
    )
    kind = storage(call.outputs[0].dtype)
    return TaskText([f"store<1>({address(y, ['task'])}, convert<{kind}>({value}));"], y.shape[0])


def _eye(call: NodeCall) -> TaskText:
    y, kind = result(call), storage(call.outputs[0].dtype)
    on_diagonal = f"i1 - i0 == {call.attrs['diagonal']}"
    body = [*unravel(y.shape), f"store<1>({address(y, ['i0', 'i1'])}, convert_bool<{kind}>({on_diagonal}));"]
    return TaskText(body, math.prod(y.shape))


def _one_hot(call: NodeCall) -> TaskText:
    """Return the text of one-hot rows. A negative index counts from the end; an index outside the range sets nothing."""
    at, values, y = whole(call, 0), whole(call, 1), result(call)
    dim, depth = call.attrs["dim"], y.shape[call.attrs["dim"]]
    names = [f"i{d}" for d in range(len(y.shape))]
    index_names = [n for d, n in enumerate(names) if d != dim]
    step = values.strides[0]
    body = [
        *unravel(y.shape),
        f"int64_t hot = (int64_t)load<1>({address(at, index_names)});",
        f"if (hot < 0) hot += {depth};",
        f"*({address(y, names)}) = in1[hot == i{dim} ? {step} : 0];",
    ]
    return TaskText(body, math.prod(y.shape))


def _dropout(call: NodeCall) -> TaskText:
    """Return the text of dropout outside training: a copy of the operand, and a mask of ones."""
    x, y = whole(call, 0), result(call)
    names = [f"i{d}" for d in range(len(y.shape))]
    kind, source_dtype = storage(call.outputs[0].dtype), call.tensor(0).spec.dtype
    convert = "convert_bool" if source_dtype is DType.BOOL else "convert"
    body = [
        *unravel(y.shape),
        f"store<1>({address(y, names)}, {convert}<{kind}>(load<1>({address(x, names)})));",
    ]
    if len(call.outputs) > 1:
        body.append(f"*({address(result(call, 1), names)}) = true;")
    return TaskText(body, math.prod(y.shape))


def _random_bits(call: NodeCall) -> TaskText:
    """Return the text of Philox4x32-10: a task computes the four words of one counter."""
    a, y = call.attrs, result(call)
    (count,) = y.shape
    per, seed = (4 if a["bits"] == 32 else 2), a["seed"] & (1 << 64) - 1
    if call.tensors:
        state = whole(call, 0)
        begin = [
            f"const uint64_t key = (uint64_t)load<1>({address(state, ['0'])}), run = (uint64_t)load<1>({address(state, ['1'])});"
        ]
    else:
        begin = [f"const uint64_t key = {seed}ull, run = 0;"]
    words = (
        ["a", "b", "c", "d"]
        if per == 4
        else [f"(((uint64_t){high} << 32 | {low}) >> 11)" for low, high in (("a", "b"), ("c", "d"))]
    )
    body = [
        *begin,
        "uint32_t a = (uint32_t)task, c = (uint32_t)run, d = (uint32_t)(run >> 32);",
        f"uint32_t b = {a['stream']}u, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);",
        "for (int round = 0; round < 10; ++round) {",
        "  const uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;",
        "  a = (uint32_t)(q >> 32) ^ b ^ k0;",
        "  b = (uint32_t)q;",
        "  c = (uint32_t)(p >> 32) ^ d ^ k1;",
        "  d = (uint32_t)p;",
        "  k0 += 0x9E3779B9u;",
        "  k1 += 0xBB67AE85u;",
        "}",
        *(
            f"if (task * {per} + {k} < {count}) store<1>({address(y, [f'(task * {per} + {k})'])}, (int64_t){word});"
            for k, word in enumerate(words)
        ),
    ]
    return TaskText(body, -(-count // per), per=per)


def _few_enough(call: NodeCall) -> Support | None:
    if call.outputs[0].shape[0] <= 1 << 32:  # type: ignore[operator]
        return None
    return Support.no(Reason.SHAPE_UNSUPPORTED, "a counter of 32 bits gives at most 2**32 random numbers")


def _draws(call: NodeCall) -> Support | None:
    if call.op == "dropout" and not (call.attrs["train"] and call.attrs["p"]):
        return computes(dtypes=NUMBERS | {DType.BOOL})(call)
    return Support.no(
        Reason.NOT_IMPLEMENTED,
        f"{call.op} draws random numbers in a branch or a loop, or without the pass expand_random",
        do="Draw outside of the branch or loop, with an optimization_level of at least 1, or run it on another engine.",
    )


def _made(call: NodeCall) -> Support | None:
    dtype = call.outputs[0].dtype
    return None if dtype in NUMBERS | {DType.BOOL} else refuse(dtype, call.op)


KERNELS = (
    TemplateKernel(
        "create/generated",
        {
            "constant": OpTemplate(_table),
            "dims": OpTemplate(_table),
            "arange": OpTemplate(_arange, _made),
            "eye": OpTemplate(_eye, _made),
            "one_hot": OpTemplate(_one_hot, computes(0, dtypes=FLOATS | INTEGERS)),
            "dropout": OpTemplate(_dropout, _draws),
            "random_bits": OpTemplate(_random_bits, _few_enough),
            **dict.fromkeys(
                ("rand", "randn", "randperm", "bernoulli", "multinomial"), OpTemplate(_dropout, _draws)
            ),
        },
    ),
)
