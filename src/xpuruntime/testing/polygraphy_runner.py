"""A runner for Polygraphy (`polygraphy run model.onnx --onnxrt --xpu`), so that its comparator can check a session.

Polygraphy finds ``argument_groups`` through the entry point ``polygraphy.run.plugins``; the script that it generates creates an ``XpuRunner``.
Polygraphy is imported on first use, so this module can be imported without it.
"""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from typing import Any

import numpy as np

from ..inference.session import InferenceSession
from ..types import Dim

__all__ = ["argument_groups", "runner_class"]


def argument_groups() -> list[Any]:
    """Return the argument groups of ``--xpu``, ``--xpu-engine`` and ``--xpu-device`` for Polygraphy's hook."""
    from polygraphy.tools.args import ModelArgs
    from polygraphy.tools.args import util as args_util
    from polygraphy.tools.args.base import BaseRunnerArgs
    from polygraphy.tools.script import make_invocable

    class XpuRunnerArgs(BaseRunnerArgs):  # type: ignore[misc]
        """xpuruntime: inference by an InferenceSession. Depends on ModelArgs."""

        def get_name_opt_impl(self) -> tuple[str, str]:
            return "xpuruntime", "xpu"

        def add_parser_args_impl(self) -> None:
            for name, description in (
                ("engine", "onnxruntime, openvino, ... (default: chosen)"),
                ("device", "cpu, cuda:0, ..."),
            ):
                text = f"The {name} for xpuruntime: {description}"
                self.group.add_argument(f"--xpu-{name}", help=text, default=None, dest=f"xpu_{name}")

        def parse_impl(self, args: Any) -> None:
            self.engine = args_util.get(args, "xpu_engine")
            self.device = args_util.get(args, "xpu_device")

        def add_to_script_impl(self, script: Any) -> None:
            script.add_import(imports=["XpuRunner"], frm=__name__)
            model = self.arg_groups[ModelArgs].path
            script.add_runner(make_invocable("XpuRunner", model, engine=self.engine, device=self.device))

    return [XpuRunnerArgs()]


@functools.cache
def runner_class() -> type:
    """Return ``XpuRunner``, a Polygraphy runner over an InferenceSession."""
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata
    from polygraphy.datatype import DataType

    class XpuRunner(BaseRunner):  # type: ignore[misc]
        """A runner of a model on an InferenceSession. model, engine, device: as for InferenceSession."""

        def __init__(
            self, model: Any, engine: str | None = None, device: str | None = None, name: str | None = None
        ) -> None:
            super().__init__(name=name, prefix="xpu-runner")
            self._session_arguments = {"model": model, "engine": engine, "device": device}

        def activate_impl(self) -> None:
            self.session = InferenceSession(**self._session_arguments)

        def get_input_metadata_impl(self) -> Any:
            metadata = TensorMetadata()
            for spec in self.session.input_info:
                shape = [str(d) if isinstance(d, Dim) else d for d in spec.shape]
                metadata.add(spec.name, dtype=DataType.from_dtype(spec.dtype.numpy), shape=shape)
            return metadata

        def infer_impl(self, feed_dict: dict[str, Any]) -> Any:
            feeds = {name: np.asarray(value) for name, value in feed_dict.items()}
            start = time.perf_counter()
            outputs = self.session.run(feeds)
            self.inference_time = time.perf_counter() - start
            return OrderedDict(outputs)

        def deactivate_impl(self) -> None:
            self.session.close()
            del self.session

    return XpuRunner


def __getattr__(name: str) -> Any:
    if name == "XpuRunner":
        return runner_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
