"""Kernels of users: a catalogue entry made of a text, a Triton function or a Python function.

This file has what all of them share: supported nodes, the name in a policy, the launch. ``text`` writes C++ and CUDA C++, ``triton`` compiles
Triton functions, ``host`` calls Python. Only a policy that names such a kernel selects it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...arguments import check_argument, check_several
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...errors import KernelUnavailable
from ...ir import OPS
from ...ir.infer import find_op
from ...plugins.registered import registered_kernels
from ...policies import KernelPolicy
from ...program.program import KernelParam
from ...types import DType, TensorSpec
from ..kernel import Kernel, LoweredCall, NodeCall, Operand, Scalar

__all__ = [
    "Answer",
    "KernelBody",
    "Launch",
    "OfCall",
    "Tasks",
    "UserKernel",
    "arguments_of",
    "checked",
    "extent",
    "launch_of",
    "named_digests",
    "packed_params",
    "plain_attrs",
    "specs_of",
    "tasks_of",
    "user_kernels",
]

KINDS = ("cpu", "cuda")
"""Kinds of target that users' kernels are for."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a CUDA or Triton kernel.

    grid:    blocks along x, y, z (one number: along x).
    block:   threads per block along x, y, z; ignored for Triton, which has ``num_warps``.
    shared:  bytes of dynamic shared memory per block.
    cluster: blocks per cluster along x, y, z, on devices that have clusters.
    """

    grid: int | Sequence[int]
    block: int | Sequence[int] = 256
    shared: int = 0
    cluster: Sequence[int] | None = None

    @property
    def sizes(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Grid and block, three numbers each."""
        return _three(self.grid), _three(self.block)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a CPU kernel: its function is called for ranges of ``0 .. count``.

    grain:   minimum tasks per thread.
    scratch: bytes of memory per thread; if it is not 0, the function's last argument is its address.
    """

    count: int
    grain: int = 1
    scratch: int = 0


Answer: TypeAlias = "Support | str | bool | None"
"""The result of a user's ``supports``: a Support; None or True for yes; False for no; a text for no with that reason."""


class OfCall(Protocol):
    """A function of a node: ``call.inputs`` and ``call.outputs`` have shapes and dtypes, ``call.attrs`` the attributes."""

    def __call__(self, call: NodeCall) -> object: ...


