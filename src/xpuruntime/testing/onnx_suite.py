"""The onnx package's own backend suite, for judging us: its cases, its comparison, and what became of each.

    from xpuruntime.testing.onnx_suite import cases, interpret, session
    verdicts = [interpret(case) for case in cases("node")]

``interpret`` runs a case through the frontend and the NumPy interpreter; ``session`` through InferenceSession; ``vendor`` through
ONNX Runtime's own API without us; ``round_trip`` compares a model with what the frontend and the writer make of it, both on ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, ModelError, XpuError
from ..ir.graph import Graph
from ..protocols import Array
from .onnx_vendors import ort_session, vendor_outputs

__all__ = [
    "KINDS",
    "Case",
    "Lowered",
    "Outcome",
    "Verdict",
    "cases",
    "differs",
    "interpret",
    "lowered",
    "round_trip",
    "session",
    "vendor",
]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
"""Suites of the onnx package that need no download."""


@dataclass(frozen=True)
class Case:
    """One case. ``data``: (inputs, outputs) pairs in the model's order; values are arrays, lists or None as ONNX's types say."""

    name: str
    kind: str
    model: Any = field(repr=False)
    data: Callable[[], list[tuple[list[Any], list[Any]]]] = field(repr=False)
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that a run is given."""
        weights = {i.name for i in self.model.graph.initializer}
        return [i.name for i in self.model.graph.input if i.name not in weights]

    @property
    def ops(self) -> list[str]:
        """Op names, each once, in order."""
        return list(dict.fromkeys(n.op_type for n in self.model.graph.node))


@dataclass(frozen=True)
class Outcome:
    """What a word of ``Verdict.outcome`` means."""

    RIGHT = "right"
    WRONG = "wrong"
    OPAQUE = "opaque"
    REFUSED = "refused"


@dataclass(frozen=True)
class Verdict:
    """What became of a case: ``right``, ``wrong``, ``opaque`` (not lowered), ``refused`` (an XpuError), and why.

    bound: inputs whose content was bound before lowering, because it decides shapes.
    """

    case: str
    kind: str
    outcome: str
    why: str = ""
    bound: tuple[str, ...] = ()


def cases(kind: str) -> Iterator[Case]:
    """Every case of a suite. Raises ModelError for an unknown kind or where the onnx package is missing."""
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
        yield Case(
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

    with warnings.catch_warnings():  # cases of overflow overflow while they are made
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind=kind))


