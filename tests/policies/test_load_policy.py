"""Reading and writing policy files: both formats, every refusal with file, line and key, and no way to crash."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import PolicyError, StoreError
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, Policy, Rule, load_policy, read_policy
from xpuruntime.policies.fields.record import Problem
from xpuruntime.policies.files import document

BOTH = Policy(
    kernel=KernelPolicy(matmul="cublasLt", rules=[Rule(op="matmul", shape="M <= 16", use="gemv")]),
    execution=ExecutionPolicy(engine="onnxruntime", precision="float16"),
)
YAML = """\
# what we ship
version: 1
kernel:
  matmul: cublasLt
  rules:
    - {op: matmul, shape: "M <= 16", use: gemv}
execution:
  engine: onnxrt
  precision: fp16
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="p.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_whatever_a_policy_can_be(write):
    path = write(YAML)
    assert load_policy(path) == load_policy(str(path)) == BOTH
    assert load_policy(write("\ufeff" + json.dumps(BOTH.to_dict()), "p.json")) == BOTH
    assert load_policy(BOTH.to_dict()) == load_policy(BOTH) == BOTH
    assert load_policy(BOTH.kernel) == Policy(kernel=BOTH.kernel)
    assert load_policy(BOTH.execution) == Policy(execution=BOTH.execution)
    assert load_policy("auto") == load_policy(None) == load_policy({"version": 1}) == Policy()


def test_the_specification_s_save_and_load(tmp_path):
    policy = KernelPolicy(matmul="cublasLt", attention="flash_v2")
    for name in ("policy.json", "policy.yaml", "policy.yml", "POLICY.JSON"):
        policy.save(tmp_path / name)
        assert KernelPolicy.load(tmp_path / name) == policy


def test_a_part_of_a_document(write, tmp_path):
    path = write(YAML)
    assert KernelPolicy.load(path) == BOTH.kernel
    assert ExecutionPolicy.load(path) == BOTH.execution
    assert Policy.load(path) == BOTH
    assert KernelPolicy.from_dict(BOTH.to_dict()) == BOTH.kernel
    BOTH.execution.save(tmp_path / "e.yaml")
    with pytest.raises(
        PolicyError, match=r"e\.yaml:1\] has no kernel policy\. Add kernel: to the document\.$"
    ):
        KernelPolicy.load(tmp_path / "e.yaml")
    for empty in (KernelPolicy(), ExecutionPolicy(), Policy()):
        empty.save(tmp_path / "empty.yaml")
        assert type(empty).load(tmp_path / "empty.yaml") == empty


def test_rules_remember_their_file(write):
    assert load_policy(write(YAML)).kernel.origin == "p.yaml"


YAML_ERRORS = [
    ("version: 1\nkernel:\n  matmull: x\n", 3, "kernel.matmull: unknown key. Did you mean 'matmul'?"),
    ("version: 1\nkernal: {}\n", 2, "kernal: unknown key. Did you mean 'kernel'? Known keys: kernel, execution."),
    ("version: 1\nkernel:\n  matmul: cublaslt\n", 3, "kernel.matmul: no such kernel of matmul; got 'cublaslt'. Did you mean 'cublasLt'?"),
    ("version: 1\nkernel:\n  matmul: cudnn\n", 3, "kernel.matmul: no such kernel of matmul; got 'cudnn'."),
    ("version: 1\nexecution:\n  engine: openvno\n", 3, "execution.engine: no such engine; got 'openvno'. Did you mean 'openvino'?"),
    ("version: 1\nkernel:\n  rules:\n    - op: conv\n      use: cudnn\n    - op: matmul\n      prefer: [gemv, cubla]\n", 7, "kernel.rules[1].prefer: no such kernel of matmul; got 'cubla'. Did you mean 'cublas'?"),
    ("version: 1\nkernel:\n  rules:\n    - op: conv\n", 4, "kernel.rules[0]: a rule demands nothing. Add use"),
    ("version: 1\nkernel:\n  matmul:\n", 3, "kernel.matmul: has no value. Write a value, or leave the key out."),
    ("version: 1\nversion: 1\n", 2, "duplicate key 'version' (first in line 1). Remove one of the two."),
    ("version: 2\n", 1, "version: must be 1; got 2. Update xpuruntime, or save the policy again with this release."),
    ("version: true\n", 1, "version: must be 1; got True. Write version: 1."),
    ("kernel: {}\n", 1, "version: must be 1; got no version. Write version: 1."),
    ("- 1\n", 1, "must be a mapping; got [1]."),
    ("", None, "must be a mapping; got None."),
    ("version: 1\nkernel: [\n", 3, "is not YAML: expected the node content, but found '<stream end>'."),
    ("version: 1\n\tkernel: {}\n", 2, "is not YAML: found character '\\t' that cannot start any token."),
    ("a: &x 1\nb: *x\n", 1, "uses an anchor or alias. Write the value itself in each place."),
    ("version: 1\nkernel: !!python/object:os.system {}\n", 2, "uses a tag; got 'tag:yaml.org,2002:python/object:os.system'. Remove the tag."),
    ("version: 1\n? [a]\n: 1\n", 2, "has a key that is not a string."),
    ("version: 1\n---\nversion: 1\n", 2, "is not YAML: but found another document."),
    ("version: 1\nexecution: {strict: YES}\n", 2, "execution.strict: must be true or false; got 'YES'."),
    ("version: 1\nx: " + "[" * 40 + "]" * 40 + "\n", 2, "is nested more than 32 levels deep."),
    ("version: 1\nx: " + "9" * 500 + "\n", 2, "holds a number of more than 400 characters."),
]  # fmt: skip

