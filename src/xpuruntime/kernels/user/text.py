"""Users' kernels as C++ for CPUs and CUDA C++ for GPUs. Each text is compiled separately, after constants that describe the call.

    using in0_t = float;                               // of every buffer: its element type,
    constexpr int in0_rank = 2;                        // rank, shape and number of elements
    constexpr int64_t in0_shape[] = {4, 128}, in0_size = 512;
    constexpr int64_t attr_dim = 1;                    // attributes of the node
    constexpr double in1_value = 2.0;                  // an operand that is a number; ``has_in2 = false``: one that is absent

    extern "C" void ENTRY(const in0_t *in0, out0_t *out0, PARAMS, int64_t begin, int64_t end)     on a CPU: tasks begin to end
    extern "C" __global__ void ENTRY(const in0_t *in0, out0_t *out0, PARAMS)                      on CUDA

The declaration precedes the text, so a wrong signature is an error at the user's own line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.cuda.cubin import check_launch, kernels_in
from ...codegen.loops.points import STORAGE, number
from ...codegen.target import CodegenTarget
from ...errors import BuildError
from ...plugins.registered import code_digest
from ...types import TensorSpec
from ..kernel import Built, LoweredCall, NodeCall, Stage
from .kernel import (
    Launch,
    OfCall,
    arguments_of,
    extent,
    launch_of,
    packed_params,
    plain_attrs,
    specs_of,
    tasks_of,
)

if TYPE_CHECKING:
    from .kernel import UserKernel

__all__ = ["TextBody"]


@dataclass(frozen=True, slots=True)
class TextBody:
    """A text and how it is called.

    text:      the user's code.
    file:      its name in errors.
    entry:     the function to call.
    launch:    function from a node to Tasks (CPU) or Launch (CUDA).
    params, constants: functions from a node to a mapping of names to numbers.
    parts:     parts of the prelude that the text uses (``exp``, ``erf`` ...).
    flags:     compiler flags.
    """

    text: str
    file: str
    entry: str
    launch: OfCall | None = None
    params: OfCall | None = None
    constants: OfCall | None = None
    parts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return code_digest(
            self.text, self.entry, self.launch, self.params, self.constants, self.parts, self.flags
        )

    def refuses(self, call: NodeCall, target: CodegenTarget) -> str:
        unsupported = [s.dtype.value for s in specs_of(call) if s.dtype not in STORAGE]
        return f"{unsupported[0]} has no C type" if unsupported else ""

    def lower(self, kernel: UserKernel, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        on_cuda = target.kind == "cuda"
        params = packed_params(self.params, call)
        head = _constants(call, self.constants)
        scalars = [f"{_PARAM_TYPES[p.type]} {p.name}" for p in params]
        stem = re.sub(r"\W", "_", kernel.name)
        if on_cuda:
            launch = launch_of(self.launch, call)
            declared = Signature('extern "C" __global__ void', self.entry, call, scalars)
            text = "\n".join([_launch_line(launch), *head, f"{declared};", *self._own(), ""])
            unit = TextUnit(kernel.name, self, text, declared, self.entry, launch)
            grid, block = launch.sizes
            options: dict[str, object] = {"grid": list(grid), "block": list(block), "shared": launch.shared}
            if launch.cluster is not None:
                options["cluster"] = list(launch.cluster)
            sharing: dict[str, object] = {"tasks": math.prod(grid), "options": options}
        else:
            tasks = tasks_of(self.launch, call, target.config.max_threadgroup_1d)
            last = ["int64_t begin", "int64_t end", *(["void *scratch"] if tasks.scratch else [])]
            declared = Signature('extern "C" void', self.entry, call, [*scalars, *last])
            symbol = f"{stem}_tasks"
            called = _wrapper(symbol, self.entry, call, [p.type for p in params], bool(tasks.scratch))
            text = "\n".join([*head, f"{declared};", *self._own(), *called, ""])
            unit = TextUnit(kernel.name, self, text, declared, symbol, None)
            sharing = {"tasks": tasks.count, "grain": tasks.grain, "scratch_bytes": tasks.scratch}
        stage = Stage(
            stem=stem,
            source="",
            args=tuple(name for name, _, _ in arguments_of(call)),
            params=params,
            bytes=sum(s.size_bytes or 0 for s in specs_of(call)),
            unit=unit,
            **sharing,  # type: ignore[arg-type]
        )
        return LoweredCall(
            (stage,),
            accumulates=kernel.accumulates,
            deterministic=bool(kernel.deterministic),
            batch_invariant=False,
        )

    def _own(self) -> list[str]:
        """Return the user's lines, with their own line numbers."""
        return [f'#line 1 "{self.file}"', self.text, f'#line 1 "{_CALLED}"']


