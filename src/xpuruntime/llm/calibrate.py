"""calibrated: four-bit rounding of a checkpoint's layers that minimizes the change of outputs on given texts.

    better = calibrated(open_checkpoint("model"), [text, ...])
    Generator(better, policy={"version": 1, "kernel": {"weights": "int4"}})        # the compiler quantizes to the same grids

The method is GPTQ (Frantar, Ashkboos, Hoefler, Alistarh 2022). The rounding error of one input's weight is compensated in the weights of
correlated inputs that are not rounded yet. ``H`` is the sum of x x^T over a layer's inputs on the texts. Columns are rounded in order, and
the error of each is distributed to the later ones by the rows of the Cholesky factor of H's inverse. The grid of a group is fitted before
its first column is rounded.

The output layer and the embedding are not changed. Everything is computed in memory, in float32 (factors in float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiler import compile as compile_graph
from ..errors import InputError
from ..ir.graph import Output
from ..protocols import Array
from ..runtime import Executor, load_weights
from ..runtime.weights.int4 import fitted
from ..types import DType, TensorSpec
from .checkpoint.reader import Checkpoint, open_checkpoint
from .decoder import decoder_graph

__all__ = ["calibrated"]

DAMPING = 0.01
"""Share of H's mean diagonal that is added to the diagonal, so that directions without data are not changed."""

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]


def calibrated(
    source: Any, texts: Sequence[str | Sequence[int]], *, group: int = 32, length: int = 512
) -> Checkpoint:
    """Return the same model with its layers' matrices in float32, each on grids of ``group`` inputs.

    source: a checkpoint, or an argument of ``open_checkpoint``.
    texts:  texts (which need the checkpoint's tokenizer) or lists of tokens. They are joined and cut into windows of ``length`` tokens; the
            rest is not used.
    Raises InputError if there is less than one window or an unknown token, and the errors of ``open_checkpoint``.
    """
    checkpoint = open_checkpoint(source)
    who = f"calibration of {checkpoint.name}"
    if checkpoint.config.encoder is not None:
        do = "Calibrate a model without an encoder."
        raise InputError(who, "does not support encoder-decoders", got=checkpoint.config.family, do=do)
    tokens: list[int] = []
    for text in texts:
        if isinstance(text, str) and checkpoint.text is None:
            raise InputError(who, "has no tokenizer", do="Give tokens.")
        tokens += (
            checkpoint.text.encode(text) if isinstance(text, str) and checkpoint.text else map(int, text)
        )
    if group < 1 or length < 1:
        raise InputError(
            who, "needs a group and a length of at least 1", got=f"{group} and {length}", do="Give 1 or more."
        )
    if wrong := [t for t in tokens if not 0 <= t < checkpoint.config.vocab]:
        raise InputError(
            who,
            f"takes tokens from 0 to {checkpoint.config.vocab - 1}",
            got=wrong[0],
            do="Tokenize the text with this model's tokenizer.",
        )
    if len(tokens) < length:
        raise InputError(who, f"needs {length} tokens or more", got=len(tokens), do="Give more text.")
    windows = np.array(tokens[: len(tokens) // length * length], np.int64).reshape(-1, 1, length)
    arrays: dict[str, Array] = dict(checkpoint.arrays)
    specs = dict(checkpoint.specs)
    for names, squares in _squares(checkpoint, windows):
        factor = _factor(squares)
        for name in names:
            arrays[name] = _compensated(arrays[name].astype(np.float32), factor, group)
            specs[name] = TensorSpec(tuple(arrays[name].shape), DType.FLOAT32)
    return replace(checkpoint, arrays=arrays, specs=specs, files={}, folder=None, formats={})


def _squares(checkpoint: Checkpoint, windows: NDArray[np.int64]) -> list[tuple[list[str], Doubles]]:
    """Return, for each input of linear layers, the names of the layers' weights, and the sum of x x^T."""
    length = windows.shape[-1]
    plain = decoder_graph(checkpoint.config, length=length, capacity=length, dtype=DType.FLOAT32)
    readers: dict[str, list[str]] = {}
    for node in plain.nodes:
        if node.op == "linear" and node.name != "scores":
            x, weight = node.inputs[0], node.inputs[1]
            if weight not in checkpoint.specs:
                raise InputError(
                    f"calibration of {checkpoint.name}",
                    f"does not support {checkpoint.config.family}, which stores products in another order",
                    got=node.name,
                    do="Calibrate the original checkpoint with floats.",
                )
            readers.setdefault(str(x), []).append(str(weight))
    observed = plain.replace(outputs=tuple(Output(x, x) for x in readers))
    program = compile_graph(observed)
    executor = Executor(program, contexts=1)
    executor.bind(load_weights({n: np.asarray(a, np.float32) for n, a in checkpoint.arrays.items()}, program))
    sums: dict[str, Doubles] = {}
    positions = np.arange(length)[None]
    feeds = {"positions": positions, "last": np.array([length - 1])}
    order = [s.name for s in executor.entry.inputs]
    for window in windows:
        activations = executor.run_arrays([{**feeds, "tokens": window}[n] for n in order])
        for spec, read in zip(executor.entry.outputs, activations, strict=True):
            rows = read.reshape(-1, read.shape[-1])
            squares = np.asarray(rows.T @ rows, np.float64)
            sums[spec.name] = sums[spec.name] + squares if spec.name in sums else squares
    executor.close()
    return [(names, sums[x]) for x, names in readers.items()]


def _factor(squares: Doubles) -> Floats:
    """Return the upper Cholesky factor, [k, k], of the inverse of the damped matrix."""
    size = len(squares)
    damped = squares + DAMPING * max(float(np.trace(squares)) / size, 1e-12) * np.eye(size)
    return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T, np.float32)


def _compensated(weight: Floats, factor: Floats, group: int) -> Floats:
    """Return the weight, [outputs, k], rounded to its grids. The rounding error of a column is compensated in later columns."""
    remaining, rounded = weight.copy(), np.empty_like(weight)
    k = weight.shape[1]
    for begin in range(0, k, group):
        end = min(begin + group, k)
        _, scale, low = fitted(remaining[:, None, begin:end])
        step = np.where(scale[:, 0] == 0, np.float32(1), scale[:, 0])
        errors = np.empty((len(weight), end - begin), np.float32)
        for i in range(begin, end):
            column = remaining[:, i]
            codes = np.clip(np.rint((column - low[:, 0]) / step), 0, 15)
            rounded[:, i] = low[:, 0] + scale[:, 0] * codes
            errors[:, i - begin] = (column - rounded[:, i]) / factor[i, i]
            remaining[:, i:end] -= errors[:, i - begin, None] * factor[i, i:end]
        remaining[:, end:] -= errors @ factor[begin:end, end:]
    return rounded
