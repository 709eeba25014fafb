"""The published schema: current, valid itself, and in agreement with the reader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpuruntime.families import FAMILIES
from xpuruntime.policies.fields.record import Problem
from xpuruntime.policies.files.document import parse_json, parse_yaml
from xpuruntime.policies.names import check_names
from xpuruntime.policies.policy import from_document
from xpuruntime.policies.schema import policy_schema
from xpuruntime.policies.vocabulary import KERNELS, PHASES
from xpuruntime.targets import DEVICE_KINDS

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "schema" / "policy.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(policy_schema())


def test_the_committed_schema_is_current():
    made = subprocess.run(
        [sys.executable, "-m", "xpuruntime.policies.schema"], check=True, capture_output=True, text=True
    )
    assert COMMITTED.read_text() == made.stdout, (
        "run: python -m xpuruntime.policies.schema > docs/schema/policy.schema.json"
    )


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(policy_schema())


def _examples():
    """Every policy that docs, examples and the package ship: files, and yaml or json blocks with a version."""
    folders = [ROOT / "docs", ROOT / "examples", ROOT / "src" / "xpuruntime" / "policies" / "builtin"]
    for path in (p for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()):
        if path.suffix in (".yaml", ".yml") and "version:" in path.read_text():
            yield str(path.relative_to(ROOT)), parse_yaml(path.read_text())[0]
        elif path.suffix == ".md":
            for i, block in enumerate(
                re.findall(r"^```(ya?ml|json)\n(.*?)^```", path.read_text(), re.M | re.S)
            ):
                data = (parse_json if block[0] == "json" else parse_yaml)(block[1])[0]
                if isinstance(data, dict) and {"kernel", "execution"} & data.keys():
                    yield f"{path.relative_to(ROOT)}[{i}]", data


EXAMPLES = dict(_examples())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_shipped_example_is_valid(name):
    VALIDATOR.validate(EXAMPLES[name])
    check_names(from_document(EXAMPLES[name]))


def test_there_are_examples():
    assert any(name.startswith("docs/reference/policies.md") for name in EXAMPLES)
    assert "src/xpuruntime/policies/builtin/default.yaml" in EXAMPLES


# What the reader refuses and a schema cannot say (or, for names, does not know).
BEYOND_THE_SCHEMA = re.compile(
    r"comparison|not a condition|is not an integer, a dim|at most 300 char|too many parts|no such dim|not a regular expression"
    r"|which the same rule names|which computes weights|have such weights|is listed twice|is there already|is another spelling of|no such engine|no such kernel|does not implement this kernel|one line of text|bytes, such as"
)

_odd = (
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.just(1.5)
    | st.just("")
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
)


def _one_or_some(values):
    return values | st.lists(values, min_size=0, max_size=3)


def _mostly(strategy):
    return st.integers(0, 40).flatmap(lambda n: _odd if n == 0 else strategy)


_all_kernels = sorted({k for names in KERNELS.values() for k in names})
_kernel = st.sampled_from([*_all_kernels, "mylib.gemm", "a.b.c", "cublaslt", "auto", "no name", "x."])
_families = st.sampled_from([*FAMILIES, "matmull"])
_shape = st.sampled_from(["M <= 16", "rank == 4", "M", "elements % 8 == 0 and batch > 1", "no such", "1 < 2"])
_size = st.integers(0, 2**54) | st.sampled_from(
    ["32 MiB", "1.5GB", "12", "1TB", "1 KiB ", "2 tib", "99999999999 TiB"]
)
_phase = st.sampled_from([*PHASES, "train"])
_dtype = st.sampled_from(["float32", "fp16", "bf16", "f64", "int8", "float", "f4", "string", "half "])
_engine = st.sampled_from(
    ["native", "onnxrt", "onnxruntime", "openvino", "auto", "theirs", "open vino", "x" * 64, "x" * 65]
)
_weights = st.sampled_from(["model", "int8", "fp8", "int4", "int4_64", "stored", "int3"])
_activations = st.sampled_from(["model", "int8", "int8", "int4"])
_device = st.sampled_from([*DEVICE_KINDS, "cuda:1", "cuda:0", "gpu:12345", "CPU", "cpu:", " cpu"])
_name = st.text(min_size=0, max_size=6) | st.sampled_from(["x", "input ids", "/m/*"])


def _some(**fields):
    return st.fixed_dictionaries({}, optional={k: _mostly(v) for k, v in fields.items()})


_rule = _some(
    op=_one_or_some(_families),
    node=_one_or_some(_name | st.sampled_from(["re:a+", "re:("])),
    dtype=_one_or_some(_dtype),
    shape=_shape,
    phase=_one_or_some(_phase),
    use=_kernel,
    prefer=_one_or_some(_kernel),
    forbid=_one_or_some(_kernel),
    workspace_bytes=_size,
    weights=_weights,
    activations=_activations,
    reason=_name,
    usee=_kernel,
)
_layer_fields = {
    "matmul": _one_or_some(_kernel),
    "conv": _one_or_some(_kernel),
    "attention": _one_or_some(_kernel),
    "control": _kernel,
    "weights": _weights,
    "activations": _activations,
    "rules": st.lists(_mostly(_rule), max_size=2),
}
_kernel_policy = _some(**_layer_fields, under=st.lists(_some(**_layer_fields), max_size=2))
_extent = st.integers(-1, 9) | st.sampled_from([2.0, 2.5, 2**40, 2**40 + 1, True])
_option = (
    st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | _name | st.booleans()
)
_seconds = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1, 2 * 10**6)
_execution_policy = _some(
    target=_device,
    engine=_engine,
    precision=_dtype | st.just("model"),
    static_shape=st.booleans(),
    fixed_shapes=st.dictionaries(
        _name, st.lists(_extent, max_size=4) | st.lists(st.just(1), min_size=17, max_size=17), max_size=2
    ),
    allow_fallback=_one_or_some(_device),
    optimization_level=st.integers(-1, 4) | st.just(2.0),
    caching=st.booleans(),
    compile_timeout_s=_seconds,
    run_timeout_s=_seconds,
    engine_options=st.dictionaries(_engine, _mostly(st.dictionaries(_name, _option, max_size=2)), max_size=2),
    engine_order=st.dictionaries(st.sampled_from([*DEVICE_KINDS, "tpu"]), _one_or_some(_engine), max_size=2),
    place=st.dictionaries(_name, _engine, max_size=2),
    autocast=st.dictionaries(
        st.sampled_from(["matmul", "batch_norm", "norms"]),
        st.sampled_from(["low", "own", "half", True]),
        max_size=2,
    ),
    self_check=st.sampled_from(["first_open", "always", "off", "never", False]),
    transfers=st.dictionaries(
        st.sampled_from(["h2d", "d2h", "sync", "p2p"]),
        st.sampled_from(["any", "io_only", "none", True]),
        max_size=3,
    ),
    tune=st.sampled_from(["on_build", "on_run"])
    | st.dictionaries(st.sampled_from(["on_build", "on_run"]), _seconds, max_size=2),
    strict=st.booleans(),
    threads=st.integers(),
)
_parts = {"kernel": _mostly(_kernel_policy), "execution": _mostly(_execution_policy)}
_version = st.sampled_from([1.0, 2, True, "1", None])
_document = st.integers(0, 9).flatmap(
    lambda n: st.fixed_dictionaries({"version": st.just(1) if n else _version}, optional=_parts)
) | st.fixed_dictionaries({}, optional={"version": st.just(1), "kernal": st.just({}), "kernel": st.just({})})


def _problem(data):
    try:
        check_names(from_document(data))
    except Problem as problem:
        return problem
    return None


@settings(max_examples=800 if os.environ["XPU_TEST_SEED"] == "all" else 250)
@given(_document)
def test_reader_and_schema_agree(data):
    problem = _problem(data)
    errors = [e.message for e in VALIDATOR.iter_errors(data)]
    if problem is None:
        assert not errors, (data, errors)
    elif not BEYOND_THE_SCHEMA.search(problem.what):
        assert errors, (data, problem.path, problem.what)


def test_the_agreement_test_sees_both_kinds():
    """The documents above are neither all right nor all wrong."""
    good = {"version": 1, "kernel": {"matmul": "cublas"}, "execution": {"engine": "onnxrt"}}
    bad = {"version": 1, "kernel": {"rules": [{"op": "conv"}]}}
    assert _problem(good) is None
    assert VALIDATOR.is_valid(good)
    assert _problem(bad) is not None
    assert not VALIDATOR.is_valid(bad)
    assert json.loads(COMMITTED.read_text())["required"] == ["version"]
