"""``quantize``: an ONNX model and calibration data become an ONNX QDQ model and a policy that demands integer arithmetic.

ONNX Runtime's quantizer inserts the pairs. Around it: samples from files, activation smoothing, room around ranges, GPTQ, corrected biases, an error
per node, and mixed precision within an error budget. Errors are measured with the pairs in float arithmetic, which does not depend on this processor's instructions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...children import scratch
from ...errors import EngineUnavailable, InputError, ModelError, PolicyError, StoreError
from ...frontends.model_file import open_model
from ...protocols import Array
from ..inputs import ImageRecipe
from .bias import means, with_corrected_biases
from .data import calibration_samples
from .float_values import FloatValues
from .gptq import store_codes, weight_codes
from .headroom import with_headroom
from .report import NodeError, QuantizeReport, RelativeError
from .smooth import smooth, smoothable

__all__ = ["quantize"]

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_INLINE_BYTES = 1 << 30
"""Size of a model above which its weights are written to a file of their own."""
_ACTIVATIONS = {"uint8": "QUInt8", "int8": "QInt8", "uint16": "QUInt16"}
"""The quantizer's name of each type of activations."""
_AXIS_OPSET = 13
_ROUNDS = 12
"""Maximum number of quantizations in search of an error budget."""

Samples = Sequence[Mapping[str, Array]]


