"""The C function around a CPU kernel's body, and its instruction set."""

from __future__ import annotations

from ...codegen.cpp.isa import IsaLevel
from ...codegen.cpp.target import CppTarget
from ...codegen.target import CodegenTarget

__all__ = ["function", "isa_of"]


def isa_of(target: CodegenTarget) -> IsaLevel:
    """Return the instruction set of a CPU target."""
    assert isinstance(target, CppTarget)
    return target.isa


def function(body: str, about: str = "") -> str:
    """Return a kernel's function around its body, under a comment if there is one."""
    comment = f"// {about}\n" if about else ""
    return (
        f"{comment}"
        'extern "C" void KERNEL(void *const *args, const void *params, int64_t begin, int64_t end, void *scratch) {\n'
        f"{body}\n}}\n"
    )
