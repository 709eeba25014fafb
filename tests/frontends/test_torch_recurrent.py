"""Recurrent layers of PyTorch, read whole, against PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import gap, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.torch.decompose import decomposed, refuse_extra_dims  # noqa: E402
from xpuruntime.frontends.torch.export import exported  # noqa: E402
from xpuruntime.frontends.torch.ops import TABLE  # noqa: E402
from xpuruntime.frontends.torch.program import ProgramImport  # noqa: E402

nn = torch.nn
KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "both directions, three layers": {"bidirectional": True, "num_layers": 3, "dropout": 0.4},
    "no bias": {"bias": False, "num_layers": 2, "bidirectional": True, "batch_first": True},
}


class Flat(nn.Module):
    """A layer with or without states of its caller, its results in a row."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, *states: Any) -> Any:
        given = () if not states else (states,) if len(states) > 1 else states
        y, after = self.layer(x, *given)
        return y, *(after if isinstance(after, tuple) else (after,))


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_read_whole(kind: str, form: str) -> None:
    torch.manual_seed(0)
    model = Flat(getattr(nn, kind)(5, 7, **FORMS[form])).eval()
    graph = same(model, drawn(4, 3, 5), others=[(drawn(4, 3, 5) * 3,)])
    assert Counter(n.op for n in graph)[KINDS[kind]] == model.layer.num_layers
    with xrt.InferenceSession(
        model, example_inputs=(drawn(4, 3, 5),), engine="native", device="cpu"
    ) as session:
        got = session.run([drawn(4, 3, 5).numpy()])
    for mine, theirs in zip(got.values(), model(drawn(4, 3, 5)), strict=True):
        assert gap(mine, theirs) <= 5e-6


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_the_caller(kind: str) -> None:
    model = Flat(getattr(nn, kind)(5, 7, 2)).eval()
    states = [drawn(2, 3, 7) * (i + 1) for i in range(2 if kind == "LSTM" else 1)]
    same(model, drawn(4, 3, 5), *states)


def test_relu_one_step_and_no_batch() -> None:
    same(Flat(nn.RNN(5, 7, nonlinearity="relu")).eval(), drawn(4, 3, 5))
    same(Flat(nn.LSTM(5, 7)).eval(), drawn(1, 3, 5))
    same(Flat(nn.GRU(5, 7, bidirectional=True)).eval(), drawn(4, 5))


def test_an_open_batch() -> None:
    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    model = Sequences().eval()
    shapes = {"x": {0: torch.export.Dim("batch")}}
    same(model, drawn(3, 4, 5), dynamic_shapes=shapes, others=[(drawn(2, 4, 5),), (drawn(6, 4, 5),)])


def test_a_long_sequence_is_a_short_program() -> None:
    model = Flat(nn.GRU(8, 16, batch_first=True)).eval()
    graph = same(model, drawn(1, 400, 8))
    assert len(graph.nodes) < 40


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projected_states_are_taken_apart() -> None:
    class Outputs(Flat):
        def forward(self, x: Any, *states: Any) -> Any:
            return super().forward(x, *states)[0]

    graph = same(Outputs(nn.LSTM(5, 7, proj_size=3)).eval(), drawn(4, 3, 5))
    assert "lstm" not in {n.op for n in graph}


def forged(model: Any) -> tuple[Any, Any]:
    """A program whose LSTM's last states have the dim too many that PyTorch 2.11 gives them, and the LSTM's node."""
    program = decomposed(exported(model.eval(), drawn(4, 3, 5), None, "test"), set(TABLE), "test")
    (layer,) = [n for n in program.graph.nodes if str(n.target) == "aten.lstm.input"]
    y, *states = layer.meta["val"]
    if states[0].dim() == 3:
        layer.meta["val"] = (y, *(s.unsqueeze(1) for s in states))
    return program, layer


def test_pytorchs_dim_too_many_in_last_states() -> None:
    program, _ = forged(Flat(nn.LSTM(5, 7, bidirectional=True)))
    graph = ProgramImport(program, "states", {}).graph("test")
    assert [n.op for n in graph].count("lstm") == 1
    assert [s.shape for s in graph.output_specs] == [(4, 3, 14), (2, 3, 7), (2, 3, 7)]


def test_another_shape_of_pytorchs_takes_the_layer_apart() -> None:
    program, layer = forged(Flat(nn.LSTM(5, 7)))
    y, *states = layer.meta["val"]
    layer.meta["val"] = (y.unsqueeze(1), *states)
    assert "lstm" not in [n.op for n in ProgramImport(program, "other", {}).graph("test")]


def test_a_layer_is_not_taken_apart_with_a_dim_too_many() -> None:
    program, layer = forged(Flat(nn.LSTM(5, 7)))
    with pytest.raises(
        ModelError, match=rf"an extra dim.*{layer.name}: \[1, 1, 3, 7\].*another version of PyTorch"
    ):
        refuse_extra_dims(program, "test")
