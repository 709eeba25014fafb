"""Decomposition of an ExportedProgram to functional ATen ops."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from typing import Any

from ...errors import ModelError
from .decompose_once import decomposed_once
from .export import TRACING, find_torch, first_lines, no_warnings
from .names import source_of
from .nodes import has_extra_dim, has_readers
from .tracing_shortcuts import composite_ops_listed_once

__all__ = ["decomposed", "refuse_extra_dims", "without_assertions"]

_WHOLE = frozenset(
    f"aten::{op}"
    for op in (
        "multilabel_margin_loss_forward",  # PyTorch 2.13 decomposes it to ops with another result
        # These would be decomposed to an op and a check of its errors, which has no result.
        "inverse",
        "linalg_cholesky",
        "linalg_inv",
        "linalg_ldl_factor",
        "linalg_lu_factor",
        "linalg_solve",
        "linalg_tensorinv",
        "linalg_tensorsolve",
    )
)
"""Ops that are never decomposed."""
_EXECUTING = re.compile(r"While executing %(\w+)")


def decomposed(program: Any, keep: Collection[str], who: str) -> Any:
    """Return the program in functional ATen, with composite ops decomposed except those in ``whole`` (ATen names). Raise ModelError.

    An op that PyTorch fails to decompose stays whole, too; the lowering then makes it opaque if it is not in the table.
    """
    torch = find_torch()
    failed: set[str] = set(_WHOLE)
    unchecked = False
    while True:
        with TRACING, composite_ops_listed_once():
            table = torch.export.default_decompositions()
            kept = {op for op in table if op.name().removeprefix("aten::") in keep or op.name() in failed}
            for op in kept:
                table.pop(op, None)
            once = None if failed != _WHOLE else decomposed_once(program, table, kept.__contains__)
        if once is not None:  # after a failure the whole program is traced, which runs every op
            return once
        try:
            with TRACING, torch.no_grad(), no_warnings(), composite_ops_listed_once():
                return program.run_decompositions(table)
        except Exception as error:
            changed = _changed_constants(program)
            if changed:
                raise ModelError(
                    who,
                    "changes a tensor in place that is neither a buffer nor made in forward",
                    got=", ".join(changed[:3]),
                    do="Register it with register_buffer(): it then becomes a state.",
                ) from error
            text = str(error) or type(error).__name__
            node = _failing(program, text)
            name = node.target.name() if hasattr(node, "target") and hasattr(node.target, "name") else ""
            if name and name not in failed:
                failed.add(name)
                continue
            if node is not None and not name and not unchecked:
                program, unchecked = without_assertions(program), True
                continue
            raise ModelError(
                who,
                "cannot be decomposed to ATen ops",
                got=first_lines(text.partition("While executing")[0]) + _location(node),
                do="Make torch.export.export(model, inputs).run_decompositions() work first; the traceback above has its reason.",
            ) from error


def without_assertions(program: Any) -> Any:
    """Return the program without assertions on the content of tensors, some of which PyTorch 2.11 cannot trace."""
    module = copy.deepcopy(program.graph_module)
    for node in reversed(list(module.graph.nodes)):
        if node.op == "call_function" and str(node.target).startswith("aten._assert_"):
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return find_torch().export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _failing(program: Any, text: str) -> Any:
    """Return the node that PyTorch failed at; None if its error does not say."""
    match = _EXECUTING.search(text)
    nodes = {n.name: n for n in program.graph.nodes}
    return None if match is None else nodes.get(match[1])


def _location(node: Any) -> str:
    """Return the op and the line of code of a node, for messages."""
    if node is None:
        return ""
    source = source_of(node, str(node.target))
    line = f", {source.file}:{source.line}" if source.file else ""
    return f" at {source.op} ({node.name}{line})"


def refuse_extra_dims(program: Any, who: str) -> None:
    """Raise ModelError if decomposing an LSTM would give its last states another shape than the module's in this PyTorch version."""
    for node in program.graph.nodes:
        for k in (1, 2):
            if node.op == "call_function" and has_extra_dim(node, k) and has_readers(node, k):
                shape = list(node.meta["val"][k].shape)
                raise ModelError(
                    who,
                    "has an LSTM that must be decomposed, and PyTorch's decomposition gives its last states an extra dim",
                    got=f"{node.name}: {shape} with PyTorch {find_torch().__version__}",
                    do="Use another version of PyTorch, or only the LSTM's output.",
                )


def _changed_constants(program: Any) -> list[str]:
    """Return the names of tensors that are plain attributes of the model and that it writes to."""
    constants = {
        s.arg.name: s.target for s in program.graph_signature.input_specs if s.kind.name == "CONSTANT_TENSOR"
    }
    changed = []
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable and node.args:
            name = constants.get(getattr(node.args[0], "name", ""))
            if name is not None and name not in changed:
                changed.append(name)
    return changed
