"""Tensors made without reading one, one-hot, and dropout where it does nothing. What draws at random is refused, with the reason."""

from __future__ import annotations

import math

import numpy as np

from ..codegen.boxes import Move, Place, bits_type, element_bytes
from ..codegen.points import address, number, storage, unravel
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..ir.attributes import Const
from ..types import DType
from .kernel import Lowered, NodeCall
from .kit import FLOATS, INTEGERS, NUMBERS, Row, Rows, Text, computes, refuse, result, whole
from .moves_stage import bits_of, moves_stage, too_small

__all__ = ["KERNELS", "Fill"]


class Fill:
    """One value everywhere."""

    name = "create/fill"
    ops = ("full",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every type up to 8 bytes."""
        if call.outputs[0].dtype is DType.COMPLEX128:
            return refuse(DType.COMPLEX128, "values")
        refused = too_small(call.outputs[0])
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """Runs of the value's bits."""
        spec = call.outputs[0]
        box = Place.of("out0", spec)
        moves = [Move(box, None, fill=bits_of(call.attrs["value"], spec.dtype))]
        return Lowered((moves_stage("full", moves, ("out0",), spec.dtype, target),))


def _table(call: NodeCall) -> Text:
    """What stands in the graph, as bits in the code."""
    values = call.attrs["value"].numpy() if isinstance(call.attrs.get("value"), Const) else None
    spec, y = call.outputs[0], result(call)
    if values is None:
        values = np.array([int(v) for v in call.attrs["values"]], np.int64)
    unit = element_bytes(spec.dtype)
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{unit}").tolist()
    kind = bits_type(spec.dtype)
    text = ", ".join(f"{b}u" if unit < 8 else f"{b}ull" for b in bits) or "0"
    body = [*unravel(y.shape), f"(({kind} *)out0)[{_index(y)}] = values[task];"]
    return Text(body, math.prod(y.shape), [f"static const {kind} values[] = {{{text}}};"])


def _index(y: Place) -> str:
    return address(y, [f"i{d}" for d in range(len(y.shape))]).partition(" + ")[2] or "0"


def _arange(call: NodeCall) -> Text:
    """Start + i * step: integers exact, fractions in double."""
    a, y = call.attrs, result(call)
    start, step = a["start"], a["step"]
    whole_numbers = all(isinstance(v, int) for v in (start, step, a["end"]))
    value = (
        f"{number(int(start))} + task * {number(int(step))}"
        if whole_numbers
        else f"{number(float(start))} + (double)task * {number(float(step))}"
    )
    kind = storage(call.outputs[0].dtype)
    return Text([f"store<1>({address(y, ['task'])}, convert<{kind}>({value}));"], y.shape[0])


def _eye(call: NodeCall) -> Text:
    y, kind = result(call), storage(call.outputs[0].dtype)
    one = f"i1 - i0 == {call.attrs['diagonal']}"
    body = [*unravel(y.shape), f"store<1>({address(y, ['i0', 'i1'])}, convert_bool<{kind}>({one}));"]
    return Text(body, math.prod(y.shape))


def _one_hot(call: NodeCall) -> Text:
    """A place counts from the end where it is negative; one outside gives all off."""
    at, values, y = whole(call, 0), whole(call, 1), result(call)
    dim, depth = call.attrs["dim"], y.shape[call.attrs["dim"]]
    names = [f"i{d}" for d in range(len(y.shape))]
    own = [n for d, n in enumerate(names) if d != dim]
    step = values.strides[0]
    body = [
        *unravel(y.shape),
        f"int64_t place = (int64_t)load<1>({address(at, own)});",
        f"if (place < 0) place += {depth};",
        f"*({address(y, names)}) = in1[place == i{dim} ? {step} : 0];",
    ]
    return Text(body, math.prod(y.shape))


def _dropout(call: NodeCall) -> Text:
    """Outside training the operand itself, and a mask of ones."""
    x, y = whole(call, 0), result(call)
    names = [f"i{d}" for d in range(len(y.shape))]
    kind, own = storage(call.outputs[0].dtype), call.tensor(0).spec.dtype
    convert = "convert_bool" if own is DType.BOOL else "convert"
    body = [
        *unravel(y.shape),
        f"store<1>({address(y, names)}, {convert}<{kind}>(load<1>({address(x, names)})));",
    ]
    if len(call.outputs) > 1:
        body.append(f"*({address(result(call, 1), names)}) = true;")
    return Text(body, math.prod(y.shape))


def _draws(call: NodeCall) -> Support | None:
    if call.op == "dropout" and not (call.attrs["train"] and call.attrs["p"]):
        return computes(dtypes=NUMBERS | {DType.BOOL})(call)
    return Support.no(
        Reason.NOT_IMPLEMENTED,
        f"{call.op} draws at random; no generated kernel has a generator",
        do="Draw outside the model, or run it on another engine.",
    )


def _made(call: NodeCall) -> Support | None:
    dtype = call.outputs[0].dtype
    return None if dtype in NUMBERS | {DType.BOOL} else refuse(dtype, call.op)


KERNELS = (
    Fill(),
    Rows(
        "create/generated",
        {
            "constant": Row(_table),
            "dims": Row(_table),
            "arange": Row(_arange, _made),
            "eye": Row(_eye, _made),
            "one_hot": Row(_one_hot, computes(0, dtypes=FLOATS | INTEGERS)),
            "dropout": Row(_dropout, _draws),
            **dict.fromkeys(("rand", "randn", "randperm", "bernoulli", "multinomial"), Row(_dropout, _draws)),
        },
    ),
)
