"""Modules that are opened again: the second start exports nothing, and the session computes what the module does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.inference.models.exported_cache import KIND as EXPORTED
from xpuruntime.inference.models.exported_cache import import_known
from xpuruntime.inference.models.traced_cache import KIND
from xpuruntime.storage.store import Store

torch = pytest.importorskip("torch")

F = torch.nn.functional
X = torch.arange(24.0).reshape(2, 12) / 8
IMAGE = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
TOKENS = torch.tensor([[1, 5, 2, 7]])


class Calls(torch.nn.Module):
    """A module of layers and a function of them."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.own = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        """Return what the function does."""
        return self.own(self, x)


def block(m: Any, x: Any) -> Any:
    """Return a residual block with activations in place."""
    y = m.act(m.norm(m.conv(x)))
    y += m.skip(x)
    return F.adaptive_avg_pool2d(y, 1).flatten(1)


def heads(m: Any, x: Any) -> Any:
    """Return attention with a mask that forward makes."""
    q, k, v = m.qkv(x[None]).view(1, 2, 3, 2, 6).permute(2, 0, 3, 1, 4).unbind(0)
    mask = torch.ones(2, 2, dtype=torch.bool).tril()
    return m.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(2, 12))


def tied() -> torch.nn.Module:
    """Return layers with one weight."""
    model = Calls(lambda m, x: m.b(m.a(x).relu()), a=torch.nn.Linear(12, 12), b=torch.nn.Linear(12, 12))
    model.b.weight = model.a.weight
    return model


def with_constants() -> torch.nn.Module:
    """Return a module with buffers that no checkpoint has, a plain tensor, and tensors that forward makes."""

    def forward(m: Any, x: Any) -> Any:
        large = x @ m.table
        return large[:, :12] + m.plain + torch.tensor([0.5]) + torch.arange(12) + m.small

    generator = torch.Generator().manual_seed(0)
    table = torch.nn.Buffer(torch.randn(12, 200, generator=generator), persistent=False)
    model = Calls(forward, table=table, small=torch.nn.Buffer(torch.ones(12), persistent=False))
    model.plain = torch.randn(12, generator=generator)
    return model


def normed() -> torch.nn.Module:
    """Return layers with parametrized weights."""
    return torch.nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(12, 5)), torch.nn.Softmax(1)
    )


def convolutions() -> torch.nn.Module:
    """Return a residual block with batch norm."""
    conv, norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
    norm.running_var.uniform_(0.5, 2)
    return Calls(block, conv=conv, norm=norm, act=torch.nn.ReLU(inplace=True), skip=torch.nn.Conv2d(3, 8, 1))


def perceptron(activation: torch.nn.Module) -> torch.nn.Module:
    """Return two layers."""
    return torch.nn.Sequential(torch.nn.Linear(12, 20), activation, torch.nn.Linear(20, 4))


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], Any]] = {
    "linear": (lambda: torch.nn.Linear(12, 3), X),
    "gelu": (lambda: perceptron(torch.nn.GELU()), X),
    "in place": (lambda: perceptron(torch.nn.Hardswish(inplace=True)), X),
    "leaky": (lambda: perceptron(torch.nn.LeakyReLU(0.3)), X),
    "layer norm": (lambda: perceptron(torch.nn.LayerNorm(20)), X),
    "group norm": (lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.GroupNorm(3, 6)), IMAGE),
    "residual block": (convolutions, IMAGE),
    "pools": (lambda: torch.nn.Sequential(torch.nn.MaxPool2d(3, 2), torch.nn.AvgPool2d(2), torch.nn.Flatten()), IMAGE),
    "channels last": (convolutions, IMAGE.to(memory_format=torch.channels_last)),
    "transposed": (lambda: torch.nn.ConvTranspose2d(3, 4, 2, 2), IMAGE),
    "upsampled": (lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "attention": (lambda: Calls(heads, qkv=torch.nn.Linear(12, 36), out=torch.nn.Linear(12, 4)), X),
    "embedding": (lambda: torch.nn.Sequential(torch.nn.Embedding(10, 6), torch.nn.Linear(6, 3)), TOKENS),
    "dropout": (lambda: perceptron(torch.nn.Dropout(0.5)), X),
    "tied": (tied, X),
    "constants": (with_constants, X),
    "parametrized": (normed, X),
    "several outputs": (lambda: Calls(lambda m, x: {"y": m.a(x), "z": (x * 2, x.sum())}, a=torch.nn.Linear(12, 2)), X),
    "views": (lambda: Calls(lambda m, x: torch.cat([x[:, ::2], x.roll(1, 1).chunk(2, 1)[1]], 1)), X),
    "write to a part": (lambda: Calls(lambda m, x: part_written(x)), X),
    "gate": (lambda: perceptron(torch.nn.Sequential(torch.nn.GLU(), torch.nn.Linear(10, 20))), X),
}  # fmt: skip


def part_written(x: Any) -> Any:
    """Return a copy with another part."""
    y = x * 2
    y[:, 3:5] = x[:, :2] + 1
    return y


class ExportedAgain(BaseException):
    """The second start called ``torch.export``."""


def never(*args: Any, **named: Any) -> Any:
    """Stand for ``torch.export.export``."""
    raise ExportedAgain


def leaves(value: Any) -> list[Any]:
    """Return tensors in the order of a session's outputs."""
    return [t.detach().numpy() for t in torch.utils._pytree.tree_leaves(value)]


