"""Receipt files: a receipt with the digests and statistics of the run's inputs and outputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...profiler.receipt import Receipt
from ...storage.store import write_atomic
from ..outputs import summarize_output
from .snapshot import OutputState

__all__ = ["output_states", "receipt_document", "save_receipt", "tensor_digest"]


def tensor_digest(value: Any) -> str:
    """Return the sha256 of an array's shape, dtype and elements in C order."""
    array = np.ascontiguousarray(value)
    digest = hashlib.sha256(f"{array.dtype.str}{list(np.shape(value))}".encode())
    digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()


def receipt_document(
    receipt: Receipt, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a receipt as plain data, with what is recorded of the run's inputs and outputs."""
    recorded = []
    for name, value in outputs.items():
        summary = summarize_output(name, value)
        recorded.append(
            {
                "name": name,
                "spec": summary.spec,
                "digest": tensor_digest(value),
                "min": summary.minimum,
                "max": summary.maximum,
                "mean": summary.mean,
                "not_finite": summary.not_finite,
                "values": None if summary.values is None else list(map(_plain, summary.values)),
            }
        )
    digests = {name: tensor_digest(value) for name, value in inputs.items()}
    return receipt.to_json() | {"inputs": digests, "outputs": recorded}


def _plain(value: Any) -> Any:
    """Return a JSON value; NaN and infinities as text."""
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)


def save_receipt(
    path: str | os.PathLike[str], receipt: Receipt, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Write a receipt file atomically. Raises StoreError."""
    document = receipt_document(receipt, inputs, outputs)
    write_atomic(Path(path), json.dumps(document, indent=1, default=str).encode() + b"\n")


def output_states(listed: Any) -> tuple[OutputState, ...]:
    """Return the recorded outputs of a receipt file. Raises ValueError, KeyError, TypeError."""
    return tuple(map(_output, listed))


def _output(data: Mapping[str, Any]) -> OutputState:
    values = data.get("values")
    minimum, maximum, mean = (data.get(k) for k in ("min", "max", "mean"))
    numbers = (minimum, maximum, mean)
    if not all(v is None or type(v) in (int, float) for v in numbers) or type(data["not_finite"]) is not int:
        raise ValueError("statistics of an output must be numbers")
    if not all(type(data[k]) is str for k in ("name", "spec", "digest")):
        raise ValueError("name, spec and digest of an output must be texts")
    if values is not None and not isinstance(values, list):
        raise ValueError("values of an output must be a list")
    return OutputState(
        data["name"],
        data["spec"],
        data["digest"],
        minimum,
        maximum,
        mean,
        data["not_finite"],
        None if values is None else tuple(values),
    )
