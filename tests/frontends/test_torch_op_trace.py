"""Keys of modules by the ops that they dispatch: modules that differ in one thing have two keys, and what a trace does not describe has none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xpuruntime.frontends.torch.importer import export_torch  # noqa: E402
from xpuruntime.frontends.torch.op_trace.keys import traced_module  # noqa: E402
from xpuruntime.frontends.torch.op_trace.outline import outline_digest  # noqa: E402
from xpuruntime.frontends.torch.op_trace.words import MOST_BYTES, NotTraced  # noqa: E402

F = torch.nn.functional
X = torch.arange(24.0).reshape(2, 12) / 8
Tensor = Any
Forward = Callable[[Any, Any], Any]


def key_of(model: torch.nn.Module, *inputs: Any) -> str | None:
    """Return the key of a module as a start with a record of its outline asks for it."""
    traced = traced_module(model, inputs or (X,))
    return None if traced is None else traced.key()


def key_as_exported(model: torch.nn.Module, *inputs: Any) -> str | None:
    """Return the key that a first start stores."""
    traced = traced_module(model, inputs or (X,))
    return None if traced is None else traced.key_as_exported(export_torch(model, inputs or (X,)).program)


class Network(torch.nn.Module):
    """Layers, a constant of the module, and a ``forward`` given from outside."""

    def __init__(self, forward: Forward, **attributes: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = torch.nn.Linear(12, 12), torch.nn.Linear(12, 12)
        self.register_buffer("scale", torch.full((12,), attributes.pop("content", 2.0)), persistent=False)
        self.register_buffer("kept", torch.full((12,), attributes.pop("kept_content", 2.0)))
        self.own = forward
        for name, value in attributes.items():
            setattr(self, name, value)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        """Return what the given function does."""
        return self.own(self, x)


def calls(forward: Forward, *inputs: Any, **attributes: Any) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """Return a network and its inputs."""
    return Network(forward, **attributes), inputs or (X,)


def by(number: Any) -> Forward:
    """Return a function with a number that its code does not show."""
    return lambda m, x: m.first(x) * number


def reading(name: str) -> Forward:
    """Return a function that reads an attribute."""
    return lambda m, x: m.first(x) * getattr(m, name)


def with_tensor(constant: Any) -> Forward:
    """Return a function with a tensor in its closure."""
    return lambda m, x: m.first(x) + constant


def with_array(constant: Any) -> Forward:
    """Return a function that makes a tensor of an array."""
    return lambda m, x: m.first(x) + torch.from_numpy(constant)


def with_list(values: list[float]) -> Forward:
    """Return a function that makes a tensor of numbers."""
    return lambda m, x: m.first(x) + torch.tensor(values)


def by_item(value: float) -> Forward:
    """Return a function that reads a constant's content."""
    return lambda m, x: m.first(x) * torch.tensor(value).item()


def applied(function: Callable[..., Any], *args: Any, **named: Any) -> Forward:
    """Return a function that calls another one."""
    return lambda m, x: function(m.first(x), *args, **named)


def written(first: bool) -> Forward:
    """Return a function that reads a tensor before or after a write to it."""

    def forward(m: Any, x: Tensor) -> Any:
        y = m.first(x)
        z = torch.zeros(1)
        for read in (first, not first):
            if read:
                z = y * 2
            else:
                y += 1
        return y, z

    return forward


def through_view(copies: bool) -> Forward:
    """Return a function that writes to a part of a tensor, or to a copy of the part."""

    def forward(m: Any, x: Tensor) -> Any:
        y = m.first(x)
        part = y[:1]
        (part.clone() if copies else part).mul_(3)
        return y

    return forward


def in_order(*names: str) -> Forward:
    """Return a function that calls layers in an order."""

    def forward(m: Any, x: Tensor) -> Any:
        for name in names:
            x = getattr(m, name)(x)
        return x

    return forward


def named(names: str) -> Forward:
    """Return a function with named outputs."""
    return lambda m, x: dict(zip(names, (m.first(x), m.last(x)), strict=True))


def tied(same: bool) -> torch.nn.Module:
    """Return a network whose layers have one weight, or two equal ones."""
    model = Network(in_order("first", "last"))
    model.last.weight = (
        model.first.weight if same else torch.nn.Parameter(model.first.weight.detach().clone())
    )
    return model


def hooked(hook: Any) -> torch.nn.Module:
    """Return a network with a hook of a layer."""
    model = Network(in_order("first"))
    if hook is not None:
        model.first.register_forward_hook(hook)
    return model


