"""Calls of ``scaled_dot_product_attention`` in a graph of PyTorch's compiler, as calls of our op."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation

from ..numbered_policies import PolicyCell, numbered_policy
from ..routing import attention_of_pytorch

__all__ = ["route_attention"]


def route_attention(module: torch.fx.GraphModule, cell: PolicyCell) -> None:
    """Send the graph's attention to our op, if the policy names the family.

    It runs before PyTorch's autograd sees the graph: later, attention is an operator of a device with a backward of its own.
    """
    if not numbered_policy().names("attention"):
        return
    calls = [n for n in module.graph.nodes if n.target is F.scaled_dot_product_attention]
    for node in calls:
        node.target = functools.partial(_attention, cell.number)
    if calls:
        module.recompile()


def _attention(number: int, *args: Any, **kwargs: Any) -> Any:
    result = attention_of_pytorch(*args, **kwargs, number=number)
    return F.scaled_dot_product_attention(*args, **kwargs) if result is None else result
