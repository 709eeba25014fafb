"""Layering rules of ONNX Runtime: their text form, and the rule that decides a node.

The grammar and the order of precedence are those of ``onnxruntime/core/framework/layering_annotations.cc``. Two session options use it:
``session.layer_assignment_settings`` matches the node metadata ``layer_ann``, by prefix or, after ``=``, as a whole;
``session.name_based_layer_assignment`` matches parts of node names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .source_text import MAX_ITEMS, SourceText

__all__ = ["BY_ANNOTATION", "BY_NAME", "LayerRule", "deciding_rule", "parse_rules"]

BY_ANNOTATION = "session.layer_assignment_settings"
BY_NAME = "session.name_based_layer_assignment"
_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True, slots=True)
class LayerRule:
    """One pattern of a setting, with the offset of its text. ``ignored``: text that ONNX Runtime does not read."""

    device: str
    pattern: str
    exact: bool
    offset: int
    ignored: bool = False

    def __str__(self) -> str:
        return self.pattern if self.ignored else f"{self.device}({'=' if self.exact else ''}{self.pattern})"


def parse_rules(source: SourceText) -> tuple[str, tuple[LayerRule, ...]]:
    """Return the session option and its rules. A text without ``OPTION=`` is one of annotations. Raises PolicyError."""
    text = source.text
    start = len(text) - len(text.lstrip(_SPACE))
    option = BY_ANNOTATION
    for name in (BY_ANNOTATION, BY_NAME):
        if text[start:].startswith(name):
            option = name
            start += len(name)
            start += len(text[start:]) - len(text[start:].lstrip(_SPACE))
            if text[start : start + 1] not in ("=", "|", ":"):
                raise source.error(
                    start, "expected '=' after the name of the option", got=text[start : start + 20]
                )
            start += 1
    other = BY_NAME if option == BY_ANNOTATION else BY_ANNOTATION
    if (at := text.find(other, start)) >= 0:
        raise source.error(at, f"excludes {option}", got=other, do="Keep one of the two options.")
    rules: list[LayerRule] = []
    for entry in text[start:].split(";"):
        rules += _entry(source, start, entry)
        start += len(entry) + 1
        if len(rules) > MAX_ITEMS:
            raise source.error(start - 1, f"holds more than {MAX_ITEMS} patterns")
    seen: set[tuple[bool, str]] = set()
    for rule in rules:
        if rule.ignored:
            continue
        if rule.exact and option == BY_NAME:
            raise source.error(rule.offset, "has '=', which patterns of names do not have", got=str(rule))
        if (rule.exact, rule.pattern) in seen:
            raise source.error(rule.offset, "duplicate pattern", got=rule.pattern, do="Keep one of the two.")
        seen.add((rule.exact, rule.pattern))
    return option, tuple(rules)


def _entry(source: SourceText, start: int, entry: str) -> list[LayerRule]:
    """Return the rules of ``device(pattern, ...)``."""
    if not entry.strip(_SPACE):
        return []
    begin = start + len(entry) - len(entry.lstrip(_SPACE))
    opening, closing = entry.find("("), entry.find(")")
    if opening < 0 or closing < opening:
        do = "Write DEVICE(PATTERN, ...); DEVICE(...)."
        raise source.error(begin, "has no '(' and ')' in this order", got=entry.strip(_SPACE), do=do)
    device = entry[:opening].strip(_SPACE)
    if not device:
        raise source.error(begin, "names no device before '('", got=entry.strip(_SPACE))
    rules: list[LayerRule] = []
    at = opening + 1
    for part in entry[at:closing].split(","):
        text = part.strip(_SPACE)
        pattern = text.removeprefix("=").strip(_SPACE)
        if pattern:
            offset = start + at + len(part) - len(part.lstrip(_SPACE))
            rules.append(LayerRule(device, pattern, text.startswith("="), offset))
        at += len(part) + 1
    rest = entry[closing + 1 :].strip(_SPACE)
    if rest:
        rules.append(LayerRule(device, rest, False, start + entry.index(rest, closing + 1), ignored=True))
    return rules


def deciding_rule(option: str, rules: Sequence[LayerRule], text: str) -> LayerRule | None:
    """Return the rule that decides a node with this annotation or name, as ONNX Runtime does; None if none does."""
    read = [r for r in rules if not r.ignored]
    if option == BY_NAME:
        matching = [r for r in read if r.pattern in text]
        return max(matching, key=lambda r: len(r.pattern.encode()), default=None)
    if not text:
        return None
    prefixes = (r for r in read if not r.exact and text.startswith(r.pattern))
    whole = (r for r in read if r.exact and r.pattern == text)
    return next(prefixes, None) or next(whole, None)
