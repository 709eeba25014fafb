"""Optional abilities of engines, executables, kernels and backends are protocols (`protocols.py`), not attributes that someone tries.

mypy cannot check `getattr(executable, "run_tensors", None)`, and a porter does not find it. So the packages that handle engines, executables and
kernels may try attributes only of the objects in ``ALLOWED``. None of those is an engine, an executable, a kernel or a backend.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpuruntime import protocols
from xpuruntime.engines import lookup

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"
PACKAGES = ("inference", "engines", "runtime", "workbench", "llm", "kernels", "compiler")
TRIES = {"getattr", "hasattr", "setattr", "delattr", "callable", "vars"}
"""Builtins that try or reach an attribute by its name."""
BY_NAME = {"getattr_static", "attrgetter", "methodcaller"}
"""The same in `inspect` and `operator`."""

# File -> the objects whose attributes it tries, as the source writes them.
TENSORS = {  # tensors of other libraries, by DLPack, and the modules of those libraries
    "inference/execution/inputs.py": {
        "value", "module", "getattr(module, 'numpy', None)", "torch", "sys.modules['torch']",
    },
    "inference/native/tensors.py": {"module"},
    "engines/device_tensors.py": {"module", "tensor"},
    "inference/ops/calls.py": {"out"},
    "inference/ops/foreign_tensors.py": {"tensor", "module", "holder", "first", "operand"},
    "inference/ops/prepare.py": {"operand"},
    "inference/session.py": {"inputs"},
    "runtime/execution/arguments.py": {"value"},
    "runtime/backends/cuda.py": {"tensor", "torch._C"},
    "runtime/memory/buffer.py": {"value"},
    "runtime/memory/tensor_kinds.py": {"torch"},
    "runtime/execution/host_kernels.py": {"_torch()"},
}  # fmt: skip
MODELS = {  # the user's PyTorch module or checkpoint, a Triton function
    "inference/models/modules.py": {"model", "torch"},
    "inference/self_check/eager_code.py": {"base", "base()", "cls", "held", "module", "part", "thing", "value"},
    "inference/self_check/references.py": {"module", "part"},
    "inference/session.py": {"model"},
    "kernels/user/triton.py": {"function", "meta"},
    "llm/decoding/words.py": {"config", "getattr(config, 'to_dict', None)"},
    "llm/checkpoint/reader.py": {
        "module", "source", "inner", "getattr(inner, 'rotary_emb', None)",
    },
}  # fmt: skip
VENDORS = {  # objects of a vendor's package, where its versions differ
    "engines/onnxruntime/options.py": {"vendor.GraphOptimizationLevel", "vendor.ExecutionMode"},
    "engines/onnxruntime/providers.py": {"onnxruntime"},
    "engines/onnxruntime/run.py": {"session", "session_options", "binding"},
    "engines/openvino/build.py": {"blob"},
    "engines/openvino/devices.py": {"openvino"},
    "engines/openvino/evidence.py": {"value"},
    "engines/tensorrt/api.py": {"self.module", "getattr(self.module, enum)", "config"},
    "inference/like_onnxruntime.py": {"options", "getattr(options, 'graph_optimization_level', None)"},
}
FIELDS = {  # fields of a record by their names, arguments, exceptions, the operating system
    "compiler/partition/partitioner.py": {"demands"},
    "compiler/pipeline.py": {"t.config"},
    "engines/onnxruntime/build.py": {"os"},
    "engines/openvino/build.py": {"os"},
    "inference/ops/calls.py": {"counts"},
    "inference/ops/policy_scope.py": {"type(policy)"},
    "inference/partitioned/dag_policy.py": {"demands.policy.execution", "compiled.execution"},
    "inference/partitioned/region_runners.py": {"evidence"},
    "kernels/user/triton.py": {"error", "getattr(error, 'node', None)"},
    "llm/programs.py": {"value"},
    "llm/sampling.py": {"self"},
    "runtime/backends/cpu.py": {"statistics"},
    "runtime/backends/cuda.py": {"statistics", "counters"},
    "runtime/streams/cuda_queue.py": {"self"},
    "runtime/execution/executor.py": {"counters"},
    "workbench/doctor.py": {"self", "error"},
    "workbench/engine_sessions.py": {"error"},
    "workbench/session_options.py": {"self"},
}
ALLOWED: dict[str, set[str]] = {}
for table in (TENSORS, MODELS, VENDORS, FIELDS):
    for file, objects in table.items():
        ALLOWED[file] = ALLOWED.get(file, set()) | objects

FORBIDDEN = re.compile(r"\b_?(engine|executable|kernel|backend|executor|plugin)s?\b")
"""An object that no row may allow, whatever the file."""


def tried(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each attempt at an attribute, and the object."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in TRIES:
            yield node.lineno, ast.unparse(node.args[0]) if node.args else ""
        elif isinstance(function, ast.Name | ast.Attribute):
            name = function.id if isinstance(function, ast.Name) else function.attr
            if name in BY_NAME:
                yield node.lineno, ast.unparse(node)


def faults(file: str, text: str) -> list[str]:
    """Return the attempts in a file that no row allows."""
    return [
        f"{file}:{line} tries an attribute of {what}: declare a protocol in protocols.py, or add a row"
        for line, what in tried(text)
        if what not in ALLOWED.get(file, set())
    ]


def texts() -> dict[str, str]:
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((SOURCE / package).rglob("*.py"))
    }


def test_no_attribute_of_an_engine_an_executable_or_a_kernel_is_tried() -> None:
    assert [fault for file, text in texts().items() for fault in faults(file, text)] == []


def test_no_row_is_left_over_and_none_allows_an_engine() -> None:
    found = {file: {what for _, what in tried(text)} for file, text in texts().items()}
    assert {f: left for f, rows in ALLOWED.items() if (left := rows - found.get(f, set()))} == {}
    assert [row for rows in ALLOWED.values() for row in rows if FORBIDDEN.search(row)] == []


@pytest.mark.parametrize(
    ("file", "line", "what"),
    [
        ("inference/session.py", "f = getattr(self._executable, 'run_tensors', None)", "self._executable"),
        ("inference/session.py", "ok = hasattr(executable, 'fallbacks')", "executable"),
        ("inference/selection/candidate.py", "if hasattr(engine, 'stoppable_load'): pass", "engine"),
        ("compiler/chooser.py", "getattr(kernel, 'tuned', False)", "kernel"),
        ("runtime/executor.py", "callable(self.backend.observe)", "self.backend.observe"),
        ("workbench/bench.py", "vars(session._executable)", "session._executable"),
        (
            "llm/generate.py",
            "inspect.getattr_static(engine, 'load')",
            "inspect.getattr_static(engine, 'load')",
        ),
        (
            "kernels/catalogue.py",
            "list(map(operator.attrgetter('name'), kernels))",
            "operator.attrgetter('name')",
        ),
    ],
)
def test_a_planted_attempt_is_found(file: str, line: str, what: str) -> None:
    assert [what for _, what in tried(line)] == [what]
    assert len(faults(file, line)) == 1
    assert f"{file}:1 tries an attribute of {what}" in faults(file, line)[0]


def abilities() -> dict[str, type]:
    """Return the protocols of `protocols.py` that `isinstance` can check, without the base classes of drivers."""
    return {
        name: value
        for name, value in vars(protocols).items()
        if inspect.isclass(value)
        and getattr(value, "_is_runtime_protocol", False)
        and name not in ("Backend", "DispatchStrategy")
        and value.__module__ == protocols.__name__
    }


def test_every_ability_is_checked_somewhere_and_is_public_in_its_file() -> None:
    """One that nothing checks would be a promise to porters that nobody keeps."""
    checked = {
        ast.unparse(node.args[1])
        for path in SOURCE.rglob("*.py")
        if "isinstance" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    }
    assert set(abilities()) - checked == set()
    assert set(abilities()) <= set(protocols.__all__)


def test_the_page_about_engines_lists_every_ability_with_its_methods() -> None:
    page = (SOURCE.parents[1] / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
    section = page.partition("### Optional abilities\n")[2].partition("\n#")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", section, re.MULTILINE))
    assert {name: set(re.findall(r"`(\w+)`", methods)) for name, methods in listed.items()} == {
        name: {m for m in vars(value) if not m.startswith("_")} for name, value in abilities().items()
    }


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("onnxruntime", {"HasKernelOptions", "StoppableLoad"}),
        ("openvino", {"HasKernelOptions"}),
        ("tensorrt", {"HasKernelOptions"}),
        ("qnn", set()),
        ("native", set()),
    ],
)
def test_engines_have_these_abilities(name: str, able: set[str]) -> None:
    """A function that is renamed in an engine, or in the protocol alone, would take the ability away in silence."""
    if name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
    engine = lookup(name).load()
    assert {n for n in ("HasKernelOptions", "StoppableLoad") if isinstance(engine, abilities()[n])} == able
