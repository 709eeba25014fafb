"""Fitting the descriptive parts of a program (names, reasons, counts) to the limits of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..decisions import Candidate, Decision
from .kinds import MAX_TEXT
from .program import CompiledProgram, EntryPoint, ExecutionPlan, KernelCall, WeightRef

__all__ = ["MAX_COUNT", "fitted"]

MAX_COUNT = 2**62
_CUT = " ... (cut)"


def fitted(program: CompiledProgram) -> CompiledProgram:
    """Return the program with descriptive text and counts cut to the limits of its file. Nothing that affects a run changes.

    A model's name may come from a file name that is not UTF-8, a node's name may be longer than a field, and an estimate of the
    work may be larger than a number of the file.
    """
    return replace(
        program,
        name=_text(program.name),
        entries=tuple(map(_entry, program.entries)),
        weights=tuple(map(_weight, program.weights)),
        decisions=tuple(map(_decision, program.decisions)),
        facts=_plain(program.facts),
    )


def _text(text: str) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - len(_CUT)] + _CUT


def _weight(weight: WeightRef) -> WeightRef:
    """Return the weight without its file if the file's name is not valid text; its array is then passed by name."""
    return (
        weight if _text(weight.file) == weight.file else replace(weight, file="", format="", key="", offset=0)
    )


def _entry(entry: EntryPoint) -> EntryPoint:
    return replace(entry, plans=tuple(map(_plan, entry.plans)))


def _plan(plan: ExecutionPlan) -> ExecutionPlan:
    return replace(plan, calls=tuple(map(_call, plan.calls)))


def _call(call: KernelCall) -> KernelCall:
    return replace(
        call,
        nodes=tuple(map(_text, call.nodes)),
        ops=tuple(map(_text, call.ops)),
        flops=min(call.flops, MAX_COUNT),
        bytes=min(call.bytes, MAX_COUNT),
    )


def _decision(decision: Decision) -> Decision:
    return Decision(
        _text(decision.question),
        _text(decision.subject),
        None if decision.chosen is None else _candidate(decision.chosen),
        tuple(map(_candidate, decision.rejected)),
    )


def _candidate(c: Candidate) -> Candidate:
    return Candidate(_text(c.name), c.code, _text(c.reason), _text(c.do), _plain(c.facts))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {_text(str(k)): _plain(v) for k, v in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
