"""What cannot be extracted says why, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError, ModelError
from xpuruntime.ir import interp

torch = pytest.importorskip("torch")

from support.torch_oracle import TOLERANCE, OfFunction, gap, opaque, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch, weights_of  # noqa: E402
from xpuruntime.frontends.torch.decompose import decomposed, without_assertions  # noqa: E402
from xpuruntime.frontends.torch.export import exported  # noqa: E402

nn, F = torch.nn, torch.nn.functional


# ── errors ──


def test_a_model_in_training_mode_is_refused_where_that_matters() -> None:
    x = torch.randn(4, 3)
    same(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), x)  # in training mode, and no different
    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), x)
    assert str(caught.value) == (
        "[extract_ir('Sequential')] is in training mode; got aten.dropout.default at 1 drops out. Call model.eval() first."
    )
    with pytest.raises(
        ModelError, match=r"got aten.batch_norm.default at 0 uses the statistics of the batch"
    ):
        xrt.extract_ir(nn.Sequential(nn.BatchNorm1d(3)), x)


def test_a_program_in_training_mode_moves_its_statistics() -> None:
    module = nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
    graph, weights = import_torch(program)
    assert "batch_norm_train" in [n.op for n in graph]
    states: dict[str, Any] = {}
    start = {n: np.array(weights[n]) for n in weights}
    got = interp.run(graph, {"input": x.numpy()}, weights=start, states=states)
    with torch.no_grad():
        want = module(x)
    assert gap(got["output"], want) <= TOLERANCE
    assert gap(states["running_mean.state"], module.running_mean) <= TOLERANCE
    assert states["num_batches_tracked.state"] == 1


def test_a_changed_input_is_refused() -> None:
    class Changes(nn.Module):
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    with pytest.raises(ModelError, match=r"changes an input in place; got 'x'\. Clone it first"):
        xrt.extract_ir(Changes().eval(), torch.randn(2))


def test_a_changed_tensor_that_is_no_buffer_is_refused() -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(2)

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    with pytest.raises(
        ModelError, match=r"changes a tensor in place that is neither a buffer nor made in forward"
    ):
        xrt.extract_ir(Holds().eval(), torch.randn(2))


def test_an_object_of_a_strange_type_is_refused() -> None:
    class Strange:
        def __init__(self, x: Any) -> None:
            self.x = x

    with pytest.raises(ModelError, match=r"an object that PyTorch cannot flatten into tensors; got Found"):
        xrt.extract_ir(OfFunction(Strange).eval(), torch.randn(2))


def test_an_input_that_is_no_tensor_is_fixed() -> None:
    class Options(nn.Module):
        def forward(self, x: Any, factor: float = 2.0, bias: Any = None) -> Any:
            return x * factor if bias is None else x * factor + bias

    graph = xrt.extract_ir(Options().eval(), (torch.randn(2), 3.0, None))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [n.inputs for n in graph] == [("x", 3.0)]


def test_control_flow_on_content_says_what_to_do() -> None:
    class Branches(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(Branches().eval(), torch.randn(2), model_name="net")
    text = str(caught.value)
    assert text.startswith("[extract_ir('net')] branches on the content of a tensor; got ")
    assert "data-dependent" in text
    assert text.endswith("or export the part without it.")


def test_a_branch_on_content_names_its_line_and_how_to_call_the_layer() -> None:
    class Decodes(nn.Module):
        def __init__(self, **flags: bool) -> None:
            super().__init__()
            self.flags = flags
            self.layers = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

        def forward(self, a: Any, b: Any, mask: Any) -> Any:
            return self.layers(a, b, tgt_mask=mask, **self.flags)

    mask = nn.Transformer.generate_square_subsequent_mask(5)
    given = (torch.randn(2, 4, 16), torch.randn(2, 5, 16), mask)
    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(Decodes().eval(), given)
    text = str(caught.value)
    assert "transformer.py" in text
    assert "Pass tgt_is_causal=True or False with tgt_mask=" in text
    for flag in (True, False):
        assert not opaque(xrt.extract_ir(Decodes(tgt_is_causal=flag).eval(), given))


def test_a_cast_of_a_layer_in_forward_names_its_line() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            self.classifier = self.classifier.to(x.dtype)
            return self.classifier(x)

    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(Router().eval(), torch.randn(2, 4))
    text = str(caught.value)
    assert "casts or moves a layer in forward, which torch.export does not support; got" in text
    assert "test_torch_refusals.py" in text
    assert "self.classifier = self.classifier.to(x.dtype)" in text
    assert text.endswith("Cast or move the layer before, as model.to(dtype), and only tensors in forward.")


def test_an_error_of_the_model_names_its_line() -> None:
    class Indexes(nn.Module):
        def forward(self, x: Any, mask: Any = None) -> Any:
            return x * mask[0]

    with pytest.raises(
        ModelError, match=r"not subscriptable at .*test_torch_refusals.py:\d+: return x \* mask"
    ):
        xrt.extract_ir(Indexes().eval(), torch.randn(2, 4))


def test_an_op_that_pytorch_fails_to_take_apart_is_named() -> None:
    """It stays whole, and the walk names it; where PyTorch cannot even say its result's shape, the error does."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    fails = "never"

    def kernel(x: Any) -> Any:
        if fails == "always" or (fails == "traced" and get_proxy_mode() is not None):
            raise RuntimeError(f"no such thing: {object()}")
        return x * 2

    library = torch.library.Library("xpu_refusals", "FRAGMENT")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", kernel, "CompositeImplicitAutograd")
    try:
        program = torch.export.export(
            OfFunction(lambda x: torch.ops.xpu_refusals.odd(x + 1).relu()).eval(), (torch.randn(3),)
        )
        fails = "traced"
        assert opaque(xrt.extract_ir(program)) == ["odd: the op is of the library 'xpu_refusals'"]
        fails = "always"
        with pytest.raises(ModelError) as caught:
            xrt.extract_ir(program)
    finally:
        library._destroy()
    text = str(caught.value)
    assert "cannot be decomposed to ATen ops; got no such thing: <object object> at xpu_refusals.odd" in text
    assert "torch_oracle.py:" in text
    assert "0x" not in text


