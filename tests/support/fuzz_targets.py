"""Fuzz targets: readers of untrusted files. Each takes bytes. An exception other than XpuError counts as a crash.

``MUTATORS`` change a file field by field, because random bytes are rarely a valid ModelProto and never a program with correct digests.
A mutation depends on its seed only.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from xpuruntime.errors import XpuError

from .fuzz_files import FILE_MUTATORS, FILE_TARGETS, file_seeds
from .program_mutants import mutate_program

__all__ = ["LIMIT_S", "MUTATORS", "TARGETS", "mutate_onnx", "run", "seeds"]

LIMIT_S = 5
"""A target that takes longer counts as a hang."""


def _onnx(data: bytes) -> None:
    """Import a model, verify the graph and export it again."""
    from xpuruntime.frontends.onnx import import_onnx
    from xpuruntime.frontends.onnx_writer import to_onnx
    from xpuruntime.ir import verify

    graph, weights = import_onnx(data)
    verify(graph)
    to_onnx(graph, weights)


def _ir_text(data: bytes) -> None:
    from xpuruntime import ir

    graph = ir.parse(data.decode("utf-8", "replace"))
    if ir.parse(str(graph)) != graph:
        raise AssertionError("the printed text parses to a different graph")


def _ir_json(data: bytes) -> None:
    from xpuruntime import ir

    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return  # the file's reader rejects invalid JSON before it looks for a graph
    graph = ir.from_json(plain)
    if ir.from_json(graph.to_json()) != graph:
        raise AssertionError("the written JSON reads as a different graph")


def _policy(data: bytes) -> None:
    from xpuruntime.policies.files.load import load_policy

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.yaml"
        path.write_bytes(data)
        load_policy(path)


def _program(data: bytes) -> None:
    """Read a program. If the reader accepts it: write and read it again, check that calls stay inside their buffers, and run its recipes."""
    from xpuruntime.program.program import CompiledProgram

    program = CompiledProgram.from_bytes(data)
    if CompiledProgram.from_bytes(program.to_bytes()) != program:
        raise AssertionError("the written program reads as a different program")
    for entry in program.entries:
        for plan in entry.plans:
            _check_bounds(plan)
    _run_recipes(program)


def _check_bounds(plan: Any) -> None:
    """Check that each argument of each call is inside its memory, computed independently of ``validate``."""
    size = {b.name: b.size_bytes for b in plan.buffers if b.root == b.name}
    for call in plan.calls:
        for name in (*call.inputs, *call.outputs):
            b = plan.buffer(name)
            memory = plan.arena_bytes if b.kind == "scratch" else size[b.root]
            if not 0 <= b.offset <= b.offset + (b.spec.size_bytes or 0) <= memory:
                raise AssertionError(f"{name} lies outside its memory")


def _run_recipes(program: Any) -> None:
    """Run the small recipes on zeros."""
    import numpy as np

    from xpuruntime.runtime.weights.recipes import recipe_bytes, run_recipe

    for recipe in program.recipes:
        arrays = {w.name: w.spec for w in program.weights}
        if recipe_bytes(recipe) + sum(s.size_bytes for s in arrays.values()) < 1 << 16:
            array = run_recipe(recipe, {n: np.zeros(s.shape, s.dtype.numpy) for n, s in arrays.items()})
            if array.nbytes != recipe_bytes(recipe):
                raise AssertionError(f"recipe {recipe.name} produces {array.nbytes} bytes")


TARGETS: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
    {
        "onnx": _onnx,
        "ir-text": _ir_text,
        "ir-json": _ir_json,
        "policy": _policy,
        "program": _program,
        **FILE_TARGETS,
    }
)


def run(target: str, data: bytes) -> None:
    """Run a target on one input. Raises every exception except XpuError."""
    try:
        TARGETS[target](data)
    except XpuError:
        return


def seeds(target: str) -> list[bytes]:
    """Return small valid inputs to start from."""
    if target in FILE_TARGETS:
        return file_seeds(target)
    if target == "policy":
        builtin = Path(str(files("xpuruntime.policies"))) / "builtin"
        return [p.read_bytes() for p in sorted(builtin.glob("*.yaml"))] + [
            b"xpuruntime-policy: 1\nkernel:\n  rules:\n    - family: matmul\n      prefer: [cublasLt]\n",
            b"engine: onnxruntime\nallow_fallback: [cpu]\nstrict: true\n",
        ]
    if target == "program":
        from .random_programs import random_program

        return [random_program(seed).to_bytes() for seed in range(12)]
    from xpuruntime.testing.conformance.onnx_backend.suite import cases

    names = ("test_add", "test_reshape_reordered_all_dims", "test_conv_with_strides_padding", "test_if", "test_loop11", "test_lstm_defaults",
             "test_slice", "test_softmax_axis_0", "test_layer_normalization_2d_axis1_expanded", "test_resize_upsample_scales_nearest")  # fmt: skip
    models = [c.model for c in cases("node") if c.name in names]
    from .onnx_models import small_classifier

    models.append(small_classifier())
    if target == "onnx":
        return [m.SerializeToString() for m in models]
    from xpuruntime.frontends.onnx import load_onnx

    graphs = [load_onnx(m) for m in models]
    return [(str(g) if target == "ir-text" else json.dumps(g.to_json())).encode() for g in graphs]


# ── models, field by field ──


def mutate_onnx(data: bytes, seed: int) -> bytes:
    """Return a model with a few fields changed, removed, duplicated or copied from elsewhere in it. Data that is no model stays unchanged."""
    import onnx

    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:  # DecodeError, whose class depends on the installed protobuf implementation
        return data
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 4)):
        with contextlib.suppress(ValueError):  # the number does not fit the field's type
            _change(model, draw)
    serialized: bytes = model.SerializeToString()
    return serialized


def _change(message: Any, draw: random.Random) -> None:
    """Walk down to a random field and change it."""
    for _ in range(12):
        fields = message.ListFields()
        if not fields:
            return
        descriptor, value = draw.choice(fields)
        is_repeated = not isinstance(value, int | float | str | bytes) and hasattr(value, "append")
        if is_repeated and draw.random() < 0.25:
            _change_list(value, draw)
            return
        inner = value[draw.randrange(len(value))] if is_repeated and len(value) else value
        if hasattr(inner, "ListFields"):
            message = inner
            continue
        if is_repeated:
            value[draw.randrange(len(value))] = _other(inner, draw)
        else:
            setattr(message, descriptor.name, _other(inner, draw))
        return


def _change_list(items: Any, draw: random.Random) -> None:
    at = draw.randrange(len(items)) if len(items) else 0
    kind = draw.randrange(3)
    if kind == 0 and len(items):
        del items[at]
    elif kind == 1 and len(items):
        items.append(items[at])
    elif len(items):
        items.append(items[at]) if not hasattr(items[at], "CopyFrom") else items.add().CopyFrom(items[at])


_NUMBERS = (0, 1, -1, 2, 3, 7, 13, 16, 64, 127, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**63), 2**63 - 1)


def _other(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        number = draw.choice(_NUMBERS) if draw.random() < 0.6 else value + draw.randint(-3, 3)
        return number if -(2**31) <= number < 2**31 or abs(value) > 2**31 or draw.random() < 0.3 else 1
    if isinstance(value, float):
        return draw.choice((0.0, -1.0, 1e30, -1e-30, float("nan"), float("inf"), 0.5))
    if isinstance(value, str):
        return draw.choice(
            ("", value[::-1], value + "x", "x", "Loop", "If", "Add", "ai.onnx", "NOTSET", "a/b\0", "...")
        )
    spot = draw.randrange(len(value) + 1)
    return draw.choice(
        (b"", value[:spot], value + b"\xff", value[:spot] + bytes([draw.randrange(256)]) + value[spot + 1 :])
    )


MUTATORS: Mapping[str, Callable[[bytes, int], bytes]] = MappingProxyType(
    {"onnx": mutate_onnx, "program": mutate_program, **FILE_MUTATORS}
)
"""Target -> function from bytes and a seed to mutated bytes, for structured files."""
