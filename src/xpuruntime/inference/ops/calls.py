"""One call of an op: the table of the core where the call is known, else what must be done first.

The common case is one call into the core, which reads the tensors, finds the signature, makes the result's tensor and launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from ... import _core
from ...errors import InputError, OutOfMemory, RunError
from ...policies.context import current_policy
from ...runtime.arrays import trust_arrays
from ...runtime.buffer import host_array
from .explained import Explained, Wanted
from .foreign_tensors import Elsewhere, from_host, readable
from .op_table import ROWS
from .policy_scope import asked_policy, known_policy
from .prepare import prepare

__all__ = ["CAPACITY", "call", "clear", "counters"]

trust_arrays()

CAPACITY = 1024
"""How many programs of one op are kept in memory."""

_TABLE = _core.Ops(CAPACITY)
_run: Callable[..., Any] = _TABLE.run
_known = cast("Callable[..., Explained | None]", _TABLE.payload)  # what ``prepare`` puts there
_NUMBERS = {name: row.number for name, row in ROWS.items()}
_PREPARING = threading.Lock()
_UNSETTLED = frozenset({type(None), int, _core.Status})
_GRADIENT, _OUT_OVERLAPS = -1, -3
_STEPS = 6  # read, prepared, copied as programs read it, prepared, run: each once


def counters() -> dict[str, int]:
    """hits, misses, evictions (programs that made room for others) and entries (kept now), since the process began."""
    found = _TABLE.counters
    return {n: int(getattr(found, n)) for n in ("hits", "misses", "evictions", "entries")}


def clear() -> None:
    """Forget every program that is kept in memory; those in the store stay."""
    _TABLE.clear()


def call(op: str, attributes: tuple[Any, ...], operands: tuple[Any, ...], out: Any, policy: Any) -> Any:
    """The result of an op. Raises as the functions of this package say."""
    asked = current_policy() if policy is None else asked_policy(policy)
    try:
        made = _run(_NUMBERS[op], asked, attributes, operands, out)
    except (TypeError, OverflowError) as error:  # of attributes; what operands lack is an answer
        raise InputError(
            f"ops.{op}",
            "cannot read its attributes",
            got=error,
            do="Give numbers of 64 bits, or tuples of them.",
        ) from error
    return made if type(made) not in _UNSETTLED else _settle(op, asked, attributes, operands, out)


def _settle(op: str, asked: Any, attributes: tuple[Any, ...], operands: tuple[Any, ...], out: Any) -> Any:
    """Do what the core's answer asks for, and call again."""
    if isinstance(asked, Wanted):
        return _explain(op, asked, attributes, operands)
    if elsewhere := Elsewhere.of(op, operands):
        return elsewhere.run(known_policy(_TABLE, asked), asked, attributes, out)
    back = from_host(operands, out)
    into = out if out is None or _core.knows_tensors(type(out)) else host_array(out)
    for _ in range(_STEPS):
        answer = _run(_NUMBERS[op], asked, attributes, operands, into)
        if type(answer) not in _UNSETTLED:
            return answer if back is None else back(answer)
        if isinstance(answer, _core.Status):
            kind = OutOfMemory if answer.code == "no_memory" else RunError
            raise kind(f"ops.{op}", "failed while running", got=answer.message, do=answer.advice)
        if answer is None:
            _prepare(op, asked, attributes, operands)
        elif answer < 0:
            raise _refused(op, answer, into)
        else:
            operands = readable(op, operands, answer)
    raise InputError(
        f"ops.{op}", "its operands have more dims, or attributes more numbers, than are told apart"
    )


def _prepare(op: str, asked: Any, attributes: tuple[Any, ...], operands: tuple[Any, ...]) -> Explained:
    """Make the signature known, once, whoever asks."""
    with _PREPARING:
        found = _known(_NUMBERS[op], asked, attributes, operands)
        if found is None:
            known_policy(_TABLE, asked)
            found = prepare(_TABLE, op, asked, attributes, operands)
        return found


def _explain(op: str, wanted: Wanted, attributes: tuple[Any, ...], operands: tuple[Any, ...]) -> Explained:
    asked = current_policy() if wanted.policy is None else asked_policy(wanted.policy)
    number, copied = _NUMBERS[op], 0
    for _ in range(3):
        answer = _TABLE.unread(operands)
        if answer == _GRADIENT:
            raise _refused(op, answer)
        if answer == 0:
            found = _known(number, asked, attributes, operands) or _prepare(op, asked, attributes, operands)
            if not found.copies:
                return found.with_copies(copied)
            answer = found.copies
        copied |= answer
        operands = readable(op, operands, answer)
    raise InputError(f"ops.{op}", "cannot read its operands")


def _refused(op: str, answer: int, out: Any = None) -> InputError:
    who = f"ops.{op}"
    if answer == _GRADIENT:
        do = "Call it under torch.no_grad(), or hand in tensor.detach()."
        return InputError(who, "computes no gradients, and an operand asks for one", do=do)
    if answer == _OUT_OVERLAPS:
        return InputError(
            who, "out overlaps an operand", do="Give it memory of its own, or leave it to the op."
        )
    return InputError(
        who,
        "out must be dense, writeable, and of the result's shape, dtype and device",
        got=f"{type(out).__name__} of {getattr(out, 'dtype', 'no dtype')}{list(getattr(out, 'shape', ()))}",
        do="Leave it out to see them.",
    )
