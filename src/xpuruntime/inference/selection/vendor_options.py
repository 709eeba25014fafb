"""KernelPolicy demands that a vendor's options can satisfy (each engine's ``kernel_options`` is the table).

An option holds for the whole region, so it can satisfy only demands on a whole op family: plain keywords, and rules without a condition
other than ``op``. An option that the user set by its own name keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...policies import KernelPolicy, Rule
from ...protocols import Engine, HasKernelOptions
from ...targets import DeviceId

__all__ = ["met_by_options", "speaks_of_families"]

_LIST = ";"  # separates several names in one option


def met_by_options(
    engine: Engine, device: DeviceId, kernels: KernelPolicy | None, given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return the options to add for a KernelPolicy, and by family the resulting kernel and option text."""
    options: dict[str, str] = {}
    met: dict[str, tuple[str, str]] = {}
    if kernels is None or not isinstance(engine, HasKernelOptions):
        return options, met
    table = engine.kernel_options(device)
    for family, kernel in _demands(kernels):
        options_of = table.get((family, kernel))
        if family in met or options_of is None or any(key in given for key in options_of):
            continue
        for key, value in options_of.items():
            options[key] = f"{options[key]}{_LIST}{value}" if key in options else value
        met[family] = kernel, ", ".join(f"{k}={v}" for k, v in options_of.items())
    return options, met


def speaks_of_families(rule: Rule) -> bool:
    """Return True if a rule applies to all nodes of its families."""
    return bool(rule.op) and not (rule.node or rule.dtype or rule.shape or rule.phase)


def _demands(policy: KernelPolicy) -> Iterator[tuple[str, str]]:
    """Yield (family, kernel) by precedence: forced kernels first, then preferred ones, layer by layer."""
    rules = [r for layer in policy.layers for r in layer.rules if speaks_of_families(r)]
    yield from ((family, r.use) for r in rules if r.use for family in r.op)
    for layer in policy.layers:
        for rule in filter(speaks_of_families, layer.rules):
            yield from ((family, kernel) for kernel in rule.prefer for family in rule.op)
        yield from ((family, kernel) for family, names in layer.preferences() for kernel in names)
