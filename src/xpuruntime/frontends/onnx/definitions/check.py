"""Check of a node's attributes against the definition of its op, in the same way for every domain.

A runtime that ignores an attribute computes something else without a word.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ..proto import sub_graphs
from .onnx_runtime import ATTRIBUTES, AttributeRule, AttributeType

__all__ = ["Difference", "undeclared", "why_not_supported"]

_HIDDEN = "__"
"""Prefix of attributes that engines write for themselves."""
_OF_ONNX_RUNTIME = ("", "com.microsoft")
"""Domains in which ONNX Runtime defines ops."""
_ABOUT_MEMORY = "consumed_inputs"
"""An attribute of the first versions of ops; no value of it changes a result."""
_OPERANDS_NOW = {("Clip", "max"), ("Clip", "min"), ("DFT", "axis"), ("Pad", "value")}
"""(op, attribute) that are operands in later versions, where another value may be the default."""


class Difference(NamedTuple):
    """A way in which a node's attributes differ from the definition of its op. ignorable: it is an attribute that the op does not have."""

    text: str
    ignorable: bool = False

    def within(self, place: str) -> Difference:
        """Return the same difference of a node that encloses this one."""
        return self._replace(text=f"inside {place}: {self.text}")


def undeclared(proto: Any, opsets: Mapping[str, int]) -> list[Difference | None]:
    """Return for each node of a model how its attributes differ from the definition of its op: its own, or those of a node inside it; None if none
    differ.
    """
    functions = {(_domain(f), f.name) for f in proto.functions}
    inside_function: Difference | None = None
    for function in proto.functions:
        imported = {_domain(o): o.version for o in function.opset_import} or opsets
        for node in function.node:
            if not inside_function and (difference := _inside(node, imported, functions)):
                inside_function = difference.within(
                    f"the function {function.name!r}, {node.op_type} ({node.name})"
                )
    called = dict.fromkeys(functions, inside_function)
    return [
        called.get((_domain(node), node.op_type)) or _inside(node, opsets, functions)
        for node in proto.graph.node
    ]


def _inside(
    node: Any, opsets: Mapping[str, int], functions: Collection[tuple[str, str]]
) -> Difference | None:
    """Return how a node or one of its subgraphs' nodes differs."""
    key = (_domain(node), node.op_type)
    rules = None if key in functions else _rules(node.op_type, key[0], opsets.get(key[0], 1))
    if rules is not None and (difference := _difference(node, rules, key[0], opsets.get(key[0], 1))):
        return difference
    for inner in (n for graph in sub_graphs(node) for n in graph.node):
        if difference := _inside(inner, opsets, functions):
            return difference.within(f"it, {inner.op_type} ({inner.name})")
    return None


def _domain(proto: Any) -> str:
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def why_not_supported(node: Any, domain: str, opset: int) -> str:
    """Return why the attributes of a node outside functions have no form in the IR: they differ from the definition, or have a value that is not supported."""
    rules = _rules(node.op_type, domain, opset)
    if rules is None:
        return ""
    difference = _difference(node, rules, domain, opset)
    return _other_value(node, rules) if difference is None else difference.text


def _difference(node: Any, rules: Mapping[str, AttributeRule], domain: str, opset: int) -> Difference | None:
    present = {a.name: a for a in node.attribute if not a.name.startswith(_HIDDEN)}
    for name, attribute in present.items():
        rule = rules.get(name)
        if rule is None and _is_default_of_earlier_version(node.op_type, attribute, domain, opset):
            continue
        if rule is None:
            near = difflib.get_close_matches(name, rules, n=1)
            known = f"; it has {', '.join(sorted(rules))}" if rules else "; it has none"
            hint = f"; did you mean {near[0]!r}?" if near else known
            return Difference(f"the op has no attribute {name!r}{hint}", ignorable=True)
        if not attribute.ref_attr_name and attribute.type != rule.type:
            return Difference(
                f"its attribute {name!r} is {_word(attribute.type)} instead of {_word(rule.type)}"
            )
    missing = [name for name, rule in rules.items() if rule.required and name not in present]
    return Difference(f"its attribute {missing[0]!r} is missing") if missing else None


def _is_default_of_earlier_version(op: str, attribute: Any, domain: str, opset: int) -> bool:
    """Return whether an earlier version of an op has an attribute, and this value by default: exporters leave it behind."""
    import onnx

    if (op, attribute.name) in _OPERANDS_NOW or attribute.ref_attr_name:
        return False
    version = opset
    while version > 0:
        try:
            schema = onnx.defs.get_schema(op, version, domain)
        except Exception:  # SchemaError is a class of onnx's C++ module: there is no earlier version
            return False
        if attribute.name in schema.attributes:
            default = schema.attributes[attribute.name].default_value
            if attribute.name == _ABOUT_MEMORY:
                return True
            value = onnx.helper.get_attribute_value
            return bool(
                default.name and default.type == attribute.type and value(default) == value(attribute)
            )
        version = schema.since_version - 1
    return False


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
    return attribute.s.decode("utf-8", "replace") if attribute.type == AttributeType.STRING else attribute.i
