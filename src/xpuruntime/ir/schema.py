"""The form of the op table: one row says everything the IR knows of an op.

A row is written as a signature plus facts::

    op("convolution(x, weight, bias?; stride: ints, groups: int = 1) -> y", "conv", infer=_convolution, onnx="Conv ConvTranspose")

Before the semicolon stand operands: ``x`` is a tensor, ``x#`` a tensor or an immediate number, ``x?`` may be absent, ``x*`` is
the rest of the operands (``x?*``: each may be absent). After it stand attributes with kind and default. After the arrow stand
outputs: ``y`` is always there, ``y?`` may be left off from the end, ``y*`` is as many as inference gives.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..types import TensorSpec
from .attributes import AttrValue, coerce

__all__ = ["Attr", "Call", "Infer", "Mismatch", "Op", "Operand", "Param", "Place", "Scalar", "op"]

Scalar: TypeAlias = bool | int | float
Operand: TypeAlias = TensorSpec | Scalar | None
"""What inference sees of an operand: a tensor's spec, an immediate number, or None for an absent one."""
Place: TypeAlias = "Callable[[dict[str, Any], Sequence[Operand]], None]"
Infer: TypeAlias = "Callable[[Call], TensorSpec | Sequence[TensorSpec]]"


class Mismatch(ValueError):
    """A rule of inference does not hold; ``infer`` turns it into an IrError that names the node."""

    def __init__(self, what: str, got: object = None, do: str = "") -> None:
        super().__init__(what)
        self.what, self.got, self.do = what, got, do


@dataclass(frozen=True, slots=True)
class Param:
    """One operand: ``number`` allows an immediate, ``optional`` an absent one, ``rest`` takes all that remain."""

    name: str
    number: bool = False
    optional: bool = False
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its kind (see ``attributes.coerce``) and, unless ``required``, its default."""

    name: str
    kind: str
    required: bool
    default: AttrValue = None


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row of the op table.

    family:         the policy's word for it (xpuruntime.families).
    infer:          operands and attributes to output specs; raises Mismatch.
    aten, onnx:     names of the ops it corresponds to, for frontends, coverage tests and documentation.
    commutative:    the first two operands may change places.
    pointwise:      each output element depends on the input elements at the same (broadcast) place only.
    view:           ``reshape``: the result has the first operand's elements in the same order; ``strided``: it reads the first
                    operand at a regular step, so a device may share its memory; empty: it is new data.
    random:         two equal nodes may give different values.
    place:          rewrites attributes in place into their one spelling where only the operands tell it (a view's -1).
    data_dependent: why the output shape is known only when it runs; empty for every other op. Engines take such ops.
    """

    name: str
    family: str
    inputs: tuple[Param, ...]
    attrs: Mapping[str, Attr]
    outputs: tuple[Param, ...]
    infer: Infer
    aten: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    commutative: bool = False
    pointwise: bool = False
    view: str = ""
    random: bool = False
    place: Place | None = None
    data_dependent: str = ""
    meaning: str = ""
    signature: str = ""

    @property
    def min_inputs(self) -> int:
        """How many operands must be written (absent ones in between as None)."""
        return max((i + 1 for i, p in enumerate(self.inputs) if not (p.optional or p.rest)), default=0)

    @property
    def min_outputs(self) -> int:
        """Outputs that cannot be left off."""
        return sum(not p.optional for p in self.outputs)

    def param(self, position: int) -> Param | None:
        """Return the operand's row at a position; None beyond the last."""
        if position < len(self.inputs):
            return self.inputs[position]
        return self.inputs[-1] if self.inputs and self.inputs[-1].rest else None

    def __repr__(self) -> str:
        return f"Op({self.signature})"


class Call:
    """One use of an op, as its inference function sees it: operands by position, attributes by name."""

    __slots__ = ("attrs", "op", "operands")

    def __init__(self, row: Op, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> None:
        self.op, self.attrs = row, attrs
        missing = len(row.inputs) - len(operands)
        self.operands = (*operands, *(None,) * missing) if missing > 0 else tuple(operands)

    def __getitem__(self, name: str) -> Any:
        return self.attrs[name]

    def tensor(self, position: int = 0) -> TensorSpec:
        """Return the spec of a tensor operand."""
        value = self.operands[position]
        if isinstance(value, TensorSpec):
            return value
        raise Mismatch(f"operand {position} must be a tensor", value)

    def optional(self, position: int) -> TensorSpec | None:
        """Return the spec of a tensor operand, None when it is absent."""
        return None if self.operands[position] is None else self.tensor(position)

    def rest(self, position: int) -> list[TensorSpec | None]:
        """Specs of the operands from a position on."""
        return [self.optional(i) for i in range(position, len(self.operands)) if i < len(self.operands)]

    def tensors(self) -> list[TensorSpec]:
        """Return every operand that is a tensor."""
        return [v for v in self.operands if isinstance(v, TensorSpec)]


_SIGNATURE = re.compile(r"(\w+)\((.*)\) -> (.*)", re.S)
_WORDS: dict[str, AttrValue] = {"none": None, "true": True, "false": False}


def op(
    signature: str,
    family: str,
    infer: Infer,
    *,
    aten: str = "",
    onnx: str = "",
    commutative: bool = False,
    pointwise: bool = False,
    view: str = "",
    random: bool = False,
    place: Place | None = None,
    data_dependent: str = "",
    meaning: str = "",
) -> Op:
    """Return a row of the table from its signature. Raises ValueError for a signature that is not in the form above."""
    match = _SIGNATURE.fullmatch(signature.strip())
    if not match:
        raise ValueError(f"not a signature: {signature!r}")
    name, arguments, results = match.groups()
    operands, _, attributes = arguments.partition(";")
    attrs = [_attr(text) for text in _split(attributes)]
    return Op(
        name,
        family,
        tuple(_param(text) for text in _split(operands)),
        {a.name: a for a in attrs},
        tuple(_param(text) for text in _split(results)),
        infer,
        tuple(aten.split()),
        tuple(onnx.split()),
        commutative,
        pointwise,
        view,
        random,
        place,
        data_dependent,
        meaning,
        " ".join(signature.split()),
    )


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _param(text: str) -> Param:
    name = text.rstrip("?*#")
    marks = text[len(name) :]
    return Param(name, "#" in marks, "?" in marks, "*" in marks)


def _attr(text: str) -> Attr:
    head, equals, default = text.partition("=")
    name, _, kind = (part.strip() for part in head.partition(":"))
    if not equals:
        return Attr(name, kind, True)
    default = default.strip()
    if default in kind.rstrip("?").split("|") or kind in ("str", "dtype"):
        value: Any = default
    elif default in _WORDS:
        value = _WORDS[default]
    else:
        value = ast.literal_eval(default)
    return Attr(name, kind, False, coerce(kind, value))
