"""``export_onnx``: PyTorch models and graphs as ONNX, for files, other tools and vendors' engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, ModelError
from ..faults import contained
from ..ir import Graph
from ..protocols import Array
from ..storage.store import write_atomic
from .onnx_writer import to_onnx

__all__ = ["export_onnx"]

_MAX_BYTES = (1 << 31) - (1 << 20)
"""Size of a file of one message; larger models have their weights in a second file."""


@contained("export_onnx", kind=ModelError)
def export_onnx(
    model: Any,
    example_inputs: Any = None,
    path: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    weights: Mapping[str, Array] | None = None,
    model_name: str = "",
    opset: int | None = None,
) -> Any:
    """Return a model as an ``onnx.ModelProto``, and write it to ``path`` if given.

    model:          an ``nn.Module`` in eval mode, a ``torch.export.ExportedProgram``, or a ``Graph``.
    example_inputs: arguments of the module's call, as for ``extract_ir``; only shapes and dtypes matter.
    path:           an ``.onnx`` file. Weights of 2 GiB and more go to a file with ``.data`` after its name.
    dynamic_shapes: dims that may change, as for ``extract_ir``.
    weights:        arrays by name, for a Graph.
    opset:          version of ONNX; by default the lowest that all ops have, at least 18.

    Names of inputs and outputs are those that a session of the model has. Ops that ONNX does not have raise; a session on the native engine may
    run them. Raises ModelError, InputError, and IrError with the node that ONNX cannot express.
    """
    if isinstance(model, Graph):
        if example_inputs is not None or dynamic_shapes is not None:
            raise InputError(
                "export_onnx",
                "example inputs are for PyTorch modules",
                got="a Graph",
                do="Pass weights={name: array} instead.",
            )
        graph, arrays = model, weights
    else:
        if weights is not None:
            raise InputError(
                "export_onnx", "weights are for graphs", got=type(model).__name__, do="A module has its own."
            )
        from .torch.importer import import_torch

        graph, arrays = import_torch(
            model, example_inputs, model_name=model_name, dynamic_shapes=dynamic_shapes
        )
    proto = to_onnx(graph, arrays, opset=opset)
    if path is not None:
        _write(proto, Path(path))
    return proto


def _write(proto: Any, path: Path) -> None:
    """Write a model, atomically unless it needs a second file. Raises StoreError, ModelError."""
    if proto.ByteSize() <= _MAX_BYTES:
        write_atomic(path, proto.SerializeToString(deterministic=True))
        return
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # writing external data changes the message
    data = path.with_name(f"{path.name}.data")
    try:
        data.unlink(missing_ok=True)  # the onnx package appends to it
        onnx.save_model(copy, path, save_as_external_data=True, location=data.name, size_threshold=1024)
    except OSError as error:
        raise ModelError(
            f"model {path.name!r}",
            "cannot be written",
            got=error.strerror,
            do="Check the folder and its free space.",
        ) from error
