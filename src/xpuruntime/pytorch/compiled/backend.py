"""xpuruntime_backend: the function that ``torch.compile(model, backend="xpuruntime")`` calls."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock

from ...errors import InputError
from ...frontends.torch.ops import TABLE
from ...inference.native.targets import own_target
from ...printable import logger
from ...targets import DeviceId
from ..numbered_policies import NumberedPolicy, PolicyCell, numbered_policy
from ..ops.library import LIBRARY
from ..programs import BACKWARD, FORWARD
from ..routing import skip_frames_of_mode
from .attention import route_attention
from .boxed import boxed
from .by_size import MAX_SIZES, GraphBySize, has_dynamic_sizes
from .head_loss import route_head_losses
from .left_to_pytorch import channels_last, left_operators, whole_operators
from .linear_layers import linear_layers
from .partition import forward_and_backward
from .region import FxRegion
from .regions import divided, reasons_against
from .report import CompiledGraphReport, remember_graph
from .whole_pools import whole_pools

__all__ = ["xpuruntime_backend"]

_log = logger("xpuruntime.pytorch")
skip_frames_of_mode()  # PyTorch's compiler is loaded now; a policy may be in force already
_WITHOUT_KERNEL = (
    "native_group_norm_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
)  # fmt: skip
"""ATen ops that have an IR op but no kernel: PyTorch decomposes them to ops that have one."""

_INFERENCE_ONLY = ("_scaled_dot_product_flash_attention_for_cpu",)
"""ATen ops whose decomposition returns a wrong second result, from which backward would compute wrong gradients."""


def xpuruntime_backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a graph of PyTorch's compiler: forward, and backward when gradients are wanted.

    Regions of nodes that our compiler supports become programs under the policy of ``set_kernel_policy``; PyTorch runs the other nodes.
    ``compiled_graphs()`` lists them with reasons. A new policy takes effect at the next call. If the policy names
    attention, calls of ``scaled_dot_product_attention`` become our op. The cross entropy of a language model's head becomes
    ``linear_cross_entropy``, which does not store the logits, unless something else reads them; ``CompiledGraphReport.losses`` has the reason.
    Raises InputError for a mode or options of ``torch.compile``.
    """
    for name, value in (("mode", mode), ("options", options)):
        if value:
            do = "Remove it. Kernels follow set_kernel_policy, and CUDA graphs are capture_graph's."
            raise InputError(
                "torch.compile(backend='xpuruntime')", f"takes no {name}", got=repr(value), do=do
            )
    cell = PolicyCell()
    route_attention(module, cell)
    whole_pools(module)
    numbered = numbered_policy()  # of the thread that compiles: PyTorch compiles backward in another one
    channels_last(module, numbered)
    losses, saved = route_head_losses(module, cell), dict[str, int]()

    def compiler(phase: str) -> Callable[..., Any]:
        return functools.partial(
            _compiled,
            phase=phase,
            cell=cell,
            numbered=numbered,
            losses={} if phase == BACKWARD else losses,
            saved=saved if phase == FORWARD else {},
        )

    backend = aot_autograd(
        fw_compiler=compiler(FORWARD),
        bw_compiler=compiler(BACKWARD),
        inference_compiler=compiler("inference"),
        decompositions=_decompositions(whole_operators(_device(example_inputs), numbered)),
        partition_fn=functools.partial(forward_and_backward, saved, numbered),
    )
    return backend(module, example_inputs)


def _device(inputs: Sequence[Any]) -> torch.device:
    return next((t.device for t in inputs if isinstance(t, torch.Tensor)), torch.device("cpu"))


@functools.cache
def _decompositions(whole: tuple[torch._ops.OpOverload, ...]) -> dict[Any, Any]:
    """Return PyTorch's decompositions to core ATen, without those of ops that our compiler supports and without ``whole`` operators."""
    from torch._decomp import core_aten_decompositions

    table = dict(core_aten_decompositions())
    for op in list(table):
        name = op.name().removeprefix("aten::")
        if (name in TABLE and name not in _WITHOUT_KERNEL) or name in _INFERENCE_ONLY or op in whole:
            del table[op]
    return table


def _compiled(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    phase: str,
    cell: PolicyCell,
    numbered: NumberedPolicy,
    losses: Mapping[str, str],
    saved: Mapping[str, int],
) -> Callable[..., Any]:
    """Return a function that runs one graph. One with dynamic sizes is compiled for each size that occurs."""
    from torch._functorch.aot_autograd import make_boxed_func

    compiled = functools.partial(
        _compiled_graph, phase=phase, cell=cell, numbered=numbered, losses=losses, saved=saved
    )
    if not has_dynamic_sizes(module):
        # PyTorch holds the lock for forward only; backward may be compiled while another thread traces.
        with compile_lock:
            return compiled(module)
    beyond = f"the graph has dynamic sizes, and is already compiled for {MAX_SIZES} of them"
    by_size = GraphBySize(module, compiled, functools.partial(compiled, module, why_not=beyond))
    return make_boxed_func(by_size)  # type: ignore[no-any-return]


def _compiled_graph(
    module: torch.fx.GraphModule,
    *,
    phase: str,
    cell: PolicyCell,
    numbered: NumberedPolicy,
    losses: Mapping[str, str],
    saved: Mapping[str, int],
    why_not: str = "",
) -> Callable[..., Any]:
    """Return a function that runs one graph with static sizes. why_not: a reason to leave every node to PyTorch."""
    linear_layers(module)
    name = f"{phase}_{len(list(module.graph.nodes))}"
    device = _main_device(module)
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    left: dict[str, str] = {}
    if why_not:
        left = {n.name: why_not for n in calls}
    elif device is not None:
        target = own_target(DeviceId(device.type, device.index or 0))
        left = dict(reasons_against(module, name, target, left_operators(device, phase, numbered)))
        left |= {
            n.name: f"it is on {other}" for n in calls if (other := _other_device(n, device)) is not None
        }
    else:
        left = {n.name: "the graph has no tensor on a CPU or CUDA device" for n in calls}
    named = {n.name: f"{n.target}" for n in calls if not _is_own(n)}
    whole, regions = divided(module, left)
    for region in regions:
        body = whole.get_submodule(region)
        assert isinstance(body, torch.fx.GraphModule)
        setattr(whole, region, FxRegion(body, f"{name}_{region}", phase, cell))
    whole.recompile()
    stay = {f"{node} ({named[node]})": reason for node, reason in left.items() if node in named}
    report = CompiledGraphReport(name, phase, len(regions), len(calls) - len(stay), stay, losses, saved)
    remember_graph(report)
    _log.info("%s", report)
    return boxed(whole, functools.partial(cell.of, backward=phase == BACKWARD))


def _is_own(node: torch.fx.Node) -> bool:
    """Return True for a training op of this package and for its results. It runs outside of regions, as a program of its own."""
    target = node.args[0].target if node.target is operator.getitem else node.target
    return str(target).startswith(f"{LIBRARY}.")


def _main_device(module: torch.fx.GraphModule) -> torch.device | None:
    """Return the device on which most values are, of those that our compiler has targets for."""
    values = (n.meta.get("val") for n in module.graph.nodes if n.op in ("placeholder", "call_function"))
    counts = Counter(
        v.device for v in values if isinstance(v, torch.Tensor) and v.device.type in ("cpu", "cuda")
    )
    return max(counts, key=counts.__getitem__) if counts else None


def _other_device(node: torch.fx.Node, main: torch.device) -> torch.device | None:
    """Return a device besides the main one that a node reads or writes."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return next((v.device for v in values if isinstance(v, torch.Tensor) and v.device != main), None)
