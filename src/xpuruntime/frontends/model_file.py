"""Opening of model files: each supported form becomes a checked ``ModelSource``.

    path to .onnx · bytes · ModelProto ──► onnx.file.read_onnx ──┐
    path to OpenVINO IR (.xml + .bin) ───► openvino_file.read_ir ├──► ModelSource
    path to .engine · .plan ─────────────► TensorRT's plan_file ─┘

Opening reads and checks the graph. External weights are not loaded: they are streamed through sha256 for the digest.
A file that is not a model raises ModelError here, before a vendor's parser sees it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..plugins.loader import load_dotted
from ..protocols import ModelSource
from ..storage.files import open_regular

__all__ = ["open_model", "open_with"]

_TAKES = "Pass a path to an .onnx file or to an OpenVINO .xml file, the bytes of an ONNX file, or an onnx.ModelProto."
_PROGRAM = b"XPUPROG\n"  # program.file.MAGIC, which models may not import
_PLANS = (".engine", ".plan")
_OTHER_FORMATS = {
    ".pt": "torch",
    ".pth": "torch",
    ".pt2": "torch",
    ".safetensors": "weights only",
    ".tflite": "TFLite",
    ".h5": "Keras",
    ".keras": "Keras",
    ".gguf": "GGUF",
    ".mlmodel": "Core ML",
}


def open_model(model: object, *, name: str = "") -> ModelSource:
    """Read and check a model.

    model: a path (str or os.PathLike) to ``.onnx``, OpenVINO ``.xml`` or TensorRT ``.engine`` or ``.plan``; bytes of an ONNX file; an ``onnx.ModelProto``.
    name:  name in messages and reports; by default the file's name, else the graph's.

    Shapes: a named dim of the file becomes a Dim of that name, an unnamed one a fresh symbol
    ``<value>_<axis>``. A value of unknown rank has the one-symbol shape ``("...",)``.
    Raises ModelError: no such file, not a model, truncated, corrupted, external data missing or outside the model's folder,
    an op that its opset does not have, an opset newer than the onnx package, or the onnx / openvino package is missing.
    """
    if isinstance(model, ModelSource):
        return model
    from .onnx.files.source import read_onnx

    source: ModelSource = open_with(model, name, read_onnx)
    return source


def open_with(model: object, name: str, importer: Callable[[bytes, str, str, Path | None], Any]) -> Any:
    """Return ``read(bytes, speaker, name, path)`` of an ONNX model; an OpenVINO file becomes a ModelSource."""
    if isinstance(model, str) and not model.strip():
        raise ModelError("open_model", "the path of the model is empty", got=repr(model), do=_TAKES)
    if isinstance(model, str | os.PathLike):
        return _open_path(Path(os.fspath(model)), name, importer)
    if isinstance(model, bytes | bytearray | memoryview):
        return _open_bytes(bytes(model), name, importer)
    if type(model).__name__ == "ModelProto" and hasattr(model, "SerializeToString"):
        return _open_proto(model, name, importer)
    raise ModelError("open_model", "not a model", got=f"a {type(model).__qualname__}", do=_TAKES)


def _open_path(path: Path, name: str, read: Callable[[bytes, str, str, Path | None], Any]) -> Any:
    who = f"model {path.name or str(path)!r}"
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL character in the path
        raise ModelError(who, "no such file", got=repr(str(path)), do="Check the path.") from None
    except OSError as error:  # a name that is too long, a folder without permission, a loop of links
        raise ModelError(
            who, "cannot be opened", got=error.strerror or error, do="Check the path."
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(who, "is a folder, not a model file", got=repr(str(path)), do=_TAKES)
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(who, "is not a file: a pipe, a device or a socket", got=repr(str(path)), do=_TAKES)
    if not os.access(path, os.R_OK):
        raise ModelError(who, "cannot be read", got=repr(str(path)), do="Check the file's permissions.")
    if status.st_size == 0:
        raise ModelError(who, "is empty", got="0 bytes", do="Fetch or export it again.")
    if path.suffix.lower() == ".bin" and path.with_suffix(".xml").is_file():
        raise ModelError(
            who,
            "holds only the weights of an OpenVINO model",
            got=path.name,
            do=f"Open {path.with_suffix('.xml').name} instead.",
        )
    if path.suffix.lower() in _OTHER_FORMATS:
        kind = _OTHER_FORMATS[path.suffix.lower()]
        raise ModelError(
            who,
            f"is a file of another format ({kind})",
            got=path.name,
            do=f"Export it to ONNX first. {_TAKES}",
        )
    head = _head(path, who)
    if head.startswith(_PROGRAM) and path.suffix.lower() == ".npubin":
        raise ModelError(
            who,
            "is a compiled program, where a model is needed",
            got=path.name,
            do="Pass the model that the program was compiled from. xpu run and InferenceSession run programs.",
        )
    if head.startswith(_PROGRAM):
        raise _a_program(who, repr(path.name))
    if path.suffix.lower() in _PLANS:
        read_plan = load_dotted("xpuruntime.engines.tensorrt.plan_file:read_plan")
        return read_plan(path, who, name or path.stem)
    if path.suffix.lower() == ".xml" or _looks_like_xml(head):
        from .openvino_file import read_ir

        return read_ir(path, who, name or path.stem)
    return read(path.read_bytes(), who, name or path.stem, path)


def _head(path: Path, who: str) -> bytes:
    """Return the first bytes of the file. Raise ModelError."""
    try:
        with open_regular(path) as file:
            return file.read(64)
    except OSError as error:
        raise ModelError(
            who, "cannot be read", got=error.strerror or error, do="Check the path; it must be a plain file."
        ) from error


def _looks_like_xml(head: bytes) -> bool:
    return head[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<?xml", b"<net"))


def _a_program(who: str, got: str) -> ModelError:
    """Return the error for a compiled program that is passed as a model: programs run native code, models do not."""
    return ModelError(
        who,
        "is a compiled program, which runs native code, and its name does not end in .npubin",
        got=got,
        do="If you trust it like a shared library, rename it to .npubin; else fetch the model again.",
    )


def _open_bytes(data: bytes, name: str, read: Callable[[bytes, str, str, Path | None], Any]) -> Any:
    who = f"model {name!r}" if name else "model in memory"
    if not data:
        raise ModelError(who, "is empty", got="0 bytes", do=_TAKES)
    if data.startswith(_PROGRAM):
        raise _a_program(who, f"{len(data)} bytes")
    if _looks_like_xml(data):
        raise ModelError(
            who,
            "is OpenVINO XML without its weights",
            got="bytes",
            do="Pass the path of the .xml file; its .bin must be next to it.",
        )
    return read(data, who, name, None)


def _open_proto(model: Any, name: str, read: Callable[[bytes, str, str, Path | None], Any]) -> Any:
    graph_name = name or str(model.graph.name)
    who = f"model {graph_name!r}" if graph_name else "model in memory"
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf implementations raise different classes: over 2 GiB, or a bad field
        raise ModelError(
            who,
            "the ModelProto cannot be written as bytes",
            got=str(error),
            do="Save it with external data and pass the path.",
        ) from error
    return read(data, who, graph_name, None)
