"""Stream and Event: work queued on a device, its order and its times. The same on every device with streams.

fast, slow = Stream("cpu"), Stream("cpu")                 # cuda:0 likewise
begin, end = Event("cpu"), Event("cpu")
fast.record(begin)
h = fast.run(encoder, {"x": x})                           # comes back at once
y = fast.run(decoder, h)                                  # after it: one stream is one order
fast.record(end)
slow.wait(end)                                            # what slow is given from here on comes after that
y["y"].to_numpy()                                         # reading waits for whoever writes
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

    device: a Device, its name, or a backend. On the host a stream is a thread; on a GPU the vendor's stream, of which ``handle`` is the
    number that other libraries know it by (``torch.cuda.ExternalStream``).
    Work that fails ends its stream: what is queued behind it is not done, and whoever waits gets the error. Raises DeviceUnavailable
    for a device without streams. A stream may be used by several threads.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self._queue = self.backend.new_stream()

    @property
    def device(self) -> DeviceId:
        """Return the device that the stream queues work on."""
        return self.backend.device

    @property
    def handle(self) -> int:
        """Return the stream's number; on a GPU it is the device's own."""
        return int(self._queue.handle)

    def run(
        self,
        executor: Executor,
        inputs: Mapping[str, Any],
        *,
        weights: Weights | Mapping[str, Any] | None = None,
        out: Mapping[str, DeviceBuffer] | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Queue a run of a program and return its outputs by name. They are written when the run executes; reading one waits.

        Arguments as ``Executor.run``; arrays of the host must stay as they are until then. Raises InputError for an executor on
        another device.
        """
        if not executor.backend.shares_memory(self.backend):
            raise InputError(
                f"stream on {self.device}",
                "queues work of its own device",
                got=f"an executor on {executor.device}",
                do="Make the stream on that device.",
            )
        outputs: dict[str, DeviceBuffer] = self._queue.run(executor, inputs, weights, out)
        return outputs

    def record(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one, at this place of the stream."""
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
    """A place in a stream. Streams can wait for it; two events measure the time between them."""

    def __init__(self, device: Any = "cpu") -> None:
        self.backend = backend_of(device)
        self._mark = self.backend.new_event()

    def _record(self, stream: Stream) -> None:
        if not stream.backend.shares_memory(self.backend):
            raise InputError(
                f"event on {self.backend.device}",
                "marks streams of its own device",
                got=f"a stream on {stream.device}",
                do="Make the event on that device.",
            )
        # A caller that waits for the earlier place keeps waiting on the old event.
        self._mark = self.backend.new_event()
        self._mark.record(stream._queue)

    def synchronize(self) -> None:
        """Wait until the stream reaches the event. Raises what its work raised."""
        self._mark.synchronize()

    @property
    def done(self) -> bool:
        """Return True once the stream has reached the event, and for an event that was never recorded."""
        return bool(self._mark.done)

    def elapsed_ms(self, since: Event) -> float:
        """Return the milliseconds since an earlier event. Raises RunError if either was not reached yet."""
        if not (self.done and since.done):
            raise RunError("event", "was not reached yet", do="Call synchronize() first.")
        return float(self._mark.since(since._mark))
