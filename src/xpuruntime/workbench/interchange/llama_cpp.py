"""``--override-tensor`` (``-ot``) of llama.cpp: ``pattern=buffer type, ...`` by tensor name; the first pattern that occurs in a name decides.

The syntax and the buffer types are those of ``common/arg.cpp``, and the matching is that of ``src/llama-model-loader.cpp``.
"""

from __future__ import annotations

import re

from ...policies.execution_policy import ExecutionPolicy
from ...policies.policy import Policy
from .leftovers import leftovers
from .report import Conversion, ConvertedItem, ItemOutcome
from .source_text import MAX_ITEMS, SourceText

__all__ = ["read_overrides", "write_overrides"]

NAME = "llama-ot"
_FLAG = re.compile(r"(?:-ot|--override-tensor)(?:[ \t]+|=)")
_EVERY_TENSOR = ("", ".", ".*", "^", "^.*$", "^.*")
_BUFFERS = {"CPU": "cpu", "Metal": "metal"}
_CUDA = re.compile(r"CUDA([0-9]{1,3})")
_WHOLE_NODES = "a policy has one device for the model, and a node's weights are stored where the node runs"


def read_overrides(source: SourceText) -> Conversion:
    """Convert the overrides to ``execution.target``. Raises PolicyError with line and column."""
    items: list[ConvertedItem] = []
    target: str | None = None
    for offset, text in _items(source):
        pattern, equals, buffer = text.partition("=")
        if not equals:
            raise source.error(offset, "has no '='", got=text, do="Write PATTERN=BUFFER_TYPE.")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise source.error(offset, f"is no regular expression: {error}", got=pattern) from None
        line, column = source.at(offset)
        device = _device(buffer)
        becomes = reason = remedy = ""
        outcome = ItemOutcome.NOT_CARRIED
        if target is not None:
            reason = "an earlier pattern matches every tensor, so llama.cpp does not reach this one either"
        elif device is None:
            reason = f"{buffer!r} is no buffer type with a device of xpuruntime"
            remedy = f"Known: {', '.join(_BUFFERS)}, CUDA0, CUDA1, ..."
        elif pattern in _EVERY_TENSOR and not items:
            target, outcome, becomes = device, ItemOutcome.CARRIED, f"execution.target: {device}"
        else:
            reason = _WHOLE_NODES
            remedy = f"Set execution.target: {device} for the whole model, or weights: int4 to fit it on one device."
        items.append(ConvertedItem(text, outcome, becomes, reason, remedy, line, column))
    return Conversion(NAME, source.name, tuple(items), Policy(execution=ExecutionPolicy(target=target)))


def write_overrides(policy: Policy, name: str) -> Conversion:
    """Convert ``execution.target`` to one override of every tensor."""
    target = policy.execution.target or ""
    kind, _, index = target.partition(":")
    buffers = {"cpu": "CPU", "metal": "Metal", "cuda": f"CUDA{index or 0}"}
    items, text = [], ""
    carried: set[str] = set()
    if kind in buffers:
        text = f".*={buffers[kind]}\n"
        items.append(ConvertedItem(f"execution.target: {target}", ItemOutcome.CARRIED, text.strip()))
        carried.add("target")
    why = "an override names the device of a tensor's buffer, nothing else"
    items += leftovers(policy, why, execution=carried)
    return Conversion(NAME, name, tuple(items), policy, text)


def _items(source: SourceText) -> list[tuple[int, str]]:
    """Return offset and text of every override. llama.cpp splits at commas, also those inside a pattern."""
    found: list[tuple[int, str]] = []
    start = 0
    for row in source.text.split("\n"):
        text = row.rstrip("\r")
        begin = len(text) - len(text.lstrip(" \t"))
        flag = _FLAG.match(text, begin)
        begin = flag.end() if flag else begin
        value = text[begin:].rstrip(" \t")
        if value[:1] in ("'", '"') and len(value) > 1 and value[-1] == value[0]:
            value, begin = value[1:-1], begin + 1
        for part in value.split(",") if value else ():
            found.append((start + begin, part))
            begin += len(part) + 1
            if len(found) > MAX_ITEMS:
                raise source.error(start + begin - 1, f"holds more than {MAX_ITEMS} overrides")
        start += len(row) + 1
    return found


def _device(buffer: str) -> str | None:
    match = _CUDA.fullmatch(buffer)
    return f"cuda:{int(match[1])}" if match else _BUFFERS.get(buffer)
