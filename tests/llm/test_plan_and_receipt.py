"""Plan and receipt of a Generator: phases of a policy, kernels, evidence; programs that the store keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.errors import BuildError, KernelUnavailable, PolicyError
from xpuruntime.llm import DecoderConfig, Generator
from xpuruntime.llm.build import build_program, decoder_graphs
from xpuruntime.policies import NodeFacts, Rule
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.program.plan import Plan
from xpuruntime.storage.store import Store, digest
from xpuruntime.storage.tensor_files import write_safetensors

CONFIG = {
    "model_type": "qwen2", "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 96, "rope_theta": 1e4, "tie_word_embeddings": True,
    "torch_dtype": "float32", "hidden_act": "silu",
}  # fmt: skip
SAMPLED = {"temperature": 0.9, "top_k": 12, "seed": 5}


def write_checkpoint(folder: Path, **changes: Any) -> Path:
    """Write a small seeded checkpoint without a tokenizer."""
    folder.mkdir(exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes = DecoderConfig.from_json(config).shapes()
    arrays = {n: rng.standard_normal(s, np.float32) * np.float32(0.3) for n, s in shapes.items()}
    write_safetensors(arrays, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "small")


def opened(folder: Path, **words: Any) -> Generator:
    return Generator(folder, buckets=(8, 16), **words)


def kernels(model: Generator, region: str) -> set[str]:
    """Kernels of attention of a region by the plan."""
    return {
        k for n in model.plan.nodes if n.region == region for k in n.kernel.split(" + ") if "attention" in k
    }


def test_a_plan_has_a_region_for_each_entry_point_and_reasons(folder: Path) -> None:
    with opened(folder) as ours:
        plan = ours.plan
        assert [r.id for r in plan.regions] == ["decode", "prefill_8", "prefill_16"]
        ours.generate([1, 2, 3], max_new_tokens=3, **SAMPLED)
        plan = ours.plan
        assert [r.id for r in plan.regions][-1] == "sample"
        assert all(n.name.startswith(f"{n.region}/") and n.kernel for n in plan.nodes)
        text = plan.explain()
        assert "engine for small: native on cpu" in text
        assert "precision for small: float32 (default: the checkpoint's own)" in text
        gemv = [
            d for d in plan.decisions if d.question == "kernel matmul" and d.subject.startswith("prefill_")
        ]
        assert any("at most 4 rows are supported" in c.reason for d in gemv for c in d.rejected)
        assert any(d.subject.startswith("sample: ") for d in plan.decisions if d.question == "kernel search")
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("phase", "changed"),
    [
        ("prefill", {"prefill_8", "prefill_16"}),
        ("decode", {"decode", "sample"}),
        ("sample", {"sample"}),
        ("inference", {"prefill_8", "prefill_16", "decode", "sample"}),
        ("train_forward", set()),
    ],
)
def test_rules_hold_in_their_phase_alone(folder: Path, phase: str, changed: set[str]) -> None:
    rule = {"op": "attention", "phase": phase, "use": "naive"}
    policy = {"version": 1, "kernel": {"rules": [rule]}}
    with opened(folder) as plain, opened(folder, policy=policy) as ruled:
        for model in (plain, ruled):
            model.steps.executor("sample")
        assert not any("attention/naive" in kernels(plain, r.id) for r in plain.plan.regions)
        assert {r.id for r in ruled.plan.regions if kernels(ruled, r.id) == {"attention/naive"}} == changed
        want, got = (m.generate([5, 6, 7, 8], max_new_tokens=6, **SAMPLED).tokens for m in (plain, ruled))
        assert want == got
        assert "kernel_policy" in ruled.plan.to_json()["request"]


def test_phases_include_others() -> None:
    facts = NodeFacts(node="n", family="matmul", phase="sample")
    assert Rule(phase="decode", forbid="naive").matches(facts)
    assert Rule(phase="inference", forbid="naive").matches(facts)
    assert not Rule(phase="prefill", forbid="naive").matches(facts)
    decode = NodeFacts(node="n", family="matmul", phase="decode")
    assert not Rule(phase="sample", forbid="naive").matches(decode)


def test_a_rule_that_cannot_be_met_is_an_error_with_its_phase(folder: Path) -> None:
    rule = {"op": "matmul", "phase": "prefill", "use": "cublasLt"}
    with pytest.raises(KernelUnavailable, match="cublasLt"):
        opened(folder, policy={"version": 1, "kernel": {"rules": [rule]}})
    rule["phase"] = "decoding"
    with pytest.raises(PolicyError, match="decoding"):
        opened(folder, policy={"version": 1, "kernel": {"rules": [rule]}})


def test_a_receipt_confirms_what_each_phase_called(folder: Path) -> None:
    with opened(folder) as ours:
        ours.generate(list(range(1, 20)), max_new_tokens=4)
        ours.generate([1, 2], max_new_tokens=6, **SAMPLED)
        cache = ours.states["keys.0"].to_numpy()
        receipt = ours.receipt()
        assert np.array_equal(cache, ours.states["keys.0"].to_numpy())  # measuring changes no state
        assert receipt.confirmed, receipt.text()
        assert receipt.coverage == 1
        runs = {r: int(e.options["runs"]) for r, e in receipt.evidence.items()}
        assert runs == {"decode": 3, "prefill_8": 1 + 1, "prefill_16": 1, "sample": 5}
        assert receipt.runs == sum(runs.values())
        for entry, evidence in receipt.evidence.items():
            executor = ours.steps.executor(entry)
            assert [r.kernel.partition(":")[0] for r in evidence.rows] == [
                c.kernel for c in executor.plan.calls
            ]
            assert all(r.time_us is not None for r in evidence.rows)
            assert all(r.code is not None and r.code.same for r in evidence.rows if r.code)
            assert evidence.options["phase"] == entry.partition("_")[0]
            assert f"{len(executor.plan.calls)} calls for" in evidence.notes[0]
        read = Receipt.from_json(json.loads(json.dumps(receipt.to_json())))
        assert read.confirmed
        assert read.plan == receipt.plan
        assert "no times" in ours.receipt(times=False).text()


# ── the store ──


def origins(model: Generator) -> dict[str, bool]:
    return {", ".join(k): o.from_store for k, o in model.programs.opened.items()}


def test_a_second_start_compiles_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder, cache_dir=tmp_path) as first:
        want = first.generate([1, 2, 3], max_new_tokens=8, **SAMPLED)
        assert origins(first) == {"decode, prefill_8, prefill_16": False, "sample": False}

    def refuse(*_: object, **__: object) -> None:
        raise BuildError("test", "made a graph")

    monkeypatch.setattr("xpuruntime.llm.programs.entry_graph", refuse)
    with opened(folder, cache_dir=tmp_path) as second:
        assert second.generate([1, 2, 3], max_new_tokens=8, **SAMPLED) == want
        assert all(origins(second).values())
        decision = second.plan.decision("program")
        assert decision is not None
        assert decision.chosen is not None
        assert decision.chosen.facts["from_store"] is True
        assert second.program.to_bytes() == first.program.to_bytes()
    for words in (
        {"capacity": 64},
        {"batch": 2},
        {"dtype": "bfloat16"},
        {"policy": {"version": 1, "kernel": {"attention": "naive"}}},
    ):
        with pytest.raises(BuildError, match="made a graph"):  # each is another program
            opened(folder, cache_dir=tmp_path, **words)


def test_a_policy_can_leave_the_store_alone(folder: Path, tmp_path: Path) -> None:
    policy = {"version": 1, "execution": {"caching": False}}
    for _ in range(2):
        with opened(folder, cache_dir=tmp_path, policy=policy) as ours:
            assert not any(origins(ours).values())
            assert "the policy forbids the store" in ours.plan.explain()
    assert not list(tmp_path.iterdir())


def test_a_program_that_this_machine_cannot_run_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    with opened(folder, cache_dir=tmp_path) as first:
        (entries,) = first.programs.opened
        ingredients = first.programs._ingredients(entries)
        want = first.generate([1, 2, 3], max_new_tokens=4)
        graphs = decoder_graphs(first.config, capacity=96, buckets=(8, 16), name="small")
    other = build_program(graphs, target="cuda:sm_90")
    Store(tmp_path).put("artifact", ingredients, other.to_bytes())
    with opened(folder, cache_dir=tmp_path) as second:
        assert second.generate([1, 2, 3], max_new_tokens=4) == want
        assert not any(origins(second).values())
    with opened(folder, cache_dir=tmp_path) as third:
        assert all(origins(third).values())


def test_a_damaged_program_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    with opened(folder, cache_dir=tmp_path) as first:
        (entries,) = first.programs.opened
        path = Store(tmp_path).path("artifact", digest(first.programs._ingredients(entries)))
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with opened(folder, cache_dir=tmp_path) as second:
        assert not any(origins(second).values())
    with opened(folder, cache_dir=tmp_path) as third:
        assert all(origins(third).values())


# ── the command ──


def test_the_command_explains_and_writes_receipts(folder: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    told = ["generate", str(folder), "--capacity", "64"]
    done = run(app, [*told, "--explain", "--temperature", "0.5", "--json"])
    assert done.exit_code == 0, done.output
    plan = Plan.from_json(json.loads(done.stdout)["plan"])
    assert [r.id for r in plan.regions] == ["decode", "prefill_16", "prefill_64", "sample"]
    assert "kernel matmul for decode" in run(app, [*told, "--explain"]).stdout
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nkernel:\n  rules:\n    - {op: attention, phase: decode, use: naive}\n")
    done = run(app, [*told, "--explain", "--policy", str(policy)])
    assert "naive (forced" in done.stdout
    lacking = run(app, told)
    assert lacking.exit_code != 0
    assert "no prompt is given" in lacking.stderr