@dataclass(frozen=True, slots=True)
class TextUnit:
    """A text for one call.

    declared: the signature that the text must have.
    symbol:   the symbol that the binary exports.
    launch:   None on a CPU.
    """

    kernel: str
    body: TextBody
    text: str
    declared: Signature
    symbol: str
    launch: Launch | None

    @property
    def digest(self) -> str:
        return code_digest(self.text, self.symbol, self.body.parts, self.body.flags)

    def build(self, target: CodegenTarget) -> Built:
        body = self.body
        if not re.search(rf"\b{re.escape(body.entry)}\s*\(", body.text):
            functions = dict.fromkeys(re.findall(r"\bvoid\s+(\w+)\s*\(", body.text))
            raise BuildError(
                body.file,
                f"{body.file} has no function {body.entry!r}",
                got=f"functions {', '.join(functions) or 'none'}",
                do=f"Name it in entry=, or write: {self.declared.plain}",
            )
        try:
            binary = target.assemble_apart(self.symbol, self.text, body.parts, body.flags)
        except BuildError as error:
            raise self._compile_error(error) from error
        if binary.format == "cubin" and self.launch is not None:
            mangled = re.compile(rf"_Z{len(body.entry)}{re.escape(body.entry)}[A-Z]")
            if any(mangled.match(k) for k in kernels_in(binary.data)):
                raise self._signature_error("")
            check_launch(binary.data, self.symbol, self.launch.sizes[1], body.file)
        return Built(binary, self.symbol)

    def _compile_error(self, error: BuildError) -> BuildError:
        """Return the compiler's error with the user's line that it is about."""
        log, file = str(error.got or ""), self.body.file
        line_match = re.search(rf"{re.escape(file)}[:(](\d+)", log)
        if line_match is None and (
            re.search(rf"undefined (reference|symbol).*{self.body.entry}", log) or _CALLED in log
        ):
            return self._signature_error(log)
        if line_match is None:
            advice = "Use functions of the prelude (parts=), or link a library (flags=)."
            do = advice if "undefined" in log else f"Correct {file}."
            return BuildError(file, f"{file} does not compile", got=log, do=do)
        line = int(line_match[1])
        return BuildError(
            file,
            f"{file} line {line} does not compile: `{self._line(line)}`",
            got=log,
            do=f"Correct line {line} of {file}.",
        )

    def _signature_error(self, log: str) -> BuildError:
        body = self.body
        at = next(
            (
                i
                for i in range(1, body.text.count("\n") + 2)
                if re.search(rf"\b{body.entry}\s*\(", self._line(i))
            ),
            1,
        )
        return BuildError(
            body.file,
            f"{body.file} line {at} has a wrong signature: `{self._line(at)}`",
            got=log or None,
            do=f"Write: {self.declared.plain}",
        )

    def _line(self, number: int) -> str:
        lines = self.body.text.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a text's function. ``plain`` has the C types of this call instead of their aliases."""

    head: str
    entry: str
    call: NodeCall
    scalars: Sequence[str]

    def __str__(self) -> str:
        return self._with(lambda name, spec: f"{name}_t")

    @property
    def plain(self) -> str:
        return self._with(lambda name, spec: STORAGE[spec.dtype])

    def _with(self, kind: Callable[[str, TensorSpec], str]) -> str:
        pointers = [
            f"{'' if written else 'const '}{kind(name, spec)} *{name}"
            for name, spec, written in arguments_of(self.call)
        ]
        return f"{self.head} {self.entry}({', '.join([*pointers, *self.scalars])})"


_CALLED = "how it is called"
_PARAM_TYPES = {"i64": "int64_t", "f64": "double"}


def _launch_line(launch: Launch) -> str:
    grid, block = (" ".join(map(str, sizes)) for sizes in launch.sizes)
    return f"// launch: grid {grid}, block {block}, shared {launch.shared}"


def _constants(call: NodeCall, more: OfCall | None) -> list[str]:
    """Return the constants of the call that the text can read, one line each."""
    about = ", ".join(
        f"{name} {spec.dtype.value}{list(extent(spec))}" for name, spec, _ in arguments_of(call)
    )
    lines = [f"// {call.op}: {about}"]
    for name, spec, _ in arguments_of(call):
        shape = extent(spec)
        sizes = ", ".join(map(str, shape)) or "1"
        lines.append(f"using {name}_t = {STORAGE[spec.dtype]};")
        lines.append(f"constexpr int {name}_rank = {len(shape)};")
        lines.append(f"constexpr int64_t {name}_shape[] = {{{sizes}}}, {name}_size = {math.prod(shape)};")
    for i, operand in enumerate(call.inputs):
        lines.append(f"constexpr bool has_in{i} = {_literal(operand is not None)};")
        if isinstance(operand, bool | int | float):
            lines.append(f"constexpr {_ctype(operand)} in{i}_value = {_literal(operand)};")
    for name, value in plain_attrs(call).items():
        lines += _constant(f"attr_{name}", value)
    values = {} if more is None else more(call)
    if not isinstance(values, Mapping):
        raise TypeError(
            f"constants() must return a mapping from names to numbers, got {type(values).__name__}"
        )
    for name, value in values.items():
        lines += _constant(str(name), value)
    return lines


def _constant(name: str, value: object) -> list[str]:
    """Return a constant's line; none for None and for values without a C++ literal. Texts become macros: ``#define NAME text``."""
    if isinstance(value, str):
        return [f"#define {name} {value}"]
    if isinstance(value, bool | int | float):
        return [f"constexpr {_ctype(value)} {name} = {_literal(value)};"]
    if isinstance(value, Sequence) and value and all(isinstance(v, bool | int | float) for v in value):
        kind = "double" if any(isinstance(v, float) for v in value) else "int64_t"
        return [f"constexpr {kind} {name}[] = {{{', '.join(_literal(v) for v in value)}}};"]
    return []


def _ctype(value: bool | int | float) -> str:
    return "bool" if isinstance(value, bool) else "int64_t" if isinstance(value, int) else "double"


def _literal(value: bool | int | float) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else number(value)


def _wrapper(symbol: str, entry: str, call: NodeCall, params: Sequence[str], scratch: bool) -> list[str]:
    """Return a function with the CPU ABI that calls the user's function."""
    args = [
        f"({'' if written else 'const '}{name}_t *)args[{i}]"
        for i, (name, _, written) in enumerate(arguments_of(call))
    ]
    args += [f"((const {_PARAM_TYPES[kind]} *)params)[{i}]" for i, kind in enumerate(params)]
    args += ["begin", "end", *(["scratch"] if scratch else [])]
    return [
        f'extern "C" void {symbol}(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {{',
        f"  {entry}({', '.join(args)});",
        "}",
    ]
