"""A KernelPolicy on a vendor's region, as far as the vendor has an option for it (each engine's ``kernel_options`` is the table).

An option holds for the whole region, so only demands on a whole op family can be met by one: plain keywords, and rules that state no other
condition than ``op``. What the user set by the option's own name stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...policies import KernelPolicy, Rule, load_policy
from ...targets import DeviceId

__all__ = ["met_by_options", "speaks_of_families"]

_LIST = ";"  # of options that hold several names


def met_by_options(
    engine: Any, device: DeviceId, kernels: str, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Options to add for a KernelPolicy (as JSON text), and by family the kernel that they bring about with the options as text."""
    table = engine.kernel_options(device) if hasattr(engine, "kernel_options") else {}
    options: dict[str, str] = {}
    met: dict[str, tuple[str, str]] = {}
    if not table or not kernels:
        return options, met
    for family, kernel in _demands(load_policy(json.loads(kernels)).kernel):
        found = table.get((family, kernel))
        if family in met or found is None or any(key in given for key in found):
            continue
        for key, value in found.items():
            options[key] = f"{options[key]}{_LIST}{value}" if key in options else value
        met[family] = kernel, ", ".join(f"{k}={v}" for k, v in found.items())
    return options, met


def speaks_of_families(rule: Rule) -> bool:
    """Whether a rule is about all nodes of its families."""
    return bool(rule.op) and not (rule.node or rule.dtype or rule.shape or rule.phase)


def _demands(policy: KernelPolicy) -> Iterator[tuple[str, str]]:
    """(family, kernel) in the order in which they count: forced ones first, then what is preferred, layer by layer."""
    rules = [r for layer in policy.layers for r in layer.rules if speaks_of_families(r)]
    yield from ((family, r.use) for r in rules if r.use for family in r.op)
    for layer in policy.layers:
        for rule in filter(speaks_of_families, layer.rules):
            yield from ((family, kernel) for kernel in rule.prefer for family in rule.op)
        yield from ((family, kernel) for family, names in layer.preferences() for kernel in names)
