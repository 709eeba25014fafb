"""A session on context binaries. Nodes that QNN does not support run on ONNX Runtime's CPU provider in the same session."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ...protocols import Array, Artifact, EngineRequest, Evidence, ModelSource
from ..onnxruntime.options import Settings
from ..onnxruntime.providers import CPU, short
from ..onnxruntime.run import OrtExecutable, named_bytes
from . import options
from .evidence import collect, cycles
from .library import PROVIDER, version
from .offline import create_session
from .options import QnnSettings

__all__ = ["QnnExecutable", "load"]


class QnnExecutable(OrtExecutable):
    """One session of the prepared model. Runs, contexts and bindings are those of ONNX Runtime's executable."""

    def __init__(
        self, model: ModelSource, request: EngineRequest, settings: QnnSettings, artifact: Artifact
    ) -> None:
        self._qnn, self._artifact = settings, artifact
        super().__init__(model, request, Settings(((PROVIDER, dict(settings.options)), (CPU, {}))))

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return each op of QNN's graphs and each node that stayed on the CPU. With ``feeds``, add the cycles that a second session with profiling reports."""
        self.alive()
        counts = None if feeds is None else self._cycles(feeds)
        return collect(self._model, self._session, self._qnn, self._artifact.meta, counts)

    def _open(self, session_options: Any) -> Any:
        return self._create(session_options, {})

    def _create(self, session_options: Any, more: dict[str, str]) -> Any:
        """Create a session of the context binaries. Raises BuildError with the vendor's text."""
        source: str | bytes = bytes(self._artifact.blob)
        if not source:
            source, _ = named_bytes(self._model)
        try:
            return create_session(source, {**self._qnn.options, **more}, {}, session_options)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise BuildError(
                self._who,
                f"onnxruntime-qnn {version()} cannot load the context binary",
                got=short(str(error)),
                do="Prepare it again with this version, and for this NPU's htp_arch.",
            ) from error

    def _cycles(self, feeds: dict[str, Array]) -> dict[str, int]:
        """Return the cycles of each op, from the vendor's profile of a second session."""
        with tempfile.TemporaryDirectory(prefix="xpu-qnn-") as folder:
            profile = Path(folder, "profile.csv")
            twin = self._create(None, {"profiling_level": "detailed", "profiling_file_path": str(profile)})
            self._run_on(twin, feeds)
            del twin
            return cycles(profile.read_text()) if profile.is_file() else {}


def load(artifact: Artifact, model: ModelSource, request: EngineRequest) -> QnnExecutable:
    """Open the context binaries. Raises BuildError with the vendor's text."""
    settings = options.parse(request)
    if not isinstance(settings, QnnSettings):
        raise BuildError(f"qnn, model {model.name}", "cannot load", got=settings.reason, do=settings.do)
    return QnnExecutable(model, request, settings, artifact)
