"""Recurrent layers by ONNX's equations and gate order. A task runs the whole sequence of one sample in one direction.

float16 and bfloat16 are computed in float, float64 in double. Weights are read in the model's layout, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.loops.points import address, number, storage
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import NodeCall, Operand
from ..spec.support import FLOATS, INTEGERS, refuse
from .tasks import PortableKernel, TaskEnvironment, TaskStage, TaskText, result, task_stage, whole

__all__ = [
    "DEFAULT_ACTIVATIONS",
    "PortableRecurrent",
    "activation_lines",
    "activation_names",
    "cell_lines",
    "clip_lines",
]

# name -> (C expression of x, a, b; default a; default b). None: the function has no such parameter.
_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("x != x || x > 0 ? x : 0", None, None),
    "tanh": ("tanh(x)", None, None),
    "sigmoid": ("sigmoid(x)", None, None),
    "softsign": ("x / (1 + abs(x))", None, None),
    "softplus": ("log1p_exp(x)", None, None),
    "leakyrelu": ("x >= 0 ? x : a * x", 0.01, None),
    "thresholdedrelu": ("x >= a ? x : 0", 1.0, None),
    "elu": ("x >= 0 ? x : a * expm1(x)", 1.0, None),
    "affine": ("a * x + b", 1.0, 0.0),
    "scaledtanh": ("a * tanh(b * x)", 1.0, 1.0),
    "hardsigmoid": ("a * x + b < 0 ? 0 : a * x + b > 1 ? 1 : a * x + b", 0.2, 0.5),
}
DEFAULT_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "rnn": ("Tanh",),
    "gru": ("Sigmoid", "Tanh"),
    "lstm": ("Sigmoid", "Tanh", "Tanh"),
}
"""Activations of a direction if the node names none."""
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def activation_names(call: NodeCall) -> Sequence[str]:
    """Return the activations of every direction, with defaults if the node names none."""
    directions = int(str(call.tensor(2).spec.shape[0]))
    return tuple(call.attrs["activations"]) or DEFAULT_ACTIVATIONS[call.op] * directions


def activation_lines(call: NodeCall, kind: str) -> list[str]:
    """Return the lambdas ``f0``, ``f1`` ... of every direction. Each takes the next alpha and beta if it has these parameters."""
    alphas, betas = iter(call.attrs["alpha"]), iter(call.attrs["beta"])
    lines = []
    for i, name in enumerate(activation_names(call)):
        text, a, b = _ACTIVATIONS[name.lower()]
        parameters = [
            f"const {kind} {letter} = {number(float(next(source, default)))};"
            for letter, source, default in (("a", alphas, a), ("b", betas, b))
            if default is not None
        ]
        lines.append(
            f"const auto f{i} = [](const {kind} x) -> {kind} {{ {' '.join(parameters)} return {text}; }};"
        )
    return lines


def clip_lines(call: NodeCall, kind: str) -> list[str]:
    """Return the lambda ``clip_input``, if the node clips the inputs of its activations."""
    if call.attrs["clip"] is None:
        return []
    limit = number(float(call.attrs["clip"]))
    return [
        f"const auto clip_input = [](const {kind} v) -> {kind} "
        f"{{ const {kind} c = {limit}; return v < -c ? -c : v > c ? c : v; }};"
    ]


def cell_lines(call: NodeCall, f: Sequence[str], hidden: int) -> list[str]:
    """Return one step of unit u, from ``gates`` (products with x and h, plus biases) to ``next[u]`` and ``c[u]``."""
    clip = "clip_input" if call.attrs["clip"] is not None else ""
    h = hidden
    if call.op == "rnn":
        return [f"next[u] = {f[0]}({clip}(gates[u]));"]
    if call.op == "lstm":
        peephole = [f" + peephole({k * h} + u) * c[u]" if call.optional(7) else "" for k in range(3)]
        i = f"{f[0]}({clip}(gates[u]{peephole[0]}))"
        forget = "1 - i" if call.attrs["input_forget"] else f"{f[0]}({clip}(gates[{2 * h} + u]{peephole[2]}))"
        return [
            f"const auto i = {i};",
            f"const auto forget = {forget};",
            f"c[u] = forget * c[u] + i * {f[1]}({clip}(gates[{3 * h} + u]));",
            f"next[u] = {f[0]}({clip}(gates[{h} + u]{peephole[1]})) * {f[2]}(c[u]);",
        ]
    return [  # gru: z and r are activated; ``candidate_h`` holds the recurrent part of the candidate gate
        f"const auto candidate = {f[1]}({clip}(gates[{2 * h} + u] + candidate_h[u]));",
        "next[u] = (1 - gates[u]) * candidate + gates[u] * h[u];",
    ]


def _gru_gates(call: NodeCall, f: Sequence[str], hidden: int, r: str, rb: str, lanes: int) -> list[str]:
    """Return the lines that activate z and r, then compute the recurrent part of the last gate."""
    clip = "clip_input" if call.attrs["clip"] is not None else ""
    h = hidden
    bias = f"{rb} + {2 * h}" if rb != "nullptr" else f"({storage(call.tensor(0).spec.dtype)} const *)nullptr"
    lines = [f"for (int64_t u = 0; u < {2 * h}; ++u) gates[u] = {f[0]}({clip}(gates[u]));"]
    lines.append(f"for (int64_t u = 0; u < {h}; ++u) candidate_h[u] = 0;")
    rows = f"{r} + {2 * h * h}"
    if call.attrs["linear_before_reset"]:
        lines.append(f"add_product<{lanes}>(candidate_h, {rows}, {bias}, h, {h}, {h});")
        lines.append(f"for (int64_t u = 0; u < {h}; ++u) candidate_h[u] *= gates[{h} + u];")
    else:
        lines.append(f"for (int64_t u = 0; u < {h}; ++u) next[u] = gates[{h} + u] * h[u];")
        lines.append(f"add_product<{lanes}>(candidate_h, {rows}, {bias}, next, {h}, {h});")
    return lines


def _text(call: NodeCall, vector_bytes: int) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    dtype = call.tensor(0).spec.dtype
    kind = "double" if dtype is DType.FLOAT64 else "float"
    lanes = max(1, vector_bytes // (8 if kind == "double" else 4))
    first = a["batch_first"]
    batch, length = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
    size, hidden, gates = x.shape[2], a["hidden_size"], _GATES[call.op]
    directions = int(str(call.tensor(2).spec.shape[0]))
    rows = gates * hidden
    # scratch: x, h, next, c, candidate_h, gates, peepholes
    sizes = {"row": size, "h": hidden, "next": hidden, "c": hidden, "candidate_h": hidden, "gates": rows}
    head, at = [*activation_lines(call, kind), *clip_lines(call, kind)], 0
    for name, count in sizes.items():
        head.append(f"[[maybe_unused]] {kind} *const {name} = ({kind} *)scratch + {at};")
        at += -(-count // 16) * 16
    per_direction = len(DEFAULT_ACTIVATIONS[call.op])
    body = [f"const int64_t b = task % {batch}, d = task / {batch};"]
    count = f"(int64_t)*({address(whole(call, 4), ['b'])})" if call.optional(4) else str(length)
    body.append(f"const int64_t count = {count};")
    for name, position in (("h", 5), ("c", 6)):
        state = call.optional(position) if position < len(call.inputs) else None
        where = f"(d * {batch} + b) * {hidden} + u" if not first else f"(b * {directions} + d) * {hidden} + u"
        value = f"load<1>(in{position} + {where})" if state and (name == "h" or call.op == "lstm") else "0"
        body.append(f"for (int64_t u = 0; u < {hidden}; ++u) {name}[u] = {value};")
    body.append(f"const auto *const w = in1 + d * {rows * size};")
    body.append(f"const auto *const r = in2 + d * {rows * hidden};")
    none = f"({storage(dtype)} const *)nullptr"
    wb, rb = (f"in3 + d * {2 * rows}", f"in3 + d * {2 * rows} + {rows}") if call.optional(3) else (none, none)
    if call.op == "lstm" and call.optional(7):
        body.append(f"const auto *const peepholes = in7 + d * {3 * hidden};")
        body.append("const auto peephole = [&](int64_t k) { return load<1>(peepholes + k); };")
    names = ["b", "t", "d", "u"] if first else ["t", "d", "b", "u"]
    reverse = {"forward": "false", "reverse": "true", "bidirectional": "d == 1"}[a["direction"]]
    x_index = ["b", "t", "k"] if first else ["t", "b", "k"]
    body += [
        f"for (int64_t step = 0; step < {length}; ++step) {{",
        f"  const int64_t t = {reverse} && step < count ? count - 1 - step : step;",
        "  if (step >= count) {",
        f"    for (int64_t u = 0; u < {hidden}; ++u) store<1>({address(y, names)}, 0);",
        "    continue;",
        "  }",
        f"  if (t < 0 || t >= {length}) {{ fail(scratch, DOES_NOT_FIT, count, {length}); return; }}",
        f"  for (int64_t k = 0; k < {size}; ++k) row[k] = load<1>({address(x, x_index)});",
        f"  for (int64_t g = 0; g < {rows}; ++g) gates[g] = 0;",
        f"  add_product<{lanes}>(gates, w, {wb}, row, {rows}, {size});",
        f"  add_product<{lanes}>(gates, r, {rb}, h, {2 * hidden if call.op == 'gru' else rows}, {hidden});",
    ]
    for d in range(directions):
        f = [f"f{d * per_direction + k}" for k in range(per_direction)]
        lines = []
        if call.op == "gru":
            lines += _gru_gates(call, f, hidden, "r", rb if call.optional(3) else "nullptr", lanes)
        step = (f"  {line}" for line in cell_lines(call, f, hidden))
        lines += [f"for (int64_t u = 0; u < {hidden}; ++u) {{", *step, "}"]
        if directions > 1:
            lines = [f"if (d == {d}) {{", *(f"  {s}" for s in lines), "}"]
        body += [f"  {s}" for s in lines]
    body += [
        f"  for (int64_t u = 0; u < {hidden}; ++u) h[u] = next[u];",
        f"  for (int64_t u = 0; u < {hidden}; ++u) store<1>({address(y, names)}, h[u]);",
        "}",
    ]
    for position, name in ((1, "h"), (2, "c")):
        if position < len(call.outputs):
            last = result(call, position)
            where = address(last, ["b", "d", "u"] if first else ["d", "b", "u"])
            body.append(f"for (int64_t u = 0; u < {hidden}; ++u) store<1>({where}, {name}[u]);")
    work = 2 * length * rows * (size + hidden)
    return TaskText(
        body, batch * directions, head, per=work, scratch_bytes=8 * at,
        parts=frozenset({"recurrent"}), flops=work * batch * directions,
    )  # fmt: skip


class PortableRecurrent(PortableKernel):
    """RNN, GRU and LSTM."""

    name = "rnn/generated"
    ops: tuple[str, ...] = ("rnn", "gru", "lstm")

    def supports(self, call: NodeCall) -> Support:
        """Return yes for dense floats and ONNX's activations."""
        for i, operand in enumerate(call.inputs):
            if isinstance(operand, Operand) and operand.spec.dtype not in (INTEGERS if i == 4 else FLOATS):
                return refuse(operand.spec.dtype, call.op)
        if not all(s.is_dense for s in (*call.outputs, *(t.spec for t in call.tensors))):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and results must be dense")
        unknown = [n for n in activation_names(call) if n.lower() not in _ACTIVATIONS]
        if unknown:
            return Support.no(Reason.NOT_IMPLEMENTED, f"the activation {unknown[0]} is not implemented")
        return Support.yes()

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return one stage."""
        double = call.tensor(0).spec.dtype is DType.FLOAT64
        text = _text(call, environment.vector_bytes)
        return task_stage(call, text, "float64" if double else "float32")
