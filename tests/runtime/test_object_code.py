"""Object code in memory: each module has its own functions, whatever the loader keeps of modules before it."""

from __future__ import annotations

from xpuruntime import _core
from xpuruntime.codegen.cpp.toolchain import cxx_toolchain

UNIQUE = """
template <class T> struct Kept { static T *at() { static T value = 0; return &value; } };
extern "C" long %s(void) { return ++*Kept<long>::at(); }
"""
"""A text with a static variable of a template, whose symbol is unique in the process (STB_GNU_UNIQUE): its library is never unloaded."""


def test_a_module_after_one_that_stays_loaded_has_its_own_functions() -> None:
    toolchain = cxx_toolchain()
    for name in ("first", "second", "third"):
        module = _core.load_module(toolchain.build(UNIQUE % name, keep=False))
        assert isinstance(module, _core.Module)
        assert module.has(name), name
        del module