def normed(**options: Any) -> torch.nn.Module:
    """Return a batch norm with options."""
    return torch.nn.Sequential(torch.nn.BatchNorm1d(12, **options)).eval()


def renamed(name: str) -> torch.nn.Module:
    """Return a module whose ``forward`` calls its argument so."""
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {name}): return self.first({name})", scope)
    cls = type("Renamed", (Network,), {"forward": scope["forward"]})
    return cls(by(1.0))  # type: ignore[no-any-return]


def persistent(kept: bool) -> torch.nn.Module:
    """Return a network with a buffer that is part of its checkpoints, or not."""
    model = Network(reading("more"))
    model.register_buffer("more", torch.ones(12), persistent=kept)
    return model


def parametrized(dim: int) -> torch.nn.Module:
    """Return a network with a weight that is computed from its length and its direction."""
    model = Network(in_order("first"))
    torch.nn.utils.parametrizations.weight_norm(model.first, dim=dim)
    return model


class Labeled(torch.nn.Module):
    """A module whose class is a part of the path of its nodes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x with a slope for negative elements."""
        return F.leaky_relu(x)


class Relabeled(Labeled):
    """The same with another name."""


def with_part(part: torch.nn.Module, name: str = "act") -> torch.nn.Module:
    """Return a network with a further submodule."""
    return Network(in_order("first", name), **{name: part})


Pair = tuple[Callable[[], Any], Callable[[], Any]]
MASK = torch.ones(2, 2, dtype=torch.bool).tril()
NEXT = float(np.nextafter(0.1, 1))
PAIRS: dict[str, Pair] = {
    "a number": (lambda: calls(by(2.0)), lambda: calls(by(3.0))),
    "the last bit of a number": (lambda: calls(by(0.1)), lambda: calls(by(NEXT))),
    "the class of a number": (lambda: calls(by(2)), lambda: calls(by(2.0))),
    "the sign of zero": (lambda: calls(by(0.0)), lambda: calls(by(-0.0))),
    "infinity and NaN": (lambda: calls(by(float("inf"))), lambda: calls(by(float("nan")))),
    "an attribute": (lambda: calls(reading("a"), a=2.0), lambda: calls(reading("a"), a=2.5)),
    "a tensor in a closure": (lambda: calls(with_tensor(torch.ones(12))), lambda: calls(with_tensor(torch.ones(12) * 2))),
    "the type of a tensor in a closure": (
        lambda: calls(with_tensor(torch.ones(12))), lambda: calls(with_tensor(torch.ones(12, dtype=torch.int32))),
    ),
    "the shape of a tensor in a closure": (lambda: calls(with_tensor(torch.ones(12))), lambda: calls(with_tensor(torch.ones(1, 12)))),
    "an array in a closure": (lambda: calls(with_array(np.ones(12, "f"))), lambda: calls(with_array(np.full(12, 2, "f")))),
    "numbers of a new tensor": (lambda: calls(with_list([1.0])), lambda: calls(with_list([2.0]))),
    "a constant that is read": (lambda: calls(by_item(1.0)), lambda: calls(by_item(2.0))),
    "an attribute that is a tensor": (lambda: calls(reading("t"), t=torch.ones(12)), lambda: calls(reading("t"), t=torch.zeros(12))),
    "the content of a buffer that no checkpoint has": (lambda: calls(reading("scale"), content=1.0), lambda: calls(reading("scale"), content=2.0)),
    "the same of one that is not read": (lambda: calls(by(2.0), content=1.0), lambda: calls(by(2.0), content=3.0)),
    "a buffer in checkpoints": (lambda: persistent(True), lambda: persistent(False)),
    "which buffer": (lambda: calls(reading("kept")), lambda: calls(reading("scale"))),
    "the order of layers": (lambda: calls(in_order("first", "last")), lambda: calls(in_order("last", "first"))),
    "tied weights": (lambda: tied(True), lambda: tied(False)),
    "operands": (lambda: calls(lambda m, x: m.first(x) - x), lambda: calls(lambda m, x: x - m.first(x))),
    "a write before a read": (lambda: calls(written(True)), lambda: calls(written(False))),
    "a write to a view": (lambda: calls(through_view(True)), lambda: calls(through_view(False))),
    "an op": (lambda: calls(applied(torch.sin)), lambda: calls(applied(torch.cos))),
    "a dim": (lambda: calls(applied(torch.softmax, 0)), lambda: calls(applied(torch.softmax, 1))),
    "a named argument": (lambda: calls(applied(torch.sum, dim=1, keepdim=True)), lambda: calls(applied(torch.sum, dim=1, keepdim=False))),
    "a type": (lambda: calls(applied(torch.sum, dtype=torch.float64)), lambda: calls(applied(torch.sum, dtype=torch.float32))),
    "a word": (lambda: calls(applied(F.gelu, approximate="tanh")), lambda: calls(applied(F.gelu, approximate="none"))),
    "the names of outputs": (lambda: calls(named("ab")), lambda: calls(named("ac"))),
    "the order of outputs": (lambda: calls(named("ab")), lambda: calls(named("ba"))),
    "a number among outputs": (lambda: calls(lambda m, x: (x * 2, 1)), lambda: calls(lambda m, x: (x * 2, 2))),
    "None among outputs": (lambda: calls(lambda m, x: (x * 2, None)), lambda: calls(lambda m, x: (x * 2, x))),
    "the shape of an input": (lambda: calls(by(2.0)), lambda: calls(by(2.0), X[:1])),
    "the layout of an input": (lambda: calls(by(2.0)), lambda: calls(by(2.0), X.t().contiguous().t())),
    "the type of the module": (lambda: (Network(by(2.0)).double(), (X.double(),)), lambda: calls(by(2.0))),
    "the name of an argument": (lambda: renamed("x"), lambda: renamed("y")),
    "a hook": (lambda: hooked(None), lambda: hooked(lambda m, i, o: o * 2)),
    "what a hook does": (lambda: hooked(lambda m, i, o: o * 3), lambda: hooked(lambda m, i, o: o * 2)),
    "eps": (lambda: normed(eps=1e-5), lambda: normed(eps=1e-6)),
    "statistics": (lambda: normed(), lambda: normed(track_running_stats=False)),
    "trained scales": (lambda: normed(), lambda: normed(affine=False)),
    "a parametrization": (lambda: parametrized(0), lambda: parametrized(1)),
    "the class of a part": (lambda: with_part(Labeled()), lambda: with_part(Relabeled())),
    "the name of a part": (lambda: with_part(Labeled()), lambda: with_part(Labeled(), "act2")),
    "an argument that is no tensor": (
        lambda: (Scaled(), (X, 2.0)), lambda: (Scaled(), (X, 3.0)),
    ),
    "positional or by name": (lambda: (Scaled(), (X, 2.0)), lambda: (Scaled(), {"x": X, "factor": 2.0})),
    "frozen parameters": (lambda: calls(by(2.0)), lambda: (Network(by(2.0)).requires_grad_(False), (X,))),
    "a part in training mode": (lambda: calls(by(2.0)), lambda: trained_part()),
    "a mask": (lambda: calls(masked(MASK)), lambda: calls(masked(~MASK))),
    "a slice": (lambda: calls(lambda m, x: x[:, 1:5]), lambda: calls(lambda m, x: x[:, 1:6])),
    "indices": (lambda: calls(lambda m, x: x[:, [1, 2]]), lambda: calls(lambda m, x: x[:, [2, 1]])),
    "rounding": (lambda: calls(applied(torch.div, 3, rounding_mode="floor")), lambda: calls(applied(torch.div, 3, rounding_mode="trunc"))),
}  # fmt: skip


