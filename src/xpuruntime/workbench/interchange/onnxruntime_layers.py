"""Layer annotations of ONNX Runtime to and from ``execution.place``, by way of the nodes of a model."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ModelError, PolicyError
from ...families import FAMILIES, family_of_onnx
from ...ir.ops import OPS
from ...policies.execution_policy import ExecutionPolicy
from ...policies.fields.checks import MAX_LIST
from ...policies.policy import Policy
from ...storage.files import write_atomic
from .layer_rules import BY_ANNOTATION, BY_NAME, LayerRule, deciding_rule, parse_rules
from .leftovers import leftovers
from .report import Conversion, ConvertedItem, ItemOutcome
from .source_text import SourceText

__all__ = ["read_layers", "write_layers"]

NAME = "onnxruntime-layers"
_KEY = "layer_ann"
_WORDS = frozenset({*FAMILIES, *OPS})
"""Names that a place takes for ops and op families."""

_DEVICES: Mapping[str, tuple[str, str | None]] = {
    "cpu": ("onnxruntime", "cpu"),
    "cuda": ("onnxruntime", "cuda"),
    "gpu": ("onnxruntime", "gpu"),
    "gpu:nvidia": ("onnxruntime", "cuda"),
    "npu": ("qnn", "npu"),
    "CPUExecutionProvider": ("onnxruntime", "cpu"),
    "CUDAExecutionProvider": ("onnxruntime", "cuda"),
    "QNNExecutionProvider": ("qnn", "npu"),
    "TensorrtExecutionProvider": ("tensorrt", "cuda"),
    "OpenVINOExecutionProvider": ("openvino", None),
}
"""Device designator -> engine and device; None: the target of the policy."""

_PROVIDERS: Mapping[tuple[str, str], str] = {
    ("onnxruntime", "cpu"): "cpu",
    ("onnxruntime", "cuda"): "cuda",
    ("onnxruntime", "gpu"): "gpu",
    ("qnn", "npu"): "QNNExecutionProvider",
    ("tensorrt", "cuda"): "TensorrtExecutionProvider",
    ("openvino", "cpu"): "OpenVINOExecutionProvider",
}
"""Engine and kind of device -> designator."""


def read_layers(source: SourceText, model: str | os.PathLike[str] | None = None) -> Conversion:
    """Convert a setting to places of the model's nodes. Raises PolicyError with line and column, ModelError."""
    option, rules = parse_rules(source)
    nodes: dict[str, str] = {}
    items: list[ConvertedItem] = []
    if model is not None:
        proto = _load(model)
        nodes = {n.name: _text(option, n) for n in proto.graph.node if _has_address(n)}
        items += _outside(proto, option, rules)
    deciding = {name: deciding_rule(option, rules, text) for name, text in nodes.items()}
    target: str | None = None
    place: dict[str, str] = {}
    for rule in rules:
        line, column = source.at(rule.offset)
        decided = [name for name, r in deciding.items() if r is rule]
        engine, device = _DEVICES.get(rule.device.lower()) or _DEVICES.get(rule.device, ("", None))
        reason, remedy = _obstacle(rule, engine, device, target, decided, model is not None)
        if not reason:
            target = target or device
            patterns = _patterns(rule, option, decided, nodes)
            place |= dict.fromkeys(patterns, engine)
            becomes = f"execution.place: {{{', '.join(patterns[:3])}{', ...' if len(patterns) > 3 else ''}: {engine}}}"
            items.append(ConvertedItem(str(rule), ItemOutcome.CARRIED, becomes, line=line, column=column))
        else:
            items.append(ConvertedItem(str(rule), ItemOutcome.NOT_CARRIED, "", reason, remedy, line, column))
    if len(place) > MAX_LIST:
        what = f"needs {len(place)} places, and a policy has at most {MAX_LIST}"
        raise PolicyError(source.name, what, do="Give the nodes of each rule a common part in their names.")
    return Conversion(
        NAME, source.name, tuple(items), Policy(execution=ExecutionPolicy(target=target, place=place or None))
    )


def _obstacle(
    rule: LayerRule,
    engine: str,
    device: str | None,
    target: str | None,
    decided: Sequence[str],
    resolved: bool,
) -> tuple[str, str]:
    """Return why a rule cannot be carried, and the remedy; empty if it can."""
    if rule.ignored:
        return "ONNX Runtime ignores what follows ')'", "Write ';' before the next device."
    if not engine:
        return f"{rule.device!r} has no engine and device here", f"Known: {', '.join(_DEVICES)}."
    if not resolved:
        return "which nodes a pattern matches depends on the model", "Give the model with --model."
    if not decided:
        return "it decides no node of the model", "Remove it, or give the annotated model."
    if target is not None and device is not None and device != target:
        reason = f"it needs {device}, an earlier rule {target}, and a policy has one target"
        return reason, "Convert the rules of each device on their own."
    return "", ""


def _patterns(rule: LayerRule, option: str, decided: Sequence[str], nodes: Mapping[str, str]) -> list[str]:
    """Return patterns of ``place`` that match these nodes and nothing else: one pattern if there is one, else the names."""
    others = [*(n for n in nodes if n not in set(decided)), *_WORDS]
    first, last = min(decided), max(decided)
    differing = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    common = first[: next(differing, len(first))]
    candidates = [f"{glob.escape(common)}*"] if len(decided) > 1 else []
    if option == BY_NAME:
        candidates.insert(0, f"*{glob.escape(rule.pattern)}*")
    for pattern in candidates:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in others):
            return [pattern]
    return [glob.escape(name) for name in decided]