JSON_ERRORS = [
    ('{"version": 1,\n "kernel": {\n  "matmull": "x"}}', 3, "kernel.matmull: unknown key. Did you mean 'matmul'?"),
    ('{"version": 1,\n "version": 1}', 2, "duplicate key 'version' (first in line 1). Remove one of the two."),
    ('{"version": 1,\n "kernel": {"rules": [\n  {"use": "gemv"},\n  {"use": 3}]}}', 4, "kernel.rules[1].use: must be a kernel name, such as cublasLt; got 3."),
    ('{"version": 1,}', 1, "is not JSON: expected a key in double quotes; got '}'."),
    ('{"version": 1', 1, "is not JSON: expected ',' or '}'; got the end of the file."),
    ('{"version" 1}', 1, "is not JSON: expected ':' after the key; got '1}'."),
    ('{"version": 1}\n{}', 2, "is not JSON: expected nothing after the value; got '{}'."),
    ('{"version": 01}', 1, "is not JSON: expected ',' or '}'; got '1}'."),
    ('{"version": NaN}', 1, "is not JSON: expected a value; got 'NaN}'."),
    ('{"a": "x\ny"}', 1, "is not JSON: Invalid control character at; got '\\ny\"}'."),
    ("", 1, "is not JSON: expected a value; got the end of the file."),
    ("[" * 1000, 1, "is nested more than 32 levels deep."),
    ('{"version": 1, "kernel": {"matmul": null}}', 1, "kernel.matmul: has no value."),
    ("version: 1", 1, "is not JSON: expected a value; got 'version: 1'."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "line", "says"),
    [("p.yaml", *case) for case in YAML_ERRORS] + [("p.json", *case) for case in JSON_ERRORS],
)
def test_errors_name_file_line_key_and_the_nearest_known(write, name, text, line, says):
    path = write(text, name)
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    who = f"[policy {path}] " if line is None else f"[policy {path}:{line}] "
    assert str(caught.value).startswith(who + says)
    assert caught.value.exit_code == 5
    assert caught.value.to_json()["error"] == "PolicyError"


@pytest.mark.parametrize("name", ["p.yaml", "p.json"])
def test_the_greatest_depth_is_read(write, name):
    for depth, says in (
        (document.MAX_DEPTH + 1, "must be a mapping"),
        (document.MAX_DEPTH + 2, "is nested more than 32 levels deep"),
    ):
        with pytest.raises(PolicyError, match=says):
            load_policy(write("[" * depth + "]" * depth, name))


def test_errors_about_the_file_itself(write, tmp_path):
    for path, says in [
        (tmp_path / "none.yaml", "cannot be read; got No such file or directory."),
        (write("version: 1", "p.toml"), "has an unknown suffix; got '.toml'. Name it .yaml, .yml or .json."),
        (tmp_path, "has an unknown suffix"),
        (write(b"version: 1\n# \xff\n"), ":2] is not UTF-8 text; got invalid start byte."),
        (write(" " * (document.MAX_BYTES + 1), "big.yaml"), "is too large; got more than 1048576 bytes."),
    ]:
        with pytest.raises(PolicyError) as caught:
            load_policy(path)
        assert says in str(caught.value)
    with pytest.raises(PolicyError, match="cannot be loaded from this value; got 3"):
        load_policy(3)


def test_errors_in_a_mapping_name_the_key():
    with pytest.raises(PolicyError, match=r"^\[policy\] execution\.strict: must be true or false; got 1\.$"):
        load_policy({"version": 1, "execution": {"strict": 1}})
    with pytest.raises(PolicyError, match="a key must be a string; got 3"):
        load_policy({"version": 1, "kernel": {3: "x"}})


