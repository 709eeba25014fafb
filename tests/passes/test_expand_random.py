"""Random ops as arithmetic: the generator's bits, distributions, seeds and runs; on CPUs and in CUDA's text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.native import check

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.ir import interp
from xpuruntime.ir.interp.sampling import philox
from xpuruntime.ir.shapes.symbols import specialize
from xpuruntime.passes import PASSES
from xpuruntime.passes.expand_random import run
from xpuruntime.testing.emulation.cuda_host import cuda_host

LOW = 0xFFFFFFFF


def bits(count: int, state: tuple[int, int] = (0, 0), **attrs: Any) -> Any:
    (words,) = interp.apply("random_bits", np.array(state, np.int64), count=count, **attrs)
    return words


def test_the_generator_is_philox() -> None:
    """The first answer is that of the authors' list of known answers (Random123, kat_vectors)."""
    assert [hex(w) for w in bits(4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    seed, number = 0x1234_5678_9ABC_DEF0, 0x7_0000_0005
    words = bits(11, (seed, number), stream=0xFFFFFFFE)
    for place in range(3):
        counter = place, 0xFFFFFFFE, number & LOW, number >> 32
        want = philox(counter, (seed & LOW, seed >> 32))
        assert tuple(words[4 * place :][:4]) == want[: len(words) - 4 * place]
    wide = bits(5, (seed, number), bits=53, stream=0xFFFFFFFE)
    assert wide[1] == (int(words[3]) << 32 | int(words[2])) >> 11
    assert wide.max() < 2**53
    assert len(wide) == 5


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_kernels_give_the_interpreters_bits(target: str) -> None:
    b = ir.GraphBuilder("bits")
    state = b.input("state", "int64[2]")
    for i, (count, wide) in enumerate([(0, 32), (1, 32), (7, 53), (33, 32), (1000, 53)]):
        b.output(f"y{i}", b.random_bits(state, count=count, bits=wide, stream=2**32 - 1 - i))
        b.output(f"z{i}", b.random_bits(count=count, bits=wide, seed=2**63 - 1 - i))
    feeds = {"state": np.array([2**62 + 12345, 2**40 + 7], np.int64)}
    on = "cpu" if target == "cpu" else cuda_host()
    check(b.build(), feeds, passes="none", split=3, target=on, tolerance=0.0)


def test_what_the_generator_refuses() -> None:
    b = ir.GraphBuilder("bits")
    with pytest.raises(IrError, match="bits must be 32 or 53"):
        b.random_bits(count=3, bits=64)
    with pytest.raises(IrError, match=r"state must be int64\[2\]"):
        b.random_bits(b.input("x", "int64[3]"), count=3)


def drawn(op: str, *operands: Any, runs: int = 1, seed: int = 0, **attrs: Any) -> list[Any]:
    """Return the results of some runs of one op after the pass."""
    b = ir.GraphBuilder("g")
    names = [b.input(f"x{i}", f"{v.dtype}{[*v.shape]}") for i, v in enumerate(operands)]
    outputs = b.call(op, *names, **attrs)
    for i, name in enumerate([outputs] if isinstance(outputs, str) else outputs):
        b.output(f"y{i}", name)
    graph = run(b.build(), seed=seed)
    assert not any(n.op == op for n in graph)
    ir.verify(graph)
    weights = {w.name: w.array() for w in graph.weights}
    feeds, states = {f"x{i}": v for i, v in enumerate(operands)}, {}
    results = [interp.run(graph, feeds, weights=weights, states=states) for _ in range(runs)]
    for result in results:
        for o in b.build().outputs:
            assert result[o.name].dtype == b.build().spec(o.value).dtype.numpy
    return [list(r.values()) if len(r) > 1 else r["y0"] for r in results]


N = 40_000


def distance(sample: Any, cumulative: Any) -> float:
    """Return the statistic of Kolmogorov and Smirnov, times the root of the number: above 1.95 with probability 0.001."""
    x = np.sort(sample.astype(np.float64).ravel())
    at = cumulative(x)
    steps = np.arange(x.size + 1) / x.size
    return float(max((steps[1:] - at).max(), (at - steps[:-1]).max()) * math.sqrt(x.size))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_and_normal_numbers(dtype: str) -> None:
    (u,) = drawn("rand", size=[N], dtype=dtype, low=-1.0, high=3.0)
    assert distance(u, lambda x: (x + 1) / 4) < 1.95
    assert u.min() >= -1
    assert u.max() < 3
    (z,) = drawn("randn", size=[2, N // 2], dtype=dtype, mean=2.0, std=0.5)
    assert distance(z, lambda x: 0.5 * (1 + np.vectorize(math.erf)((x - 2) / 0.5 / math.sqrt(2)))) < 1.95
    flat = z.ravel()
    assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize(("dtype", "levels"), [("float16", 2048), ("bfloat16", 256)])
def test_uniform_numbers_of_narrow_types_never_reach_their_bound(dtype: str, levels: int) -> None:
    (u,) = drawn("rand", size=[N], dtype=dtype)
    u = u.astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert np.array_equal(u * levels, np.floor(u * levels))
    counts = np.bincount((u * 16).astype(int), minlength=16)
    assert ((counts - N / 16) ** 2 / (N / 16)).sum() < 37.7  # chi-square of 15 degrees: 0.001
    (v,) = drawn("rand", size=[N], dtype=dtype, low=1.0, high=3.0)
    assert v.astype(np.float64).max() < 3
    assert v.astype(np.float64).min() >= 1
    (z,) = drawn("randn", size=[N], dtype=dtype)
    assert abs(z.astype(np.float64).std() - 1) < 0.02


def test_bernoulli_and_dropout() -> None:
    p = np.array([0.0, 0.25, 1.0, math.nan], np.float32)
    (y,) = drawn("bernoulli", np.broadcast_to(p, (N, 4)).copy())
    assert (y[:, 0] == 0).all()
    assert (y[:, 2] == 1).all()
    assert (y[:, 3] == 0).all()
    assert abs(y[:, 1].mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / N)
    x = np.full(N, 3.0, np.float32)
    ((y, mask),) = drawn("dropout", x, p=0.3, train=True, outputs=2)
    np.testing.assert_allclose(y, np.where(mask, x / 0.7, 0), rtol=1e-6)
    assert abs(mask.mean() - 0.7) < 4 * math.sqrt(0.21 / N)
    odd = np.array([1, math.inf, math.nan], np.float32)
    ((y, mask),) = drawn("dropout", odd, p=1.0, outputs=2)
    assert not mask.any()
    np.testing.assert_array_equal(y, [0, math.nan, math.nan])  # as in PyTorch


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1.0])
def test_dropped_elements_are_products_with_zero(value: float) -> None:
    """PyTorch multiplies by the mask: a dropped NaN or infinity gives NaN, a dropped negative number -0."""
    torch = pytest.importorskip("torch")
    x = np.full(64, value, np.float32)
    ((y, mask),) = drawn("dropout", x, p=0.5, train=True, outputs=2)
    own, own_mask = (t.numpy() for t in torch.native_dropout(torch.from_numpy(x), 0.5, True))
    interpreted, its_mask = interp.apply("dropout", x, outputs=2, p=0.5, train=True, seed=1)
    for result, by in ((y, mask), (own, own_mask), (interpreted, its_mask)):
        assert by.any()
        assert not by.all()
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(result, x * by * 2)
        assert np.array_equal(np.signbit(result[~np.isnan(result)]), np.signbit(x[~np.isnan(result)]))


def test_draws_of_symbolic_sizes_wait_for_their_sizes() -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[rows, 3]")
    b.output("y", b.bernoulli(x))
    b.output("z", b.dropout(x, p=0.5))
    b.output("c", b.multinomial(x, samples=4))
    b.output("u", b.rand(size=[5]))
    results = {}
    for seed in (0, 7):
        open_sizes = run(b.build(), seed=seed)
        assert [n.op for n in open_sizes if n.op in RANDOM] == ["bernoulli", "dropout", "multinomial"]
        graph = run(specialize(open_sizes, {"rows": 50}), seed=0)  # keeps the state, and with it the seed
        ir.verify(graph)
        assert [s.name for s in graph.states] == ["random.state"]
        assert not any(n.op in RANDOM for n in graph)
        feeds, weights = {"x": np.full((50, 3), 0.5, np.float32)}, {w.name: w.array() for w in graph.weights}
        results[seed] = interp.run(graph, feeds, weights=weights, states={})
    assert not any(np.array_equal(results[0][name], results[7][name]) for name in results[0])


def test_only_symbolic_draws_keep_the_seed() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.bernoulli(b.input("x", "float32[rows]")))
    assert not run(b.build()).states
    (state,) = run(b.build(), seed=9).states
    assert state.init is not None


RANDOM = ("rand", "bernoulli", "dropout", "multinomial")


def test_a_last_class_of_probability_zero_is_never_drawn() -> None:
    """A sum of 100000 parts rounds: the last edge may be below the largest uniform number."""
    odds = np.log(np.r_[np.ones(99_999), 0].astype(np.float32), where=np.r_[np.ones(99_999), 0] > 0, out=np.full(100_000, -np.inf, np.float32))  # fmt: skip
    b = ir.GraphBuilder("g")
    b.output("y", b.multinomial(b.input("x", "float32[1, 100000]"), samples=3))

    def largest(editor: Any, node: Any) -> None:
        if node.op == "random_bits":
            ones = editor.insert(node, "constant", value=np.full(node.spec.shape, 2**53 - 1, np.int64))
            editor.forward(node.name, ones)

    graph = run(b.build()).rewrite(largest)
    assert (interp.run(graph, {"x": odds[None]}, states={})["y"] == 99_998).all()


def test_classes_and_permutations() -> None:
    odds = np.log(np.array([[1, 2, 1e-30, 5], [3, 3, 3, 1]], np.float32))
    (y,) = drawn("multinomial", odds, samples=N)
    for row, expected in zip(y, ([1 / 8, 2 / 8, 0, 5 / 8], [0.3, 0.3, 0.3, 0.1]), strict=True):
        counts, expected = np.bincount(row, minlength=4), np.array(expected) * N
        used = expected > 0  # the third is 1e-30
        assert counts[~used].sum() == 0
        assert ((counts - expected)[used] ** 2 / expected[used]).sum() < 16.3
    orders = np.array(drawn("randperm", n=4, runs=960))
    assert (np.sort(orders, 1) == np.arange(4)).all()
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert ((counts - 40) ** 2 / 40).sum() < 49.7


def test_runs_differ_and_sessions_repeat() -> None:
    first, second = drawn("rand", size=[100], runs=2)
    assert not np.isclose(first, second).any()
    assert np.array_equal(np.array(drawn("rand", size=[100], runs=2)), [first, second])
    (other,) = drawn("rand", size=[100], seed=7)
    assert not np.isclose(first, other).any()
    assert np.array_equal(drawn("rand", size=[100], seed=7)[0], other)


def test_a_draw_with_a_seed_of_its_own() -> None:
    one, two = _seeded(5, 5)
    assert np.array_equal(*one)
    assert np.array_equal(*two)
    assert not np.isclose(one[0], two[0]).any(), "two nodes have streams of their own"


def _seeded(*seeds: int) -> list[list[Any]]:
    b = ir.GraphBuilder("g")
    for i, seed in enumerate(seeds):
        b.output(f"y{i}", b.rand(size=[50], seed=seed))
    graph = run(b.build())
    assert not graph.states
    results = [interp.run(graph, {}) for _ in range(2)]
    return [[r[f"y{i}"] for r in results] for i in range(len(seeds))]


def test_nodes_of_a_graph_are_independent() -> None:
    b = ir.GraphBuilder("g")
    for i in range(40):
        b.output(f"y{i}", b.rand(size=[400]))
    values = np.array(list(interp.run(run(b.build()), {}).values()))
    others = np.corrcoef(values)[~np.eye(40, dtype=bool)]
    assert abs(others).max() < 5 / math.sqrt(400)


def test_states_of_the_model_and_taken_names_stay() -> None:
    b = ir.GraphBuilder("g")
    b.state("random.state", "float32[3]")
    b.set_state("random.state", b.add("random.state", 1.0))
    b.output("y", b.add("random.state", b.rand(size=[3])))
    graph = run(b.build())
    assert [s.name for s in graph.states] == ["random.state", "random.state_1"]
    ir.verify(graph)


def test_graphs_without_draws_are_not_changed() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.dropout(b.input("x", "float32[3]"), train=False))
    graph = b.build()
    assert run(graph) is graph
    assert [p.name for p in PASSES].index("inline_control") < [p.name for p in PASSES].index("expand_random")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_native_programs_draw_what_the_interpreter_draws(target: str) -> None:
    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[5, 7]")
    b.output("u", b.add(x, b.rand(size=[5, 7])))
    b.output("z", b.randn(size=[3, 33]))
    b.output("h", b.randn(size=[9], dtype="float64", mean=1.0))
    b.output("p", b.randperm(n=19))
    b.output("c", b.multinomial(x, samples=6))
    b.output("d", b.dropout(x, p=0.4))
    graph = run(b.build())
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)}
    states = {"random.state": np.array([3, 2**33], np.int64)}
    on = "cpu" if target == "cpu" else cuda_host()
    check(graph, feeds, states=states, target=on, tolerance=2e-6)