def quantize(
    model: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    image: ImageRecipe | None = None,
    samples: int | None = None,
    activations: str = "uint8",
    per_channel: bool = True,
    method: str = "minmax",
    smoothing: float | None = None,
    gptq: bool = True,
    correct_biases: bool = True,
    max_error: float | None = None,
    exclude: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> QuantizeReport:
    """Quantize a float model to int8 weights and activations of 8 or 16 bits, write the QDQ model and its policy, and return the report.

    data:        a folder of samples or a .npz file (``calibration_samples``). samples: maximum number of them.
    activations: ``uint8`` or ``uint16`` (asymmetric), or ``int8`` (symmetric). 16 bits are for NPUs: engines on CPUs and GPUs compute
                 their products in floats. Weights are int8, per output channel with ``per_channel``.
    method:      how ranges are chosen: ``minmax``, ``entropy`` or ``percentile``.
    smoothing:   share of an activation's range that moves into the weights after each layer norm, 0 to 1; None: 0.5 if the model has such norms.
    gptq:        choose the codes of weights by the calibration data (GPTQ); otherwise the nearest ones.
    correct_biases: add the mean error that rounded weights make to the biases.
    max_error:   budget for the relative error of the outputs; the products that add most error stay in floats until it is met.
    exclude:     names of nodes that stay in floats.
    Raises ModelError for a model that is not ONNX or is quantized already, InputError for bad data, EngineUnavailable without onnxruntime,
    StoreError if the files cannot be written, PolicyError for an option that does not exist.
    """
    _check_options(activations, method, smoothing, max_error)
    tools = _tools()
    source = open_model(model)
    if source.format != "onnx" or source.path is None:
        raise ModelError(
            "quantize", "only ONNX files can be quantized", got=source.format, do="Export the model to ONNX."
        )
    if source.quantized is not None:
        raise ModelError(
            f"model {source.name!r}",
            "is quantized already",
            got=source.quantized.value,
            do="Give the float model.",
        )
    feeds = calibration_samples(data, source.inputs, image, samples)
    target = Path(output)
    with scratch("xpu-quantize-") as folder, _without_warnings():
        progress("preparing the model")
        eight = per_channel and not activations.endswith("16")
        path = _with_axes(tools, source.path, source.opsets, folder) if eight else source.path
        prepared = _prepared(tools, path, folder)
        names = {n.name for n in prepared.graph.node}
        unknown = [n for n in exclude if n not in names]
        if unknown:
            raise InputError(
                "exclude", "the model has no such node", got=unknown[0], do="Name nodes of the report."
            )
        norms = smoothable(prepared)
        alpha = (0.5 if norms else 0.0) if smoothing is None else smoothing
        smoothed = 0
        if alpha and norms:
            progress("smoothing")
            smoothed = smooth(prepared, _largest(prepared, feeds, list(norms)), alpha)
        products = [n for n in prepared.graph.node if n.op_type in _PRODUCTS]
        watched = _watched(prepared, products)
        outputs = [o.name for o in prepared.graph.output]
        plain = _showing(prepared, watched)
        progress("calibrating")
        ranges = _ranges(tools, prepared, feeds, method, activations, folder)
        ranges = with_headroom(prepared, ranges, wide=activations.endswith("16"))
        mean = means(plain, feeds, products) if correct_biases or gptq else {}
        in_float, corrected, rounded = list(exclude), 0, 0
        paired = partial(_with_pairs, tools, ranges=ranges, activations=activations, per_channel=per_channel)
        codes = {}
        if gptq:
            progress("choosing codes")
            pairs = paired(prepared, in_float=in_float)
            codes = weight_codes(plain, feeds, prepared, pairs, products, mean)
        floats = FloatValues(partial(_shown, plain), feeds, None if max_error is None else folder)
        for _ in range(_ROUNDS):
            progress(f"quantizing, {len(in_float)} nodes in floats")
            quantized = paired(prepared, in_float=in_float)
            rounded = store_codes(quantized, codes)
            if mean and correct_biases:
                model_of_pairs, corrected = with_corrected_biases(prepared, quantized, products, mean)
                quantized = paired(model_of_pairs, in_float=in_float)
                rounded = store_codes(quantized, codes)
            measured = _names_in(quantized, products, watched)
            shown = _showing(quantized, list(measured.values()))
            errors = _errors(floats, shown, {n: n for n in outputs}, measured)
            error = errors[""]
            nodes = _node_errors(quantized, products, errors, in_float)
            left = [n.node for n in nodes if not n.kept]
            if max_error is None or error <= max_error or not left:
                break
            in_float += left[: max(1, math.ceil(len(left) / 8))]
        _write(quantized, target)
    policy = target.with_suffix(".policy.yaml")
    _write_policy(policy, target.name)
    return QuantizeReport(
        str(target),
        str(policy),
        len(feeds),
        error,
        max_error,
        nodes,
        smoothed,
        corrected,
        rounded,
        activations,
    )


def _check_options(activations: str, method: str, smoothing: float | None, max_error: float | None) -> None:
    for name, value, words in (
        ("activations", activations, tuple(_ACTIVATIONS)),
        ("method", method, ("minmax", "entropy", "percentile")),
    ):
        if value not in words:
            raise PolicyError(
                "quantize", f"no such value of {name}", got=repr(value), do=f"Use {' or '.join(words)}."
            )
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise PolicyError(
            "quantize", "smoothing must be from 0 to 1", got=smoothing, do="Use 0.5, or 0 for none."
        )
    if max_error is not None and not max_error >= 0:
        raise PolicyError(
            "quantize", "max_error must not be negative", got=max_error, do="Use 0.02, for example."
        )


class _Tools:
    """Modules of ONNX Runtime's quantizer."""

    def __init__(self) -> None:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization import shape_inference
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        self.onnx, self.quantization, self.shapes, self.quantizer = (
            onnx,
            quantization,
            shape_inference,
            QDQQuantizer,
        )


def _tools() -> _Tools:
    try:
        return _Tools()
    except ImportError as error:
        raise EngineUnavailable(
            "quantize",
            "needs ONNX Runtime's quantizer",
            got=str(error),
            do="Run: pip install 'xpuruntime[quantize]'",
        ) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the quantizer's advice to preprocess the model, which has been done, and NumPy where sums overflow: such layers keep the nearest codes."""
    import logging

    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _with_axes(tools: _Tools, path: Path, opsets: Mapping[str, int], folder: Path) -> Path:
    """Return the model in an opset whose DequantizeLinear has an axis, which scales per output channel need."""
    if opsets.get("", _AXIS_OPSET) >= _AXIS_OPSET:
        return path
    try:
        from onnx import version_converter

        model = version_converter.convert_version(tools.onnx.load(str(path)), _AXIS_OPSET)
        result = folder / "converted.onnx"
        _save(tools.onnx, model, result)
    except Exception as error:  # the converter raises many types
        raise ModelError(
            "quantize",
            f"scales per output channel need opset {_AXIS_OPSET}, and onnx cannot convert the model",
            got=f"opset {opsets['']}: {str(error)[:200]}",
            do=f"Export the model with opset {_AXIS_OPSET} or later, or use one scale per weight (--per-tensor).",
        ) from error
    return result


def _prepared(tools: _Tools, path: Path, folder: Path) -> Any:
    """Return the model with known shapes, constants folded and batch norms fused, with a name for every node."""
    result = folder / "prepared.onnx"
    try:
        tools.shapes.quant_pre_process(
            str(path),
            str(result),
            skip_symbolic_shape=True,
            save_as_external_data=path.stat().st_size > _INLINE_BYTES,
        )
        model = tools.onnx.load(str(result))
    except Exception as error:  # the vendor raises many types
        raise ModelError(
            "quantize",
            "ONNX Runtime cannot prepare the model",
            got=str(error)[:300],
            do="Check the model with `xpu run`.",
        ) from error
    for at, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{at}"
    _fold_betas(model.graph)
    if not any(n.op_type in _PRODUCTS for n in model.graph.node):
        raise ModelError(
            "quantize",
            "the model has no convolution and no matrix product",
            got=f"{len(model.graph.node)} nodes",
            do="Nothing to do: int8 is for products.",
        )
    return model


def _fold_betas(graph: Any) -> None:
    """Multiply the bias of each Gemm by its factor ``beta``, which ONNX Runtime's quantizer removes."""
    from onnx import helper, numpy_helper

    contents = {t.name: t for t in graph.initializer}
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    for node in [n for n in graph.node if n.op_type == "Gemm" and len(n.input) > 2 and n.input[2]]:
        beta = next((a for a in node.attribute if a.name == "beta" and a.f != 1.0), None)
        if beta is None:
            continue
        name, scaled = node.input[2], f"{node.name}.scaled_bias"
        if name in contents:
            value = numpy_helper.to_array(contents[name])
            graph.initializer.append(numpy_helper.from_array((value * beta.f).astype(value.dtype), scaled))
        else:
            kind = types.get(name, 1)
            graph.initializer.append(helper.make_tensor(f"{node.name}.beta", kind, [], [beta.f]))
            before = list(graph.node).index(node)
            graph.node.insert(
                before, helper.make_node("Mul", [name, f"{node.name}.beta"], [scaled], name=scaled)
            )
        node.input[2] = scaled
        node.attribute.remove(beta)


def _session(model: Any) -> Any:
    """Return a session that computes the model as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _errors(
    floats: FloatValues, quantized: Any, outputs: Mapping[str, str], measured: Mapping[str, str]
) -> dict[str, float]:
    """Return the error of each value over all samples, and under "" that of all outputs together. One sample is in memory at a time.

    outputs, measured: the quantized session's values by those of the float model.
    """
    errors: defaultdict[str, RelativeError] = defaultdict(RelativeError)
    for sample, before in floats:
        after = _shown(quantized, sample)
        for name, now in outputs.items():
            errors[""].add(after[now], before[name])
        for name, now in measured.items():
            if name in before and before[name].size and before[name].size == after[now].size:
                errors[name].add(after[now], before[name])
    return {name: error.value for name, error in errors.items()}


def _shown(session: Any, sample: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs and all outputs of a run."""
    names = [o.name for o in session.get_outputs()]
    return {**sample, **dict(zip(names, session.run(names, dict(sample)), strict=True))}


def _showing(model: Any, names: Sequence[str]) -> Any:
    """Return a session that also has values that the model computes as outputs."""
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {o.name for o in shown.graph.output}
    produced = {v for n in shown.graph.node for v in n.output}
    shown.graph.output.extend(
        onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names) if n in produced - present
    )
    return _session(shown)


