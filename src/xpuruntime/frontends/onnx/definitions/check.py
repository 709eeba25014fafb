"""Check of a node's attributes against the definition of its op, in the same way for every domain.

A runtime that ignores an attribute computes something else without a word.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from typing import Any

from ..proto import sub_graphs
from .onnx_runtime import ATTRIBUTES, AttributeRule

__all__ = ["undeclared", "why_not_supported"]

_HIDDEN = "__"
"""Prefix of attributes that engines write for themselves."""
_OF_ONNX_RUNTIME = ("", "com.microsoft")
"""Domains in which ONNX Runtime defines ops."""


def undeclared(proto: Any, opsets: Mapping[str, int]) -> list[str]:
    """Return for each node of a model how its attributes differ from the definition of its op: its own, or those of a node inside it; nothing if none
    differ.
    """
    functions = {(_domain(f), f.name) for f in proto.functions}
    inside_function = ""
    for function in proto.functions:
        imported = {_domain(o): o.version for o in function.opset_import} or opsets
        for node in function.node:
            if not inside_function and (why := _inside(node, imported, functions)):
                inside_function = (
                    f"inside the function {function.name!r}, {node.op_type} ({node.name}): {why}"
                )
    called = dict.fromkeys(functions, inside_function)
    return [
        called.get((_domain(node), node.op_type), "") or _inside(node, opsets, functions)
        for node in proto.graph.node
    ]


def _inside(node: Any, opsets: Mapping[str, int], functions: Collection[tuple[str, str]]) -> str:
    """Return how a node or one of its subgraphs' nodes differs."""
    key = (_domain(node), node.op_type)
    rules = None if key in functions else _rules(node.op_type, key[0], opsets.get(key[0], 1))
    if rules is not None and (why := _differs(node, rules)):
        return why
    for inner in (n for graph in sub_graphs(node) for n in graph.node):
        if why := _inside(inner, opsets, functions):
            return f"inside it, {inner.op_type} ({inner.name}): {why}"
    return ""


def _domain(proto: Any) -> str:
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def why_not_supported(node: Any, domain: str, opset: int) -> str:
    """Return why the attributes of a node outside functions have no form in the IR: they differ from the definition, or have a value that is not supported."""
    rules = _rules(node.op_type, domain, opset)
    if rules is None:
        return ""
    return _differs(node, rules) or _other_value(node, rules)


def _differs(node: Any, rules: Mapping[str, AttributeRule]) -> str:
    present = {a.name: a for a in node.attribute if not a.name.startswith(_HIDDEN)}
    for name, attribute in present.items():
        rule = rules.get(name)
        if rule is None:
            near = difflib.get_close_matches(name, rules, n=1)
            known = f"; it has {', '.join(sorted(rules))}" if rules else "; it has none"
            return f"the op has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else known)
        if not attribute.ref_attr_name and attribute.type != rule.type:
            return f"its attribute {name!r} is {_word(attribute.type)} instead of {_word(rule.type)}"
    missing = [name for name, rule in rules.items() if rule.required and name not in present]
    return f"its attribute {missing[0]!r} is missing" if missing else ""


def _other_value(node: Any, rules: Mapping[str, AttributeRule]) -> str:
    for attribute in node.attribute:
        rule = rules.get(attribute.name)
        if rule is not None and rule.values and _value(attribute) not in rule.values:
            possible = " and ".join(map(repr, rule.values))
            return f"its attribute {attribute.name!r} is {_value(attribute)!r}; only {possible} is supported"
    return ""


@functools.lru_cache(maxsize=4096)
def _rules(op: str, domain: str, opset: int) -> Mapping[str, AttributeRule] | None:
    """Return the attributes of an op; None if no definition is known."""
    import onnx

    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except Exception:  # SchemaError is a class of onnx's C++ module: the op is another runtime's
        return ATTRIBUTES.get(op) if domain in _OF_ONNX_RUNTIME else None
    return {name: AttributeRule(int(a.type.value), a.required) for name, a in schema.attributes.items()}


def _word(kind: int) -> str:
    import onnx

    return str(onnx.AttributeProto.AttributeType.Name(kind))


def _value(attribute: Any) -> Any:
    return attribute.s.decode("utf-8", "replace") if attribute.type == 3 else attribute.i
