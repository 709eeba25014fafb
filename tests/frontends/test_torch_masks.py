"""Boolean masks as indices, against PyTorch: what they select and what is written through them, for some, all and no elements."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.errors import ModelError, RunError  # noqa: E402


def rows_written(x: Any, v: Any) -> Any:
    y, mask = x.clone(), x[:, 0, 0] > 0
    y[mask] = v[mask] * 3
    return y


def rows_added(x: Any, v: Any) -> Any:
    y, mask = x.clone(), x[:, 0, 0] > 0
    y[mask] += v[mask].sum(1, keepdim=True)
    return y


def elements_written(x: Any, v: Any) -> Any:
    y = x.clone()
    y[x > 0] = v[x > 0]
    return y


CASES = [
    lambda x, v: x[x > 0] * 2,
    lambda x, v: x[x[:, 0, 0] > 0] @ v[0].T,
    lambda x, v: x[:, x[0, :, 0] > 0],
    lambda x, v: x[..., v[0, 0] > 0],
    lambda x, v: x[:, x[0] > 0].sum(1),
    lambda x, v: (lambda y: y[y[:, 1, 1] > 0])(x[x[:, 0, 0] > 0]),
    elements_written,
    rows_written,
    rows_added,
    lambda x, v: torch.index_put(x, (x > 0,), v[x > 0], accumulate=True),
    lambda x, v: torch.index_put(x, (x > 0,), torch.tensor(2.0), accumulate=True),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_mask_selects_and_writes_what_it_does_in_pytorch(case: int) -> None:
    generator = torch.Generator().manual_seed(case)
    x, v = (torch.randn(4, 3, 5, generator=generator) for _ in range(2))
    same(CASES[case], x, v, others=[(torch.ones(4, 3, 5), v), (-torch.ones(4, 3, 5), v)])


def test_a_session_selects_rows_natively() -> None:
    model = OfFunction(lambda x: x[x[:, 0] > 0].exp()).eval()
    session = xrt.InferenceSession(
        model, example_inputs=torch.randn(4, 3), engine="native", dynamic_shapes={"x": {0: "rows"}}
    )
    for x in (torch.randn(7, 3), torch.ones(2, 3), -torch.ones(5, 3)):
        (y,) = session.run({"x": x}).values()
        assert torch.allclose(y, x[x[:, 0] > 0].exp())


A = None
WRITES: list[tuple[tuple[int, ...], Any, tuple[int, ...], tuple[int, ...]]] = [
    ((5, 4), lambda m, i: (m, i), (3,), (3,)),
    ((5, 4), lambda m, i: (m, i), (3,), ()),
    ((5, 4), lambda m, i: (m, i), (1,), (3,)),
    ((4, 5), lambda m, i: (i, m), (3,), (1,)),
    ((5, 2, 4), lambda m, i: (m, A, i), (3,), (3, 2)),
    ((2, 5, 4), lambda m, i: (A, m, i), (3,), (2, 3)),
    ((2, 5, 4, 3), lambda m, i: (A, m, i), (3,), (3, 3)),
    ((4, 2, 5, 3), lambda m, i: (i, A, m), (3,), (3, 2, 3)),
    ((1, 5, 4), lambda m, i: (m[None], i), (3,), (3,)),
]
"""Shape of x, index, shape of i, shape of the values. The mask selects three rows."""
MASKS = [[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 1, 0, 0]]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("case", range(len(WRITES)))
def test_a_mask_next_to_other_indices_writes_what_it_does_in_pytorch(case: int, accumulate: bool) -> None:
    shape, at, picks, values = WRITES[case]
    generator = torch.Generator().manual_seed(case)
    x, v = (torch.randn(s, generator=generator) for s in (shape, values))
    i = torch.randint(-4, 4, picks, generator=generator)
    first, *others = (torch.tensor(m, dtype=torch.bool) for m in MASKS)
    same(
        lambda x, m, i, v: torch.ops.aten.index_put(x, at(m, i), v, accumulate),
        *(x, first, i, v),
        others=[(x, mask, i, v) for mask in others],
    )


READS: list[tuple[tuple[int, ...], Any]] = [
    ((5, 4), lambda m, i: (m, i)),
    ((4, 5), lambda m, i: (i, m)),
    ((4, 3, 5), lambda m, i: (i, A, m)),
    ((2, 5, 4, 3), lambda m, i: (A, m, i)),
    ((2, 5, 3, 4), lambda m, i: (A, m, A, i)),
    ((1, 5, 4), lambda m, i: (m[None], i)),
]


@pytest.mark.parametrize("case", range(len(READS)))
def test_a_mask_next_to_an_index_of_one_element_selects_what_it_does_in_pytorch(case: int) -> None:
    shape, at = READS[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(case))
    first, *others = (torch.tensor(m, dtype=torch.bool) for m in [*MASKS, [0] * 5, [1] * 5])
    same(
        lambda x, m, i: torch.ops.aten.index(x, at(m, i)),
        *(x, first, torch.tensor([-3])),
        others=[(x, mask, torch.tensor([k])) for k, mask in enumerate(others)],
    )


def test_another_number_of_elements_than_a_mask_selects_fails_the_run() -> None:
    def written(x: Any, m: Any, i: Any) -> Any:
        y = x.clone()
        y[m, i] = 1.0
        return y, x[m.nonzero()[:, 0], i]

    mask, i = torch.tensor(MASKS[0], dtype=torch.bool), torch.tensor([0, -1, 2])
    x = torch.randn(5, 4)
    session = xrt.InferenceSession(OfFunction(written).eval(), example_inputs=(x, mask, i), engine="native")
    for wrong in ([1, 1, 1, 1, 0], [1, 1, 0, 0, 0]):
        with pytest.raises(RunError, match="outside a dim of"):
            session.run([x, torch.tensor(wrong, dtype=torch.bool), i])
    y, rows = session.run([x, mask, i]).values()
    want, picked = written(x, mask, i)
    assert torch.equal(y, want)
    assert torch.equal(rows, picked)


def test_two_masks_are_refused_with_a_way_that_works() -> None:
    x, v = torch.randn(4, 5), torch.tensor(7.0)
    p, q = torch.tensor([True, False, True, False]), torch.tensor([False, True, True, False, False])
    with pytest.raises(ModelError, match=r"write each mask as indices: x\[mask.nonzero\(\)\[:, 0\], i\]"):
        xrt.extract_ir(OfFunction(lambda x, p, q: x[p, q]).eval(), (x, p, q))
    (refusal,) = opaque(xrt.extract_ir(OfFunction(lambda x, p, q: x.index_put((p, q), v)).eval(), (x, p, q)))
    assert refusal.endswith("write each mask as indices, mask.nonzero()[:, 0]")
    for function in (
        lambda x, p, q: x[p.nonzero()[:, 0], q.nonzero()[:, 0]],
        lambda x, p, q: x.index_put((p.nonzero()[:, 0], q.nonzero()[:, 0]), v),
    ):
        module = OfFunction(function).eval()
        with xrt.InferenceSession(module, example_inputs=(x, p, q), engine="native") as session:
            for args in ((x, p, q), (x, ~p, q.flip(0)), (x, p & False, q & False)):
                (y,) = session.run(list(args)).values()
                assert torch.equal(y, function(*args))
