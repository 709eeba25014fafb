"""IR -> ONNX: what is written runs on ONNX Runtime and says what the interpreter says; opaque nodes come back as they were."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402
from support.onnx_models import small_classifier  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime import ir  # noqa: E402
from xpuruntime.errors import IrError  # noqa: E402
from xpuruntime.frontends.onnx import import_onnx, load_onnx  # noqa: E402
from xpuruntime.frontends.onnx.exporters import EXPORTERS, MIN_OPSETS  # noqa: E402
from xpuruntime.frontends.onnx_writer import to_onnx, write_onnx  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402
from xpuruntime.types import dim  # noqa: E402

R = np.random.default_rng(3)


def on_ort(proto, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


# Ops as PyTorch graphs use them: forms that ONNX models never ask for, because ONNX has no op of that shape.
UNARY = [
    ("exp2", {}), ("expm1", {}), ("log1p", {}), ("log2", {}), ("log10", {}), ("rsqrt", {}), ("trunc", {}), ("silu", {}),
    ("mish", {}), ("hardswish", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"}), ("softplus", {"beta": 2.0, "threshold": 1.0}),
    ("elu", {"alpha": 0.7, "scale": 1.3, "input_scale": 0.9}), ("round", {"decimals": 1}), ("var", {"dim": [1], "correction": 1.0}),
    ("vector_norm", {"ord": 3.0, "dim": [0]}), ("vector_norm", {"ord": math.inf, "dim": [1], "keepdim": True}), ("any", {"dim": [0]}),
    ("all", {"dim": [1], "keepdim": True}), ("argmax", {}), ("flip", {"dims": [0, 1]}), ("roll", {"shifts": [1, -1], "dims": [0, 1]}),
    ("select", {"dim": 0, "index": -1}), ("repeat", {"repeats": [2, 1, 3]}), ("tril", {"diagonal": 1}), ("sum", {}), ("cumsum", {"dim": 1}),
    ("rms_norm", {"normalized_shape": [4]}), ("layer_norm", {"normalized_shape": [4]}), ("pad", {"pads": [1, 0, -1, 2], "value": 3.0}),
    ("mean", {"dim": []}), ("sort", {"dim": 1, "descending": True}), ("max", {"dim": 0}), ("logsumexp", {"dim": [1]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attrs"),
    UNARY,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())) or "plain",
)
def test_an_op_of_pytorch_runs_on_onnx_runtime(op: str, attrs: dict) -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[3, 4]")
    made = b.call(op, "x", **attrs)
    for i, name in enumerate([made] if isinstance(made, str) else made):
        b.output(f"y{i}", name)
    graph = b.build()
    proto = to_onnx(graph)
    onnx.checker.check_model(proto, full_check=True)
    x = np.abs(R.standard_normal((3, 4))).astype(np.float32) + 0.2
    for got, want in zip(on_ort(proto, {"x": x}), interp.run(graph, {"x": x}).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("op", "opset", "inputs"), [("sum", 13, 2), ("mean", 17, 1), ("mean", 18, 2)])
def test_axes_are_an_input_from_the_opset_on_that_has_one(op: str, opset: int, inputs: int) -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[3, 4]")
    b.output("y", b.call(op, "x", dim=[1]))
    proto = to_onnx(b.build(), opset=opset)
    onnx.checker.check_model(proto, full_check=True)
    assert [len(n.input) for n in proto.graph.node if n.op_type.startswith("Reduce")] == [inputs]
    x = R.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(on_ort(proto, {"x": x})[0], getattr(x, op)(axis=1), rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 14])
def test_hardswish_is_arithmetic_before_the_opset_that_has_it(opset: int) -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.hardswish(b.input("x", "float32[9]")))
    graph = b.build()
    proto = to_onnx(graph, opset=opset)
    onnx.checker.check_model(proto, full_check=True)
    assert ("HardSwish" in {n.op_type for n in proto.graph.node}) is (opset == 14)
    feeds = {"x": np.linspace(-5, 5, 9, dtype=np.float32)}
    np.testing.assert_allclose(on_ort(proto, feeds)[0], interp.run(graph, feeds)["y"], rtol=1e-6)


def test_a_dim_of_size_0_needs_opset_14() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.view(b.input("x", "float32[n, 0]"), size=[0, dim("n")]))
    graph = b.build()
    with pytest.raises(IrError, match="opsets below 14 cannot reshape to a dim of size 0"):
        to_onnx(graph, opset=13)
    (y,) = on_ort(to_onnx(graph, opset=14), {"x": np.zeros((3, 0), np.float32)})
    assert y.shape == (0, 3)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_division_rounds_as_asked(mode: str | None, dtype: str) -> None:
    b = ir.GraphBuilder("g")
    b.input("x", f"{dtype}[6]")
    b.input("y", f"{dtype}[6]")
    b.output("z", b.div("x", "y", rounding_mode=mode))
    b.output("r", b.remainder("x", "y"))
    graph = b.build()
    feeds = {"x": np.array([7, -7, 7, -7, 6, 0], dtype), "y": np.array([2, 2, -2, -2, 3, 5], dtype)}
    for got, want in zip(on_ort(to_onnx(graph), feeds), interp.run(graph, feeds).values(), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_numbers_and_mixed_types_are_cast() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[3]")
    b.input("i", "int32[3]")
    b.output("y", b.where(b.gt("x", 0), b.mul("x", "i"), b.add("i", 2.5)))
    graph = b.build()
    feeds = {"x": np.array([1.5, -1, 2], np.float32), "i": np.array([2, 3, 4], np.int32)}
    np.testing.assert_allclose(on_ort(to_onnx(graph), feeds)[0], interp.run(graph, feeds)["y"])


def test_fused_ops_are_written_apart() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[2, 5, 4]")
    b.weight("w", "float32[3, 4]")
    b.weight("b", "float32[3]")
    b.input("r", "float32[2, 5, 3]")
    b.output("y", b.fused_linear("x", "w", "b", "r", act="silu"))
    graph = b.build()
    weights = {
        "w": R.standard_normal((3, 4)).astype(np.float32),
        "b": R.standard_normal(3).astype(np.float32),
    }
    feeds = {
        "x": R.standard_normal((2, 5, 4)).astype(np.float32),
        "r": R.standard_normal((2, 5, 3)).astype(np.float32),
    }
    (got,) = on_ort(to_onnx(graph, weights), feeds)
    np.testing.assert_allclose(got, interp.run(graph, feeds, weights=weights)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("shared", [False, True])
def test_products_with_experts_are_written_apart(rows: int, shared: bool) -> None:
    """Two pairs gather their matrices; ten are multiplied by all four."""
    b = ir.GraphBuilder("g")
    x = R.standard_normal((rows, 3) if shared else (rows, 2, 3)).astype(np.float32)
    b.input("x", f"float32{list(x.shape)}")
    b.input("i", f"int32[{rows}, 2]")
    b.weight("w", "float32[4, 6, 3]")
    b.output("y", b.expert_linear("x", "w", "i", act="silu"))
    graph, weights = b.build(), {"w": R.standard_normal((4, 6, 3)).astype(np.float32)}
    feeds = {"x": x, "i": R.integers(0, 4, (rows, 2)).astype(np.int32)}
    proto = to_onnx(graph, weights)
    assert ("GatherND" in {n.op_type for n in proto.graph.node}) == (rows == 5)
    np.testing.assert_allclose(
        on_ort(proto, feeds)[0], interp.run(graph, feeds, weights=weights)["y"], rtol=1e-5, atol=1e-6
    )


def test_symbolic_dims_are_computed_when_it_runs() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[n, 2*n, 3]")
    n = ir.parse('graph "g" {\n  input %x: float32[n]\n  output "x" = %x\n}').spec("x").shape[0]
    b.output("y", b.view("x", size=[2 * n * n, 3]))
    b.output("d", b.dims(values=[n, 2 * n + 1, n // 2]))
    graph = b.build()
    x = R.standard_normal((4, 8, 3)).astype(np.float32)
    y, d = on_ort(to_onnx(graph), {"x": x})
    assert y.shape == (32, 3)
    assert d.tolist() == [4, 9, 2]


def test_names_and_shapes_stay(tmp_path: Path) -> None:
    graph, weights = import_onnx(small_classifier())
    write_onnx(graph, tmp_path / "m.onnx", weights)
    proto = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert [n.name for n in proto.graph.node] == [
        "conv",
        "relu",
        "pool",
        "flatten",
        "fc1",
        "tanh",
        "fc2",
        "softmax",
    ]
    assert {v.name for v in proto.graph.value_info} >= {"c", "r", "p", "f", "h", "t", "l"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    back = load_onnx(proto)
    assert [(n.op, n.inputs, n.attrs, n.outputs) for n in back] == [
        (n.op, n.inputs, n.attrs, n.outputs) for n in graph
    ]


def test_a_loop_comes_back_as_it_was() -> None:
    """Its body reads a value from outside, which has another name by then."""
    body = helper.make_graph(
        [helper.make_node("Mul", ["a", "scale"], ["a2"]), helper.make_node("Identity", ["go"], ["go2"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("go2", TensorProto.BOOL, []), helper.make_tensor_value_info("a2", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Exp", ["s"], ["scale"]),
        helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="loop"),
    ]
    values = [("x", TensorProto.FLOAT, [2]), ("s", TensorProto.FLOAT, [2]), ("n", TensorProto.INT64, [])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*v) for v in values],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = load_onnx(proto)
    renamed = made.rewrite(lambda ed, node: ed.replace(node, "exp", "s") if node.op == "exp" else None)
    feeds = {"x": np.array([1, 2], np.float32), "s": np.array([0.1, 0.2], np.float32), "n": np.array(3)}
    for written in (to_onnx(made), to_onnx(ir.parse(str(renamed)))):
        np.testing.assert_allclose(on_ort(written, feeds)[0], on_ort(proto, feeds)[0])


def test_a_weight_that_is_nowhere_is_an_error() -> None:
    b = ir.GraphBuilder("g")
    b.weight("w", "float32[2]")
    b.output("y", b.relu("w"))
    with pytest.raises(IrError, match=r"weight 'w'.*has no data: it was not passed.*Pass weights="):
        to_onnx(b.build())


def test_a_weight_in_a_file_becomes_external_data(tmp_path: Path) -> None:
    values = np.array([1, -2], np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 16 + values.tobytes())
    b = ir.GraphBuilder("g")
    b.weight("w", "float32[2]", file="w.bin", format="raw", offset=16)
    b.output("y", b.relu("w"))
    write_onnx(b.build(), tmp_path / "m.onnx")
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.run(None, {})[0].tolist() == [1, 0]


def test_what_onnx_has_no_form_for_is_named() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[4, 3]")
    b.output("y", b.pdist("x", name="far"))
    with pytest.raises(IrError, match=r"pdist %far.* has no ONNX equivalent"):
        to_onnx(b.build())


def test_the_tables_name_ops_that_exist() -> None:
    assert set(EXPORTERS) <= set(ir.OPS)
    assert set(MIN_OPSETS) <= set(EXPORTERS)


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("sizes", [(2, 1, 1, 5), (4, 1), (1, 1), (2, 1, 4, 1), (3, 4, 5)], ids=str)
def test_a_mask_that_is_broadcast_runs_on_onnxruntime(sizes: tuple[int, ...], boolean: bool) -> None:
    """One row of a mask for all queries, as from key_padding_mask: ONNX Runtime takes no other sizes than those of queries and keys."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")

    class Attend(torch.nn.Module):
        def forward(self, q, k, mask):
            return torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8)
    mask = torch.rand(sizes) > 0.3 if boolean else torch.randn(sizes)
    if boolean:
        mask[..., 0] = True  # a row without any key is NaN in PyTorch
    with xrt.InferenceSession(Attend(), example_inputs=(q, k, mask), engine="onnxruntime") as session:
        torch.testing.assert_close(session.run([q, k, mask])["output"], Attend()(q, k, mask))


