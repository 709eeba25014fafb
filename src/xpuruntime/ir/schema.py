"""The schema of the op table: one entry holds everything that the IR knows about an op.

An entry is written as a signature plus properties::

    op("convolution(x, weight, bias?; stride: ints, groups: int = 1) -> y", "conv", infer=_convolution, onnx="Conv ConvTranspose")

Operands come before the semicolon: ``x`` is a tensor, ``x#`` a tensor or an immediate number, ``x?`` is optional, ``x*`` is the
rest of the operands (``x?*``: each is optional). Attributes with kind and default follow it. Outputs come after the arrow: ``y`` is
always present, ``y?`` is optional, ``y*`` is as many as inference returns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..types import TensorSpec
from .attributes import AttrValue, coerce

__all__ = ["Attr", "Infer", "Mismatch", "OpCall", "OpEntry", "Operand", "Param", "Place", "Scalar", "op"]

Scalar: TypeAlias = bool | int | float
Operand: TypeAlias = TensorSpec | Scalar | None
"""An operand as inference sees it: a tensor's spec, an immediate number, or None for an absent one."""
Place: TypeAlias = "Callable[[dict[str, Any], Sequence[Operand]], None]"
Infer: TypeAlias = "Callable[[OpCall], TensorSpec | Sequence[TensorSpec]]"


class Mismatch(ValueError):
    """A violated rule of inference, which ``infer`` converts to an IrError that names the node."""

    def __init__(self, what: str, got: object = None, do: str = "") -> None:
        super().__init__(what)
        self.what, self.got, self.do = what, got, do


@dataclass(frozen=True, slots=True)
class Param:
    """One operand. ``number`` allows an immediate, ``optional`` an absent operand; ``rest`` takes all remaining ones."""

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
class OpEntry:
    """One entry of the op table.

    family:         the op family for policies (xpuruntime.families).
    infer:          returns output specs from operands and attributes; raises Mismatch.
    aten, onnx:     names of the corresponding ops, for frontends, coverage tests and documentation.
    commutative:    the first two operands may be swapped.
    pointwise:      each output element depends only on the input elements at the same (broadcast) index.
    view:           ``reshape``: the result has the first operand's elements in the same order; ``strided``: the result reads the
                    first operand with regular strides, so a device may share its memory; empty: the result is new data.
    random:         two equal nodes may produce different values.
    place:          canonicalizes attributes in place that depend on the operands (a view's -1).
    data_dependent: why the output shape is only known at run time; empty for other ops. Only engines run such ops.
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
        """Minimum number of operands (absent ones in between are None)."""
        return max((i + 1 for i, p in enumerate(self.inputs) if not (p.optional or p.rest)), default=0)

    @property
    def min_outputs(self) -> int:
        """Number of outputs that are not optional."""
        return sum(not p.optional for p in self.outputs)

    def param(self, position: int) -> Param | None:
        """Return the parameter at a position; None after the last one."""
        if position < len(self.inputs):
            return self.inputs[position]
        return self.inputs[-1] if self.inputs and self.inputs[-1].rest else None

    def __repr__(self) -> str:
        return f"OpEntry({self.signature})"


class OpCall:
    """The argument of inference functions: an op's operands by position, and its attributes by name."""

    __slots__ = ("attrs", "op", "operands")

    def __init__(self, row: OpEntry, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> None:
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
        """Return the spec of a tensor operand; None if it is absent."""
        return None if self.operands[position] is None else self.tensor(position)

    def rest(self, position: int) -> list[TensorSpec | None]:
        """Return the specs of the operands from a position on."""
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
) -> OpEntry:
    """Create a table entry from its signature. Raises ValueError for a signature that does not have the form above."""
    match = _SIGNATURE.fullmatch(signature.strip())
    if not match:
        raise ValueError(f"not a signature: {signature!r}")
    name, arguments, results = match.groups()
    operands, _, attributes = arguments.partition(";")
    attrs = [_attr(text) for text in _split(attributes)]
    return OpEntry(
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
