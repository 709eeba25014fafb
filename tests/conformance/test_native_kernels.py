"""PyTorch's own samples of its ops on the native engine: what a kernel claims must be right, in every dtype that it claims.

`make conformance` takes more of them; `python -m xpuruntime.testing.conformance.opinfo.native` prints what is refused, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the judge")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo needs it")

from xpuruntime.testing.conformance.opinfo import BRIDGES  # noqa: E402
from xpuruntime.testing.conformance.opinfo.native import DTYPES, check_samples  # noqa: E402


def held(names: tuple[str, ...], dtypes: tuple[str, ...], limit: int) -> Counter[str]:
    found = list(check_samples(names, dtypes, limit))
    wrong = [f"{s.name} {s.dtype} by {s.kernel}: {s.why}" for s in found if s.outcome == "wrong"]
    assert not wrong, f"{len(wrong)} of {len(found)}\n" + "\n".join(wrong[:10])
    return Counter(s.outcome for s in found)


def test_a_sample_of_every_op(part: Callable[[Sequence[str], int], list[str]]) -> None:
    ops = part(tuple(BRIDGES), len(BRIDGES) // 8)
    count = held(tuple(ops), ("float32", "int64"), 1)
    assert count["right"] > (2 if len(ops) == len(BRIDGES) else 1) * count["refused"], count


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES)
def test_ten_samples_of_every_op(dtype: str) -> None:
    held(tuple(BRIDGES), (dtype,), 10)


def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a kernel whose code adds where it should multiply is wrong on its samples."""
    from xpuruntime.codegen.cpp.target import CppTarget

    assemble = CppTarget.assemble

    def broken(self, functions, parts):
        return assemble(self, {s: t.replace("total * ", "total + ") for s, t in functions.items()}, parts)

    monkeypatch.setattr(CppTarget, "assemble", broken)
    outcomes = Counter(s.outcome for s in check_samples(("cumprod",), ("float32",), 4))
    assert outcomes["wrong"] > 0
