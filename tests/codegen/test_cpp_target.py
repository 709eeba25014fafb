"""CPU targets, toolchains, and the order of the prelude's parts."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from pathlib import Path

import pytest

from xpuruntime import ir
from xpuruntime.codegen.cpp import target as cpp
from xpuruntime.codegen.cpp import toolchain as toolchains
from xpuruntime.codegen.cpp.isa import LEVELS, best_level
from xpuruntime.codegen.cpp.target import CppTarget, cpu_target, part_text, parts_in_order
from xpuruntime.codegen.cpp.toolchain import Toolchain, cxx_toolchain
from xpuruntime.codegen.loops.nest import cut, nest, offset_text
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError, DeviceUnavailable, UnavailableError
from xpuruntime.runtime import Executor
from xpuruntime.targets import CPU_WIDE

KERNEL = """extern "C" void KERNEL(void *const *args, const void *, int64_t, int64_t, void *) {
  store<4>((float *)args[1], exp(load<4>((const float *)args[0])));
}
"""


def test_a_level_is_named_or_found() -> None:
    assert cpu_target("cpu:x86-64-v3").name == "cpu:x86-64-v3"
    assert cpu_target("cpu:x86-64-v4").isa.lanes() == 16
    from xpuruntime import _core

    assert cpu_target("cpu").isa is best_level(_core.cpu_facts().architecture, _core.cpu_facts().flags)


@pytest.mark.parametrize(
    "level", [name for name, level in LEVELS.items() if level.architecture == platform.machine()]
)
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_clang_takes_every_part(level: str) -> None:
    """GCC compiles the parts in all other tests. Code for AMX needs its level."""
    folder = Path(cpp.__file__).parents[1] / "templates"
    parts = {file.stem for file in folder.glob("*.h") if "amx" in level or "amx" not in file.stem}
    target = cpu_target(f"cpu:{level}")
    built = Toolchain(("clang++",), "clang").build(
        target.source({}, parts), target.isa.march_flags, keep=False
    )
    assert built[:4] == b"\x7fELF"


@pytest.mark.parametrize("text", ["cpu:x86-64-v9", "gpu", "cpu:", "cuda:sm_90"])
def test_a_word_that_names_no_target(text: str) -> None:
    if text == "cpu:":
        assert cpu_target(text).name.startswith("cpu:")
        return
    with pytest.raises(
        DeviceUnavailable, match=r"\[target\] no such CPU target.*Name one of cpu, cpu:x86-64-v4"
    ):
        cpu_target(text)


def test_a_machine_below_every_level_has_none() -> None:
    assert best_level("x86_64", {"sse3"}) is None
    assert best_level("riscv64", set()) is None
    level = best_level("x86_64", LEVELS["x86-64-v3"].features | {"avx512f"})
    assert level is LEVELS["x86-64-v3"]


def test_a_binary_says_what_it_needs_and_what_made_it() -> None:
    binary = cpu_target("cpu:x86-64-v3").assemble({"raised": KERNEL}, frozenset({"exp"}))
    assert binary.symbols == ("raised",)
    assert (binary.target, binary.format) == ("cpu:x86-64-v3", "elf-x86-64")
    assert set(binary.requires) == LEVELS["x86-64-v3"].features
    assert "-march=x86-64-v3" in binary.compiler
    assert 'extern "C" void raised(' in binary.source
    assert binary.data[:4] == b"\x7fELF"
    assert b"libc.so" not in binary.data  # needs no library at all
    assert b"libgcc" not in binary.data


def test_parts_come_after_what_they_need_and_once() -> None:
    order = parts_in_order({"softplus", "erf"})
    assert order[0] == "prelude"
    assert len(set(order)) == len(order)
    for before, after in (("arith", "exp"), ("exp", "erf"), ("log", "softplus"), ("exp", "softplus")):
        assert order.index(before) < order.index(after)


def test_an_unknown_part_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(BuildError, match=r"no such part of the prelude; got 'expp'.*arith"):
        part_text("expp")


def test_parts_that_need_each_other_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"prelude": "", "a": "// needs: b\n", "b": "// needs: a\n"}
    monkeypatch.setattr(cpp, "part_text", texts.__getitem__)
    with pytest.raises(BuildError, match="cyclic dependency between parts of the prelude; got a -> b -> a"):
        parts_in_order({"a"})


def test_a_compiler_s_own_text_is_repeated() -> None:
    with pytest.raises(
        BuildError, match=r"(?s)\[cpu:x86-64-v2\].* rejects the generated code; got .*no_such_function"
    ):
        cpu_target("cpu:x86-64-v2").assemble({"f": "int f() { return no_such_function(); }"}, frozenset())


def test_a_function_of_a_library_is_an_error_when_it_is_built_not_when_it_is_loaded() -> None:
    text = 'extern "C" double cbrt(double); extern "C" double f(double x) { return cbrt(x); }'
    with pytest.raises(BuildError, match="cbrt"):
        cpu_target("cpu:x86-64-v2").assemble({"f": text}, frozenset())


def test_cxx_is_honored_or_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "g++ -Wall")
    assert cxx_toolchain().command == ("g++", "-Wall")
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler.*no-such-compiler"):
        cxx_toolchain()


def foreign() -> str:
    return "aarch64" if platform.machine() == "x86_64" else "x86_64"


def test_code_for_another_processor_names_the_compiler_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = foreign()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchains.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError) as error:
        cxx_toolchain(other)
    text = str(error.value)
    assert text.startswith(f"[codegen] no C++ compiler for {other} on this machine; got tried ")
    assert (
        f"Install {other}-linux-gnu-g++ or `pip install ziglang`, or set CXX to a compiler that makes code for {other}."
        in text
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="a compiler is needed")
def test_a_named_compiler_for_the_wrong_processor_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -Wall")
    with pytest.raises(BuildError, match=rf"tried g\+\+ -Wall \(makes code for {platform.machine()}\)"):
        cpu_target(f"cpu:{'aarch64' if foreign() == 'aarch64' else 'x86-64-v2'}").assemble(
            {"f": "int f;"}, frozenset()
        )


@pytest.mark.skipif(
    shutil.which(f"{foreign()}-linux-gnu-g++") is None, reason="needs a compiler for another processor"
)
def test_a_network_compiles_for_another_processor() -> None:
    """By the compiler of GCC's usual name. What comes out says which machine it is for, and is refused here before it is loaded."""
    b = ir.GraphBuilder("net")
    x, w = b.input("x", "float32[1, 4, 8, 8]"), b.weight("w", "float32[8, 4, 3, 3]")
    y = b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    b.output("y", b.softmax(b.view(y, size=[8, 64]), dim=1))
    program = compile_graph(b.build(), target="cpu:aarch64" if foreign() == "aarch64" else "cpu:x86-64-v2")
    (binary,) = program.binaries
    assert binary.data[:4] == b"\x7fELF"
    assert int.from_bytes(binary.data[18:20], "little") == {"aarch64": 183, "x86_64": 62}[foreign()]
    with pytest.raises(
        UnavailableError, match=f"it is code for {foreign()}, this machine is {platform.machine()}"
    ):
        Executor(program)


