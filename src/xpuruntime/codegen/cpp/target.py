"""``CppTarget``: CPUs, by generated C++. Parts of the prelude are files of ``templates/``; each function names the parts that it uses.

The first line of a part names the parts that it depends on: ``// needs: exp log``. ``prelude`` is always included.
"""

from __future__ import annotations

import difflib
import functools
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources

from ...errors import BuildError, DeviceUnavailable
from ...program.program import Binary
from ...targets import TargetConfig
from ..binary_cache import is_self_contained
from ..target import CodegenTarget
from .isa import LEVELS, IsaLevel, own_level
from .toolchain import FLAGS, cxx_toolchain

__all__ = ["CppTarget", "cpu_target", "ordered_parts", "part_text", "parts_in_order"]


class CppTarget(CodegenTarget):
    """One instruction-set level of CPUs. ``config`` overrides the level's own sizes."""

    isa: IsaLevel
    kind = "cpu"
    takes_fused = True
    any_layout = frozenset(
        ["avg_pool", "batch_norm", "grid_sample", "max_pool", "resize"]
    )  # rows of pixels or of channels: what the operand stores
    row_major_taps = 128  # docs/development/kernel-notes.md
    row_major_filters = 8  # kernels/cpu/conv/pixels.py

    def __init__(self, isa: IsaLevel, config: TargetConfig | None = None) -> None:
        self.isa = isa
        self.name = f"cpu:{isa.name}"
        self.config = isa.config if config is None else config

    def elementwise_kernel(self, kernel_name: str) -> tuple[str, str]:
        """Return the function of the prelude and the part that defines it: ``("exp", "exp.h")``."""
        from ..expr.expression import FUNCTIONS  # imported here, because only porters use it

        function, part = FUNCTIONS.get(kernel_name, (kernel_name, "prelude"))
        return function, f"{part}.h"

    def matmul_kernel(self, is_vec: bool, transpose_b: bool) -> tuple[str, str]:
        """Return the register tile of every product. It also serves a single row, and a transposed right side, which is packed."""
        return "gemm_block", "gemm.h"

    def fused_kernel(self, kernel_type: str) -> tuple[str, str]:
        """Return the core function of a kernel of several ops, and its part. ``kernels/cpu/rows/loops.py`` generates the rows around it."""
        function, part = _FUSED.get(kernel_type, (kernel_type, kernel_type))
        return function, f"{part}.h"

    def shader_source(self, filename: str) -> str:
        """Return a part's text. Raises BuildError for a file that does not exist."""
        return part_text(filename.removesuffix(".h"))

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Compile one shared library of the used parts and the functions. Raises BuildError."""
        return self._built(self.source(functions, parts), tuple(functions), ())

    def assemble_apart(
        self, symbol: str, text: str, parts: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> Binary:
        source = f"{self.source({}, parts)}\n{text}"
        return self._built(source, (symbol,), tuple(flags), keep=is_self_contained(text, flags))

    def _built(
        self, source: str, symbols: tuple[str, ...], flags: tuple[str, ...], *, keep: bool = True
    ) -> Binary:
        toolchain = cxx_toolchain(self.isa.architecture)
        flags = (*self.isa.march_flags, *flags)
        return Binary(
            target=self.name,
            format=self.isa.binary_format,
            requires=tuple(sorted(self.isa.features)),
            symbols=symbols,
            data=toolchain.build(source, flags, who=self.name, keep=keep),
            source=source,
            compiler=" ".join((toolchain.version, *FLAGS, *flags)),
        )

    def source(self, functions: Mapping[str, str], parts: Iterable[str] = ()) -> str:
        """Return the translation unit. ``KERNEL`` in a function's text is replaced by its symbol."""
        head = f"// {self.name}\n#define VECTOR_BYTES {self.isa.vector_bytes}\n"
        texts = [part_text(part) for part in parts_in_order(parts)]
        texts += [text.replace("KERNEL", symbol) for symbol, text in functions.items()]
        return "\n".join([head, *texts])


_FUSED = {
    **dict.fromkeys(
        ("softmax", "log_softmax", "rmsnorm", "layernorm", "rms_norm", "layer_norm"), ("gathered", "reduce")
    ),
    "attention": ("attention_block", "attention"),
    "conv": ("product", "conv"),
}


def cpu_target(text: str = "cpu") -> CppTarget:
    """Return the target of a level: ``"cpu:x86-64-v3"``; ``"cpu"`` is the best level of this machine. Raises DeviceUnavailable."""
    kind, _, name = text.partition(":")
    if kind != "cpu" or name not in ("", *LEVELS):
        near = difflib.get_close_matches(name, LEVELS, n=1)
        hint = f"Did you mean 'cpu:{near[0]}'? " if near else ""
        raise DeviceUnavailable(
            "target", "no such CPU target", got=repr(text), do=f"{hint}Name one of cpu, {_known()}."
        )
    level = LEVELS[name] if name else own_level()
    if level is None:
        raise DeviceUnavailable(
            "target",
            "this CPU is below every supported level",
            got=platform.machine(),
            do=f"Name one of {_known()}.",
        )
    return CppTarget(level)


def _known() -> str:
    return ", ".join(f"cpu:{name}" for name in LEVELS)


@functools.cache
def part_text(part: str) -> str:
    """Return the text of a part. Raises BuildError for one that does not exist."""
    folder = resources.files("xpuruntime.codegen") / "templates"
    file = folder / f"{part}.h"
    if not file.is_file():
        known = ", ".join(
            sorted(f.name.removesuffix(".h") for f in folder.iterdir() if f.name.endswith(".h"))
        )
        raise BuildError("codegen", "no such part of the prelude", got=repr(part), do=f"There are {known}.")
    return file.read_text(encoding="utf-8")


def parts_in_order(parts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts and their dependencies in order; ``prelude`` comes first."""
    return ordered_parts(parts, part_text)


def ordered_parts(parts: Iterable[str], text_of: Callable[[str], str]) -> tuple[str, ...]:
    """Return the parts in order, with texts from ``text_of``. Raises BuildError for a cyclic dependency."""
    ordered: dict[str, None] = {}

    def add(part: str, path: tuple[str, ...]) -> None:
        if part in path:
            raise BuildError(
                "codegen", "cyclic dependency between parts of the prelude", got=" -> ".join((*path, part))
            )
        if part not in ordered:
            for needed in _needs(text_of(part)):
                add(needed, (*path, part))
            ordered[part] = None

    for part in ("prelude", *sorted(parts)):
        add(part, ())
    return tuple(ordered)


def _needs(text: str) -> tuple[str, ...]:
    first = text.partition("\n")[0]
    return tuple(first.removeprefix("// needs:").split()) if first.startswith("// needs:") else ()