def opened(model: torch.nn.Module, x: Any, folder: Path) -> list[Any]:
    """Return the outputs of a session of a module."""
    with xrt.InferenceSession(
        model, device="cpu", engine="native", example_inputs=(x,), cache_dir=folder
    ) as session:
        return list(session.run({session.input_info[0].name: x.numpy()}).values())


def expect(outputs: list[Any], model: torch.nn.Module, x: Any) -> None:
    """Compare with the module."""
    with torch.no_grad():
        expected = leaves(model(x))
    assert len(outputs) == len(expected)
    for got, value in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_a_second_start_does_not_export(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, x = MODULES[name]
    torch.manual_seed(1)
    first = make().eval()
    expect(opened(first, x, tmp_path), first, x)
    fresh = import_known(first, (x,), None, Store(tmp_path, mode="off"))
    monkeypatch.setattr(torch.export, "export", never)
    torch.manual_seed(1)
    again = make().eval()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.mul_(1.25)  # the weights are those of the module and not of the record
    expect(opened(again, x, tmp_path), again, x)
    recalled = import_known(first, (x,), None, Store(tmp_path))
    assert recalled.graph.to_json() == fresh.graph.to_json()
    assert list(recalled.weights) == [w.name for w in fresh.graph.weights]
    for weight, array in recalled.weights.items():
        np.testing.assert_array_equal(array, fresh.weights[weight])


def test_another_number_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(factor: float) -> torch.nn.Module:
        return Calls(lambda m, x: x * factor).eval()

    expect(opened(scaled(2.0), X, tmp_path), scaled(2.0), X)
    expect(opened(scaled(3.0), X, tmp_path), scaled(3.0), X)
    monkeypatch.setattr(torch.export, "export", never)
    for factor in (3.0, 2.0):
        expect(opened(scaled(factor), X, tmp_path), scaled(factor), X)
    with pytest.raises(ExportedAgain):
        opened(scaled(4.0), X, tmp_path)


class Counting(torch.nn.Module):
    """A module that multiplies by the number of its calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = [calls]

    def forward(self, x: Any) -> Any:
        """Return the product."""
        self.calls[0] += 1
        return x * self.calls[0]


def test_a_module_that_counts_its_calls_has_the_graph_of_an_export(tmp_path: Path) -> None:
    for calls in (0, 3, 0, 4):
        fresh = import_known(Counting(calls).eval(), (X,), None, Store(mode="off"))
        known = import_known(Counting(calls).eval(), (X,), None, Store(tmp_path))
        assert known.graph.to_json() == fresh.graph.to_json(), calls


def test_forward_runs_only_if_a_trace_was_like_an_export(tmp_path: Path) -> None:
    """A module of which a trace is not like its export is exported without a trace: ``forward`` may fail in one, or leave something behind."""
    runs: list[int] = []

    def forward(m: Any, x: Any) -> Any:
        runs.append(1)
        return x * 2 if len(runs) % 2 else x * 3

    model, store = Calls(forward).eval(), Store(tmp_path)
    import_known(model, (X,), None, store)
    assert KIND not in kinds(store)
    runs.clear()
    import_known(model, (X,), None, Store(tmp_path, mode="ro"))
    assert len(runs) == 1


def kinds(store: Store) -> list[str]:
    """Return the kinds of the entries of a store."""
    return sorted(e.kind for e in store.entries())


def records(store: Store) -> tuple[Any, Any]:
    """Return the entries of a store of one module: its outline with results, and its trace."""
    entries = [e for e in store.entries() if e.kind == KIND]
    (outline,) = (e for e in entries if "outline" in e.ingredients)
    (trace,) = (e for e in entries if "trace" in e.ingredients)
    return outline, trace


def altered(results: Mapping[str, Any], change: Callable[[Any], Any]) -> bytes:
    """Return an outline's record with other results."""
    return json.dumps({"results": {key: change(value) for key, value in results.items()}}).encode()


def test_damaged_records_are_not_used(tmp_path: Path) -> None:
    torch.manual_seed(1)
    store, model = Store(tmp_path), convolutions().eval()
    opened(model, IMAGE, tmp_path)
    fresh = import_known(model, (IMAGE,), None, store).graph.digest
    outline, trace = records(store)
    good = {e.key: store.get(KIND, e.key) for e in (outline, trace)}
    results = json.loads(good[outline.key] or b"")["results"]
    assert len(results) > 5
    bad: list[tuple[Any, bytes]] = [
        *((e, payload) for e in (outline, trace) for payload in (b"", b"[]", b"\xff", b"{}", (good[e.key] or b"")[:9])),
        *((trace, json.dumps({"record": r}).encode()) for r in ("0" * 64, "../" + "0" * 61, 5, None)),
        (outline, b'{"results": []}'),
        (outline, altered(results, lambda r: 5)),
        (outline, altered(results, lambda r: [r[0], []])),
        (outline, altered(results, lambda r: [r[0], [[[1], [1], 0, "torch.float32", "cpu"] for _ in r[1]]])),
        (outline, altered(results, lambda r: [r[0], [[*row[:3], "torch.float64", row[4]] for row in r[1]]])),
        (outline, altered(results, lambda r: [r[0], [[*row[:3], "torch.nn", row[4]] for row in r[1]]])),
        (outline, altered(results, lambda r: ["list", r[1] * 2])),
    ]  # fmt: skip
    for entry, payload in bad:
        store.put(KIND, entry.ingredients, payload)
        assert import_known(model, (IMAGE,), None, store).graph.digest == fresh, payload[:60]
        expect(opened(model, IMAGE, tmp_path), model, IMAGE)


def test_truncated_files_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, model = Store(tmp_path), convolutions().eval()
    import_known(model, (IMAGE,), None, store)
    for entry in store.entries():
        content, payload = entry.path.read_bytes(), store.get(entry.kind, entry.key)
        for damaged in (content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1])):
            entry.path.write_bytes(damaged)
            expect(opened(model, IMAGE, tmp_path), model, IMAGE)
            assert str(entry.path) in caplog.text
            assert entry.kind != EXPORTED or store.get(entry.kind, entry.key) == payload


