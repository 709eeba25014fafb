"""The interpreter against PyTorch on the samples of PyTorch's own op database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from xpuruntime import ir
from xpuruntime.ir import interp
from xpuruntime.testing.conformance.opinfo import (
    BRIDGES,
    LOOSE,
    NotComparable,
    calls,
    disagreement,
    graph_of,
    names_for,
)

torch = pytest.importorskip("torch", reason="PyTorch is the judge")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo needs it")

FEW = ("float32", "float64", "bfloat16", "int64", "bool")
ALL = (*FEW, "float16", "complex64", "int32", "int8", "uint8")

# ATen ops of the table that no OpInfo samples, and where they are checked instead.
ELSEWHERE = {
    "col2im": "test_interp_aten",
    "affine_grid": "test_interp_aten",
    "quantize_linear": "test_interp_aten",
    "dequantize_linear": "test_interp_aten",
    "fake_quantize": "test_interp_aten",
    "dims": "test_interp_run",
    "rand": "test_interp_random",
    "randn": "test_interp_random",
    "randperm": "test_interp_random",
    "bernoulli": "test_interp_random",
    "dropout": "test_interp_random",
    "cholesky": "test_dense_kernels",
    "repeat_interleave": "test_torch_counts",
    "slogdet": "test_dense_kernels",
    "solve": "test_dense_kernels",
}


def judged(name: str, dtypes: tuple[str, ...], limit: int | None) -> tuple[int, list[str], set[str]]:
    """How many samples fitted, what was wrong with them, and in which dtypes the usual tolerance was not enough."""
    fitted, wrong, loose = 0, [], set()
    for dtype in dtypes:
        tolerance = LOOSE[name, dtype][:2] if (name, dtype) in LOOSE else None
        for call in calls(name, dtype, limit):
            if isinstance(call, NotComparable):
                continue
            fitted += 1
            got = interp.apply(call.op, *call.operands, outputs=len(call.want), **call.attrs)
            for number, (mine, theirs) in enumerate(zip(got, call.want, strict=True)):
                if tolerance is not None and disagreement(mine, theirs):
                    loose.add(dtype)
                if text := disagreement(mine, theirs, tolerance):
                    wrong.append(f"{dtype} result {number} {text}: {call.sample} as {dict(call.attrs)}")
    return fitted, wrong, loose


def test_every_aten_op_has_a_judge() -> None:
    aten = {name for name, row in ir.OPS.items() if row.aten}
    assert aten - {b.op for b in BRIDGES.values()} == ELSEWHERE.keys()
    assert {b.op for b in BRIDGES.values()} <= ir.OPS.keys()


@pytest.mark.sampled(28)
@pytest.mark.parametrize("name", BRIDGES)
def test_a_part_of_the_samples(name: str, part: Callable[[Sequence[str], int], list[str]]) -> None:
    """Six samples of each dtype; in the gate two of float32 and one drawn for each op."""
    others = tuple(word.split()[1] for word in part([f"{name} {dtype}" for dtype in FEW[1:]], 1))
    whole = len(others) == len(FEW) - 1
    dtypes = FEW if whole else ("float32", *others)
    if name.startswith("fft"):
        dtypes = (*dtypes, "complex64")
    fitted, wrong, _ = judged(name, dtypes, 6 if whole else 2)
    if not fitted and not whole:
        fitted, wrong, _ = judged(name, FEW, 6)
    assert not wrong, "\n".join(wrong[:5])
    assert fitted, "no sample fits the bridge"


@pytest.mark.conformance
@pytest.mark.parametrize("name", BRIDGES)
def test_all_samples(name: str) -> None:
    fitted, wrong, loose = judged(name, ALL, None)
    assert not wrong, "\n".join(wrong[:5])
    assert fitted, "no sample fits the bridge"
    needed = {dtype for entry, dtype in LOOSE if entry == name}
    # PyTorch's own kernels of 16 bits differ between processors: an entry may be needed on another one.
    idle = needed - loose - {"float16", "bfloat16"}
    assert loose <= needed, f"LOOSE says {sorted(needed)}, needed are {sorted(loose)}"
    assert not idle, f"LOOSE says {sorted(idle)} and nothing needs it"


def test_a_call_is_a_graph_too() -> None:
    """The same check for engines: a call as a graph gives what the call gives."""
    (name,) = names_for("hardsigmoid")
    for call in calls(name, "float32", 3):
        assert not isinstance(call, NotComparable)
        feeds = {f"x{i}": operand for i, operand in enumerate(call.operands)}
        outputs = interp.run(graph_of(call), feeds)
        assert not disagreement(outputs["y0"], call.want[0])


def test_a_wrong_answer_is_seen() -> None:
    call = next(iter(calls("softmax", "float32", 1)))
    assert not isinstance(call, NotComparable)
    assert disagreement(call.want[0] * 1.001, call.want[0])
    assert disagreement(call.want[0].astype("float64"), call.want[0])