class Scaled(torch.nn.Module):
    """A module with an argument that is no tensor."""

    def forward(self, x: Tensor, factor: float) -> Tensor:
        """Return the product."""
        return x * factor


def trained_part() -> Any:
    """Return a network with one layer in training mode."""
    model = Network(by(2.0))
    model.first.train()
    return model


def masked(mask: Any) -> Forward:
    """Return a function with attention."""
    return lambda m, x: F.scaled_dot_product_attention(x[None], x[None], m.first(x)[None], attn_mask=mask)


def _parts(made: Any) -> tuple[torch.nn.Module, Any]:
    return made if isinstance(made, tuple) else (made, (X,))


def _key(made: Any) -> str | None:
    model, inputs = _parts(made)
    traced = traced_module(model, inputs)
    return None if traced is None else traced.key()


@pytest.mark.parametrize("what", PAIRS)
def test_two_modules_that_differ_have_two_keys(what: str) -> None:
    one, other = PAIRS[what]
    keys = _key(one()), _key(other())
    assert None not in keys
    assert keys[0] != keys[1]
    assert _key(one()) == keys[0]  # another module of the same kind, with the same code
    assert _key(other()) == keys[1]


@pytest.mark.parametrize("what", PAIRS)
def test_results_of_earlier_traces_change_no_key(what: str) -> None:
    for make in PAIRS[what]:
        model, inputs = _parts(make())
        traced = traced_module(model, inputs)
        assert traced is not None
        first = traced.key()
        assert first is not None
        learned = len(traced.results.data)
        assert traced.key() == first
        assert len(traced.results.data) == learned


