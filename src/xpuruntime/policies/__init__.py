"""Policies: what the user demands, as data, and the pure functions that read it.

KernelPolicy (which kernel computes an op) and ExecutionPolicy (where and how a model runs) are frozen values that live in code
or in a JSON or YAML file. ``choose`` picks a kernel and says why; ``resolve`` lays call arguments, file, environment and built-in
default over one another and remembers where each field came from.
"""

from __future__ import annotations

from .choose import Offer, choose
from .context import current_policy, with_policy
from .execution_policy import ExecutionPolicy
from .kernel_policy import KernelPolicy
from .lint import Finding, lint
from .load import Loaded, PolicyLike, load_policy, read_policy
from .policy import Policy
from .precedence import Layer, Resolved, builtin_policy, effective_policy, resolve
from .rule import NodeFacts, Rule

__all__ = [
    "ExecutionPolicy",
    "Finding",
    "KernelPolicy",
    "Layer",
    "Loaded",
    "NodeFacts",
    "Offer",
    "Policy",
    "PolicyLike",
    "Resolved",
    "Rule",
    "builtin_policy",
    "choose",
    "current_policy",
    "effective_policy",
    "lint",
    "load_policy",
    "read_policy",
    "resolve",
    "with_policy",
]
