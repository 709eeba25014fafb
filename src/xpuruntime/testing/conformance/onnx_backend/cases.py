"""Cases of the onnx package's backend suite: models with inputs and outputs, and possible outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ModelError

__all__ = ["KINDS", "BackendCase", "CaseVerdict", "Outcome", "cases"]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
"""Suites of the onnx package that need no download."""


@dataclass(frozen=True)
class BackendCase:
    """One case. ``data``: (inputs, outputs) pairs in the model's order; values are arrays, lists or None according to the ONNX types."""

    name: str
    kind: str
    model: Any = field(repr=False)
    data: Callable[[], list[tuple[list[Any], list[Any]]]] = field(repr=False)
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs of a run."""
        weights = {i.name for i in self.model.graph.initializer}
        return [i.name for i in self.model.graph.input if i.name not in weights]

    @property
    def ops(self) -> list[str]:
        """Return op names, each once, in order."""
        return list(dict.fromkeys(n.op_type for n in self.model.graph.node))


@dataclass(frozen=True)
class Outcome:
    """Words of ``CaseVerdict.outcome``."""

    RIGHT = "right"
    WRONG = "wrong"
    OPAQUE = "opaque"
    REFUSED = "refused"


@dataclass(frozen=True)
class CaseVerdict:
    """The outcome of a case: ``right``, ``wrong``, ``opaque`` (not lowered) or ``refused`` (an XpuError), and why.

    bound: inputs whose content was bound before lowering, because it determines shapes.
    """

    case: str
    kind: str
    outcome: str
    why: str = ""
    bound: tuple[str, ...] = ()


def cases(kind: str) -> Iterator[BackendCase]:
    """Yield every case of a suite. Raises ModelError for an unknown kind or without the onnx package."""
    if kind not in KINDS:
        raise ModelError(
            "onnx suite", "has no such part", got=repr(kind), do=f"Use one of {', '.join(KINDS)}."
        )
    if kind == "light":
        yield from _light()
        return
    for test in _loaded(kind):
        model = test.model
        if model is None:
            import onnx

            model = onnx.load(Path(test.model_dir) / "model.onnx")
        yield BackendCase(
            test.name,
            kind,
            model,
            lambda t=test, m=model: _data(t, m),  # type: ignore[misc]
            test.rtol,
            test.atol,
        )


@cache
def _loaded(kind: str) -> tuple[Any, ...]:
    import warnings

    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # overflow cases overflow while they are made
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind=kind))


def _data(test: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    if test.data_sets is not None:
        return [([_plain(v) for v in i], [_plain(v) for v in o]) for i, o in test.data_sets]
    pairs = []
    for folder in sorted(Path(test.model_dir).glob("test_data_set_*")):
        groups = []
        for stem, values in (("input", model.graph.input), ("output", model.graph.output)):
            files = sorted(folder.glob(f"{stem}_*.pb"), key=lambda p: int(p.stem.split("_")[-1]))
            groups.append([_read(f, v.type) for f, v in zip(files, values, strict=False)])
        pairs.append((groups[0], groups[1]))
    return pairs


def _plain(value: Any) -> Any:
    """Return a case's value (array, NumPy number or TensorProto) as an array."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list | type(None)) else np.asarray(value)


def _read(path: Path, kind: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light() -> Iterator[BackendCase]:
    """Yield classic networks with the suite's dummy input (made by its Runner) and the stored answers."""
    import onnx
    from onnx.backend.test.runner import Runner

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)

        def data(path: Path = path, model: Any = model) -> list[tuple[list[Any], list[Any]]]:
            weights = {i.name for i in model.graph.initializer}
            feeds = [
                Runner.generate_dummy_data(v, seed=0, name=path.stem, random=False)
                for v in model.graph.input
                if v.name not in weights
            ]
            answer = path.with_name(f"{path.stem}_output_0.pb").read_bytes()
            return [(feeds, [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(answer))])]

        yield BackendCase(path.stem, "light", model, data, 1e-3, 1e-5)