def test_parts_of_as_many_rows_as_a_mask_names_are_no_raw_error() -> None:
    """Whether such a part is dense is not known to PyTorch either (jetmoe)."""

    class Net(torch.nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            a, b = x[mask.nonzero()[:, 0]].chunk(2, dim=1)
            return (torch.nn.functional.silu(a) * b).sum(0)

    graph = xrt.extract_ir(Net(), (torch.randn(5, 64), torch.tensor([True, False, True, False, True])))
    assert "split" in str(graph)


def test_a_position_from_a_tensor_in_a_write_says_how_to_write() -> None:
    def written(x: Any, i: Any) -> Any:
        y = x.clone()
        y[i] = 7.0
        return y

    with pytest.raises(ModelError) as caught:
        xrt.extract_ir(OfFunction(written).eval(), (torch.randn(3, 4), torch.tensor(1)))
    text = str(caught.value)
    assert "takes a fixed position or number from the content of a tensor" in text
    assert "test_torch_refusals.py" in text
    assert "x[i.view(1)]" in text
    same(lambda x, i: written(x, i.view(1)), torch.randn(3, 4), torch.tensor(-1))


def test_wrong_arguments_say_what_is_wanted() -> None:
    with pytest.raises(InputError, match=r"needs example inputs; got str. Pass one tensor, a tuple"):
        xrt.extract_ir(nn.ReLU(), "x")
    with pytest.raises(ModelError, match=r"is not a PyTorch model; got str. Pass an nn.Module"):
        xrt.extract_ir("model.pt", torch.ones(1))
    with pytest.raises(ModelError, match="is not a PyTorch model; got int"):
        weights_of(3)
    with pytest.raises(ModelError, match="cannot be exported; got"):
        xrt.extract_ir(nn.Linear(3, 2).eval(), torch.randn(2, 5))


def test_without_torch_the_error_says_how_to_get_it(bare_python: Any) -> None:
    print_error = "import xpuruntime as x\ntry:\n    x.extract_ir(None, None)\nexcept x.EngineUnavailable as e:\n    print(e)"
    assert bare_python(print_error) == (
        "[extract_ir] reading a PyTorch model needs PyTorch, which is not installed. Run: pip install 'xpuruntime[torch]'\n"
    )


def test_an_op_with_an_effect_is_named() -> None:
    """A check of errors has no result: PyTorch's export keeps it through a token."""

    class Inverse(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            inverse, info = torch.linalg.inv_ex(x)
            torch.ops.aten._linalg_check_errors(info, "inv", is_matrix=True)
            return inverse

    program = decomposed(exported(Inverse().eval(), torch.randn(2, 4, 4), None, "test"), (), "test")
    if "with_effects" not in str(program.graph):
        pytest.skip("this PyTorch exports the op without an effect")
    with pytest.raises(ModelError, match=r"has an op with side effects.*linalg_check_errors.*inv_ex"):
        import_torch(Inverse().eval(), (torch.randn(2, 4, 4),))


def test_an_assertion_about_content_is_not_computed() -> None:
    """PyTorch 2.11 cannot take some of them apart; the model computes the same without them."""

    class Checked(torch.nn.Module):
        def forward(self, x: Any, sizes: Any) -> Any:
            torch._check((sizes > 0).all().item())
            return x + 1

    inputs = (torch.randn(3), torch.tensor([1, 2]))
    same(Checked().eval(), *inputs)
    program = exported(Checked().eval(), inputs, None, "test")
    before = [n.name for n in program.graph.nodes]
    calls = [str(n.target) for n in without_assertions(program).graph.nodes if n.op == "call_function"]
    assert calls == ["aten.add.Tensor"]
    assert [n.name for n in program.graph.nodes] == before


def test_what_reads_the_content_of_a_tensor_says_which_line() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]

    lengths = torch.tensor([6, 4, 2])
    with pytest.raises(ModelError, match=r"as packed sequences do; got .* Give recurrent layers padded rows"):
        xrt.extract_ir(Packed().eval(), (torch.randn(3, 6, 4), lengths))
    with pytest.raises(
        ModelError,
        match=r"branches on the content of a tensor; got aten.equal.default at .*test_torch_refusals",
    ):
        xrt.extract_ir(OfFunction(lambda x: torch.cov(x)).eval(), torch.randn(3, 4))