def _largest(model: Any, feeds: Samples, names: Sequence[str]) -> dict[str, Array]:
    """Return max|x| over all samples and positions per channel of the last axis."""
    session = _showing(model, names)
    largest: dict[str, Array] = {}
    for sample in feeds:
        for name, value in zip(names, session.run(list(names), dict(sample)), strict=True):
            peak = np.abs(value).reshape(-1, value.shape[-1]).max(axis=0)
            largest[name] = np.maximum(largest.get(name, peak), peak)
    return largest


def _ranges(tools: _Tools, model: Any, feeds: Samples, method: str, activations: str, folder: Path) -> Any:
    """Return the ranges of all float values by ONNX Runtime's calibrator."""
    q = tools.quantization

    class Reader(q.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self.rest, None)
            return None if sample is None else dict(sample)

    path = folder / "calibrated.onnx"
    _save(tools.onnx, model, path)
    kinds = {
        "minmax": q.CalibrationMethod.MinMax,
        "entropy": q.CalibrationMethod.Entropy,
        "percentile": q.CalibrationMethod.Percentile,
    }
    calibrator = q.calibrate.create_calibrator(
        str(path),
        None,
        augmented_model_path=str(folder / "augmented.onnx"),
        calibrate_method=kinds[method],
        extra_options={"symmetric": activations == "int8"},
    )
    calibrator.collect_data(Reader())
    return calibrator.compute_data()


