"""Users' kernels that are Triton functions: compiled to a CUBIN with the model, so that the machine that runs it needs no Triton.

A function takes pointers to operands, pointers to results, then scalar parameters. Its ``constexpr`` parameters get their values by name: from the
user's ``constants``, or ``in0_size`` ... (elements of a buffer), ``in0_dim0`` ... (its extents) and ``attr_NAME`` (attributes of the node).

Compiling needs the package ``triton`` but no GPU. Triton assumes no alignment, because buffers may begin at any element.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...codegen.cuda.target import CudaTarget
from ...codegen.target import CodegenTarget
from ...errors import BuildError
from ...plugins.registered import code_digest
from ...program.program import Binary, KernelParam
from ...types import DType
from ..kernel import Built, LoweredCall, NodeCall, Stage
from .kernel import OfCall, arguments_of, extent, launch_of, packed_params, plain_attrs, specs_of

if TYPE_CHECKING:
    from .kernel import UserKernel

__all__ = ["TritonBody", "is_triton"]

_TYPES: Mapping[DType, str] = {
    DType.BOOL: "i1",
    DType.FLOAT16: "fp16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT32: "fp32",
    DType.FLOAT64: "fp64",
    **{DType(f"int{n}"): f"i{n}" for n in (8, 16, 32, 64)},
    **{DType(f"uint{n}"): f"u{n}" for n in (8, 16, 32, 64)},
}
"""Dtypes in Triton's signatures."""
_SCALARS = {"i64": "i64", "f64": "fp64"}


def is_triton(function: object) -> bool:
    """Return whether it is a function of ``triton.jit``. Import nothing."""
    return type(function).__module__.partition(".")[0] == "triton" and hasattr(function, "arg_names")


