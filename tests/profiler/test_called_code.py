"""Receipts against the code in memory: the program's own is confirmed; a function that is swapped or changed behind the plan is not."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.evidence import CalledCode, Evidence
from xpuruntime.ir import GraphBuilder
from xpuruntime.runtime.execution.called_code import _functions, _text, called_functions

SWAP = "XPU_TEST_SWAP_KERNEL"


@pytest.fixture(autouse=True)
def no_swap(monkeypatch):
    monkeypatch.delenv(SWAP, raising=False)


@pytest.fixture
def session_of(tmp_path):
    def opened():
        b = GraphBuilder("acts")
        x = b.input("x", "float32[4, 64]")
        b.output("y", b.softmax(b.relu(b.linear(x, b.weight("w", "float32[64, 64]"))), dim=-1))
        graph = b.build()
        program = xrt.compile(graph, target="cpu")
        program.save(tmp_path / "acts.npubin", weights={"w": np.eye(64, dtype=np.float32)})
        return xrt.InferenceSession(tmp_path / "acts.npubin", device="cpu")

    return opened


def test_the_receipt_of_a_program_confirms_every_function(session_of):
    with session_of() as session:
        session.run({"x": np.ones((4, 64), np.float32)})
        receipt = session.receipt()
    assert receipt.confirmed
    finding = next(f for f in receipt.findings if f.claim == "every call ran the program's code")
    rows = receipt.evidence["r0"].rows
    generated = [r for r in rows if r.code is not None]
    assert finding.seen == f"{len(generated)} functions and 1 binary have its digests"
    assert len(generated) == len(rows) >= 2
    assert all(r.code.same and len(r.code.digest) == 64 for r in generated)


def test_a_swapped_function_is_not_confirmed_and_its_step_is_named(session_of, monkeypatch):
    with session_of() as session:
        calls = session.executable.only.plan.calls
    wrong = next(
        c.symbol for c in calls if c.symbol != calls[-1].symbol and len(c.inputs) >= len(calls[-1].inputs)
    )
    monkeypatch.setenv(SWAP, f"{len(calls) - 1}={wrong}")
    with session_of() as session:
        receipt = session.receipt()  # nothing needs to run: the recording holds what would be called
        plan_says = session.executable.only.plan.calls[-1].symbol
    assert not receipt.confirmed
    finding = next(f for f in receipt.findings if not f.ok)
    assert f"step {len(calls) - 1} (" in finding.seen
    assert f"{wrong} was called instead of {plan_says}" in finding.seen
    assert calls[-1].nodes[0] in finding.seen
    assert "NOT confirmed by evidence" in str(receipt)


def test_other_bytes_in_memory_are_seen(session_of):
    """The address of the code is made writable, and one byte behind a function's return is changed."""
    with session_of() as session:
        executor = session.executable.only
        before = executor.text_digests()
        assert [seen == expected for _, seen, expected in before] == [True]
        name, code = executor.core.called_code[0]
        address = _address_of(code)
        if address is None:
            pytest.skip("the code's address is not found in this process's maps")
        libc = ctypes.CDLL(None, use_errno=True)
        page = address & ~4095
        size = (address + len(code) - page + 4095) & ~4095
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), 7):
            pytest.skip("this system does not let code be written")
        old = ctypes.string_at(address, 1)
        ctypes.memset(address, old[0] ^ 1, 1)
        try:
            changed = session.receipt()
        finally:
            ctypes.memset(address, old[0], 1)
            libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), 5)
        assert not changed.confirmed
        finding = next(f for f in changed.findings if not f.ok)
        assert f"the code of {name} is " in finding.seen
        assert "binary the code of" in finding.seen
        assert session.receipt().confirmed


def _address_of(code):
    """Return where the bytes are in an executable mapping of an object from memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if "x" in fields[1] and "xpuruntime" in line and "memfd" in line:
            begin, end = (int(t, 16) for t in fields[0].split("-"))
            place = ctypes.string_at(begin, end - begin).find(code)
            if place >= 0:
                return begin + place
    return None


def test_objects_that_are_not_elf_have_no_functions():
    for data in (b"", b"text", b"\x7fELF\x02" + bytes(10), b"\x7fELF\x01" + bytes(100), bytes(5000)):
        assert _functions(data) == {}
        assert _text(data) == "" or data.startswith(b"\x7fELF\x02")


def test_truncated_objects_raise_nothing(session_of):
    with session_of() as session:
        data = session.executable.only.program.binaries[0].data
    for size in range(0, len(data), max(1, len(data) // 97)):
        _functions(data[:size])
        _text(data[:size])


def test_a_null_device_reports_no_code(session_of):
    with session_of() as session:
        program = session.executable.only.program
    executor = xrt.NullBackend().create_executor(program)
    plan = program.entries[0].plans[0]
    assert called_functions(program, plan, executor.core) == [None] * len(plan.calls)


def test_evidence_with_code_survives_json():
    code = CalledCode("f", "0" * 64, "g", "1" * 64)
    row = xrt.protocols.EvidenceRow(("n",), "relu", "cpu", "k", code=code)
    evidence = Evidence("native", "1", (row,), "session", explained={"m": "folded"}, binaries=(code,))
    again = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
    assert again == evidence
    assert again.rows[0].code.text == "f was called instead of g"
