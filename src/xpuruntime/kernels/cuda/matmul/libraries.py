"""Matrix products by NVIDIA's libraries: ``matmul/cublasLt`` (fuses bias, residual, relu and gelu) and ``matmul/cublas`` (plain GEMM).

If the library has no matching epilogue, it stores sums in float32 (float64 for float64), and a second stage applies the epilogue. Results
are rounded once either way. A library chooses its algorithm when a program is loaded (``cpp/src/backends/cuda/libraries``), and the receipt
names it. A policy with ``algorithm`` or ``choice`` pins an entry of cuBLASLt's list; if it is not available, loading raises.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from .... import env
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....plugins.vendor_folders import vendor_folders
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.matmul import OPS, WIDE, product_of
from ...spec.product import Product, Term, even_stride
from ..heavy import about, bytes_of
from ..launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .text import arguments_of, element_offset_text, finish_text, parts_of, supported

__all__ = ["CHOICES", "LIBRARY_ACTS", "Cublas", "CublasLt", "absent", "installed"]

CHOICES: tuple[Mapping[str, int], ...] = tuple({"choice": i} for i in range(1, 4))
"""Entries of a library's list that a measurement tries besides the first."""

LIBRARY_ACTS = ("none", "relu", "gelu_tanh")
"""Activations of cuBLASLt's epilogue."""

_FILES: Mapping[str, tuple[str, str]] = {
    "cublas": ("XPU_LIBCUBLAS", "libcublas.so*"),
    "cublasLt": ("XPU_LIBCUBLASLT", "libcublasLt.so*"),
    "cudnn": ("XPU_LIBCUDNN", "libcudnn.so*"),
}
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
_DTYPES = (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16)
_THREADS = 256
"""Threads of a block of the epilogue stage."""
_COLUMNS = 4
"""Columns of a thread of the epilogue stage, if the result is stored in multiples of that many."""


@functools.cache
def installed(library: str) -> bool:
    """Return whether a library is on this machine: by its environment variable, in NVIDIA's packages, a toolkit or the system. Load nothing."""
    variable, pattern = _FILES[library]
    if env.get_path(variable) is not None:
        return True
    return any(next(Path(folder).glob(pattern), None) is not None for folder in (*vendor_folders(), *_SYSTEM))


def absent(library: str, package: str) -> Support | None:
    """Return no if the library is not installed."""
    if installed(library):
        return None
    return Support.no(Reason.NOT_INSTALLED, f"{library} is not installed", do=f"pip install {package}")


@dataclass(frozen=True, slots=True)
class _Sides:
    """Leading dims of both sides and their batch strides, in elements. ``transposed``: whether a side is stored by columns."""

    a_line: int
    a_transposed: bool
    b_line: int
    b_transposed: bool
    a_step: int
    b_step: int

    @classmethod
    def of(cls, p: Product) -> _Sides | None:
        """Return the leading dims; None if a side has no leading dim."""
        lead = len(p.batch)
        a_row, b_steps = even_stride(p.rows, p.a_strides[lead:-1]), p.b_strides[lead:]
        a_step, b_step = even_stride(p.batch, p.a_strides[:lead]), even_stride(p.batch, p.b_strides[:lead])
        if a_row is None or a_step is None or b_step is None:
            return None
        a = _lines(p.m, p.k, a_row, p.a_strides[-1])
        b = _lines(p.k, p.n, *b_steps)
        return None if a is None or b is None else cls(*a, *b, a_step, b_step)


def _lines(rows: int, columns: int, row: int, column: int) -> tuple[int, bool] | None:
    """Return the leading dim of a matrix, and whether it is stored by columns; None if it has no leading dim."""
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return max(row, columns), False
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return max(column, rows), True
    return None


_LARGEST_FACTOR = 2.0**64
"""Largest factor of a product that a library applies; by a larger one parts of usual size exceed float32."""


