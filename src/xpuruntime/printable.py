r"""Escaping of untrusted text, such as names from files: it must not control a terminal or start a new line.

Control characters (C0, C1, all line separators), bidirectional marks, and lone surrogates (bytes of a file name that are not
UTF-8) are written as Python escapes: ``\x1b``, ``\u202e``, ``\udcff``.
"""

from __future__ import annotations

import logging
import re

__all__ = ["as_json", "line", "logger", "shortened", "text"]

_SEPARATORS_AND_BIDI = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
_LINE = re.compile(f"[\x00-\x1f\x7f-\x9f{_SEPARATORS_AND_BIDI}\ud800-\udfff]")
_TEXT = re.compile(
    f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_SEPARATORS_AND_BIDI}\ud800-\udfff]"
)  # keeps tabs and line feeds
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def line(value: object) -> str:
    """Return a value's text as one line without control characters."""
    return _LINE.sub(_escape, str(value))


def text(value: object, indent: str | None = None) -> str:
    """Return a value's text without control characters except tabs and line feeds. indent: prefix of all lines but the first."""
    clean = _TEXT.sub(_escape, str(value))
    return clean if indent is None else clean.replace("\n", "\n" + indent)


def shortened(value: object, longest: int = 200) -> str:
    """Return the repr of a value from a file, with the middle of a long one left out."""
    full = repr(value)
    half = longest // 2
    return full if len(full) <= longest else f"{full[:half]} ... {full[-half:]} ({len(full)} characters)"


def as_json(document: str) -> str:
    """Return an equivalent JSON document without characters that control a terminal or that UTF-8 cannot encode."""
    return _TEXT.sub(lambda m: f"\\u{ord(m[0]):04x}", document)


def logger(name: str) -> logging.Logger:
    """Return the logger of that name, which escapes control characters and indents further lines of its messages."""
    log = logging.getLogger(name)
    log.addFilter(_clean)
    return log


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = text(record.getMessage(), "    "), ()
    return True


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT.get(match[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
