"""``--ir-op-priority`` of vLLM: providers of each vLLM IR op, in the order in which they are tried.

Both spellings of the command line are read, ``--ir-op-priority.OP=A,B`` and JSON. vLLM appends the defaults of its platform to the list,
so a list is a preference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...plugins.registered import kernel_words
from ...policies.kernel_policy import KernelPolicy
from ...policies.policy import Policy
from .leftovers import leftovers
from .report import Conversion, ConvertedItem, ItemOutcome
from .source_text import MAX_ITEMS, SourceText

__all__ = ["read_priorities", "write_priorities"]

NAME = "vllm-ir"

_OPS: Mapping[str, str] = {
    "rms_norm": "norm",
    "fused_add_rms_norm": "norm",
    "gelu_and_mul_sparse": "activation",
}
"""Op of the vLLM IR -> op family."""

_PROVIDERS: Mapping[str, str] = {"native": "generated"}
"""Provider -> kernel. ``native`` is vLLM's own PyTorch code, which a compiler turns into a kernel."""

_WORD = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_LINE = re.compile(rf"[ \t]*--ir-op-priority\.({_WORD})(?:=|[ \t]+)([^\r]*)\r?")
_JSON_FLAG = re.compile(r"\s*--ir-op-priority(?:=|[ \t]+)")
_PROVIDER = re.compile(_WORD)


def read_priorities(source: SourceText) -> Conversion:
    """Convert priorities to preferences by op family. Raises PolicyError with line and column."""
    items: list[ConvertedItem] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for offset, op, providers in _priorities(source):
        line, column = source.at(offset)
        text = f"{op}={','.join(providers)}"

        def add(
            outcome: ItemOutcome,
            becomes: str,
            reason: str,
            remedy: str,
            at: tuple[str, int, int] = (text, line, column),
        ) -> None:
            items.append(ConvertedItem(at[0], outcome, becomes, reason, remedy, at[1], at[2]))

        family = _OPS.get(op)
        if family is None:
            add(
                ItemOutcome.NOT_CARRIED,
                "",
                f"no op family is known for the vLLM IR op {op!r}",
                f"Known: {', '.join(_OPS)}.",
            )
            continue
        words = tuple(dict.fromkeys(w for p in providers if (w := _word(p))))
        lost = [p for p in providers if not _word(p)]
        becomes = f"kernel.{family}: {list(words)}"
        remedy = ""
        if lost:
            remedy = (
                f"Register a kernel named {family}/{lost[0]} (xpuruntime.register_kernel) and convert again."
            )
        if not words:
            reason = "no kernel of that name is built in or registered" if providers else "names no provider"
            add(ItemOutcome.NOT_CARRIED, "", reason, remedy or "Name a provider.")
        elif chosen.setdefault(family, words) != words:
            reason = f"the family {family} has the order of an earlier op, and a policy does not tell the two ops apart"
            add(ItemOutcome.NOT_CARRIED, "", reason, "Write a rule with node: for the nodes of one op.")
        else:
            reasons = [f"the family {family} has more ops than {op}"]
            if "native" in providers:
                reasons.append("native is vLLM's PyTorch code, generated is code of this compiler")
            if lost:
                reasons.append(f"no kernel is named {', '.join(lost)}")
            add(ItemOutcome.CHANGED, becomes, "; ".join(reasons), remedy)
    kernels: dict[str, Any] = {k: list(v) for k, v in chosen.items()}
    return Conversion(NAME, source.name, tuple(items), Policy(kernel=KernelPolicy(**kernels)))


def write_priorities(policy: Policy, name: str) -> Conversion:
    """Convert preferences of families to priorities of the ops that the families have in vLLM."""
    back = {v: k for k, v in _PROVIDERS.items()}
    items: list[ConvertedItem] = []
    lines: list[str] = []
    done: set[str] = set()
    for family, words in policy.kernel.preferences():
        ops = [op for op, f in _OPS.items() if f == family]
        if not ops:
            continue
        done.add(family)
        known = [back.get(w, w) for w in words if w in back or w in kernel_words()]
        text = f"kernel.{family}: {list(words)}"
        if not known:
            reason = "vLLM has no provider of that name"
            items.append(
                ConvertedItem(text, ItemOutcome.NOT_CARRIED, reason=reason, remedy="Prefer generated.")
            )
            continue
        lines += [f"--ir-op-priority.{op}={','.join(known)}" for op in ops]
        lost = [w for w in words if back.get(w, w) not in known]
        reason = f"vLLM has only the ops {', '.join(ops)} of the family" + (
            f"; it has no provider {', '.join(lost)}" if lost else ""
        )
        items.append(ConvertedItem(text, ItemOutcome.CHANGED, " ".join(lines[-len(ops) :]), reason))
    items += leftovers(policy, "a priority orders the providers of an op, nothing else", kernel=done)
    return Conversion(NAME, name, tuple(items), policy, "".join(f"{text}\n" for text in lines))


def _word(provider: str) -> str:
    return _PROVIDERS.get(provider) or (provider if provider in kernel_words() else "")


def _priorities(source: SourceText) -> Iterator[tuple[int, str, list[str]]]:
    """Yield offset, op and providers."""
    seen: set[str] = set()
    found = _from_json(source) if _is_json(source.text) else _from_lines(source)
    for offset, op, providers in found:
        if op in seen:
            raise source.error(offset, "duplicate op", got=op, do="Keep one of the two.")
        seen.add(op)
        if len(seen) > MAX_ITEMS:
            raise source.error(offset, f"holds more than {MAX_ITEMS} ops")
        for provider in providers:
            if not _PROVIDER.fullmatch(provider):
                raise source.error(offset, "must be a provider's name", got=provider)
        yield offset, op, providers


def _is_json(text: str) -> bool:
    flag = _JSON_FLAG.match(text)
    return text[flag.end() if flag else 0 :].lstrip(" \t\r\n'\"").startswith("{")


def _from_lines(source: SourceText) -> Iterator[tuple[int, str, list[str]]]:
    start = 0
    for row in source.text.split("\n"):
        match = _LINE.fullmatch(row)
        if match:
            value = match[2].replace(" ", "").strip("'\"\\")
            yield start + match.start(1), match[1], value.split(",") if value else []
        elif row.strip():
            do = "Write --ir-op-priority.OP=PROVIDER,... or JSON."
            raise source.error(start, "is no priority of an op", got=row.strip(), do=do)
        start += len(row) + 1


def _from_json(source: SourceText) -> Iterator[tuple[int, str, list[str]]]:
    begin, end = source.text.index("{"), source.text.rfind("}") + 1
    rest = source.text[end:].strip(" \t\r\n'\"")
    if rest:
        raise source.error(max(end, begin), "is not JSON: expected nothing after the object", got=rest)
    try:
        data = json.loads(source.text[begin:end], object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise source.error(begin + error.pos, f"is not JSON: {error.msg}") from None
    except (RecursionError, ValueError):
        raise source.error(begin, "is not JSON: not readable") from None
    for op, value in data:
        at = source.text.find(json.dumps(op), begin)
        offset = begin if at < 0 else at
        if isinstance(value, str):
            value = value.replace(" ", "").split(",")
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise source.error(offset, "must be a list of providers", got=value)
        if not re.fullmatch(_WORD, op):
            raise source.error(offset, "must be the name of an op", got=op)
        yield offset, op, value