BOOLEANS = [
    ("bitwise_not", "x", {}), ("bitwise_and", "xy", {}), ("bitwise_or", "xy", {}), ("bitwise_xor", "xy", {}), ("maximum", "xy", {}),
    ("minimum", "xy", {}), ("lt", "xy", {}), ("le", "xy", {}), ("gt", "xy", {}), ("ge", "xy", {}), ("where", "xyx", {}), ("sign", "x", {}),
    ("amax", "x", {"dim": [1]}), ("amin", "x", {"dim": [0]}), ("max", "x", {"dim": 1}), ("min", "x", {"dim": 0}),
    ("sort", "x", {"dim": 1, "descending": True}), ("topk", "x", {"k": 1, "dim": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attrs"), BOOLEANS, ids=[row[0] for row in BOOLEANS])
def test_booleans_have_ops_that_onnx_has_for_numbers_only(op: str, operands: str, attrs: dict) -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "bool[2, 2]")
    b.input("y", "bool[2, 2]")
    made = b.call(op, *operands, **attrs)
    for i, name in enumerate([made] if isinstance(made, str) else made[:1]):
        b.output(f"y{i}", name)
    graph = b.build()
    feeds = {"x": np.array([[True, False], [True, False]]), "y": np.array([[True, True], [False, False]])}
    want = list(interp.run(graph, feeds).values())
    for mine, theirs in zip(on_ort(to_onnx(graph), feeds), want, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
