"""Texts of other tools: what is carried, round trips, errors with line and column, and drawn texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime import ExecutionPolicy, KernelPolicy, Rule, load_policy
from xpuruntime.errors import PolicyError
from xpuruntime.policies.policy import Policy
from xpuruntime.workbench.interchange import FORMATS, Conversion, ItemOutcome, parse_foreign, write_foreign
from xpuruntime.workbench.interchange.source_text import SourceText

TEXTS = {name: form for name, form in FORMATS.items() if form.read is not None}


def read(name: str, text: str) -> Conversion:
    reader = parse_foreign(name).read
    assert reader is not None
    return reader(SourceText("f.txt", text))


def outcomes(result: Conversion) -> list[str]:
    return [i.outcome.value for i in result.items]


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        (".*=CPU", "cpu", ["carried"]),
        ("-ot '.*=CUDA1,exps=CPU'\n", "cuda:1", ["carried", "not carried"]),
        (r"blk\.\d+\.ffn_.*_exps=CPU", None, ["not carried"]),
        ("exps=CPU\n.*=CUDA0", None, ["not carried", "not carried"]),
        (".*=Vulkan0", None, ["not carried"]),
        ("", None, []),
    ],
)
def test_overrides(text: str, target: str | None, expected: list[str]) -> None:
    result = read("llama-ot", text)
    assert (result.policy.execution.target, outcomes(result)) == (target, expected)
    assert result.policy.kernel == KernelPolicy()


def test_positions_of_overrides() -> None:
    items = read("llama-ot", "\n  -ot a=CPU,bc=CUDA0\n--override-tensor=d=CPU").items
    assert [(i.line, i.column, i.text) for i in items] == [
        (2, 7, "a=CPU"),
        (2, 13, "bc=CUDA0"),
        (3, 19, "d=CPU"),
    ]


@pytest.mark.parametrize("target", ["cpu", "cuda:0", "cuda:3", "metal"])
def test_a_target_comes_back_from_overrides(target: str) -> None:
    policy = Policy(execution=ExecutionPolicy(target=target))
    assert read("llama-ot", write_foreign("llama-ot", policy).text).policy == policy


@pytest.mark.parametrize(
    "text",
    [
        "--ir-op-priority.rms_norm=native",
        '--ir-op-priority \'{"rms_norm": ["native"]}\'',
        '{"rms_norm": "native"}',
        "--ir-op-priority.rms_norm native\n--ir-op-priority.fused_add_rms_norm=vllm_c, native\r\n",
    ],
)
def test_priorities(text: str) -> None:
    result = read("vllm-ir", text)
    assert result.policy == Policy(kernel=KernelPolicy(norm="generated"))
    assert set(outcomes(result)) == {"changed"}
    again = read("vllm-ir", write_foreign("vllm-ir", result.policy).text)
    assert again.policy == result.policy


def test_priorities_that_are_lost() -> None:
    result = read("vllm-ir", "--ir-op-priority.rms_norm=aiter\n--ir-op-priority.moe=native\n")
    assert result.policy == Policy()
    assert "register_kernel" in result.items[0].remedy
    assert "Known: rms_norm" in result.items[1].remedy


CSV = """Validator,PT_VERSION,2.13.0
GemmTunableOp_float_TN,tn_4096_2_1024_ld_1024_1024_4096,Default,0.5
GemmStridedBatchedTunableOp_Half_NN,nn_64_32_16_B_12_ld_64_16_64,Default
GemmTunableOp_float_TN,tn_4096_2_1024_ld_1024_1024_4096,Gemm_Rocblas_3,0.4
GemmTunableOp_tf32_NT,nt_8_8_8_ld_8_8_8,Default,1
ScaledGemmTunableOp_Float8_e4m3fn_TN,tn_16_16_16_ld_16_16_16_rw_0_bias_None,Default,1
"""


def test_results() -> None:
    result = read("tunableop", CSV)
    assert Counter(outcomes(result)) == {"not carried": 4, "changed": 2}
    first, second = result.policy.kernel.rules
    assert first.shape == shape("M == 2 and N == 4096 and K == 1024 and batch == 1")
    assert (first.op, first.dtype, first.prefer) == (("matmul",), ("float32",), ("cublas",))
    assert second.shape == shape("M == 32 and N == 64 and K == 16 and batch == 12")
    assert second.dtype == ("float16",)
    assert "xpu lock" in result.items[0].remedy
    assert "first line of a key" in result.items[3].reason
    assert load_policy(result.policy.to_dict()) == result.policy
    written = write_foreign("tunableop", result.policy)
    assert not written.lost
    assert written.text.splitlines()[1:] == [",".join(line.split(",")[:3]) for line in CSV.splitlines()[1:3]]
    assert read("tunableop", written.text).policy == result.policy


def shape(text: str) -> str | None:
    """Return the normal form of a condition."""
    return Rule(op="matmul", shape=text, prefer="cublas").shape


def test_a_rule_matches_the_product_that_was_tuned(tmp_path: Path) -> None:
    """BLAS is column-major: tn_6_2_4 is a linear layer of 2 rows, 4 inputs and 6 outputs."""
    from xpuruntime import ir
    from xpuruntime.workbench.review.policy_review import review_policy

    b = ir.GraphBuilder("g")
    x = b.input("x", "float32[2, 4]")
    b.output("y", b.linear(x, b.weight("w", "float32[6, 4]"), name="tuned"))
    b.output("z", b.linear(b.input("u", "float32[6, 4]"), b.weight("v", "float32[2, 4]"), name="other"))
    ir.save(b.build(), tmp_path / "g.json")
    policy = read("tunableop", "GemmTunableOp_float_TN,tn_6_2_4_ld_4_4_6,Default").policy
    policy.save(tmp_path / "p.yaml")
    (rule,) = review_policy(str(tmp_path / "p.yaml"), str(tmp_path / "g.json"), target="cpu").rules
    assert rule.matches == ("tuned",)


def test_an_amd_file_has_no_cublas() -> None:
    result = read("tunableop", f"Validator,ROCM_VERSION,6.0\n{CSV}")
    assert not result.policy.kernel.rules
    assert "no AMD kernels" in result.items[2].reason


def test_a_rule_that_was_changed_is_not_written() -> None:
    (rule, _) = read("tunableop", CSV).policy.kernel.rules
    edited = Rule(op="matmul", dtype="float32", shape="M == 3", prefer="cublas", reason=rule.reason)
    written = write_foreign("tunableop", Policy(kernel=KernelPolicy(rules=[edited])))
    assert outcomes(written) == ["not carried"]
    assert written.text == ""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("llama-ot", ".*=CPU\nblk", "f.txt:2:1] has no '='; got 'blk'. Write PATTERN=BUFFER_TYPE."),
        ("llama-ot", "a=CPU,b(=CPU", "f.txt:1:7] is no regular expression"),
        ("vllm-ir", "\nrms_norm=native", "f.txt:2:1] is no priority of an op"),
        ("vllm-ir", '{"rms_norm": [}', "f.txt:1:15] is not JSON"),
        ("vllm-ir", '{"rms_norm": 3}', "f.txt:1:2] must be a list of providers"),
        ("vllm-ir", '{"a": "x", "a": "y"}', "] duplicate op"),
        ("vllm-ir", "--ir-op-priority.rms_norm=a;b", "f.txt:1:18] must be a provider's name; got 'a;b'"),
        ("tunableop", "Validator,PT_VERSION,2\nGemm,x\n", "f.txt:2:7] has fewer than three fields"),
        ("tunableop", "A,b,c,soon", "f.txt:1:7] must be a time in milliseconds; got 'soon'"),
        ("onnxruntime-layers", "cpu(a);\n gpu b", "f.txt:2:2] has no '(' and ')' in this order; got 'gpu b'"),
        ("onnxruntime-layers", "cpu(a, =a,\n a)", "f.txt:2:2] duplicate pattern; got 'a'"),
        ("onnxruntime-layers", "(a)", "f.txt:1:1] names no device before '('"),
        ("onnxruntime-layers", "session.name_based_layer_assignment=cpu(=a)", "f.txt:1:41] has '='"),
    ],
)
def test_errors_name_line_and_column(name: str, text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(name, text)
    assert message in str(caught.value)


def test_unknown_formats_and_formats_that_are_only_read() -> None:
    with pytest.raises(PolicyError, match="Did you mean 'vllm-ir'"):
        parse_foreign("vllm_ir")
    with pytest.raises(PolicyError, match="is only read"):
        write_foreign("hf-kernels", Policy())


@pytest.mark.parametrize("name", TEXTS)
def test_every_demand_of_a_policy_is_reported(name: str) -> None:
    """A demand is an item of the report, so that none is lost without a word."""
    kernels = KernelPolicy(softmax="generated", norm="generated", rules=[Rule(op="conv", forbid="naive")])
    execution = ExecutionPolicy(target="cpu", precision="float32", place={"*head*": "native"})
    result = write_foreign(name, Policy(kernel=kernels, execution=execution))
    texts = " ".join(i.text for i in result.items)
    fields = ["kernel.softmax", "kernel.norm", "kernel.rules", "execution.precision", "execution.place"]
    assert [f for f in fields if f not in texts] == []
    assert len(result.lost) >= 4


_PIECES = st.sampled_from(
    [
        *"=,;()[]{}\"'\n\r\t \\.*", "CPU", "CUDA0", "cpu", "native", "rms_norm", "--ir-op-priority.", "-ot ",
        "Validator,PT_VERSION,2", "GemmTunableOp_float_TN", "tn_1_2_3_ld_1_2_3", "Default", "é", "session.layer_assignment_settings",
    ]
)  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
@given(pieces=st.lists(_PIECES | st.text(max_size=5), max_size=12))
def test_a_drawn_text_is_converted_or_an_error_with_its_place(name: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    try:
        result = read(name, text)
    except PolicyError as error:
        place = error.who.removeprefix("f.txt:").split(":")
        line, column = map(int, place)
        rows = text.split("\n")
        assert 1 <= line <= len(rows)
        assert 1 <= column <= len(rows[line - 1]) + 1
        return
    assert load_policy(result.policy.to_dict()) == result.policy
    for item in result.items:
        rows = text.split("\n")
        assert 1 <= item.line <= len(rows)
        assert 1 <= item.column <= len(rows[item.line - 1]) + 1
        assert item.reason or item.outcome is ItemOutcome.CARRIED


@given(
    m=st.integers(1, 9999),
    n=st.integers(1, 9999),
    k=st.integers(1, 9999),
    kind=st.sampled_from(["float", "double", "Half", "BFloat16"]),
)
def test_drawn_results_come_back(m: int, n: int, k: int, kind: str) -> None:
    line = f"GemmTunableOp_{kind}_NT,nt_{m}_{n}_{k}_ld_{m}_{n}_{m},Default\n"
    policy = read("tunableop", line).policy
    assert write_foreign("tunableop", policy).text.endswith(line)