def test_third_parties():
    """Dotted kernels pass, registered names pass where they are handed in, others do not."""
    load_policy(KernelPolicy(matmul="mylib.gemm", rules=[Rule(use="mylib.fast.any")]))
    own = Policy(
        kernel=KernelPolicy(matmul="mine"),
        execution=ExecutionPolicy(engine="theirs", engine_order={"cpu": "theirs"}),
    )
    assert load_policy(own, kernels=["mine"], engines=["theirs"]) == own
    with pytest.raises(PolicyError, match=r"kernel\.matmul: no such kernel of matmul; got 'mine'"):
        load_policy(own, engines=["theirs"])
    with pytest.raises(PolicyError, match=r"execution\.engine: no such engine; got 'theirs'"):
        load_policy(own, kernels=["mine"])


def test_findings_come_as_data(write):
    loaded = read_policy(
        write("version: 1\nkernel:\n  rules:\n    - {op: matmul, shape: M < 1 and M > 2, use: gemv}\n")
    )
    assert [(f.code, f.path) for f in loaded.findings] == [("never", ("kernel", "rules", 0, "shape"))]


def test_saving_where_it_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"x\.yaml\] cannot be written; got .*Save it to a writable folder\."
    ):
        KernelPolicy().save(tmp_path / "file" / "x.yaml")
    with pytest.raises(PolicyError, match="has an unknown suffix"):
        KernelPolicy().save(tmp_path / "x.txt")


# -- the readers against the libraries that they replace

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_json, st.sampled_from([None, 1]), st.booleans())
def test_the_json_reader_reads_what_json_reads(value, indent, ascii_only):
    read, lines = document.parse_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
    assert repr(read) == repr(value)
    assert lines[()] == 1


_plain = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=20
)
_words = st.sampled_from(["yes", "No", "on", "true", "null", "~", "", "1e5", "0o7", "1_000", ".5", "1:30", "2026-01-01", "=", "<<", "0x1F", "+1", "-", "*", "&a", "!x"])  # fmt: skip
_tree = st.recursive(
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _plain
    | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_plain | _words, inner, max_size=4),
    max_leaves=20,
)


@given(_tree)
def test_what_the_yaml_writer_writes_the_reader_reads(value):
    assert repr(document.parse_yaml(document.to_yaml_text(value))[0]) == repr(value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.sampled_from(["json", "yaml"]))
def test_any_bytes_give_a_policy_or_a_policy_error(tmp_path_factory, raw, kind):
    path = tmp_path_factory.getbasetemp() / f"fuzz.{kind}"
    path.write_bytes(raw)
    with contextlib.suppress(PolicyError):
        load_policy(path)


_yaml_bits = st.lists(
    st.sampled_from(["version", "kernel", "execution", "rules", "use", ":", " ", "\n", "- ", "{", "}", "[", "]", ",", "'", '"', "1", "&a", "*a", "!!str", "|", ">", "?", "#", "%", "\t", "~", "---", "..."]),
    max_size=30,
).map("".join)  # fmt: skip


@given(_yaml_bits)
def test_broken_texts_are_refused_not_crashed_on(text):
    for read in (document.parse_yaml, document.parse_json):
        with contextlib.suppress(Problem):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 50_000,
        "- " * 100_000,
        "'" + "a" * 900_000,
        "a: |" * 1000,
        "\x00",
        "%YAML 9.9\n---\n",
        "? " * 50_000,
    ],
)
def test_hostile_yaml_is_refused(text):
    with pytest.raises(Problem):
        document.parse_yaml(text)


HUGE = 10**5000


@pytest.mark.parametrize(
    "value",
    [
        {"version": HUGE},
        {"version": 1, "execution": {"optimization_level": HUGE}},
        {"version": 1, "execution": {"fixed_shapes": {"n": HUGE}}},
        {"version": 1, "execution": {"allow_fallback": HUGE}},
        {"version": 1, "execution": {"engine": [HUGE]}},
        {"version": 1, "kernel": {"rules": [{"op": "matmul", "workspace_bytes": HUGE}]}},
        {"version": 1, "kernel": {"matmul": {HUGE: HUGE}}},
        {HUGE: 1},
    ],
)
def test_numbers_that_have_no_text_are_policy_errors(value):
    with pytest.raises(PolicyError):
        load_policy(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)), "uses an anchor or alias"),
        ("a: &a\n  <<: *a\n", "uses an anchor or alias"),
        ("".join(" " * i + "a:\n" for i in range(1400)), "is nested more than 32 levels"),
        ("version: 1\nexecution:\n  optimization_level: " + "9" * 100_000, "a number of more than 400 characters"),
        ("a" * 1_100_000, "is too large"),
    ],
)  # fmt: skip
def test_files_that_grow_are_policy_errors(text, why, tmp_path):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(PolicyError, match=why):
        load_policy(tmp_path / "p.yaml")