def test_weights_are_not_part_of_a_key() -> None:
    model = Network(by(2.0))
    with torch.no_grad():
        model.first.weight.add_(1)
        model.kept.mul_(2)
    assert _key(model) == _key(Network(by(2.0))) is not None


def test_a_key_is_the_same_in_another_process() -> None:
    code = (
        "import torch\nfrom xpuruntime.frontends.torch.op_trace.keys import traced_module\n"
        "m = torch.nn.Sequential(torch.nn.Linear(12, 4), torch.nn.ReLU(inplace=True), torch.nn.LayerNorm(4)).eval()\n"
        "print(traced_module(m, (torch.zeros(2, 12),)).key())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment(seed)
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1
    assert "None" not in keys.pop()


def _environment(seed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": seed}


# ── what has no key ──


@torch.library.custom_op("xrt_test_traced::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Return the double: an op whose code may change."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Marked(torch.Tensor):
    """A tensor with ops of its own."""


def swallowing(m: Any, x: Tensor) -> Any:
    """Read a tensor's content, and go on without it."""
    y = m.first(x)
    try:
        return y * float(y.sum())
    except Exception:
        return y * 2


def counting(m: Any, x: Tensor) -> Any:
    """Count calls."""
    m.calls = getattr(m, "calls", 0) + 1
    return m.first(x) * m.calls


def caching(m: Any, x: Tensor) -> Any:
    """Keep a tensor for the next call."""
    if not hasattr(m, "cache"):
        m.cache = torch.ones(12)
    return m.first(x) + m.cache


def keeping_inside(m: Any, x: Tensor) -> Any:
    """Keep a tensor in a container in an object."""
    m.config.cache["x"].append(x * 2)
    return m.first(x)


class Config:
    """An object of the user."""

    def __init__(self) -> None:
        self.cache: dict[str, list[Any]] = {"x": []}


def replacing(m: Any, x: Tensor) -> Any:
    """Assign a buffer."""
    m.kept = m.kept + 1
    return m.first(x) * m.kept


def moving(m: Any, x: Tensor) -> Any:
    """Give a parameter the memory of another."""
    m.first.weight.data = m.last.weight.data
    return m.first(x)


CONSTANT = torch.ones(12)
COMPLEX = torch.ones(12, dtype=torch.complex64)
BIG = torch.ones(MOST_BYTES // 4 + 1)
REFUSED: dict[str, Callable[[], Any]] = {
    "a branch on content": lambda: calls(lambda m, x: x if x.sum() > 0 else -x),
    "a number of content": lambda: calls(lambda m, x: x * x.sum().item()),
    "a handled error": lambda: calls(swallowing),
    "a shape of content": lambda: calls(lambda m, x: x.nonzero()),
    "a number computed from constants": lambda: calls(lambda m, x: x * torch.tensor([1.0, 2.0]).sum().item()),
    "a number of a parameter": lambda: calls(lambda m, x: x * float(m.first.weight[0, 0])),
    "random numbers": lambda: calls(lambda m, x: x + torch.rand(12)),
    "dropout": lambda: calls(lambda m, x: F.dropout(x, 0.5, training=True)),
    "a custom op": lambda: calls(lambda m, x: twice(x)),
    "a nested graph": lambda: calls(lambda m, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
    "a write to a buffer": lambda: calls(lambda m, x: m.first(x) + m.kept.add_(1)),
    "a write to a part of a buffer": lambda: calls(lambda m, x: m.kept[2:].mul_(2).sum() + x),
    "a write to a parameter": lambda: calls(lambda m, x: m.first(x) + m.last.bias.mul_(2)),
    "a write to an input": lambda: calls(lambda m, x: m.first(x.mul_(2))),
    "a write to a constant": lambda: calls(lambda m, x: m.first(x) + CONSTANT.mul_(2)),
    "a write to a new constant": lambda: calls(lambda m, x: m.first(x) + torch.tensor([1.0]).mul_(2)),
    "a write to the data of a parameter": lambda: calls(lambda m, x: m.first(x) + m.last.bias.data.mul_(2)),
    "batch statistics": lambda: (torch.nn.BatchNorm1d(12), (X,)),
    "an assigned attribute": lambda: calls(counting),
    "a kept tensor": lambda: calls(caching),
    "a tensor kept in an object": lambda: calls(keeping_inside, config=Config()),
    "an assigned buffer": lambda: calls(replacing),
    "assigned data": lambda: calls(moving),
    "an error": lambda: calls(lambda m, x: m.first(x[:, :3])),
    "an output of another class": lambda: calls(lambda m, x: (m.first(x), object())),
    "a large constant": lambda: calls(lambda m, x: m.first(x) + BIG.sum()),
    "a complex constant": lambda: calls(lambda m, x: x + COMPLEX),
    "a sparse buffer": lambda: calls(by(2.0), sparse=torch.nn.Buffer(torch.eye(3).to_sparse())),
    "a tensor of another class": lambda: calls(by(2.0), marked=torch.nn.Buffer(torch.ones(3).as_subclass(Marked))),
    "parameters without content": lambda: (Network(by(2.0)).to("meta"), (X.to("meta"),)),
    "a scripted part": lambda: with_part(torch.jit.trace(torch.nn.ReLU(), X)),
    "a compiled part": lambda: with_part(torch.compile(torch.nn.ReLU())),
    "an input of another class": lambda: calls(by(2.0), X.as_subclass(Marked)),
    "an argument of another class": lambda: (Scaled(), (X, object())),
    "a large buffer that no checkpoint has": lambda: calls(by(2.0), big=torch.nn.Buffer(BIG, persistent=False)),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_trace_does_not_describe_has_no_key(what: str) -> None:
    model, inputs = _parts(REFUSED[what]())
    state = {name: tensor.detach() for name, tensor in model.named_parameters()} | dict(model.named_buffers())
    before = {name: tensor.clone() for name, tensor in state.items()}
    attributes = set(vars(model))
    assert _key((model, inputs)) is None
    assert set(vars(model)) == attributes
    assert not any(vars(model)["config"].cache.values() if "config" in attributes else ())
    after = {name: tensor.detach() for name, tensor in model.named_parameters()} | dict(model.named_buffers())
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        if not tensor.is_meta:
            assert torch.equal(tensor.to_dense(), before[name].to_dense()), name


def test_modes_have_no_key() -> None:
    model = Network(by(2.0))
    with torch.autocast("cpu", torch.bfloat16):
        assert key_of(model) is None
    with torch.device("cpu"):
        assert key_of(model) is None
    assert key_of(model) is not None


def test_settings_change_the_key() -> None:
    model = Network(by(2.0))
    known = key_of(model)
    for change, back in (
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
    ):
        change()
        try:
            assert key_of(model) not in (None, known)
        finally:
            back()
    assert key_of(model) == known


def test_a_replaced_decomposition_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import global_decomposition_table as tables

    def seven_times(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        return x * 7

    monkeypatch.setitem(tables["post_autograd"], torch.ops.aten.logit.default, seven_times)
    assert key_of(Network(by(2.0))) is None


# ── the export has the same ops ──


def test_the_key_of_a_first_start_is_that_of_a_second() -> None:
    for make in (lambda: Network(by(2.0)), lambda: normed(), lambda: parametrized(0), lambda: tied(True)):
        stored = key_as_exported(make())
        assert stored is not None
        assert stored == _key(make())


def test_a_module_that_exports_other_ops_has_no_key() -> None:
    calls_made: list[int] = []

    def first_otherwise(m: Any, x: Tensor) -> Any:
        calls_made.append(1)
        return m.first(x) * (2 if len(calls_made) == 1 else 3)

    model = Network(first_otherwise)
    traced = traced_module(model, (X,))
    assert traced is not None
    exported = export_torch(model, (X,)).program
    assert len(calls_made) == 1
    assert traced.key_as_exported(exported) is None


def test_an_export_of_other_content_has_no_key() -> None:
    model, other = Network(with_list([1.0])), Network(with_list([2.0]))
    traced = traced_module(model, (X,))
    assert traced is not None
    assert traced.key_as_exported(export_torch(other, (X,)).program) is None
    assert traced.key_as_exported(export_torch(Network(by(2.0)), (X,)).program) is None
    assert traced.key_as_exported(export_torch(model, (X,)).program) is not None


def test_what_is_refused_is_told() -> None:
    model = Network(by(2.0))
    traced = traced_module(model, (X,))
    assert traced is not None
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(NotTraced, match="autocast"):
        outline_digest(model, traced.call)


def test_a_module_that_is_refused_can_be_exported_after_it() -> None:
    model, inputs = _parts(REFUSED["a nested graph"]())
    assert _key((model, inputs)) is None
    assert export_torch(model, inputs).program.graph.nodes


def test_a_compiled_function_is_run_as_it_is() -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
    plain, other = Network(lambda m, x: compiled(m.first(x))), Network(lambda m, x: m.first(x))
    key = _key(plain)
    assert key not in (None, _key(other))
    with torch.no_grad():
        assert torch.equal(plain(X), plain.first(X).sin() * 2)