def _with_pairs(
    tools: _Tools, model: Any, *, ranges: Any, activations: str, per_channel: bool, in_float: Sequence[str]
) -> Any:
    """Return a copy of the model with pairs around all nodes except those in ``in_float``."""
    q = tools.quantization
    copy = tools.onnx.ModelProto()
    copy.CopyFrom(model)
    quantizer = tools.quantizer(
        copy,
        per_channel,
        False,
        q.QuantType.QInt8,
        q.QuantType[_ACTIVATIONS[activations]],
        ranges,
        [],
        list(in_float),
        list(q.registry.QDQRegistry),
        {"ActivationSymmetric": activations == "int8", "WeightSymmetric": True},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    return quantizer.model.model


_INPUT, _RESULT = "_QuantizeLinear_Input", "_DequantizeLinear_Output"
"""Suffixes that ONNX Runtime's quantizer appends to the names of values before and after a pair."""


def _watched(model: Any, products: Sequence[Any]) -> list[str]:
    """Return the values whose errors are measured: operands and results of products, and results of an activation that may be removed."""
    results = {n.output[0] for n in products}
    after = [n.output[0] for n in model.graph.node if n.op_type in ("Relu", "Clip") and n.input[0] in results]
    return list(dict.fromkeys([*(v for n in products for v in (n.output[0], n.input[0])), *after]))


def _names_in(quantized: Any, products: Sequence[Any], watched: Sequence[str]) -> dict[str, str]:
    """Return the quantized model's value for each watched value: the result of its DequantizeLinear, if it has one."""
    produced = {v for n in quantized.graph.node for v in n.output} | {i.name for i in quantized.graph.input}
    names = {n: next((v for v in (n + _RESULT, n) if v in produced), "") for n in watched}
    return {n: v for n, v in names.items() if v}


def _node_errors(
    quantized: Any, products: Sequence[Any], errors: Mapping[str, float], in_float: Sequence[str]
) -> tuple[NodeError, ...]:
    # A bounding activation after a node is part of its pair: its result replaces the node's.
    now = {n.name: n.output[0].removesuffix(_INPUT) for n in quantized.graph.node}
    rows = []
    for node in products:
        result = now.get(node.name, node.output[0])
        whole = errors.get(result if result in errors else node.output[0], 0.0)
        added = max(0.0, whole - errors.get(node.input[0], 0.0))
        rows.append(NodeError(node.name, node.op_type, whole, added, node.name in in_float))
    return tuple(sorted(rows, key=lambda r: -r.added))


def _save(onnx: Any, model: Any, path: Path) -> None:
    if model.ByteSize() > _INLINE_BYTES:
        onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data")
    else:
        onnx.save(model, str(path))


def _write(model: Any, path: Path) -> None:
    import onnx

    try:
        _save(onnx, model, path)
    except OSError as error:
        raise StoreError(
            "quantize",
            "cannot write the model",
            got=f"{path}: {error.strerror or error}",
            do="Give another --output.",
        ) from error


def _write_policy(path: Path, model: str) -> None:
    text = f"# for {model}: products in integers, or an error\nversion: 1\nexecution:\n  precision: int8\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            "quantize",
            "cannot write the policy",
            got=f"{path}: {error.strerror or error}",
            do="Give another --output.",
        ) from error
