"""Training ops against PyTorch's own: values and gradients in each dtype, numerical gradients, odd operands, and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.training_cases import CASES, FIRST_ORDER, OpCase, assert_near_float64, gradients, named

import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import InputError, RunError
from xpuruntime.pytorch import ops
from xpuruntime.pytorch.formulas.formula import Formula, Writer
from xpuruntime.pytorch.numbered_policies import policy_number
from xpuruntime.pytorch.ops import library

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.sampled(14)
@pytest.mark.parametrize(**named(CASES))
def test_values_and_gradients_are_as_near_to_float64_as_those_of_pytorch(
    case: OpCase, device: str, part: Callable[[Sequence[str], int], list[str]]
) -> None:
    """In each dtype; in the gate in one that is drawn for the case."""
    by_name = {f"{case.name} {dtype}": dtype for dtype in DTYPES}
    for name in part(list(by_name), 1):
        assert_near_float64(case, by_name[name], device)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(**named(CASES))
def test_numerical_gradients_of_first_and_second_order(case: OpCase, device: str) -> None:
    operands = case.operands(torch.float64, device)
    if case.name == "embedding_padding":  # its padding row has a derivative that is left out
        pytest.skip("the gradient of the padding row is 0 by definition")
    assert torch.autograd.gradcheck(case.run, operands, fast_mode=True)
    if case.name in FIRST_ORDER:
        with pytest.raises(RunError, match="has no gradients of second order"):
            torch.autograd.gradgradcheck(case.run, operands, fast_mode=True)
        return
    assert torch.autograd.gradgradcheck(case.run, operands, fast_mode=True)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(**named(CASES))
def test_operands_that_are_not_contiguous(
    case: OpCase, device: str, part: Callable[[Sequence[str], int], list[str]]
) -> None:
    """In each dtype; in the gate in the one that the test of values draws, whose programs are there."""
    by_name = {f"{case.name} {dtype}": dtype for dtype in DTYPES}
    for name in part(list(by_name), 1):
        operands = case.operands(by_name[name], device)
        spread = [torch.stack((t.detach(), t.detach()), -1)[..., 0].requires_grad_() for t in operands]
        assert not all(t.is_contiguous() for t in spread)
        y = case.run(*operands)
        grad = torch.randn_like(y)
        for mine, other in zip(
            gradients(case.run, spread, grad), gradients(case.run, operands, grad), strict=True
        ):
            assert torch.equal(mine, other)


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES], ids=str)
def test_the_default_eps_of_rms_norm_is_that_of_pytorch(dtype: torch.dtype) -> None:
    x = torch.full((2, 8), 1e-4, dtype=dtype)
    assert torch.allclose(ops.rms_norm(x, 8), torch.nn.functional.rms_norm(x, (8,)), rtol=1e-2)


def test_a_norm_of_nothing_is_refused() -> None:
    for run in (lambda: ops.rms_norm(None, 8), lambda: ops.layer_norm(None, 8)):
        with pytest.raises(InputError, match="None"):
            run()


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_and_single_rows(rows: int, device: str) -> None:
    x = torch.randn(rows, 8, device=device, requires_grad=True)
    w = torch.randn(8, device=device, requires_grad=True)
    m = torch.randn(3, 8, device=device, requires_grad=True)
    for run, theirs in (
        (lambda: ops.rms_norm(x, 8, w, 1e-6), lambda: torch.nn.functional.rms_norm(x, (8,), w, 1e-6)),
        (lambda: ops.layer_norm(x, 8, w), lambda: torch.nn.functional.layer_norm(x, (8,), w)),
        (lambda: ops.softmax(x), lambda: x.softmax(-1)),
        (lambda: ops.linear(x, m, None, "gelu"), lambda: torch.nn.functional.gelu(x @ m.t())),
        (lambda: ops.swiglu(x, x), lambda: torch.nn.functional.silu(x) * x),
    ):
        results = []
        for each in (run, theirs):
            y = each()
            used = [t for t in (x, w, m) if t is x or (each() is not None and t.requires_grad)]
            results.append((y, torch.autograd.grad(y.sum(), used, allow_unused=True)))
        (y, mine), (z, other) = results
        assert y.shape == z.shape
        assert torch.allclose(y, z, atol=1e-5)
        for a, b in zip(mine, other, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_spread_as_in_pytorch(value: float, device: str) -> None:
    x = torch.randn(4, 8, device=device)
    x[1, 2] = value
    w = torch.randn(8, device=device)
    for mine, theirs in (
        (ops.layer_norm(x, 8, w), torch.nn.functional.layer_norm(x, (8,), w)),
        (ops.softmax(x), x.softmax(-1)),
        (ops.swiglu(x, x), torch.nn.functional.silu(x) * x),
        (ops.linear(x, torch.ones(3, 8, device=device)), x @ torch.ones(8, 3, device=device)),
    ):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


@pytest.mark.parametrize("name", ["softmax", "swiglu", "matmul"])
def test_vmap_is_one_call(name: str, device: str) -> None:
    case = next(c for c in CASES if c.name == name)
    stacks = [t.detach()[None].repeat(3, *[1] * t.dim()) for t in case.operands(torch.float32, device)]
    with xrt_torch.record() as record:
        mapped = torch.vmap(case.run)(*stacks)
    assert len(record.ops()) == 1
    one = torch.stack([case.run(*rows) for rows in zip(*stacks, strict=True)])
    assert torch.allclose(mapped, one, atol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(**named(CASES))
def test_torch_compile_keeps_an_op_whole(case: OpCase, device: str) -> None:
    torch.compiler.reset()
    operands = case.operands(torch.float32, device)
    grad = torch.randn_like(case.run(*operands))
    compiled = torch.compile(case.run, backend="aot_eager", fullgraph=True)
    for mine, other in zip(
        gradients(compiled, operands, grad), gradients(case.run, operands, grad), strict=True
    ):
        assert torch.allclose(mine, other, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.layer_norm(torch.ones(2, 3), 4), r"layer_norm\] normalized_shape must be the last dims of x; got \[4\] of \[2, 3\]"),
        (lambda: ops.layer_norm(torch.ones(2, 3, dtype=torch.int64), 3), r"needs a floating-point tensor; got a tensor of torch.int64"),
        (lambda: ops.rms_norm(torch.ones(2, 3), 3, torch.ones(3).double()), r"needs operands of one dtype; got torch.float32 and torch.float64"),
        (lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 5)), r"needs x \[..., inputs\] and weight \[outputs, inputs\]; got \[2, 3\] and \[4, 5\]"),
        (lambda: ops.linear(torch.ones(2, 3), torch.ones(4, 3), None, "swish"), r"has no such activation; got 'swish'"),
        (lambda: ops.matmul(torch.ones(2, 3), torch.ones(2, 3)), r"needs a \[..., m, k\] and b \[..., k, n\]"),
        (lambda: ops.swiglu(torch.ones(2), torch.ones(3)), r"swiglu\] needs operands of one shape; got \[2\] and \[3\]"),
        (lambda: ops.rope(torch.ones(2, 4, 6), torch.ones(4, 2), torch.ones(4, 2)), r"rope\] needs x"),
        (lambda: ops.embedding(torch.ones(2), torch.ones(3, 4)), r"needs int32 or int64 indices"),
        (lambda: ops.linear_cross_entropy(torch.ones(2, 3), torch.ones(5, 3), torch.ones(3).long()), r"needs x \[..., size\], weight"),
        (lambda: ops.linear_cross_entropy(torch.ones(2, 3), torch.ones(5, 3), torch.ones(2).int()), r"needs a target of int64"),
        (lambda: ops.linear_cross_entropy(torch.ones(2, 3), torch.ones(5, 3), torch.ones(2).long(), reduction="none"), r"has no such reduction; got 'none'"),
        (lambda: ops.softmax(torch.ones(2, 3), 5), r"softmax\] has no such dim; got 5. Give -2 to 1."),
        (lambda: ops.geglu(torch.ones(2), torch.ones(2), "tan"), r"has no such approximation; got 'tan'"),
        (lambda: ops.embedding(torch.tensor([1]), torch.ones(3, 4), 9), r"has no such padding row; got 9. Give -3 to 2."),
        (lambda: ops.embedding([1], torch.ones(3, 4)), r"needs a tensor of indices; got list"),
        (lambda: ops.linear_cross_entropy(torch.ones(2, 3), torch.ones(5, 3), [1, 2]), r"needs a tensor of targets; got list"),
        (lambda: ops.softmax("x"), r"softmax\] needs a floating-point tensor; got str"),
    ],
)  # fmt: skip
def test_bad_operands_are_named_errors(call: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        call()  # type: ignore[operator]


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(RunError, match="index"):
        ops.embedding(torch.tensor([9]), torch.ones(3, 4))


def test_a_gradient_multiplied_by_one_percent_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail."""
    from xpuruntime.pytorch import programs

    def scaled(*args: object, _run: object = programs.run) -> object:
        results = _run(*args)  # type: ignore[operator]
        return [results[0] * 1.01, *results[1:]] if args[0].phase == "train_backward" else results

    from xpuruntime.pytorch.ops import library

    monkeypatch.setattr(library, "run", scaled)
    case = next(c for c in CASES if c.name == "rms_norm")
    with pytest.raises(AssertionError, match="result 1"):
        assert_near_float64(case, torch.float32, "cpu")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wanted", ["x", "weight", "nothing"])
