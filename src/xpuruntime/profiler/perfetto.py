"""Perfetto's own trace format: a recording as protocol buffers, with one track per thread.

The messages and field numbers are those of perfetto/trace/trace_packet.proto, track_event.proto and track_descriptor.proto.
Only varints and length-delimited fields are needed, so no package is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..printable import line

if TYPE_CHECKING:
    from .trace import TraceSpan

__all__ = ["perfetto_bytes"]

# Field numbers.
_PACKET = 1
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _SEQUENCE_FLAGS, _TRACK_DESCRIPTOR = 8, 10, 11, 13, 60
_UUID, _TRACK_NAME, _PROCESS, _THREAD, _PARENT = 1, 2, 3, 4, 5
_PID, _TID, _THREAD_NAME, _PROCESS_NAME = 1, 2, 5, 6
_TYPE, _TRACK_UUID, _CATEGORIES, _NAME, _ANNOTATIONS = 9, 11, 22, 23, 4
_ANNOTATION_NAME, _ANNOTATION_INT = 10, 4
_BEGIN, _END, _INSTANT = 1, 2, 3
_CLEARED = 1  # sequence_flags: no earlier packet of the sequence is needed

Change = tuple[int, int, "TraceSpan"]
"""A time, a type of event, and its span."""


def perfetto_bytes(spans: Sequence[TraceSpan], pid: int, process: str) -> bytes:
    """Return the trace. Spans without a duration are instants."""
    process_uuid = pid + 1
    threads = list(dict.fromkeys(s.thread for s in spans))
    tracks = {t: process_uuid + 1 + i for i, t in enumerate(threads)}
    packets = [
        _packet(
            0,
            (
                _TRACK_DESCRIPTOR,
                _message((_UUID, process_uuid), (_PROCESS, _message((_PID, pid), (_PROCESS_NAME, process)))),
            ),
            (_SEQUENCE_FLAGS, _CLEARED),
        )
    ]
    for thread, uuid in tracks.items():
        facts = _message((_PID, pid), (_TID, thread), (_THREAD_NAME, f"thread {thread}"))
        track = _message((_UUID, uuid), (_PARENT, process_uuid), (_THREAD, facts))
        packets.append(_packet(0, (_TRACK_DESCRIPTOR, track)))
    changes = [c for t in threads for c in _changes([s for s in spans if s.thread == t])]
    # Stable: the changes of one thread at one time keep their order.
    for time, kind, span in sorted(changes, key=lambda c: c[0]):
        packets.append(_packet(time, (_TRACK_EVENT, _event(kind, span, tracks[span.thread]))))
    return b"".join(packets)


def _event(kind: int, span: TraceSpan, track: int) -> bytes:
    fields: list[tuple[int, int | bytes | str]] = [(_TYPE, kind), (_TRACK_UUID, track)]
    if kind != _END:
        fields += [(_NAME, line(span.name)), (_CATEGORIES, "xpuruntime")]
        numbers = {"step": span.step if span.step >= 0 else None, "waited_ns": span.waited_ns or None}
        fields += [
            (_ANNOTATIONS, _message((_ANNOTATION_NAME, name), (_ANNOTATION_INT, number)))
            for name, number in numbers.items()
            if number is not None
        ]
    return _message(*fields)


def _changes(spans: Iterable[TraceSpan]) -> Iterator[Change]:
    """Yield begins and ends of one thread's spans in order. An inner span ends no later than the one around it."""
    open_spans: list[tuple[int, TraceSpan]] = []
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.duration_ns)):
        while open_spans and open_spans[-1][0] <= span.start_ns:
            end, ended = open_spans.pop()
            yield end, _END, ended
        if not span.duration_ns:
            yield span.start_ns, _INSTANT, span
            continue
        yield span.start_ns, _BEGIN, span
        end = span.start_ns + span.duration_ns
        open_spans.append((min(end, open_spans[-1][0]) if open_spans else end, span))
    while open_spans:
        end, ended = open_spans.pop()
        yield end, _END, ended


# ── protocol buffers ──


def _packet(time: int, *fields: tuple[int, int | bytes | str]) -> bytes:
    return _message((_PACKET, _message((_TIMESTAMP, time), (_SEQUENCE_ID, 1), *fields)))


def _message(*fields: tuple[int, int | bytes | str]) -> bytes:
    """Return a message: numbers as varints, bytes and text with their length."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(_varint(number << 3) + _varint(value))
        else:
            content = value.encode("utf-8", "replace") if isinstance(value, str) else value
            parts.append(_varint(number << 3 | 2) + _varint(len(content)) + content)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    if value < 0:
        raise ValueError(f"only numbers from 0 are written, not {value}")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