@dataclass(frozen=True, slots=True)
class TritonBody:
    """A function and how it is launched.

    launch:  function from a node to its grid.
    options: Triton's own, ``num_warps`` and the like.
    """

    function: Any
    launch: OfCall | None
    params: OfCall | None
    constants: OfCall | None
    options: tuple[tuple[str, Any], ...]

    @property
    def digest(self) -> str:
        return code_digest(
            self.function.src, self.launch, self.params, self.constants, repr(self.options), "triton"
        )

    def refuses(self, call: NodeCall, target: CodegenTarget) -> str:
        if not isinstance(target, CudaTarget) or target.name.partition(":")[0] != "cuda":
            return f"Triton compiles for CUDA devices, not for {target.name}"
        unsupported = [s.dtype.value for s in specs_of(call) if s.dtype not in _TYPES]
        return f"Triton has no type for {unsupported[0]}" if unsupported else ""

    def lower(self, kernel: UserKernel, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        params = packed_params(self.params, call)
        signature, constants = self._signature(kernel.name, call, params)
        grid = launch_of(self.launch, call).sizes[0]
        stage = Stage(
            stem=re.sub(r"\W", "_", kernel.name),
            source="",
            args=tuple(name for name, _, _ in arguments_of(call)),
            params=params,
            tasks=math.prod(grid),
            options={"grid": list(grid)},
            bytes=sum(s.size_bytes or 0 for s in specs_of(call)),
            unit=TritonUnit(self.function, tuple(signature.items()), tuple(constants.items()), self.options),
        )
        return LoweredCall(
            (stage,),
            accumulates=kernel.accumulates,
            deterministic=bool(kernel.deterministic),
            batch_invariant=False,
        )

    def _signature(
        self, name: str, call: NodeCall, params: tuple[KernelParam, ...]
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the types of parameters and the values of constants by name. Raises TypeError if they do not fit the node."""
        types_ = [f"*{_TYPES[spec.dtype]}" for _, spec, _ in arguments_of(call)]
        types_ += [_SCALARS[p.type] for p in params]
        runtime_params = [p.name for p in self.function.params if not p.is_constexpr]
        if len(runtime_params) != len(types_):
            takes = ", ".join([*(a for a, _, _ in arguments_of(call)), *(p.name for p in params)])
            raise TypeError(
                f"{name} gets {len(types_)} arguments ({takes}), but its function takes {', '.join(runtime_params)}"
            )
        values: dict[str, Any] = {f"attr_{k}": v for k, v in plain_attrs(call).items()}
        for buffer, spec, _ in arguments_of(call):
            shape = extent(spec)
            values[f"{buffer}_size"] = math.prod(shape)
            values |= {f"{buffer}_dim{i}": size for i, size in enumerate(shape)}
        if self.constants is not None:
            user_constants = self.constants(call)
            if not isinstance(user_constants, Mapping):
                raise TypeError(f"constants() must return a mapping, got {type(user_constants).__name__}")
            values |= user_constants
        types = dict(zip(runtime_params, types_, strict=True))
        constants = {}
        for parameter in self.function.params:
            if not parameter.is_constexpr:
                continue
            if parameter.name not in values and parameter.default is inspect.Parameter.empty:
                raise TypeError(
                    f"{name} has no value for the constexpr {parameter.name}; give it in constants="
                )
            constants[parameter.name] = values.get(parameter.name, parameter.default)
        return {n: types.get(n, "constexpr") for n in self.function.arg_names}, constants


@dataclass(frozen=True, slots=True)
class TritonUnit:
    """One function for one call."""

    function: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def digest(self) -> str:
        return code_digest(self.function.src, repr((self.signature, self.constants, self.options)))

    def build(self, target: CodegenTarget) -> Built:
        assert isinstance(target, CudaTarget)  # refuses() checked it
        compiled = self._compiled(target)
        meta = compiled.metadata
        ptx, cubin = str(compiled.asm["ptx"]), bytes(compiled.asm["cubin"])
        who = f"{self.function.__name__} (Triton)"
        if getattr(meta, "global_scratch_size", 0) or getattr(meta, "profile_scratch_size", 0):
            raise BuildError(
                who,
                f"{who} needs global scratch memory, which is not supported",
                do="Write it without device-side descriptors.",
            )
        passed = [n for n, kind in self.signature if kind != "constexpr"]
        extra = _parameters(ptx, meta.name) - len(passed)  # addresses of scratch memory that it does not use
        binary = Binary(
            target=target.name,
            format="cubin",
            requires=(target.name,),
            symbols=(meta.name,),
            data=cubin,
            source=self.function.src,
            compiler=f"Triton {importlib.import_module('triton').__version__}",
        )
        options: dict[str, Any] = {"block": [32 * meta.num_warps, 1, 1], "shared": int(meta.shared)}
        if getattr(meta, "num_ctas", 1) > 1:
            options["cluster"] = [meta.num_ctas, 1, 1]
        unused = tuple(KernelParam(f"unused{i}", "i64", 0) for i in range(extra))
        return Built(binary, meta.name, options, unused)

    def _compiled(self, target: CudaTarget) -> Any:
        triton = importlib.import_module("triton")
        source = importlib.import_module("triton.compiler").ASTSource(
            fn=self.function, signature=dict(self.signature), constexprs=dict(self.constants)
        )
        gpu = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", target.sm.number, 32)
        try:
            return triton.compile(source, target=gpu, options=dict(self.options))
        except Exception as error:
            file = inspect.getsourcefile(self.function.fn) or "?"
            first = inspect.getsourcelines(self.function.fn)[1]
            line = getattr(getattr(error, "node", None), "lineno", None)
            lines = self.function.src.splitlines()
            quoted = f": `{lines[line - 1].strip()}`" if line and line <= len(lines) else ""
            begins = next(
                (i for i, text in enumerate(inspect.getsourcelines(self.function.fn)[0]) if "def " in text), 0
            )
            at = "" if line is None else f" line {first + begins + line - 1}"
            raise BuildError(
                f"{self.function.__name__} (Triton)",
                f"{file}{at} does not compile{quoted}",
                got=str(error).strip() or type(error).__name__,
                do=f"Correct {file}{at}.",
            ) from error


def _parameters(ptx: str, name: str) -> int:
    """Return the number of a kernel's parameters in its PTX."""
    entry = re.search(rf"\.entry\s+{re.escape(name)}\s*\(([^)]*)\)", ptx)
    return 0 if entry is None else entry[1].count(".param")