@dataclass(frozen=True, slots=True)
class _Native:
    """Terms that cuBLASLt's epilogue adds: operand positions, and the residual's leading dim and batch stride."""

    bias: int | None = None
    residual: int | None = None
    r_line: int = 0
    r_step: int = 0


def _native(p: Product, dtype: DType) -> _Native | None:
    """Return the terms if cuBLASLt's epilogue computes all that follows the product; else None."""
    if p.act not in LIBRARY_ACTS or len(p.terms) > 2 or not _factor_is_exact(p):
        return None
    terms = _Native()
    for term in p.terms:
        if term.operand.spec.dtype is not dtype or term.factor != 1:
            return None
        extended = _native_term(p, term, terms)
        if extended is None:
            return None
        terms = extended
    return terms


def _factor_is_exact(p: Product) -> bool:
    """Return whether a library may multiply parts of the sums by the factor: infinite parts of both signs would add to NaN."""
    return abs(p.alpha) <= _LARGEST_FACTOR


def _native_term(p: Product, term: Term, terms: _Native) -> _Native | None:
    lead = len(p.batch)
    step, line, column = (
        even_stride(p.batch, term.strides[:lead]),
        even_stride(p.rows, term.strides[lead:-1]),
        term.strides[-1],
    )
    if column != 1 or step is None or line is None:
        return None
    if not any(term.strides[:-1]) and terms.bias is None:
        return _Native(term.position, terms.residual, terms.r_line, terms.r_step)
    if line >= p.n and terms.residual is None and (step or p.batches == 1):
        return _Native(terms.bias, term.position, line, step)
    return None


def _supported(call: NodeCall, library: str) -> Support:
    missing = absent(library, "nvidia-cublas")
    if missing is not None:
        return missing
    answer = supported(call)
    if not answer:
        return answer
    dtype = call.outputs[0].dtype
    if dtype not in _DTYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"only floats are supported, not {dtype.value}")
    p = product_of(call).flat()
    if not p.batches * p.m * p.n * p.k:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "an operand is empty")
    if max(p.m, p.n, p.k) >= 2**31:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "sizes must be below 2**31")
    if _Sides.of(p) is None:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, "an operand has no leading dim: neither rows nor columns are contiguous"
        )
    return Support.yes()


@dataclass(frozen=True)
class CublasLt(Kernel):
    """cuBLASLt's GEMM with its epilogue.

    algorithm: an algorithm id of cuBLASLt; -1: any.
    choice:    an index in the heuristic's list, or among the entries of that id.
    """

    name: str = "matmul/cublasLt"
    algorithm: int = -1
    choice: int = 0
    ops: tuple[str, ...] = (*OPS, WIDE)
    on_request: bool = False
    opt_in_reason: str = "pins an algorithm"
    variants: ClassVar[tuple[Mapping[str, int], ...]] = CHOICES

    def pinned(self, word: str, values: Mapping[str, int]) -> CublasLt:
        """Return the kernel with an algorithm of cuBLASLt fixed."""
        algorithm, choice = values.get("algorithm", -1), values.get("choice", 0)
        return replace(self, name=f"matmul/{word}", algorithm=algorithm, choice=choice, on_request=True)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats whose matrices have a leading dim, if cuBLASLt is installed."""
        return _supported(call, "cublasLt")

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one library call, and an epilogue stage if the library has no such epilogue."""
        p = product_of(call).flat()
        return _lower(
            call,
            p,
            "cublasLt",
            "matmul",
            _native(p, call.outputs[0].dtype),
            {"algorithm": self.algorithm, "choice": self.choice},
        )


@dataclass(frozen=True)
class Cublas(Kernel):
    """cuBLAS's GEMM; bias, residual and activation are a second stage."""

    name: str = "matmul/cublas"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats whose matrices have a leading dim, if cuBLAS is installed."""
        return _supported(call, "cublas")

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one library call, and an epilogue stage if there is an epilogue."""
        p = product_of(call).flat()
        plain = not p.terms and p.act == "none" and _factor_is_exact(p)
        return _lower(call, p, "cublas", "gemm", _Native() if plain else None, {})


