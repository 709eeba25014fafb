"""``rnn/generated`` on CPUs: packed panels if the weights are constant (``rnn_packed``), otherwise one sample per task (``portable/rnn.py``)."""

from __future__ import annotations

from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..kernel import Kernel, LoweredCall, NodeCall
from ..portable.rnn import PortableRecurrent, activation_names
from .rnn_packed import lower_packed
from .tasks import LoopedTasks

__all__ = ["KERNELS", "CpuRecurrent"]


class CpuRecurrent(Kernel):
    """RNN, GRU and LSTM."""

    name = PortableRecurrent.name
    ops = PortableRecurrent.ops

    def __init__(self) -> None:
        self._plain = LoopedTasks(PortableRecurrent())

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats, dense values and ONNX's activations."""
        return self._plain.supports(call, target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return two stages if ``rnn_packed`` supports the node, otherwise one."""
        packed = lower_packed(call, activation_names(call), target)
        return self._plain.lower(call, target) if packed is None else packed


KERNELS = (CpuRecurrent(),)
