"""Shortcuts of PyTorch's export give the program that it gives without them, and are removed afterwards."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses import FakeTensorMode  # noqa: E402

from xpuruntime.frontends.torch import export as exporting  # noqa: E402
from xpuruntime.frontends.torch import tracing_shortcuts as shortcuts  # noqa: E402
from xpuruntime.frontends.torch.importer import export_torch  # noqa: E402

NORM = "aten.batch_norm.default"
_KINDS = ("_batch_norm", "_layer_norm", "_linear")


def _orders(shape: tuple[int, ...], dtype: Any) -> Iterator[Any]:
    """Yield tensors of a shape with each order of dims in memory, with gaps, and with one element for all."""
    for order in itertools.islice(
        itertools.permutations(range(len(shape))), 0, None, 5 if len(shape) > 3 else 1
    ):
        dense = torch.empty([shape[d] for d in order], dtype=dtype)
        yield dense.permute([order.index(d) for d in range(len(shape))])
    if len(shape) == 4:
        yield torch.empty(shape, dtype=dtype).to(memory_format=torch.channels_last)
    yield torch.empty([2 * s for s in shape], dtype=dtype)[tuple(slice(None, None, 2) for _ in shape)]
    yield torch.empty([1] * len(shape), dtype=dtype).expand(shape)


def _calls(shape: tuple[int, ...], dtype: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    aten = torch.ops.aten
    for x in _orders(shape, dtype):
        for other in (dtype, torch.float64, None):
            vectors = [None if other is None else torch.empty(n, dtype=other) for n in (shape[1], shape[-1])]
            channels, last = vectors
            mean = torch.empty(shape[1], dtype=other or dtype)
            for training in (False, True) if other is dtype else (False,):
                yield aten.batch_norm.default, (x, channels, channels, mean, mean, training, 0.1, 1e-5, True)
            yield aten.layer_norm.default, (x, [shape[-1]], last, last, 1e-5, False)
            yield aten.layer_norm.default, (x, list(shape[-2:]))
            weight = torch.empty(3, shape[-1], dtype=other or dtype)
            yield aten.linear.default, (x, weight)
            yield aten.linear.default, (x, weight, torch.empty(3, dtype=other or dtype))
            yield aten.linear.default, (x, torch.empty(shape[-1], 3, dtype=dtype).t())
            yield aten.linear.default, (x, weight, torch.empty(2, dtype=dtype))  # not a valid call
            yield aten.linear.default, (x, torch.empty(shape[-1], dtype=dtype))


def _result(mode: Any, op: Any, args: tuple[Any, ...]) -> Any:
    try:
        y = FakeTensorMode._dispatch_impl(mode, op, (), args, {})
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        return type(error)
    facts = tuple(y.shape), y.stride(), y.storage_offset(), y.dtype, str(y.device), y.requires_grad
    return *facts, type(y), y.fake_mode is mode


@pytest.mark.parametrize(
    "shape", [(2, 3), (0, 3), (1, 1, 4), (1, 3, 1, 1), (2, 3, 4, 1), (1, 3, 2, 5), (2, 0, 1, 2)]
)
def test_results_have_the_sizes_that_pytorch_computes(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = dict.fromkeys(_KINDS, 0)
    for kind in _KINDS:
        rule = getattr(shortcuts, kind)

        def counted(*args: Any, kind: str = kind, rule: Any = rule) -> Any:
            result = rule(*args)
            known[kind] += result is not None
            return result

        monkeypatch.setattr(shortcuts, kind, counted)
    caplog.set_level("CRITICAL")
    mode = FakeTensorMode()
    with mode:
        calls = list(_calls(shape, torch.float32))
    with torch.no_grad():
        for op, args in calls:
            plain = _result(mode, op, args)
            with shortcuts.tracing_shortcuts(torch):
                assert _result(mode, op, args) == plain, (op, args)
    assert all(known.values()) == (0 not in shape), known


class Layers(torch.nn.Module):
    """Norms and linear layers, of which some are not as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(4) for _ in range(2))
        self.unaffected = torch.nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        self.layer = torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.Linear(6, 5), torch.nn.GELU())

    def forward(self, x: Any) -> Any:
        x = self.norms[0](self.first(x))
        x = torch.relu_(self.norms[1](self.second(x).to(memory_format=torch.channels_last)))
        x = self.unaffected(x.transpose(2, 3))
        with torch.enable_grad():
            x = self.layer(x[..., :6])
        return x + self.norms[0](x)