def _data(test: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    if test.data_sets is not None:
        return [([_plain(v) for v in i], [_plain(v) for v in o]) for i, o in test.data_sets]
    found = []
    for folder in sorted(Path(test.model_dir).glob("test_data_set_*")):
        groups = []
        for stem, values in (("input", model.graph.input), ("output", model.graph.output)):
            files = sorted(folder.glob(f"{stem}_*.pb"), key=lambda p: int(p.stem.split("_")[-1]))
            groups.append([_read(f, v.type) for f, v in zip(files, values, strict=False)])
        found.append((groups[0], groups[1]))
    return found


def _plain(value: Any) -> Any:
    """Cases hold arrays, NumPy numbers, or TensorProtos."""
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


def _light() -> Iterator[Case]:
    """Classic networks with the suite's dummy input (its Runner makes it) and the answers that lie beside them."""
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

        yield Case(path.stem, "light", model, data, 1e-3, 1e-5)


def differs(case: Case, expected: Sequence[Any], got: Sequence[Any], ulps: int = 0) -> str:
    """Empty when the suite's own comparison holds, else what it says. ``ulps``: steps of the output's float type that a
    difference may also be (the suite's answers round inner steps to that type; ours, or a vendor's, need not).
    """
    from onnx.backend.test.runner import Runner

    try:
        Runner.assert_similar_outputs(expected, got, case.rtol, case.atol)
    except (AssertionError, TypeError, ValueError) as error:
        if ulps and all(_within(e, g, ulps) for e, g in zip(expected, got, strict=True)):
            return ""
        return " ".join(str(error).split())[:300]
    return ""


def _within(expected: Array, got: Array, ulps: int) -> bool:
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return False
    import ml_dtypes

    step = float(ml_dtypes.finfo(expected.dtype).eps)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    scale = np.maximum(np.abs(a), np.max(np.abs(a), initial=0.0) * 2.0**-4)
    return bool(np.all(np.abs(a - b) <= ulps * step * scale))


# ── the judged ──


@dataclass(frozen=True)
class Lowered:
    """A case's graph. ``opaque``: why it is none (empty: it is); ``bound``: inputs whose content was bound."""

    graph: Graph
    weights: Mapping[str, Array]
    opaque: str
    bound: tuple[str, ...]


def lowered(case: Case, feeds: Mapping[str, Any]) -> Lowered:
    """The frontend's graph. Inputs that decide shapes are bound where the model is not lowered without. Raises XpuError."""
    from ..frontends.onnx import import_onnx
    from ..ir import verify

    bound: dict[str, Any] = {}
    for _ in range(4):
        graph, weights = import_onnx(case.model, bind=bound)
        opaque = [n for n in graph if n.op == "opaque"]
        wanted = [n for n in graph.metadata["deciding"] if n not in bound and n in feeds]
        if not opaque or not wanted:
            break
        bound |= {n: feeds[n] for n in wanted}
    why = "; ".join(sorted({f"{n.attrs['op_type']}: {n.attrs['reason']}" for n in opaque}))
    borders = (*graph.inputs, *(graph.values[o.value] for o in graph.outputs))
    if not why and any(v.spec is None for v in borders):
        why = "values that are no tensors"
    return Lowered(graph if why else verify(graph), weights, why, tuple(bound))


def interpret(case: Case, ulps: int = 0) -> Verdict:
    """Frontend, then interpreter."""
    from ..ir import interp

    every: dict[str, None] = {}
    for inputs, expected in case.data():
        feeds = dict(zip(case.inputs, inputs, strict=False))
        bound: tuple[str, ...] = ()
        try:
            found = lowered(case, feeds)
            bound = found.bound
            if found.opaque:
                return Verdict(case.name, case.kind, Outcome.OPAQUE, found.opaque, bound)
            every |= dict.fromkeys(bound)
            made = interp.run(found.graph, feeds, weights=found.weights)
        except XpuError as error:
            return Verdict(case.name, case.kind, Outcome.REFUSED, str(error), bound)
        wrong = differs(case, expected, [made[o.name] for o in found.graph.outputs], ulps)
        if wrong:
            return Verdict(case.name, case.kind, Outcome.WRONG, wrong, bound)
    return Verdict(case.name, case.kind, Outcome.RIGHT, bound=tuple(every))


def session(case: Case, ulps: int = 0, engine: str = "onnxruntime", device: str = "cpu") -> Verdict:
    """InferenceSession on a vendor's engine."""
    from ..inference.session import InferenceSession

    try:
        with InferenceSession(case.model, engine=engine, device=device) as sess:
            for inputs, expected in case.data():
                made = sess.run(dict(zip(case.inputs, inputs, strict=False)))
                wrong = differs(case, expected, [made[o.name] for o in case.model.graph.output], ulps)
                if wrong:
                    return Verdict(case.name, case.kind, Outcome.WRONG, wrong)
    except (XpuError, InputError) as error:
        return Verdict(case.name, case.kind, Outcome.REFUSED, str(error))
    return Verdict(case.name, case.kind, Outcome.RIGHT)


def vendor(case: Case, ulps: int = 0) -> Verdict:
    """ONNX Runtime by its own Python API, as its users call it; no code of ours between."""
    try:
        for inputs, expected in case.data():
            made = vendor_outputs("onnxruntime", case.model, dict(zip(case.inputs, inputs, strict=False)))
            wrong = differs(case, expected, made, ulps)
            if wrong:
                return Verdict(case.name, case.kind, Outcome.WRONG, wrong)
    except Exception as error:  # the vendor's exceptions have no common base but Exception
        return Verdict(case.name, case.kind, Outcome.REFUSED, " ".join(str(error).split())[:300])
    return Verdict(case.name, case.kind, Outcome.RIGHT)


def round_trip(model: Any, feeds: Mapping[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> str:
    """Empty when ONNX -> IR -> ONNX gives on ONNX Runtime what the model itself gives there, else what differs. ``skipped: ...``
    where ONNX Runtime refuses the model itself. Raises XpuError where the graph cannot be read or written.
    """
    from ..frontends.onnx import import_onnx
    from ..frontends.onnx_writer import to_onnx

    try:
        expected = ort_session(model).run(None, dict(feeds))
    except Exception as error:  # the vendor's exceptions have no common base but Exception
        return f"skipped: {' '.join(str(error).split())[:200]}"
    graph, weights = import_onnx(model)
    written = to_onnx(graph, weights)
    try:
        made = ort_session(written).run(None, dict(feeds))
    except Exception as error:
        return f"the written model does not run: {' '.join(str(error).split())[:300]}"
    for a, b in zip(expected, made, strict=True):
        said = _compare(a, b, rtol, atol)
        if said:
            return said
    return ""


def _compare(a: Any, b: Any, rtol: float, atol: float) -> str:
    if isinstance(a, list):
        return next((s for x, y in zip(a, b, strict=True) if (s := _compare(x, y, rtol, atol))), "")
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    if a.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else "integers, text or truth values differ"
    try:
        np.testing.assert_allclose(b, a, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""