def write_layers(
    policy: Policy,
    name: str,
    model: str | os.PathLike[str] | None = None,
    annotated: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Convert ``execution.place`` to rules, and write a copy of the model whose nodes are annotated by engine.

    Without a model, only patterns of the form ``*part*`` are rules, of names. Raises ModelError, StoreError.
    """
    place = dict(policy.execution.place or {})
    kind = (policy.execution.target or "cpu").partition(":")[0]
    proto = None if model is None else _load(model)
    placed = set() if proto is None else _annotate(proto, place, kind)
    items: list[ConvertedItem] = []
    rules: list[str] = []
    for pattern in sorted(place, key=lambda p: (-len(p), p)):  # in both, the longest pattern decides
        item = _written(pattern, place[pattern], kind, None if proto is None else placed)
        items.append(item)
        if item.becomes and item.becomes not in rules:
            rules.append(item.becomes)
    if proto is not None and annotated is not None:
        write_atomic(Path(annotated), proto.SerializeToString())
    done = ("place", "target") if rules else ("place",)
    items += leftovers(policy, "layer rules place nodes on devices, nothing else", execution=done)
    option = BY_NAME if proto is None else BY_ANNOTATION
    return Conversion(NAME, name, tuple(items), policy, f"{option}={'; '.join(rules)}\n" if rules else "")


def _written(pattern: str, engine: str, kind: str, placed: set[str] | None) -> ConvertedItem:
    """Return the item of one place. ``placed``: patterns that place a node of the model; None without a model."""
    text = f"execution.place: {{{pattern}: {engine}}}"
    engine, kind = _engine_and_kind(engine, kind)
    device = _PROVIDERS.get((engine, kind))
    if device is None:
        reason = f"ONNX Runtime has no execution provider for {engine} on {kind}"
        remedy = "Place the nodes on onnxruntime."
    elif placed is None and not _is_part(pattern):
        reason = "without a model, only a pattern *PART* of names is a rule"
        remedy = "Give --model and --annotated."
    elif placed is not None and pattern not in placed:
        reason = "it places no node of the model by name or op family"
        remedy = "Write names of nodes."
    else:
        rule = f"{device}({pattern[1:-1]})" if placed is None else f"{device}(=xpu.{engine})"
        known = _WORDS if placed is None else _WORDS - FAMILIES.keys()
        words = sorted(w for w in known if fnmatch.fnmatchcase(w, pattern))
        reason = f"here it also matches ops and op families: {', '.join(words[:5])}" if words else ""
        return ConvertedItem(text, ItemOutcome.CHANGED if words else ItemOutcome.CARRIED, rule, reason)
    return ConvertedItem(text, ItemOutcome.NOT_CARRIED, "", reason, remedy)


def _is_part(pattern: str) -> bool:
    part = pattern[1:-1]
    plain = not any(c in part for c in "*?[]();,=") and part == part.strip()
    return len(pattern) > 2 and pattern[0] == pattern[-1] == "*" and plain


def _engine_and_kind(place: str, kind: str) -> tuple[str, str]:
    """Split ``engine on device``; without a device, the kind is that of the policy."""
    engine, _, device = place.partition(" on ")
    return engine, device.partition(":")[0] or kind


def _annotate(proto: Any, place: Mapping[str, str], kind: str) -> set[str]:
    """Give each placed node the annotation ``xpu.ENGINE``, and remove all others. Return the patterns that place a node."""
    placed: set[str] = set()
    ordered = sorted(place, key=lambda p: (-len(p), p))
    for node in proto.graph.node:
        kept = [p for p in node.metadata_props if p.key != _KEY]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        names = (node.name, family_of_onnx(node.op_type, node.domain))
        matching = (p for p in ordered if any(fnmatch.fnmatchcase(n, p) for n in names))
        pattern = node.name if node.name in place else next(matching, None)
        if pattern is None:
            continue
        engine = _engine_and_kind(place[pattern], kind)
        if engine in _PROVIDERS:
            placed.add(pattern)
            node.metadata_props.add(key=_KEY, value=f"xpu.{engine[0]}")
    return placed


def _load(model: str | os.PathLike[str]) -> Any:
    """Load the model's protobuf without the data of external tensors."""
    import onnx

    try:
        return onnx.load(os.fspath(model), load_external_data=False)
    except Exception as error:
        who = f"model {os.fspath(model)}"
        raise ModelError(
            who, "cannot be read as ONNX", got=type(error).__name__, do="Give an .onnx file."
        ) from error


def _has_address(node: Any) -> bool:
    """Return True if a place can name the node: by a name that is no op and no op family."""
    return bool(node.name) and node.name not in _WORDS


def _text(option: str, node: Any) -> str:
    if option == BY_NAME:
        return str(node.name)
    return next((str(p.value) for p in node.metadata_props if p.key == _KEY), "")


def _outside(proto: Any, option: str, rules: Sequence[LayerRule]) -> list[ConvertedItem]:
    """Return an item for the nodes of rules that have no name of their own, and for nodes in subgraphs: a place cannot name them."""
    unnamed = sum(
        not _has_address(n) and deciding_rule(option, rules, _text(option, n)) is not None
        for n in proto.graph.node
    )
    nested = sum(len(g.node) for n in proto.graph.node for a in n.attribute for g in (a.g, *a.graphs))
    reason, remedy = (
        "a place names nodes of the main graph by their names",
        "Name the nodes and inline the subgraphs.",
    )
    parts = {"nodes without a name of their own": unnamed, "nodes in subgraphs": nested}
    return [
        ConvertedItem(f"{count} {what}", ItemOutcome.NOT_CARRIED, "", reason, remedy)
        for what, count in parts.items()
        if count
    ]