def _described(program: Any) -> list[Any]:
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = []
    for node in (n for graph in graphs for n in graph.nodes):
        value = node.meta.get("val")
        values = value if isinstance(value, tuple | list) else (value,)
        tensors = [
            (tuple(v.shape), v.stride(), v.dtype, str(v.device), v.requires_grad)
            if torch.is_tensor(v)
            else repr(v)
            for v in values
        ]
        facts = node.op, node.name, str(node.target), str(node.args), str(node.kwargs), tensors
        nodes.append((*facts, node.meta.get("stack_trace"), str(node.meta.get("nn_module_stack"))))
    return nodes


def test_an_export_is_the_same_with_lines_of_code_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Layers().eval(), torch.randn(2, 3, 10, 10)
    FakeTensorMode.cache_clear()
    ours = export_torch(model, (x,))
    monkeypatch.setattr(exporting, "tracing_shortcuts", lambda torch: contextlib.nullcontext())
    FakeTensorMode.cache_clear()
    plain = export_torch(model, (x,))
    assert _described(ours.program) == _described(plain.program)
    traces = [n.meta["stack_trace"] for n in ours.program.graph.nodes if str(n.target) == NORM]
    assert len(traces) == 4
    assert "x = self.norms[0](self.first(x))" in traces[0]


def test_no_norm_is_traced_by_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import decomposition_table

    def formula(*args: Any, **named: Any) -> Any:
        raise AssertionError("PyTorch traces the formula")

    monkeypatch.setitem(decomposition_table, torch.ops.aten.native_batch_norm.default, formula)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 7, 3), torch.nn.BatchNorm2d(7)).eval()
    FakeTensorMode.cache_clear()
    export_torch(model, (torch.randn(1, 3, 9, 11),))


def test_pytorch_is_as_before_after_an_export_that_fails() -> None:
    from torch.fx import proxy

    class Refused(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            inside.append((proxy.CapturedTraceback, vars(FakeTensorMode)["_dispatch_impl"]))
            return x.tolist().index(3)

    inside: list[Any] = []
    before = proxy.CapturedTraceback, vars(FakeTensorMode)["_dispatch_impl"]
    with pytest.raises(exporting.ModelError):
        export_torch(Refused(), (torch.ones(3),))
    assert inside
    assert all(a is not b for a, b in zip(inside[0], before, strict=True))
    assert (proxy.CapturedTraceback, vars(FakeTensorMode)["_dispatch_impl"]) == before


def test_what_another_release_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.fx import proxy

    monkeypatch.setattr(proxy, "CapturedTraceback", None)
    assert [name for _, name, _ in shortcuts._stacks()] == []
    monkeypatch.delattr(FakeTensorMode, "_dispatch_impl")
    assert [name for _, name, _ in shortcuts._results(torch)] == []


COUNTED = """
import torch
from torch._export import utils
from xpuruntime.frontends.torch.exported_digest import exported_digest
from xpuruntime.frontends.torch.importer import export_torch

listed, load = [], utils._materialize_cpp_cia_ops
def counted():
    listed.append(1)
    load()
utils._materialize_cpp_cia_ops = counted
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
exported = export_torch(model, (torch.randn(1, 3, 8, 8),))
assert exported_digest(exported.program, exported.saved)
print(len(listed))
listed.clear()
exported.imported()
print(len(listed), utils._materialize_cpp_cia_ops is counted)
"""


def test_composite_ops_are_listed_once_per_table_of_decompositions() -> None:
    """In a process of its own, because the tests' own process lists them once, too."""
    words = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True).stdout
    assert words.split() == ["1", "1", "True"]
