"""Contexts of a compiled OpenVINO model: an infer request, and one bound to the caller's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...protocols import Array

if TYPE_CHECKING:
    from .run import OpenVinoExecutable

__all__ = ["OpenVinoContext", "OpenVinoIoBinding"]


class OpenVinoContext:
    """One infer request of the current compiled model."""

    def __init__(self, executable: OpenVinoExecutable) -> None:
        self._executable = executable
        self._stopped = False
        self._request, self._generation = self._fresh()

    def _fresh(self) -> tuple[Any, int]:
        return self._executable.request()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run the model once; parameters and errors are those of the executable's ``run``."""
        executable = self._executable
        executable.ready(feeds)
        while True:
            if self._generation != executable.generation:
                self._request, self._generation = self._fresh()
            if self._stopped:
                raise executable.failed(RuntimeError("the run was cancelled before it started"))
            try:
                outputs = self._once(feeds, watched)
            except Exception as error:  # RuntimeError, or an error of converting arguments
                if self._stopped or self._generation == executable.generation:
                    raise executable.failed(error) from error
            else:
                if self._stopped or self._generation == executable.generation:
                    return outputs

    def _once(self, feeds: dict[str, Array], watched: bool) -> Sequence[Array]:
        executable = self._executable
        if watched:
            return executable.infer_watched(self._request, feeds)
        return executable.infer(self._request, feeds)

    def stop(self) -> None:
        """Cancel the request. OpenVINO checks for it before each layer."""
        self._stopped = True
        self._executable.ending()
        self._request.cancel()


class OpenVinoIoBinding(OpenVinoContext):
    """An infer request over fixed memory. A run converts no inputs and copies no outputs."""

    def __init__(
        self, executable: OpenVinoExecutable, inputs: dict[str, Array], outputs: dict[str, Array]
    ) -> None:
        self._memory = inputs, outputs
        super().__init__(executable)

    def _fresh(self) -> tuple[Any, int]:
        try:
            return self._executable.bound_request(*self._memory)
        except RuntimeError as error:  # raised by the binding for unsupported memory
            raise self._executable.failed(error) from error

    def _once(self, feeds: dict[str, Array], watched: bool) -> Sequence[Array]:
        self._request.start_async()
        self._request.wait()
        return ()
