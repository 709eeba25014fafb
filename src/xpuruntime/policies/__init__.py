"""Policies: the user's demands as data, and pure functions that apply them.

KernelPolicy (which kernel computes an op) and ExecutionPolicy (where and how a model runs) are frozen values, written in code or in
a JSON or YAML file. ``choose`` picks a kernel and says why. ``resolve`` merges call arguments, file, environment and built-in default,
and records the origin of each field.
"""

from __future__ import annotations

from .choose import Offer, choose
from .context import current_policy, with_policy
from .execution_policy import ExecutionPolicy
from .files.load import LoadedPolicy, PolicyLike, load_policy, read_policy
from .kernel_policy import KernelPolicy
from .lint import LintFinding, lint
from .policy import Policy
from .precedence import PolicyLayer, Resolved, builtin_policy, effective_policy, resolve
from .rule import NodeFacts, Rule

__all__ = [
    "ExecutionPolicy",
    "KernelPolicy",
    "LintFinding",
    "LoadedPolicy",
    "NodeFacts",
    "Offer",
    "Policy",
    "PolicyLayer",
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