def test_chunks_of_a_head_give_what_one_piece_gives(
    wanted: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpuruntime.pytorch.ops import cross_entropy

    x = torch.randn(19, 8, device=device, requires_grad=wanted == "x")
    weight = torch.randn(30, 8, device=device, requires_grad=wanted == "weight")
    target = torch.randint(0, 30, (19,), device=device)

    def computed() -> list[torch.Tensor]:
        loss = ops.linear_cross_entropy(x, weight, target)
        needing = [t for t in (x, weight) if t.requires_grad]
        return [loss.detach(), *(torch.autograd.grad(loss, needing) if needing else [])]

    whole = computed()
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", 4 * 30 * 8)
    monkeypatch.setattr(cross_entropy, "_LEAST_ROWS", 4)
    with xrt_torch.record() as record:
        pieces = computed()
    assert len(record.ops()) == 3
    for a, b in zip(pieces, whole, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_head_without_targets_is_nan_as_in_pytorch() -> None:
    x, weight = torch.randn(4, 8), torch.randn(10, 8)
    target = torch.full((4,), -100)
    assert ops.linear_cross_entropy(x, weight, target).isnan()
    assert torch.nn.functional.cross_entropy(x @ weight.t(), target).isnan()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", [64, 301])  # 301 rows are padded on CUDA
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_head_with_wider_parameters_has_gradients_of_their_dtype(
    words: int, has_bias: bool, device: str
) -> None:
    """As under autocast: the products take 16 bits, and a gradient is not rounded to them."""
    torch.manual_seed(0)
    rows, size = 45, 24
    x = torch.randn(rows, size, device=device).bfloat16().requires_grad_()
    weight = (torch.randn(words, size, device=device) / 4).requires_grad_()
    bias = torch.randn(words, device=device, requires_grad=True) if has_bias else None
    target = torch.randint(0, words, (rows,), device=device)
    operands = [t for t in (x, weight, bias) if t is not None]
    loss = ops.linear_cross_entropy(x, weight, target, bias=bias)
    mine = torch.autograd.grad(loss, operands)
    assert loss.dtype is torch.float32
    assert [g.dtype for g in mine] == [t.dtype for t in operands]
    rounded = [t.detach().bfloat16() for t in operands]

    def gradients(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        at = [t.to(dtype).requires_grad_() for t in rounded]
        return torch.autograd.grad(
            torch.nn.functional.cross_entropy(
                torch.nn.functional.linear(*at).to(torch.promote_types(dtype, torch.float32)), target
            ),
            at,
        )

    exact, eager = gradients(torch.float64), gradients(torch.bfloat16)
    for got, true, other in zip(mine, exact, eager, strict=True):
        assert (got - true).norm() <= 1.5 * (other - true).norm() + 1e-8


def test_the_gradient_of_a_second_result_has_attributes_of_its_own() -> None:
    """An op with the results x * factor and x: the table says which factor backward has for the second."""

    def forward(w: Writer) -> list[str]:
        return [w.b.mul(w["x"], w.attributes["factor"]), w.b.mul(w["x"], 1.0)]

    def backward(w: Writer) -> list[str]:
        return [w.b.mul(w["grad"], w.attributes["factor"])]

    op = library.TrainingOp(
        name="scaled_and_plain",
        family="elementwise",
        forward=Formula("scaled_and_plain", ("x",), ("factor",), forward),
        backward=Formula("scaled_and_plain_backward", ("grad",), ("factor", "wanted"), backward),
        attributes={"factor": "float"},
        eager=lambda x, factor: [x * factor, x * 1.0],
        eager_backward=lambda grad, factor: [grad * factor],
        shapes=lambda x, factor: [x.shape, x.shape],
        gradients=("x",),
        gradient_shapes=lambda grad, factor: [grad.shape],
        saved=(),
        second_gradient={"factor": 1.0},
    )
    library.register(op)
    try:
        x = torch.randn(5, requires_grad=True)
        scaled, plain = library.call(op.name, x, 7.0, policy_number())
        (2 * scaled + 3 * plain).sum().backward()
    finally:
        del library._ops[op.name]
    assert torch.equal(x.grad, torch.full((5,), 2 * 7.0 + 3))
