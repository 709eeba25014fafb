"""Store records of exported modules: the graph is that of a fresh import, and whatever changes it makes another record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.inference.models.exported_cache import KIND, import_known
from xpuruntime.storage.store import Store

torch = pytest.importorskip("torch")

from xpuruntime.frontends.torch.exported_digest import exported_digest  # noqa: E402
from xpuruntime.frontends.torch.importer import export_torch, import_torch  # noqa: E402

X = torch.arange(24.0).reshape(2, 12) / 8


class Network(torch.nn.Module):
    """Tied weights, a constant of the module, one that forward makes, and composite ops."""

    def __init__(
        self, scale: float = 2.0, offset: float = 1.0, slope: float = 0.1, swap: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(12, 12)
        self.last = torch.nn.Linear(12, 12)
        self.last.weight = self.first.weight
        self.scale, self.slope, self.swap = scale, slope, swap
        self.register_buffer("offset", torch.full((12,), offset), persistent=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return two outputs."""
        y = torch.nn.functional.leaky_relu(self.first(x), self.slope) * self.scale + self.offset
        z = self.last(y) + torch.arange(12)
        return {"y": z, "z": y} if self.swap else {"y": y, "z": z}


def digest_of(model: torch.nn.Module, *inputs: torch.Tensor) -> str | None:
    """Return the digest of a module's export."""
    exported = export_torch(model.eval(), inputs or (X,))
    return exported_digest(exported.program, exported.saved)


def records(store: Store) -> list[str]:
    """Return the keys of the records of exports."""
    return [e.key for e in store.entries() if e.kind == KIND]


def test_a_known_export_has_the_graph_and_the_weights_of_a_fresh_import(tmp_path: Path) -> None:
    store, model = Store(tmp_path), Network().eval()
    fresh, first = import_torch(model, X), import_known(model, X, None, store)
    assert len(records(store)) == 1
    for again in (first, import_known(model, X, None, store)):
        assert again.graph.to_json() == fresh.graph.to_json()
        assert again.graph.digest == fresh.graph.digest
        assert list(again.weights) == list(fresh.weights)
        for name, array in fresh.weights.items():
            np.testing.assert_array_equal(again.weights[name], array)
    assert len(records(store)) == 1


def test_weights_are_those_of_the_module_and_not_of_the_record(tmp_path: Path) -> None:
    store, model, other = Store(tmp_path), Network().eval(), Network().eval()
    import_known(model, X, None, store)
    with torch.no_grad():
        other.first.weight.add_(1)
    assert digest_of(model) == digest_of(other)
    for module in (model, other):
        with xrt.InferenceSession(
            module, device="cpu", engine="native", example_inputs=(X,), cache_dir=tmp_path
        ) as session:
            outputs = session.run({"x": X.numpy()})
        for name, expected in module(X).items():
            np.testing.assert_allclose(outputs[name], expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert len(records(store)) == 1


class Renamed(Network):
    """The same computation in another line of code, and under another module name."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what ``Network`` returns."""
        return super().forward(x)


def untied() -> torch.nn.Module:
    """Return the network with equal weights that are two tensors."""
    model = Network()
    model.last.weight = torch.nn.Parameter(model.first.weight.detach().clone())
    return model


OTHERS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "a number in forward": lambda: (Network(scale=3.0), X),
    "a number in the last bit": lambda: (Network(slope=np.nextafter(0.1, 1)), X),
    "a constant's content": lambda: (Network(offset=1.5), X),
    "the names of outputs": lambda: (Network(swap=True), X),
    "tied weights": lambda: (untied(), X),
    "the lines of code": lambda: (torch.nn.Sequential(Network()), X),
    "the shape of an input": lambda: (Network(), X[:1]),
    "the type": lambda: (Network().double(), X.double()),
    "the layout of an input": lambda: (Network(), X.t().contiguous().t()),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_changes_the_graph_changes_the_digest(what: str) -> None:
    model, x = OTHERS[what]()
    assert digest_of(Network()) is not None
    assert digest_of(model, x) not in (None, digest_of(Network()))


def test_pytorch_settings_that_change_a_decomposition_change_the_digest() -> None:
    known = digest_of(Network())
    torch.use_deterministic_algorithms(True)
    try:
        assert digest_of(Network()) not in (None, known)
    finally:
        torch.use_deterministic_algorithms(False)
    assert digest_of(Network()) == known


@torch.library.custom_op("xrt_test_exported::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Return the double: an op whose code may change."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Foreign(torch.nn.Module):
    """A module with an op of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return four times x."""
        return twice(x) * 2


class Branch(torch.nn.Module):
    """A module with a nested graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with a sign that depends on it."""
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,))


@pytest.mark.parametrize("model", [Foreign(), Branch()], ids=["foreign op", "nested graph"])
def test_what_the_digest_does_not_cover_has_no_record(model: torch.nn.Module, tmp_path: Path) -> None:
    assert digest_of(model) is None
    store = Store(tmp_path)
    assert import_known(model.eval(), X, None, store).graph.nodes
    assert not records(store)


def test_modes_and_open_dims_have_no_record(tmp_path: Path) -> None:
    exported = export_torch(Network().eval(), X)
    with torch.autocast("cpu", torch.bfloat16):
        assert exported_digest(exported.program, {}) is None
    with torch.device("cpu"):
        assert exported_digest(exported.program, {}) is None
    store = Store(tmp_path)
    import_known(Network().eval(), X, {"x": {0: "rows"}}, store)
    import_known(Network().eval(), X, None, Store(tmp_path, mode="off"))
    assert not records(store)


def test_a_record_that_cannot_be_used_is_replaced(tmp_path: Path) -> None:
    store, model = Store(tmp_path), Network().eval()
    fresh = import_known(model, X, None, store)
    (entry,) = (e for e in store.entries() if e.kind == KIND)
    good = store.get(KIND, entry.key)
    assert good is not None
    record = json.loads(good)
    for bad in (
        b"", good[: len(good) // 2], b"[]", b"\xff\xfe", b'{"graph": 1, "tensors": {}}',
        json.dumps(record | {"tensors": {"first.weight": "no tensor"}}).encode(),
        json.dumps(record | {"tensors": {}}).encode(),
    ):  # fmt: skip
        store.put(KIND, entry.ingredients, bad)
        again = import_known(model, X, None, store)
        assert again.graph.digest == fresh.graph.digest, bad[:40]
        assert list(again.weights) == list(fresh.weights), bad[:40]
        assert store.get(KIND, entry.key) == good


def test_a_store_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    store = replace_root(tmp_path)
    assert import_known(Network().eval(), X, None, store).graph.digest
    assert not records(store)


def replace_root(folder: Path) -> Store:
    """Return a store whose folder is a file."""
    file = folder / "file"
    file.write_bytes(b"")
    return Store(file)


def test_a_replaced_decomposition_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._decomp import global_decomposition_table as tables

    def seven_times(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        return x * 7

    assert digest_of(Network()) is not None
    monkeypatch.setitem(tables["post_autograd"], torch.ops.aten.logit.default, seven_times)
    assert digest_of(Network()) is None
