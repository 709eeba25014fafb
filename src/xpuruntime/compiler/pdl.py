"""Programmatic dependent launch: which kernels may start before their predecessors finish although they read data in their prologue.

The option ``prologue_reads`` of a stage names arguments that it reads before it waits for the previous launch. A launch without the option
``pdl`` starts when all earlier launches are complete. Reads in the prologue are safe if such a launch is between the writer of the data (or
the start of the run, for inputs and states) and the reader. If there is none, the reader itself is launched without ``pdl``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .calls import StageCall
from .memory import Memory

__all__ = ["order_early_reads"]


def order_early_reads(calls: Sequence[StageCall], memory: Memory) -> list[StageCall]:
    """Set the option ``pdl`` of each call with prologue reads: True if that data is complete before the call can start."""
    ordered: list[StageCall] = []
    written: dict[str, int] = {}  # memory -> index of the last call that wrote to it
    barrier = -1  # the last call that starts after all earlier ones are complete
    for at, call in enumerate(calls):
        options = dict(call.stage.options)
        if (reads := options.pop("prologue_reads", None)) is not None:
            names = dict(zip(call.stage.args, (*call.inputs, *call.outputs), strict=True))
            last_write = max((written.get(memory.root(names[a]), -1) for a in reads), default=-1)
            options["pdl"] = barrier > last_write
            call = replace(call, stage=replace(call.stage, options=options))
        if not options.get("pdl"):
            barrier = at
        for name in call.outputs:
            written[memory.root(name)] = at
        ordered.append(call)
    return ordered
