"""One call of an op: through the core's table if its signature is known, otherwise after preparing it.

The common case is one call into the core, which reads the tensors, finds the signature, allocates the result and launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from ... import _core
from ...errors import InputError, OutOfMemory, RunError
from ...policies.context import current_policy
from ...runtime.memory.arrays import trust_arrays
from ...runtime.memory.buffer import host_array
from .explained import Explained, OpRequest
from .foreign_tensors import Elsewhere, from_host, readable
from .op_table import ROWS
from .policy_scope import asked_policy, known_policy
from .prepare import prepare

__all__ = ["CAPACITY", "call", "clear", "counters"]

trust_arrays()

CAPACITY = 1024
"""The number of programs per op that stay in memory."""

_TABLE = _core.Ops(CAPACITY)
_run: Callable[..., Any] = _TABLE.run
_known = cast("Callable[..., Explained | None]", _TABLE.payload)  # filled by ``prepare``
_NUMBERS = {name: row.number for name, row in ROWS.items()}
_PREPARING = threading.Lock()
_UNSETTLED = frozenset({type(None), int, _core.Status})
_GRADIENT, _OUT_OVERLAPS = -1, -3
_STEPS = 6  # read, prepare, copy operands, prepare again, run: each at most once


def counters() -> dict[str, int]:
    """Return hits, misses, evictions (programs removed for others) and entries (now in memory) since the process began."""
    counts = _TABLE.counters
    return {n: int(getattr(counts, n)) for n in ("hits", "misses", "evictions", "entries")}


def clear() -> None:
    """Drop every program in memory. Those in the store stay."""
    _TABLE.clear()


def call(op: str, attributes: tuple[Any, ...], operands: tuple[Any, ...], out: Any, policy: Any) -> Any:
    """Return the result of an op. Raises as the functions of this package document."""
    if not isinstance(op, str) or op not in _NUMBERS:
        do = "Ops are listed in docs/reference/ops.md."
        raise InputError("ops.call", "no op of that name", got=repr(op)[:80], do=do)
    request = current_policy() if policy is None else asked_policy(policy)
    try:
        result = _run(_NUMBERS[op], request, attributes, operands, out)
    except (TypeError, OverflowError) as error:  # from attributes; invalid operands are reported as an answer
        raise InputError(
            f"ops.{op}",
            "cannot read its attributes",
            got=error,
            do="Give numbers of 64 bits, or tuples of them.",
        ) from error
    return result if type(result) not in _UNSETTLED else _settle(op, request, attributes, operands, out)


def _settle(op: str, request: Any, attributes: tuple[Any, ...], operands: tuple[Any, ...], out: Any) -> Any:
    """Handle the core's answer and call again."""
    if isinstance(request, OpRequest):
        return _explain(op, request, attributes, operands)
    if elsewhere := Elsewhere.of(op, operands):
        return elsewhere.run(known_policy(_TABLE, request), request, attributes, out)
    back = from_host(operands, out)
    into = out if out is None or _core.knows_tensors(type(out)) else host_array(out)
    for _ in range(_STEPS):
        answer = _run(_NUMBERS[op], request, attributes, operands, into)
        if type(answer) not in _UNSETTLED:
            return answer if back is None else back(answer)
        if isinstance(answer, _core.Status):
            kind = OutOfMemory if answer.code == "no_memory" else RunError
            raise kind(f"ops.{op}", "failed while running", got=answer.message, do=answer.advice)
        if answer is None:
            _prepare(op, request, attributes, operands)
        elif answer < 0:
            raise _refused(op, answer, into)
        else:
            operands = readable(op, operands, answer)
    raise InputError(
        f"ops.{op}",
        "its operands have too many dims, or its attributes too many numbers",
        do="Use fewer dims.",
    )


def _prepare(op: str, request: Any, attributes: tuple[Any, ...], operands: tuple[Any, ...]) -> Explained:
    """Prepare the signature once, whichever thread calls first."""
    with _PREPARING:
        explained = _known(_NUMBERS[op], request, attributes, operands)
        if explained is None:
            known_policy(_TABLE, request)
            explained = prepare(_TABLE, op, request, attributes, operands)
        return explained


def _explain(op: str, wanted: OpRequest, attributes: tuple[Any, ...], operands: tuple[Any, ...]) -> Explained:
    request = current_policy() if wanted.policy is None else asked_policy(wanted.policy)
    number, copied = _NUMBERS[op], 0
    for _ in range(3):
        answer = _TABLE.unread(operands)
        if answer == _GRADIENT:
            raise _refused(op, answer)
        if answer == 0:
            explained = _known(number, request, attributes, operands) or _prepare(
                op, request, attributes, operands
            )
            if not explained.copies:
                return explained.with_copies(copied)
            answer = explained.copies
        copied |= answer
        operands = readable(op, operands, answer)
    raise InputError(f"ops.{op}", "cannot read its operands", do="Give arrays or tensors.")


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
