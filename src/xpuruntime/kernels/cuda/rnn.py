"""``rnn/generated`` on CUDA: one GEMM for the inputs of all steps, then all steps in one launch (``templates/cuda/recurrent_steps.cuh``).

A block runs all steps of one direction for a few samples. Their states and gates stay in shared memory, and the recurrent weights are
read from L1 and L2. The steps are bound by latency: each waits for the previous one. Layers that do not fit in shared memory, and sequences
of unequal length, use one thread per sample (``tasks``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...codegen.c_types import C_TYPES
from ...codegen.loops.points import address
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ...types import DType, TensorSpec
from ..kernel import Kernel, LoweredCall, NodeCall, Operand, Stage
from ..portable import rnn
from ..portable.tasks import result
from ..spec.product import Product, sizes
from .heavy import REFERENCE_SMS, about, argument, bytes_of
from .launch import LaunchConfig, cuda_stage
from .matmul.generated import simt_stage
from .tasks import ThreadedTasks

__all__ = ["KERNELS", "Recurrent", "RecurrentTileConfig", "recurrent_tile_config"]

_THREADS = 512
"""Maximum threads of a block."""
_SHARED = 48 * 1024
"""Bytes of static shared memory that every device has per block."""
_SAMPLES = 8
"""Maximum samples of a block: a thread has one accumulator for each."""


@dataclass(frozen=True, slots=True)
class RecurrentTileConfig:
    """Samples per block, threads per block, and threads that share a row of the weights."""

    samples: int
    threads: int
    lanes: int


def recurrent_tile_config(
    batch: int, directions: int, rows: int, hidden: int, size: int
) -> RecurrentTileConfig | None:
    """Return the most samples per block that fit and still occupy every SM; None if one sample does not fit.

    size: bytes of an element of the state.
    """
    max_samples = _SHARED // ((rows + 3 * hidden) * size)
    samples = min(_SAMPLES, max_samples, max(1, batch * directions // REFERENCE_SMS), batch)
    if samples < 1:
        return None
    lanes = next((n for n in (32, 16, 8) if hidden >= 8 * n), 4)
    threads = min(_THREADS, max(64, math.ceil(rows * lanes / 32) * 32))
    return RecurrentTileConfig(samples, threads, lanes)


class Recurrent(Kernel):
    """RNN, GRU and LSTM."""

    name = "rnn/generated"
    ops: tuple[str, ...] = ("rnn", "gru", "lstm")

    def __init__(self) -> None:
        self._other = ThreadedTasks(rnn.PortableRecurrent())

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for the nodes that the portable kernel supports."""
        return self._other.supports(call, target)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to a GEMM and a stage of all steps, or to one thread per sample if ``_Layer`` does not support the node."""
        layer = _Layer.of(call)
        if layer is None:
            return self._other.lower(call, target)
        return LoweredCall(
            (layer.inputs(), layer.steps()),
            temps=(layer.length * layer.batch * layer.columns * layer.item + 64,),
            accumulates="float64" if layer.item == 8 else "float32",
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The sizes of a layer as both stages need them."""

    call: NodeCall
    batch: int
    length: int
    size: int
    hidden: int
    gates: int
    directions: int
    config: RecurrentTileConfig

    @classmethod
    def of(cls, call: NodeCall) -> _Layer | None:
        """Return the layer; None if lengths differ, there is nothing to compute, or a sample's state does not fit in shared memory."""
        x, first = sizes(call.tensor(0).spec), call.attrs["batch_first"]
        batch, length = (x[0], x[1]) if first else (x[1], x[0])
        directions, rows, hidden = sizes(call.tensor(2).spec)
        item = 8 if call.tensor(0).spec.dtype is DType.FLOAT64 else 4
        if call.optional(4) is not None or not batch * length * hidden * x[2]:
            return None
        config = recurrent_tile_config(batch, directions, rows, hidden, item)
        if config is None:
            return None
        return cls(call, batch, length, x[2], hidden, rows // hidden, directions, config)

    @property
    def item(self) -> int:
        """Bytes of an element of sums and states."""
        return 8 if self.call.tensor(0).spec.dtype is DType.FLOAT64 else 4

    @property
    def rows(self) -> int:
        """Rows of the weights of a direction."""
        return self.gates * self.hidden

    @property
    def columns(self) -> int:
        """Gates of all directions."""
        return self.directions * self.rows

    def inputs(self) -> Stage:
        """Return the GEMM of the inputs of all steps with the weights of all gates. It writes sums in the accumulator type to ``temp0``."""
        m, n, k = self.batch * self.length, self.columns, self.size
        x, w = self.call.tensor(0), self.call.tensor(1)
        kind = DType.FLOAT64 if self.item == 8 else DType.FLOAT32
        node = NodeCall(
            self.call.node,
            (
                Operand(x.name, TensorSpec((m, k), x.spec.dtype), x.is_weight),
                Operand(w.name, TensorSpec((n, k), w.spec.dtype), w.is_weight),
            ),
            (TensorSpec((m, n), kind),),
        )
        stage = simt_stage(node, Product(0, 1, (), (m,), n, k, (k, 1), (1, k), (n, 1)))
        args = tuple({"out0": "temp0"}.get(a, a) for a in stage.args)
        return replace(stage, stem=f"{self.call.op}_inputs_{m}x{n}x{k}", args=args)

    def steps(self) -> Stage:
        """Return the stage that runs all steps."""
        call, config = self.call, self.config
        tiles = math.ceil(self.batch / config.samples)
        arguments = [argument(TensorSpec((1,), self._kind), "temp0", "inputs")]
        arguments += [
            argument(o.spec, f"in{i}", f"in{i}")
            for i in (2, 3, 5, 6, 7)
            if i < len(call.inputs) and (o := call.optional(i)) is not None
        ]
        arguments += [argument(o, f"out{i}", f"out{i}", written=True) for i, o in enumerate(call.outputs)]
        flops = 2 * self.length * self.batch * self.columns * self.hidden
        return cuda_stage(
            f"{call.op}_steps_{self.hidden}",
            about(call, f"{config.samples} samples a block, {config.lanes} threads a row of the weights"),
            arguments, self._body(tiles), LaunchConfig((self.directions * tiles, 1, 1), (config.threads, 1, 1)),
            parts=frozenset({"recurrent_steps", "movement", "math"}), flops=flops,
            bytes=bytes_of([*(o.spec for o in call.tensors), *call.outputs]),
        )  # fmt: skip

    @property
    def _kind(self) -> DType:
        return DType.FLOAT64 if self.item == 8 else DType.FLOAT32

    @property
    def _first(self) -> bool:
        return bool(self.call.attrs["batch_first"])

    def _body(self, tiles: int) -> list[str]:
        call, s, h, rows = self.call, self.config.samples, self.hidden, self.rows
        kind = C_TYPES[self._kind]
        reset = call.op == "gru" and not call.attrs["linear_before_reset"]
        product = f"recurrent_gates<{self.config.lanes}, {self.config.threads}, {s}, {h}, {rows}>"
        reverse = {"forward": "false", "reverse": "true", "bidirectional": "d == 1"}[call.attrs["direction"]]
        y = address(result(call), ["b", "t", "d", "u"] if self._first else ["t", "d", "b", "u"])
        lines = [
            f"__shared__ {kind} states[{s * h}], cells[{s * h}], candidates_h[{s * h}], all_gates[{s * rows}];",
            f"const int64_t d = blockIdx.x / {tiles}, begin = blockIdx.x % {tiles} * {s};",
            f"const auto *const r = in2 + d * {rows * h};",
            *self._helpers(kind),
            *self._units(),
            f"    h[u] = {self._initial_state(5, kind)};",
            f"    c[u] = {self._initial_state(6, kind)};",
            "}",
            f"for (int64_t step = 0; step < {self.length}; ++step) {{",
            f"    const int64_t t = {reverse} ? {self.length - 1} - step : step;",
            "    __syncthreads();",
            f"    {product}(all_gates, r, states, {2 * h if reset else rows});",
            "    __syncthreads();",
        ]
        first = self._sums(range(self.gates))
        if call.op == "gru":
            first = [*self._sums(range(2)), *self._by_direction(self._gru_gates)]
        if reset:  # the last gate's product reads the state after the reset gate
            lines += [
                *self._units("    "),
                *(f"        {line}" for line in first),
                f"        candidate_h[u] = gates[{h} + u] * h[u];",
                "    }",
                "    __syncthreads();",
                f"    {product}(all_gates + {2 * h}, r + {2 * h * h}, candidates_h, {h});",
                "    __syncthreads();",
                *self._units("    "),
            ]
        else:
            lines += [*self._units("    "), *(f"        {line}" for line in first)]
        cell = self._by_direction(lambda f: rnn.cell_lines(call, f, h))
        if call.op == "gru":
            cell = [*self._last_gate(reset), *cell]
        lines += [
            *(f"        {line}" for line in cell),
            f"        store<1>({y}, h[u]);",
            "    }",
            "}",
            *self._units(),
        ]
        for position, name in ((1, "h"), (2, "c")):
            if position < len(call.outputs):
                at = address(result(call, position), ["b", "d", "u"] if self._first else ["d", "b", "u"])
                lines.append(f"    store<1>({at}, {name}[u]);")
        return [*lines, "}"]

    def _units(self, indent: str = "") -> list[str]:
        """Return the loop over the units of the block's samples. A unit always belongs to the same thread."""
        h, kind = self.hidden, C_TYPES[self._kind]
        lines = [
            f"for (int i = threadIdx.x; i < {self.config.samples * h}; i += {self.config.threads}) {{",
            f"    const int64_t sample = i / {h}, u = i % {h}, b = begin + sample;",
            f"    if (b >= {self.batch}) break;",
            f"    {kind} *const h = states + sample * {h}, *const next = h, *const c = cells + sample * {h};",
            f"    {kind} *const candidate_h = candidates_h + sample * {h}, *const gates = all_gates + sample * {self.rows};",
        ]
        return [indent + line for line in lines]

    def _helpers(self, kind: str) -> list[str]:
        """Return the lambdas for activations, clipping and peephole weights."""
        lines = [*rnn.activation_lines(self.call, kind), *rnn.clip_lines(self.call, kind)]
        if self.call.op == "lstm" and self.call.optional(7) is not None:
            lines.append(
                f"const auto peephole = [&](int64_t k) {{ return ({kind})load<1>(in7 + d * {3 * self.hidden} + k); }};"
            )
        return lines

    def _initial_state(self, position: int, kind: str) -> str:
        """Return the expression of a unit's initial state."""
        call = self.call
        if position == 6 and call.op != "lstm":
            return "0"
        if position >= len(call.inputs) or call.optional(position) is None:
            return "0"
        where = f"(b * {self.directions} + d)" if self._first else f"(d * {self.batch} + b)"
        return f"load<1>(in{position} + {where} * {self.hidden} + u)"

    def _sums(self, gates: range) -> list[str]:
        """Return the lines that complete the gates: recurrent product, input product, both biases."""
        lines = [self._x_gates()]
        for k in gates:
            at = f"{k * self.hidden} + u"
            lines.append(f"gates[{at}] += {self._of_x(at)}{self._bias(self.rows, at)};")
        return lines

    def _x_gates(self) -> str:
        row = f"b * {self.length} + t" if self._first else f"t * {self.batch} + b"
        return f"const auto *const x_gates = inputs + ({row}) * {self.columns} + d * {self.rows};"

    def _of_x(self, at: str) -> str:
        return f"x_gates[{at}]{self._bias(0, at)}"

    def _bias(self, begin: int, at: str) -> str:
        if self.call.optional(3) is None:
            return ""
        return f" + load<1>(in3 + d * {2 * self.rows} + {begin} + {at})"

    def _gru_gates(self, f: Sequence[str]) -> list[str]:
        """Return the lines of a GRU's reset and update gates."""
        clip = "clip_input" if self.call.attrs["clip"] is not None else ""
        offsets = [f"{k * self.hidden} + u" for k in range(2)]
        return [f"gates[{at}] = {f[0]}({clip}(gates[{at}]));" for at in offsets]

    def _last_gate(self, reset: bool) -> list[str]:
        """Return the lines of a GRU's last gate, whose recurrent and input parts stay separate.

        ``candidate_h`` holds the recurrent part. The reset gate scales it here if it did not scale the state before the product.
        """
        at = f"{2 * self.hidden} + u"
        times = "" if reset else f" * gates[{self.hidden} + u]"
        return [
            *([self._x_gates()] if reset else []),
            f"candidate_h[u] = (gates[{at}]{self._bias(self.rows, at)}){times};",
            f"gates[{at}] = {self._of_x(at)};",
        ]

    def _by_direction(self, lines: Callable[[Sequence[str]], list[str]]) -> list[str]:
        """Return the lines once per direction, with the names of that direction's activations."""
        functions = len(rnn.DEFAULT_ACTIVATIONS[self.call.op])
        text: list[str] = []
        for d in range(self.directions):
            body = lines([f"f{d * functions + k}" for k in range(functions)])
            # A scope of its own for the cell's variables.
            scope = f"if (d == {d}) {{" if self.directions > 1 else "{"
            text += [scope, *(f"    {line}" for line in body), "}"]
        return text


KERNELS: tuple[Any, ...] = (Recurrent(),)
