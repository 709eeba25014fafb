"""The interpreter's table is complete, fits the op table, and needs nothing but NumPy."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.ir import interp
from xpuruntime.ir.interp import table

# Attributes that say nothing about values: what they decide is in the inferred type, or left open by the op.
UNREAD = {
    "embedding": {"padding_idx"},  # of its gradient
    "sort": {"stable"},  # always is
    "topk": {"sorted"},  # always is
    "rnn": {"hidden_size"},
    "gru": {"hidden_size"},
    "lstm": {"hidden_size"},
    "max_pool_backward": {"stride", "padding", "dilation", "ceil_mode"},  # the indices say it all
    **{op: {"wide_statistics"} for op in ("layer_norm", "rms_norm")},  # the dtypes of results say it
    "layer_norm_backward_add": {"narrow"},
    **{op: {"dtype"} for op in ("rand", "randn", "bernoulli", "multinomial", "dequantize_linear", "eye")},
    **{
        op: {"count"}
        for op in (
            "nonzero",
            "masked_select",
            "compress",
            "unique",
            "bincount",
            "repeat_interleave",
            "non_max_suppression",
        )
    },
    "cond": {"sizes"},
    "loop": {"sizes"},
}


def test_every_op_has_a_rule_but_opaque() -> None:
    assert ir.OPS.keys() - interp.RULES.keys() == {"opaque"}
    assert interp.RULES.keys() <= ir.OPS.keys()


@pytest.mark.parametrize("name", interp.RULES)
def test_the_rule_fits_the_row(name: str) -> None:
    rule, row = interp.RULES[name], ir.OPS[name]
    assert set(row.attrs) - set(rule.reads) == UNREAD.get(name, set())
    assert set(rule.reads) <= set(row.attrs)
    if isinstance(rule.function, np.ufunc):
        assert rule.function.nin == len(row.inputs)
        return
    parameters = inspect.signature(rule.function).parameters.values()
    taken = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert len(taken) == len(row.inputs)
    assert [p.kind is inspect.Parameter.VAR_POSITIONAL for p in taken] == [p.rest for p in row.inputs]


def test_an_op_stands_in_one_file() -> None:
    names = [name for file in table._FILES for name in file.RULES]
    assert len(names) == len(set(names))


def test_opaque_says_who_and_why() -> None:
    b = ir.GraphBuilder()
    x = b.input("x", "float32[2]")
    (y,) = b.opaque("Loop", [x], [("y", "float32[2]")], reason="control flow")
    b.output("y", y)
    with pytest.raises(IrError) as error:
        interp.run(b.build(), {"x": np.zeros(2, np.float32)})
    assert str(error.value) == (
        "[opaque %y] is opaque: the interpreter does not know it; got ai.onnx::Loop, control flow."
        " Run the model on an engine that supports it."
    )


def test_imports_numpy_alone() -> None:
    folder = Path(interp.__file__).parent
    allowed = set(sys.stdlib_module_names) | {"numpy", "ml_dtypes"}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed, path.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in allowed, path.name


def test_runs_where_only_numpy_is(bare_python: Callable[[str], str]) -> None:
    code = """
import numpy as np
from xpuruntime.ir import interp
print(interp.apply("softmax", np.zeros((1, 4), np.float32), dim=-1)[0].tolist())
"""
    assert bare_python(code).strip() == "[[0.25, 0.25, 0.25, 0.25]]"