def test_a_compiler_that_cannot_be_started() -> None:
    with pytest.raises(BuildError, match=r"could not be run.*Set CXX"):
        Toolchain(("/no/such/compiler",), "none").build("")


def test_the_porting_guide_s_questions_are_answered() -> None:
    target = cpu_target("cpu:x86-64-v2")
    assert target.elementwise_kernel("relu") == ("relu", "arith.h")
    assert target.elementwise_kernel("gelu") == ("gelu", "erf.h")
    for name, file in (
        target.elementwise_kernel("tanh"),
        target.fused_kernel("softmax"),
        target.matmul_kernel(False, True),
    ):
        assert name in target.shader_source(file), (name, file)


def test_the_config_sizes_the_code() -> None:
    small = dataclasses.replace(CPU_WIDE, max_threadgroup_1d=64)
    assert CppTarget(LEVELS["x86-64-v2"], small).config.max_threadgroup_1d == 64
    space = nest((1000, 8), {"x": (8, 1)}, (0, 1))
    assert cut(space, 64, 4).count > cut(space, 4096, 4).count


def test_dims_merge_where_every_value_allows_it() -> None:
    dense = nest((2, 3, 4), {"x": (12, 4, 1), "y": (12, 4, 1)}, (0, 1, 2))
    assert dense.extents == (24,)
    bias = nest((2, 3, 4), {"x": (12, 4, 1), "b": (0, 0, 1)}, (0, 1, 2))
    assert bias.extents == (6, 4)
    assert bias.strides == {"x": (4, 1), "b": (0, 1)}
    assert nest((), {"x": ()}, ()).extents == (1,)


@pytest.mark.parametrize(
    ("extents", "strides"), [((3, 4, 5), (100, 7, 1)), ((2, 6), (0, 3)), ((7,), (2,)), ((2, 3), (3, 1))]
)
def test_the_text_of_an_offset_counts_as_indices_do(
    extents: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    import itertools

    text = offset_text(extents, strides).replace("/", "//")
    for row, index in enumerate(itertools.product(*(range(e) for e in extents))):
        assert eval(text, {"row": row}) == sum(i * s for i, s in zip(index, strides, strict=True))
