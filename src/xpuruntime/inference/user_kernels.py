"""Registration of user kernels from C++ and CUDA C++ sources, Triton and Python functions, with verification by the interpreter.

    xrt.register_kernel("softmax/mine", op="softmax", target="cpu", source=TEXT, entry="rows", launch=lambda call: Tasks(...))

    @xrt.kernel("softmax/mine", op="softmax", target="cpu")
    def softmax(x, *, dim, ...): return ...

A policy selects one by its word, ``KernelPolicy(softmax="mine")``, or forces it by a rule with ``use``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ..errors import KernelUnavailable
from ..kernels.user.host import HostBody
from ..kernels.user.kernel import KernelBody, OfCall, UserKernel, checked
from ..kernels.user.text import TextBody
from ..kernels.user.triton import TritonBody, is_triton
from ..plugins.registered import HostFunction, code_digest, register, unregister
from ..storage.files import read_regular
from ..types import DType
from .verify_kernel import verify_kernel

__all__ = ["kernel", "register_kernel"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}


def register_kernel(
    name: str,
    *,
    op: str | Sequence[str],
    target: str = "cpu",
    source: str | PathLike[str] | None = None,
    function: Any = None,
    entry: str = "",
    launch: OfCall | None = None,
    supports: OfCall | None = None,
    dtypes: Iterable[DType | str] | None = None,
    params: OfCall | None = None,
    constants: OfCall | None = None,
    parts: Sequence[str] = (),
    flags: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    arrays: str = "numpy",
    deterministic: bool | None = None,
    accumulates: str = "float32",
    verify: Iterable[Mapping[str, Any]] = (),
) -> UserKernel:
    """Register a kernel in this process; policies name it by the word after the slash.

    name:      ``family/word``, or the word alone. ``op``: the IR ops that it computes (docs/reference/ops.md), one or several of one family.
    target:    ``cpu`` or ``cuda``: a name may be registered for both.
    source:    C++ source (CPU) or CUDA C++ source, or its path; ``entry``: its function, by default the only one that returns void.
               Operands come first, then results, then ``params``; on a CPU then the first task and the end of the task range.
    function:  a Triton function (``triton.jit``), or a Python function of operands (arrays, numbers, None) and attributes by keyword that
               returns the result, or a tuple of results.
    launch:    call -> ``Launch`` (CUDA, Triton: its grid) or ``Tasks`` (CPU); by default one thread or task for each element of the result.
    supports:  call -> None for yes, or the reason why not. ``dtypes``: dtypes that every tensor may have.
    params:    call -> numbers by name, passed by value. ``constants``: call -> numbers by name that the source or Triton function may use.
    parts:     parts of the prelude that the source uses; ``flags``: compiler flags. ``options``: Triton's (``num_warps``, ``num_stages``).
    arrays:    arguments of a Python function: ``numpy`` arrays or ``torch`` tensors.
    deterministic: equal inputs give equal bits on every run; policies may demand it.
    verify:    nodes on which its results are compared with the interpreter's now: ``{"inputs": ["float32[4, 128]"], "attrs": {"dim": 1}}``, and further keywords
               of ``verify_kernel``. A kernel that fails is not registered.

    A ``call`` is one node: ``call.inputs`` and ``call.outputs`` have shapes and dtypes, ``call.attrs`` the attributes.
    Raises KernelUnavailable for a bad name, op, target or source, and the errors of ``verify_kernel``.
    """
    full, ops = checked(name, op, target)
    body: KernelBody
    host: HostFunction | None = None
    if (source is None) == (function is None):
        raise KernelUnavailable(f"kernel {full}", "needs either a source or a function")
    if source is not None:
        text, file = _text(source, full, target)
        body = TextBody(
            text,
            file,
            entry or _only_function(text, full),
            launch,
            params,
            constants,
            tuple(parts),
            tuple(flags),
        )
    elif is_triton(function):
        if target != "cuda":
            raise KernelUnavailable(
                f"kernel {full}",
                "is a Triton kernel, which compiles for CUDA devices only",
                do="Give target='cuda'.",
            )
        body = TritonBody(function, launch, params, constants, tuple(sorted((options or {}).items())))
    else:
        if arrays not in ("numpy", "torch"):
            raise KernelUnavailable(
                f"kernel {full}", "supports arrays='numpy' or arrays='torch'", got=repr(arrays)
            )
        host = HostFunction(f"{full}@{target}", function, code_digest(function, arrays), arrays)
        body = HostBody.of(host.name, host.digest, function)
    supported_dtypes = None if dtypes is None else frozenset(DType.of(d) for d in dtypes)
    registered = UserKernel(
        full,
        ops,
        target,
        body,
        supports,
        supported_dtypes,
        deterministic,
        accumulates,
        code_digest(
            body.digest, full, ops, supports, str(sorted(supported_dtypes or ())), deterministic, accumulates
        ),
    )
    register(registered, host)
    try:
        for case in verify:
            verify_kernel(registered, *case["inputs"], **{k: v for k, v in case.items() if k != "inputs"})
    except BaseException:
        unregister(full)
        raise
    return registered


def kernel(
    name: str, *, op: str | Sequence[str], target: str = "cpu", **options: Any
) -> Callable[[_Function], _Function]:
    """Register a Python or Triton function as a kernel, as a decorator that returns it unchanged."""

    def decorate(function: _Function) -> _Function:
        register_kernel(name, op=op, target=target, function=function, **options)
        return function

    return decorate


def _text(source: str | PathLike[str], name: str, target: str) -> tuple[str, str]:
    """Return the source, and the file name that compilers show: that of the path, or one made of the kernel's word."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return textwrap.dedent(source).lstrip("\n"), name.partition("/")[2] + _SUFFIXES[target]
    if not str(source).strip():
        raise KernelUnavailable(
            f"kernel {name}",
            "has an empty source",
            got=repr(source),
            do="Give its text, or the path of a file.",
        )
    path = Path(source)
    try:
        return read_regular(path).decode("utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise KernelUnavailable(
            f"kernel {name}", "has a source that cannot be read", got=f"{path}: {error}"
        ) from error


def _only_function(text: str, name: str) -> str:
    functions = list(
        dict.fromkeys(re.findall(r"\bvoid\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(", text))
    )
    if len(functions) == 1:
        return str(functions[0])
    raise KernelUnavailable(
        f"kernel {name}",
        "must name the function of its source to call",
        got=f"functions {', '.join(functions) or 'none'}",
        do="Name it: entry='...'.",
    )