def test_records_of_damaged_stores_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = Store(tmp_path), convolutions().eval()
    import_known(model, (IMAGE,), None, store)
    for entry in store.entries():
        store.put(entry.kind, entry.ingredients, b"")
        import_known(model, (IMAGE,), None, store)
    monkeypatch.setattr(torch.export, "export", never)
    expect(opened(model, IMAGE, tmp_path), model, IMAGE)


def test_a_store_that_is_only_read_is_used_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = convolutions().eval(), perceptron(torch.nn.ReLU()).eval()
    import_known(model, (IMAGE,), None, Store(tmp_path))
    before = kinds(Store(tmp_path))
    import_known(other, (X,), None, Store(tmp_path, mode="ro"))
    monkeypatch.setattr(torch.export, "export", never)
    assert import_known(model, (IMAGE,), None, Store(tmp_path, mode="ro")).graph.nodes
    assert kinds(Store(tmp_path)) == before
    with pytest.raises(ExportedAgain):
        import_known(model, (IMAGE,), None, Store(tmp_path, mode="off"))


def test_open_dims_and_exported_programs_are_not_traced(tmp_path: Path) -> None:
    model, store = perceptron(torch.nn.ReLU()).eval(), Store(tmp_path)
    import_known(model, (X,), {"input": {0: "rows"}}, store)
    import_known(torch.export.export(model, (X,), strict=False), None, None, store)
    assert KIND not in kinds(store)


_PROGRAM = """
import sys, numpy as np, torch, xpuruntime as xrt
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x).relu_() * 2
torch.manual_seed(0)
model, x = Scaled().eval(), torch.ones(2, 4)
if sys.argv[2] == "again":
    def never(*args, **named):
        sys.exit("exported again")
    torch.export.export = never
with xrt.InferenceSession(model, device="cpu", engine="native", example_inputs=(x,), cache_dir=sys.argv[1]) as session:
    (output,) = session.run({"x": x.numpy()}).values()
np.testing.assert_allclose(output, model(x).detach().numpy(), rtol=1e-5)
"""


def test_a_second_process_does_not_export(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    for word in ("first", "again"):
        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "store"), word],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": "1" if word == "first" else "2"},
        )
        assert done.returncode == 0, done.stderr
