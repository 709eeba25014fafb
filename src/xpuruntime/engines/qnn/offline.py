"""Offline preparation: a model to context binaries, or to DLC files. These functions run in a child process.

The vendor's libraries crash on some models, hang on others, and stay broken in a process after an error. A context binary is checked
by loading it again in the same child.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ...protocols import ModelSource
from ..onnxruntime.providers import ort, short
from ..onnxruntime.run import named_bytes
from .graph_dump import ops_of
from .library import PROVIDER, ep_devices, library_file

__all__ = ["ContextBinary", "create_session", "dlc_files", "prepare"]

_TO_CONTEXT = {"ep.context_enable": "1", "ep.context_embed_mode": "1"}


@dataclass(frozen=True, slots=True)
class ContextBinary:
    """A prepared model.

    blob: the ONNX model with EPContext nodes, which holds the context binaries.
    meta: ``placement``: the provider of each of the model's nodes; ``ops``: the ops of QNN's graphs (``graph_dump.ops_of``); ``sdk``: version of QNN's SDK.
    """

    blob: bytes = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)


def create_session(
    source: str | bytes, provider: Mapping[str, str], config: Mapping[str, str], options: Any = None
) -> Any:
    """Return a session on the QNN provider, with the CPU provider for the nodes that QNN does not support. Raises the vendor's error.

    options: SessionOptions; new ones that record the placement by default.
    """
    if options is None:
        options = ort().SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(list(ep_devices()), dict(provider))
    return ort().InferenceSession(source, options, enable_fallback=0)


def _source(model: ModelSource) -> tuple[str | bytes, dict[str, str]]:
    source, folder = named_bytes(model)
    return source, {"session.model_external_initializers_file_folder_path": folder} if folder else {}


def _refused(model: ModelSource, error: Exception) -> BuildError:
    do = "Choose another engine, or change the part of the model that the vendor's text names."
    return BuildError(
        f"qnn, model {model.name}", "QNN cannot prepare this model", got=short(str(error)), do=do
    )


def prepare(model: ModelSource, provider: Mapping[str, str]) -> ContextBinary:
    """Return the model as context binaries. Raises BuildError with the vendor's text, or if QNN takes no node."""
    source, config = _source(model)
    with tempfile.TemporaryDirectory(prefix="xpu-qnn-") as folder:
        file, dump = Path(folder, "context.onnx"), Path(folder, "graphs")
        dump.mkdir()
        dumping = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(dump)}
        config |= {**_TO_CONTEXT, "ep.context_file_path": str(file)}
        try:
            session = create_session(source, {**provider, **dumping}, config)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise _refused(model, error) from error
        placement = [
            (a.ep_name, n.name, n.op_type)
            for a in session.get_provider_graph_assignment_info()
            for n in a.get_nodes()
        ]
        if not file.is_file() or not any(ep == PROVIDER for ep, _, _ in placement):
            ops = ", ".join(sorted({op for _, _, op in placement})[:12])
            do = "Use another engine, or quantize the model: QNN takes more ops in uint8 and uint16."
            raise BuildError(f"qnn, model {model.name}", "QNN takes no node of this model", got=ops, do=do)
        graphs = [json.loads(p.read_text()) for p in sorted(dump.glob("*.json"))]
        blob = file.read_bytes()
    del session
    try:
        create_session(blob, provider, {})
    except Exception as error:
        raise _refused(model, error) from error
    return ContextBinary(blob, {"placement": placement, "ops": ops_of(graphs), "sdk": _sdk(blob)})


def _sdk(blob: bytes) -> str:
    """Return the version of QNN's SDK that the EPContext nodes name."""
    import onnx

    nodes = onnx.ModelProto.FromString(blob).graph.node
    texts = (a.s.decode() for n in nodes for a in n.attribute if a.name == "ep_sdk_version")
    return next(texts, "")


def dlc_files(model: ModelSource, provider: Mapping[str, str]) -> dict[str, bytes]:
    """Return the model's QNN graphs as DLC files by name, for Qualcomm's own tools. Raises BuildError with the vendor's text."""
    source, config = _source(model)
    with tempfile.TemporaryDirectory(prefix="xpu-qnn-") as folder:
        dumping = {
            "qnn_ir_backend_path": str(library_file("QnnIr")),
            "dump_qnn_ir_dlc": "1",
            "dump_qnn_ir_dlc_dir": folder,
        }
        try:
            create_session(source, {**provider, **dumping}, config)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise _refused(model, error) from error
        files = {p.name: p.read_bytes() for p in sorted(Path(folder).glob("*.dlc"))}
    if not files:
        do = "Use another engine, or quantize the model: QNN takes more ops in uint8 and uint16."
        raise BuildError(f"qnn, model {model.name}", "QNN takes no node of this model", do=do)
    return files
