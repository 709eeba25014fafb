"""Compiled texts in the store: which are kept, and what tells one from another."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from xpuruntime.codegen.binary_cache import is_self_contained
from xpuruntime.codegen.cpp import toolchain as toolchains
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cpp.toolchain import TextRefused, Toolchain
from xpuruntime.errors import BuildError
from xpuruntime.storage.store import Store

TEXT = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def compiler(tmp_path: Path) -> Toolchain:
    """A compiler that counts how often it is started."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    script = tmp_path / "counted"
    script.write_text(f'#!/bin/sh\necho x >> {tmp_path}/starts\nexec g++ "$@"\n')
    script.chmod(0o755)
    return Toolchain((str(script),), "g++ of this machine")


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().split())


def test_a_text_is_compiled_once(compiler: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first = compiler.build(TEXT, store=store)
    assert compiler.build(TEXT, store=Store(tmp_path / "store")) == first
    assert starts(tmp_path) == 1
    assert [e.kind for e in store.entries()] == ["object"]


def test_stores_of_tests_share_compiled_texts_and_nothing_else(
    compiler: Toolchain, tmp_path: Path, fresh_store: Path, shared_store: Path
) -> None:
    first = compiler.build(TEXT, store=Store(shared_store))
    fresh = Store(fresh_store)
    assert compiler.build(TEXT, store=fresh) == first
    assert starts(tmp_path) == 1
    assert fresh.entries() == []
    fresh.put("artifact", {"n": 1}, b"x")
    assert [e.kind for e in fresh.entries()] == ["artifact"]
    fresh.trim(0)
    assert fresh.entries() == []
    assert compiler.build(TEXT, store=Store(shared_store)) == first
    assert starts(tmp_path) == 1


def test_another_text_flag_version_or_compiler_is_compiled_anew(compiler: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    compiler.build(TEXT, store=store)
    compiler.build(TEXT + "\n", store=store)
    compiler.build(TEXT, ("-DX",), store=store)
    Toolchain(compiler.command, "another").build(TEXT, store=store)
    script = Path(compiler.command[0])
    script.write_text(script.read_text() + "\n")  # an update under the same name and version
    compiler.build(TEXT, store=store)
    assert starts(tmp_path) == 5


def test_a_library_is_kept_by_the_objects_that_it_is_linked_with(compiler: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def answer(number: int) -> int:
        part = compiler.build(f"int part() {{ return {number}; }}", ("-c",), store=store)
        file = tmp_path / f"{number}-{starts(tmp_path)}.so"
        file.write_bytes(
            compiler.build(
                'int part(); extern "C" int answer() { return part(); }', store=store, objects=(part,)
            )
        )
        return int(ctypes.CDLL(str(file)).answer())

    assert [answer(number) for number in (1, 2, 1, 2)] == [1, 2, 1, 2]
    assert starts(tmp_path) == 4
    # The text is wrong, not the compiler, which links nothing with this flag alone.
    runtime = compiler.build('extern "C" void __tsan_init() {}', ("-c",))
    with pytest.raises(TextRefused, match="rejects the generated code"):
        compiler.build("int f() { return nothing; }", ("-fsanitize=thread",), objects=(runtime,))


def test_what_is_not_kept_is_compiled_each_time(compiler: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for _ in range(2):
        compiler.build(TEXT, store=store, keep=False)
    assert starts(tmp_path) == 2
    assert list(store.entries()) == []


def test_a_refused_text_is_refused_again(compiler: Toolchain, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for _ in range(2):
        with pytest.raises(BuildError, match="rejects the generated code") as caught:
            compiler.build("int f() { return nothing; }", store=store)
        assert caught.value.do == "Set CXX to another compiler."
    assert list(store.entries()) == []


def test_a_damaged_entry_is_compiled_anew(
    compiler: Toolchain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "store")
    first = compiler.build(TEXT, store=store)
    (entry,) = store.entries()
    data = bytearray(entry.path.read_bytes())
    data[-1] ^= 1
    entry.path.write_bytes(data)
    assert compiler.build(TEXT, store=store) == first
    assert starts(tmp_path) == 2
    assert "damaged" in caplog.text or "checksum" in caplog.text


def test_a_store_that_cannot_be_written_is_no_reason_to_fail(compiler: Toolchain) -> None:
    assert compiler.build(TEXT, store=Store("/proc/none"))[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("text", "flags", "kept"),
    [
        (TEXT, (), True),
        ("// included\n" + TEXT, (), True),
        ('#include "mine.h"\n', (), False),
        ("# \\\ninclude <mine.h>\n", (), False),
        ("#inc\\\nlude <mine.h>\n", (), False),
        ('asm(".incbin \\"table.bin\\"");', (), False),
        ("const char *made = __TIME__;", (), False),
        (TEXT, ("-include", "mine.h"), False),
    ],
)
def test_only_a_text_that_reads_no_other_file_is_kept(text: str, flags: Sequence[str], kept: bool) -> None:
    assert is_self_contained(text, flags) is kept


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_changed_header_of_a_user_s_kernel_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "_candidates", lambda architecture: [("g++",)])
    header, target = tmp_path / "mine.h", cpu_target("cpu:x86-64-v2")

    def built() -> bytes:
        text = f'#include "{header}"\nextern "C" int answer() {{ return ANSWER; }}'
        return target.assemble_apart("answer", text).data

    header.write_text("#define ANSWER 1\n")
    one = built()
    header.write_text("#define ANSWER 2\n")
    assert built() != one
