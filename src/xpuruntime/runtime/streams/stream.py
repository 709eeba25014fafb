"""Stream and Event: queues of work on a device, and the order and timing of that work. The same on every device with streams.

fast, slow = Stream("cpu"), Stream("cpu")                 # or cuda:0
begin, end = Event("cpu"), Event("cpu")
fast.record(begin)
h = fast.run(encoder, {"x": x})                           # returns at once
y = fast.run(decoder, h)                                  # runs after the encoder: a stream keeps its order
fast.record(end)
slow.wait(end)                                            # later work of slow runs after the decoder
y["y"].to_numpy()                                         # waits until the decoder has written y
print(end.elapsed_ms(begin))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, RunError
from ...targets import DeviceId
from ..execution.executor import Executor
from ..memory.buffer import DeviceBuffer, backend_of
from ..weights.load import Weights

__all__ = ["Event", "Stream"]


class Stream:
    """A queue of work. Work on one stream runs in order; several streams run concurrently.

    device: a Device, its name, or a backend. On the host a stream is a thread. On a GPU it is the vendor's stream, and ``handle`` is its
            number for other libraries (``torch.cuda.ExternalStream``).
    After an error the stream skips all later work, and every wait raises the error. A stream may be used by several threads. Raises
    DeviceUnavailable for a device without streams.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self._queue = self.backend.new_stream()

    @property
    def device(self) -> DeviceId:
        """Return the stream's device."""
        return self.backend.device

    @property
    def handle(self) -> int:
        """Return the stream's number; on a GPU the vendor's handle."""
        return int(self._queue.handle)

    def run(
        self,
        executor: Executor,
        inputs: Mapping[str, Any],
        *,
        weights: Weights | Mapping[str, Any] | None = None,
        out: Mapping[str, DeviceBuffer] | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Queue a run of a program and return its outputs by name. They are written when the run executes; reading one waits for it.

        The arguments are those of ``Executor.run``. Do not change host arrays before the run has executed. Raises InputError for an
        executor on another device.
        """
        if not executor.backend.shares_memory(self.backend):
            raise InputError(
                f"stream on {self.device}",
                "runs executors of its own device only",
                got=f"an executor on {executor.device}",
                do="Create the stream on that device.",
            )
        outputs: dict[str, DeviceBuffer] = self._queue.run(executor, inputs, weights, out)
        return outputs

    def record(self, event: Event | None = None) -> Event:
        """Record an event (default: a new one) after all work queued so far."""
        event = Event(self.backend) if event is None else event
        event._record(self)
        return event

    def wait(self, event: Event) -> None:
        """Make later work wait for an event. An event that was never recorded is ignored."""
        if not event.backend.shares_memory(self.backend):
            event.synchronize()
            return
        self._queue.wait(event._mark)

    def synchronize(self) -> None:
        """Wait for all queued work. Raises RunError or what the work raised."""
        self._queue.synchronize()

    @property
    def done(self) -> bool:
        """Return True if all queued work is done."""
        return bool(self._queue.done)

    def __repr__(self) -> str:
        return f"Stream({str(self.device)!r}, {self.handle})"


class Event:
    """A position in a stream. Streams can wait for it, and two events measure the time between them."""

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self._mark = self.backend.new_event()

    def _record(self, stream: Stream) -> None:
        if not stream.backend.shares_memory(self.backend):
            raise InputError(
                f"event on {self.backend.device}",
                "can be recorded on streams of its own device only",
                got=f"a stream on {stream.device}",
                do="Create the event on that device.",
            )
        # Record a new vendor event, so that a caller that waits for the earlier position is not affected.
        self._mark = self.backend.new_event()
        self._mark.record(stream._queue)

    def synchronize(self) -> None:
        """Wait until the stream reaches the event. Raises the stream's error."""
        self._mark.synchronize()

    @property
    def done(self) -> bool:
        """Return True once the stream has reached the event, and for an event that was never recorded."""
        return bool(self._mark.done)

    def elapsed_ms(self, since: Event) -> float:
        """Return the milliseconds since an earlier event. Raises RunError if one of them was not reached yet."""
        if not (self.done and since.done):
            raise RunError("event", "was not reached yet", do="Call synchronize() first.")
        return float(self._mark.since(since._mark))