def _lower(
    call: NodeCall, p: Product, library: str, word: str, native: _Native | None, more: Mapping[str, Any]
) -> LoweredCall:
    sides = _Sides.of(p)
    assert sides is not None
    dtype = call.outputs[0].dtype
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    options: dict[str, Any] = {
        "m": p.m, "n": p.n, "k": p.k, "batch": p.batches, "a_line": sides.a_line, "b_line": sides.b_line, "y_line": p.n,
        "a_step": sides.a_step, "b_step": sides.b_step, "y_step": p.m * p.n, "a_transposed": sides.a_transposed,
        "b_transposed": sides.b_transposed, "in": call.tensor(p.a).spec.dtype.value, **more,
    }  # fmt: skip
    args = [f"in{p.a}", f"in{p.b}"]
    temps: tuple[int, ...] = ()
    if native is None:
        options["out"] = wide.value
        out, temps = "temp0", (p.batches * p.m * p.n * wide.bits // 8,)
    else:
        options |= {"out": dtype.value, "alpha": float(p.alpha), "act": p.act}
        options |= {"bias": native.bias is not None, "residual": native.residual is not None}
        options |= {"r_line": native.r_line, "r_step": native.r_step}
        args += [f"in{i}" for i in (native.bias, native.residual) if i is not None]
        out = "out0"
    first = Stage(
        word, "", (*args, out), library=library, options=options, flops=2 * p.batches * p.m * p.n * p.k,
        bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip
    stages = (
        (first,)
        if native is not None
        else (first, _finish(call, p, "double" if wide is DType.FLOAT64 else "float"))
    )
    return LoweredCall(stages, temps, accumulates=wide.value, batch_invariant=False)


def _finish(call: NodeCall, p: Product, sums: str) -> Stage:
    """Return the epilogue stage from sums to results: factor, terms, activation, one rounding. A thread has adjacent columns of a row."""
    arguments = [Argument("temp0", "sums", sums), *arguments_of(call, p)[2:]]
    count, y = p.m * p.n, arguments[-1]
    wide = 1 if sums == "double" or any(size % _COLUMNS for size in (p.n, *p.y_strides[:-1])) else _COLUMNS
    wide = wide if p.y_strides[-1] == 1 else 1
    threads = count // wide
    body = [
        f"const int64_t i = ((int64_t)blockIdx.x * {_THREADS} + threadIdx.x) * {wide};",
        f"if (i >= {count}) return;",
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[1:])}}};",
        f"const int row = (int)(i / {p.n}), column = (int)(i % {p.n});",
        f"const auto own = fetch<{wide}>(sums + (blockIdx.z * {count}ll + i), true);",
    ]
    if wide == 1:
        body.append("finish.write(row, column, own.at[0]);")
    else:
        body += [
            f"unpacked<{y.ctype}, {wide}> results;",
            "#pragma unroll",
            f"for (int e = 0; e < {wide}; ++e) results.at[e] = finish.value(row, column + e, own.at[e]);",
            f"put<{wide}>(y + ({element_offset_text(p, p.y_strides)}), encoded<{y.ctype}, {wide}>(results), fits<{wide}>(y));",
        ]
    return cuda_stage(
        f"finish_{p.m}x{p.n}", about(call, "epilogue"), arguments, body,
        LaunchConfig((blocks_for(threads, _THREADS), 1, p.batches), (_THREADS, 1, 1)),
        before=finish_text(p, [arguments[0], arguments[0], *arguments[1:]], sums), parts=parts_of(p.act, "tensor"),
        bytes=p.batches * count * (8 if sums == "double" else 4) + bytes_of([call.outputs[0]]),
    )  # fmt: skip
