"""Registering kernels: from C++ and CUDA C++ texts, from Triton, from Python functions; and judging one by the interpreter.

    xrt.register_kernel("softmax/mine", op="softmax", target="cpu", source=TEXT, entry="rows", launch=lambda call: Tasks(...))

    @xrt.kernel("softmax/mine", op="softmax", target="cpu")
    def softmax(x, *, dim, ...): return ...

A policy takes one by its word: ``KernelPolicy(softmax="mine")``, or by force in a rule with ``use``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ..errors import KernelUnavailable
from ..files import read_regular
from ..kernels.user.host import HostBody
from ..kernels.user.kernel import Body, OfCall, UserKernel, checked
from ..kernels.user.text import TextBody
from ..kernels.user.triton import TritonBody, is_triton
from ..registered import HostFunction, code_digest, register, unregister
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
    """Make a kernel known to this process; policies name it by the word after the slash.

    name:      ``family/word``, or the word alone. ``op``: the IR's ops that it computes (docs/reference/ops.md), one or several of one family.
    target:    ``cpu`` or ``cuda``: a name may be registered for both.
    source:    a C++ text (CPU) or CUDA C++ text, or the path of one; ``entry``: its function, by default the only one that returns void.
               Operands come first, then results, then ``params``; on a CPU then the first task and the one after the last.
    function:  a Triton function (``triton.jit``), or a Python function of operands (arrays, numbers, None) and attributes by keyword that
               gives the result, or a tuple of them.
    launch:    node -> ``Launch`` (CUDA, Triton: its grid) or ``Tasks`` (CPU); by default one thread or task for each element of the result.
    supports:  node -> None for yes, a text for no. ``dtypes``: of every tensor that it takes.
    params:    node -> numbers by name, handed over by value. ``constants``: node -> numbers by name that the text or Triton function may use.
    parts:     of the prelude that a text uses; ``flags``: of the compiler. ``options``: Triton's (``num_warps``, ``num_stages``).
    arrays:    what a Python function is handed: ``numpy`` arrays or ``torch`` tensors.
    deterministic: equal inputs give equal bits on every run; policies may ask for it.
    verify:    nodes on which it is held to the interpreter now: ``{"inputs": ["float32[4, 128]"], "attrs": {"dim": 1}}``, and what else
               ``verify_kernel`` takes by keyword. A kernel that fails is not kept.

    Raises KernelUnavailable for a name, op or kind that there is not; what ``verify_kernel`` raises.
    """
    full, ops = checked(name, op, target)
    body: Body
    host: HostFunction | None = None
    if (source is None) == (function is None):
        raise KernelUnavailable(f"kernel {full}", "is made from a source or from a function, one of them")
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
                f"kernel {full}", "is Triton's, which compiles for CUDA devices", do="Say target='cuda'."
            )
        body = TritonBody(function, launch, params, constants, tuple(sorted((options or {}).items())))
    else:
        if arrays not in ("numpy", "torch"):
            raise KernelUnavailable(
                f"kernel {full}", "is handed numpy arrays or torch tensors", got=repr(arrays)
            )
        host = HostFunction(f"{full}@{target}", function, code_digest(function, arrays), arrays)
        body = HostBody(host.name, host.digest)
    kinds = None if dtypes is None else frozenset(DType.of(d) for d in dtypes)
    made = UserKernel(
        full,
        ops,
        target,
        body,
        supports,
        kinds,
        deterministic,
        accumulates,
        code_digest(body.digest, full, ops, supports, str(sorted(kinds or ())), deterministic, accumulates),
    )
    register(made, host)
    try:
        for case in verify:
            verify_kernel(made, *case["inputs"], **{k: v for k, v in case.items() if k != "inputs"})
    except BaseException:
        unregister(full)
        raise
    return made


def kernel(
    name: str, *, op: str | Sequence[str], target: str = "cpu", **options: Any
) -> Callable[[_Function], _Function]:
    """``register_kernel`` as a decorator of a Python or Triton function, which stays what it is."""

    def keep(function: _Function) -> _Function:
        register_kernel(name, op=op, target=target, function=function, **options)
        return function

    return keep


def _text(source: str | PathLike[str], name: str, kind: str) -> tuple[str, str]:
    """The text and the name of its file in errors: the path, or one made of the kernel's word."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return textwrap.dedent(source).lstrip("\n"), name.partition("/")[2] + _SUFFIXES[kind]
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
    found = list(dict.fromkeys(re.findall(r"\bvoid\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(", text)))
    if len(found) == 1:
        return str(found[0])
    raise KernelUnavailable(
        f"kernel {name}",
        "must say which function of its text is called",
        got=f"functions {', '.join(found) or 'none'}",
        do="Name it: entry='...'.",
    )
