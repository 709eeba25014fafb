"""Kernels of libraries that PyTorch brings, for training ops: a policy names them by the words of the catalogue.

A library's kernel runs where the policy names it and it supports the call. A kernel that the policy names before it comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler.demands import facts_of
from ..decisions import Candidate, Decision, Reason, Support
from ..errors import KernelUnavailable
from ..ir import Graph
from ..policies import KernelPolicy
from ..policies.choose import NodeDemands, node_demands

__all__ = ["LIBRARY_KERNELS", "LibraryChoice", "LibraryKernel", "library_choice"]

Operands = Sequence["torch.Tensor | None"]
_ATEN = torch.ops.aten
_HEAD_ELEMENTS, _CHUNK = 128, 8


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """One direction of an op by a library.

    word:          its name in policies.
    function:      the function of PyTorch that calls it.
    supports:      from operands and attributes in the formula's order.
    run:           results from the same.
    deterministic: True if equal inputs give equal bits.
    """

    word: str
    function: str
    supports: Callable[[Operands, tuple[Any, ...]], Support]
    run: Callable[[Operands, tuple[Any, ...]], list[torch.Tensor]]
    deterministic: bool


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """A policy that names a library's kernel for a call: the kernel, if it can be had, and the decision.

    before: kernels that the policy names before it.
    """

    kernel: LibraryKernel | None
    before: tuple[str, ...]
    decision: Decision


def library_choice(
    op: str, graph: Graph, operands: Operands, attributes: tuple[Any, ...], policy: KernelPolicy, phase: str
) -> LibraryChoice | None:
    """Return what a policy says of a library's kernel for an op; None if it names none.

    Raises KernelUnavailable if a rule forces the kernel and it cannot be had.
    """
    kernel = LIBRARY_KERNELS.get(op)
    if kernel is None:
        return None
    device = next(t for t in operands if t is not None).device
    facts = facts_of(graph, graph.nodes[-1], phase=phase, device=device.type)
    demands = node_demands(policy, facts)
    order = [demands.use[0]] if demands.use else [*demands.prefer]
    if kernel.word not in order:
        return None
    support = _allowed(kernel, demands) and kernel.supports(operands, attributes)
    who = demands.use[1] if demands.use else demands.prefer[kernel.word]
    name = f"kernel {facts.family}"
    if not support:
        rejected = Candidate.rejected(kernel.word, support)
        decision = Decision(name, facts.node, None, (rejected,))
        if demands.use:
            raise KernelUnavailable(
                f"{op} ({phase})", f"{who} forces {kernel.word!r}, which is unavailable", got=support.reason,
                do="Change the rule, or use prefer instead.", decision=decision,
            )  # fmt: skip
        return LibraryChoice(None, (), decision)
    code = Reason.FORCED if demands.use else Reason.PREFERRED
    chosen = Candidate(kernel.word, code, f"{who} names it", facts={"function": kernel.function})
    return LibraryChoice(kernel, tuple(order[: order.index(kernel.word)]), Decision(name, facts.node, chosen))


def _allowed(kernel: LibraryKernel, demands: NodeDemands) -> Support:
    if by := demands.forbids(kernel.word):
        return Support.no(Reason.FORBIDDEN, f"{by} forbids it")
    if demands.exact and not kernel.deterministic:
        return Support.no(
            Reason.FORBIDDEN,
            f"it may add in another order each time; {demands.exact} demands deterministic kernels",
        )
    if demands.limit:
        return Support.no(
            Reason.WORKSPACE_EXCEEDED, f"PyTorch does not tell its workspace; {demands.limit[1]} limits it"
        )
    return Support.yes()


# ── cuDNN's attention ──


def _attention_support(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> Support:
    if q.device.type != "cuda" or not torch.backends.cudnn.is_available():
        where = f"the operands are on {q.device}" if q.device.type != "cuda" else "PyTorch has no cuDNN"
        return Support.no(Reason.DEVICE_MISMATCH, f"cuDNN's attention runs on CUDA devices; {where}")
    if q.dtype not in (torch.float16, torch.bfloat16):
        kind = str(q.dtype).removeprefix("torch.")
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"cuDNN's attention has float16 and bfloat16, not {kind}")
    reason = ""
    if mask is not None:
        reason = "a mask tensor is not supported"
    elif q.shape[1] != k.shape[1]:
        reason = f"it needs as many heads of k and v as of q, got {k.shape[1]} and {q.shape[1]}"
    elif any(size % _CHUNK or not 0 < size <= _HEAD_ELEMENTS for size in (q.shape[-1], v.shape[-1])):
        reason = f"heads have a multiple of {_CHUNK} elements, at most {_HEAD_ELEMENTS}; got {q.shape[-1]} and {v.shape[-1]}"
    elif not q.shape[0] or not q.shape[1] or min(q.shape[2], k.shape[2]) < 2:
        reason = f"it needs at least two queries and keys, got {list(q.shape)} and {list(k.shape)}"
    return Support.no(Reason.SHAPE_UNSUPPORTED, reason) if reason else Support.yes()


def _forward_support(operands: Operands, attributes: tuple[Any, ...]) -> Support:
    q, k, v, mask = operands
    assert q is not None
    assert k is not None
    assert v is not None
    return _attention_support(q, k, v, mask)


def _backward_support(operands: Operands, attributes: tuple[Any, ...]) -> Support:
    _, q, k, v, _, _, mask = operands
    return _forward_support((q, k, v, mask), attributes)


def _dense(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.contiguous()


def _cudnn_forward(operands: Operands, attributes: tuple[Any, ...]) -> list[torch.Tensor]:
    causal, scale = attributes
    q, k, v = map(_dense, operands[:3])
    y, lse, *_ = _ATEN._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return [y.contiguous(), lse.reshape(q.shape[:3])]


def _cudnn_backward(operands: Operands, attributes: tuple[Any, ...]) -> list[torch.Tensor]:
    causal, scale, wanted = attributes
    grad, q, k, v, y, lse = map(_dense, operands[:6])
    seed = torch.empty((), dtype=torch.int64, device=q.device)  # not read: there is no dropout
    gradients = _ATEN._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, y, lse.unsqueeze(-1), seed, seed, None, None, None, q.shape[2], k.shape[2], 0.0, causal,
        scale=scale,
    )  # fmt: skip
    return [g.contiguous() for g, needed in zip(gradients, wanted, strict=True) if needed]


LIBRARY_KERNELS: Mapping[str, LibraryKernel] = {
    "attention": LibraryKernel(
        "cudnn", "_scaled_dot_product_cudnn_attention", _forward_support, _cudnn_forward, True
    ),
    "attention_backward": LibraryKernel(
        "cudnn", "_scaled_dot_product_cudnn_attention_backward", _backward_support, _cudnn_backward, False
    ),
}
"""Formula -> the library's kernel of it."""
