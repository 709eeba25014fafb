"""verify_kernel: comparison of a user kernel with the reference interpreter on random inputs, through compiler and runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arguments import check_argument
from ..codegen.target import CodegenTarget
from ..compiler import compile as compile_graph
from ..decisions import Candidate, Decision, Reason
from ..errors import KernelUnavailable
from ..ir import Graph, GraphBuilder, interp
from ..kernels.user.kernel import UserKernel
from ..numerics import Comparison, compare, tolerance_for
from ..plugins.registered import load_plugins, registered_kernels
from ..policies import KernelPolicy, Rule
from ..runtime.execution.demands import SETTLED
from ..runtime.execution.executor import Executor
from ..types import DType, TensorSpec
from .execution.seeded_inputs import sample_feeds

__all__ = ["verify_kernel"]


def verify_kernel(
    kernel: UserKernel | str,
    *inputs: Any,
    attrs: Mapping[str, Any] | None = None,
    op: str = "",
    target: str | CodegenTarget | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compile one node for the kernel, run it, and compare each result with the reference interpreter's.

    kernel:    the result of ``register_kernel``, or its name. ``op``: the node's op, by default the kernel's first one.
    inputs:    the node's operands: a spec (``"float32[4, 128]"``) gets seeded normal numbers; arrays, numbers and None are used unchanged.
    target:    the compilation target; by default the kernel's kind on this machine, so a CUDA kernel needs a device.
    tolerance: the largest max|d|/max|ref|; by default that of the coarsest dtype (``xpuruntime.numerics``).

    Returns a comparison per result. Raises KernelUnavailable if the kernel refuses the node or computes other results; BuildError, RunError.
    """
    user_kernel = _named(kernel) if isinstance(kernel, str) else kernel
    do = "Give the result of register_kernel, or its name."
    check_argument("verify_kernel", "kernel", user_kernel, UserKernel, "a kernel or its name", do)
    node_op = op or user_kernel.ops[0]
    graph, feeds = _one_node(node_op, inputs, attrs or {}, seed)
    word = user_kernel.name.partition("/")[2]
    policy = KernelPolicy(rules=[Rule(use=word, reason="it is being verified")])
    program = compile_graph(graph, target=target or user_kernel.kind, policy=policy, passes=0)
    device = _device(target, program.entries[0].plans[0].target)
    with Executor(program, device, policy=SETTLED) as executor:
        got = executor.run_arrays([feeds[s.name] for s in program.input_specs])
    want = interp.run(graph, feeds)
    compared = []
    for (name, reference), array in zip(want.items(), got, strict=True):
        limit = tolerance_for(*(DType.of(a.dtype) for a in (*feeds.values(), reference)))
        compared.append(compare(name, array, reference, limit if tolerance is None else tolerance))
    wrong = next((c for c in compared if not c.ok), None)
    if wrong is not None:
        operands = ", ".join(str(s) for s in graph.input_specs)
        candidate = Candidate(
            user_kernel.name, Reason.WRONG_RESULT, wrong.reason, facts={"max_rel": wrong.max_rel}
        )
        raise KernelUnavailable(
            f"kernel {user_kernel.name}",
            f"differs from the reference interpreter for {node_op}({operands})",
            got=wrong.reason,
            do="Fix the kernel, narrow its supports(), or allow a larger tolerance.",
            decision=Decision("verification", user_kernel.name, None, (candidate,)),
        )
    return tuple(compared)


def _named(name: str) -> UserKernel:
    load_plugins()
    matching = [k for k in registered_kernels() if isinstance(k, UserKernel) and k.name == name]
    if not matching:
        known = ", ".join(dict.fromkeys(k.name for k in registered_kernels())) or "none"
        raise KernelUnavailable(f"kernel {name!r}", "is not registered", do=f"Registered are: {known}.")
    return matching[0]


def _one_node(
    op: str, inputs: Sequence[Any], attrs: Mapping[str, Any], seed: int
) -> tuple[Graph, dict[str, Any]]:
    """Return a graph of one node and the values of its inputs. Raises IrError for invalid operands."""
    builder = GraphBuilder(op)
    operands: list[Any] = []
    feeds: dict[str, Any] = {}
    for i, operand in enumerate(inputs):
        if operand is None or isinstance(operand, bool | int | float):
            operands.append(operand)
            continue
        name = f"in{i}"
        if isinstance(operand, str | TensorSpec):
            text = operand if isinstance(operand, str) else f"{operand.dtype.value}{list(operand.shape)}"
            spec = TensorSpec.parse(text, name)
            feeds |= sample_feeds([spec], seed=seed + i)
        else:
            feeds[name] = np.ascontiguousarray(operand)
            spec = TensorSpec(feeds[name].shape, DType.of(feeds[name].dtype), name)
        operands.append(builder.input(name, spec))
    results = builder.call(op, *operands, **attrs)
    for i, value in enumerate((results,) if isinstance(results, str) else results):
        builder.output(f"out{i}", value)
    return builder.build(), feeds


def _device(target: str | CodegenTarget | None, compiled: str) -> str:
    """Return the device to run on: the one that the target names, else the first of its kind."""
    if not compiled.startswith("cuda"):
        return "cpu"
    index = str(target or "").partition("cuda:")[2]
    return f"cuda:{index}" if index.isdigit() else "cuda:0"