class KernelBody(Protocol):
    """The lowering of one kind of user's code to stages."""

    @property
    def digest(self) -> str:
        """sha256 of the code and of everything else that decides the result."""
        ...

    def refuses(self, call: NodeCall, target: CodegenTarget) -> str:
        """Return why this kind of code cannot have the node at all; empty where it can."""
        ...

    def lower(self, kernel: UserKernel, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the node as stages."""
        ...


@dataclass(slots=True, eq=False)
class UserKernel(Kernel):
    """A user's kernel.

    name:          ``family/word``; policies name it by the word.
    kind:          the kind of target that it is for.
    dtypes:        dtypes of the tensors that it reads and writes; None: all with a C type.
    deterministic: whether equal inputs give equal bits.
    accumulates:   the dtype of its sums.
    """

    name: str
    ops: tuple[str, ...]
    kind: str
    body: KernelBody
    why_not: OfCall | None = None
    dtypes: frozenset[DType] | None = None
    deterministic: bool | None = None
    accumulates: str = "float32"
    digest: str = ""
    on_request: bool = True
    opt_in_reason: str = "is a user's kernel"

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for static, dense, non-empty tensors of its dtypes, if the user's own ``supports`` agrees."""
        for spec in specs_of(call):
            if not spec.is_static or not spec.is_dense:
                return Support.no(Reason.SHAPE_UNSUPPORTED, f"users' kernels need dense tensors, got {spec}")
            if not spec.size_bytes:
                return Support.no(
                    Reason.SHAPE_UNSUPPORTED,
                    f"users' kernels need non-empty tensors, got {spec}",
                )
            if self.dtypes is not None and spec.dtype not in self.dtypes:
                supported = ", ".join(sorted(d.value for d in self.dtypes))
                return Support.no(
                    Reason.DTYPE_UNSUPPORTED, f"{self.name} supports {supported}, not {spec.dtype.value}"
                )
        if refused := self.body.refuses(call, target):
            return Support.no(Reason.OP_UNSUPPORTED, refused)
        return Support.yes() if self.why_not is None else self._user_answer(self.why_not, call)

    def _user_answer(self, why_not: OfCall, call: NodeCall) -> Support:
        try:
            answer = why_not(call)
        except Exception as error:
            return Support.no(
                Reason.BUILD_FAILED, f"its supports() failed with {type(error).__name__}: {error}"
            )
        if isinstance(answer, Support):
            return answer
        if answer is None or answer is True or answer == "":
            return Support.yes()
        return Support.no(
            Reason.NOT_APPLICABLE, answer if isinstance(answer, str) else "its supports() returned no"
        )

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return the node as its code, which is not compiled yet."""
        return self.body.lower(self, call, target)


def user_kernels(op: str, kind: str) -> tuple[UserKernel, ...]:
    """Return the registered kernels of an op on a kind of target."""
    registered = registered_kernels(kind)
    return tuple(k for k in registered if isinstance(k, UserKernel) and op in k.ops)


def named_digests(policy: KernelPolicy) -> dict[str, str]:
    """Return the digests of the registered kernels that a policy names. A cached program depends on them and on the policy's text."""
    if not registered_kernels():
        return {}
    words: set[str] = set()
    for layer in policy.layers:
        words |= {name for _, names in layer.preferences() for name in names}
        words |= {name for rule in layer.rules for name in ((rule.use,) if rule.use else rule.prefer)}
    named = [k for k in registered_kernels() if k.name.partition("/")[2] in words]
    return {f"{k.name}@{k.kind}": k.digest for k in named}


def checked(name: str, ops: str | Sequence[str], kind: str) -> tuple[str, tuple[str, ...]]:
    """Return the full name (``family/word``) and the ops of a kernel to register. Raises KernelUnavailable."""
    words, do = "the name of an op, or several", "Give 'linear'."
    op_names = (ops,) if isinstance(ops, str) else check_several("register_kernel", "op", ops, words, do)
    for op in op_names:
        check_argument("register_kernel", "op", op, str, words, do)
    who = f"kernel {name!r}"
    for op in op_names:
        if op not in OPS:
            near = difflib.get_close_matches(op, OPS, 3)
            hint = f"Did you mean {', '.join(near)}? " if near else ""
            raise KernelUnavailable(
                who,
                "names an op that the IR does not have",
                got=repr(op),
                do=f"{hint}docs/reference/ops.md lists them.",
            )
    families = dict.fromkeys(find_op(op).family for op in op_names)
    family, _, word = name.rpartition("/")
    if len(families) != 1 or family not in ("", *families):
        raise KernelUnavailable(
            who,
            f"computes ops of the families {', '.join(families) or 'none'}",
            do=f"Name it {next(iter(families), 'FAMILY')}/{word or 'WORD'}, with ops of one family.",
        )
    if not word or not all(part.isidentifier() for part in word.split(".")):
        raise KernelUnavailable(
            who,
            "has an invalid name",
            got=repr(word),
            do="Use letters, digits and underscores.",
        )
    if kind not in KINDS:
        raise KernelUnavailable(
            who,
            "has an unknown kind of target",
            got=repr(kind),
            do=f"Name one of {', '.join(KINDS)}.",
        )
    return f"{next(iter(families))}/{word}", op_names


# ── helpers of all kinds of code ──


def specs_of(call: NodeCall) -> list[TensorSpec]:
    """Return the specs of a call's tensors: operands, then results."""
    return [*(o.spec for o in call.tensors), *call.outputs]


def extent(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def arguments_of(call: NodeCall) -> list[tuple[str, TensorSpec, bool]]:
    """Return (name ``in0`` or ``out0``, spec, whether it is written) of each buffer, in the order of the kernel's arguments."""
    read = [(f"in{i}", o.spec, False) for i, o in enumerate(call.inputs) if isinstance(o, Operand)]
    return [*read, *((f"out{i}", spec, True) for i, spec in enumerate(call.outputs))]


def packed_params(params: OfCall | None, call: NodeCall) -> tuple[KernelParam, ...]:
    """Return scalar parameters: integers as i64, other numbers as f64. Raises TypeError."""
    values = {} if params is None else params(call)
    if not isinstance(values, Mapping):
        raise TypeError(f"params() must return a mapping from names to numbers, got {type(values).__name__}")
    return tuple(_param(str(name), value) for name, value in values.items())


def _param(name: str, value: Scalar) -> KernelParam:
    if isinstance(value, bool | int):
        return KernelParam(name, "i64", int(value))
    if isinstance(value, float):
        return KernelParam(name, "f64", value)
    raise TypeError(f"parameter {name!r} must be a number, got {type(value).__name__}")


def launch_of(launch_function: OfCall | None, call: NodeCall) -> Launch:
    """Return the user's launch, or one thread per element of the first result. Raises TypeError, ValueError."""
    if launch_function is None:
        return Launch(math.ceil(math.prod(extent(call.outputs[0])) / 256), 256)
    launch = launch_function(call)
    if isinstance(launch, int) or (isinstance(launch, tuple) and all(isinstance(n, int) for n in launch)):
        launch = Launch(launch)
    if not isinstance(launch, Launch):
        raise TypeError(f"launch() must return a Launch, got {type(launch).__name__}")
    return launch


def tasks_of(launch_function: OfCall | None, call: NodeCall, min_elements: int) -> Tasks:
    """Return the user's tasks, or one per element of the first result, with at least ``min_elements`` per thread. Raises TypeError, ValueError."""
    if launch_function is None:
        return Tasks(math.prod(extent(call.outputs[0])), min_elements)
    tasks = launch_function(call)
    tasks = Tasks(tasks) if isinstance(tasks, int) else tasks
    if not isinstance(tasks, Tasks):
        raise TypeError(f"launch() must return Tasks on a CPU, got {type(tasks).__name__}")
    if tasks.count < 1 or tasks.grain < 1 or tasks.scratch < 0:
        raise ValueError(f"count and grain must be positive and scratch not negative, got {tasks}")
    return tasks


def _three(sizes: int | Sequence[int]) -> tuple[int, int, int]:
    extents = (sizes,) if isinstance(sizes, int) else tuple(int(n) for n in sizes)
    if not 1 <= len(extents) <= 3 or any(n < 1 for n in extents):
        raise ValueError(f"sizes are one to three positive numbers, got {sizes!r}")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def plain_attrs(call: NodeCall) -> dict[str, object]:
    """Return attributes that are numbers, texts, or tuples of them. Others (graphs, small tensors) are left out."""
    attrs = {name: _plain(value) for name, value in call.attrs.items()}
    return {name: value for name, value in attrs.items() if value is not NotImplemented}


def _plain(value: object) -> object:
    if isinstance(value, DType):
        return value.value
    if isinstance(value, tuple):
        items = tuple(_plain(v) for v in value)
        return NotImplemented if any(v is NotImplemented for v in items) else items
    return value if value is None or isinstance(value, bool | int | float | str) else NotImplemented
