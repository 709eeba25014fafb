"""Calls per token after each fusion: counted by the null device, never more than before, and the same results from the first row to the last."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from xpuruntime.cli.app import app
from xpuruntime.ir import interp
from xpuruntime.llm import DecoderConfig, decoder_graph, open_checkpoint
from xpuruntime.llm.build import FUSIONS
from xpuruntime.llm.dispatches import dispatch_table, written_out
from xpuruntime.passes import run_passes
from xpuruntime.passes.trace import dispatches
from xpuruntime.testing.conformance.seeded.decoders import prompt, reference

LAYERS = 2


@pytest.mark.sampled(1, group="passes")
def test_each_fusion_takes_calls_away_down_to_seven_a_layer(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(reference("qwen2").config.to_dict()))
    made = CliRunner().invoke(app, ["generate", str(config), "--dispatches", "--capacity", "256", "--json"])
    assert made.exit_code == 0, made.stderr
    rows = json.loads(made.stdout)["rows"]
    counts = [r["dispatches"] for r in rows]
    assert counts[0] > 40 * LAYERS
    assert counts[-1] <= 7 * LAYERS + 4
    assert all(a > b for a, b in itertools.pairwise(counts)), rows
    # One call a node, here where attention is one call.
    assert counts[-1] == rows[-1]["nodes"]


@pytest.mark.sampled(1, group="passes", one_in=2)
def test_a_gpu_s_calls_are_counted_without_one(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(reference("qwen2").config.to_dict()))
    words = [
        "--dispatches",
        "--capacity",
        "64",
        "--device",
        "cuda:sm_90",
        "--precision",
        "bfloat16",
        "--json",
    ]
    made = CliRunner().invoke(app, ["generate", str(config), *words])
    assert made.exit_code == 0, made.stderr
    rows = json.loads(made.stdout)["rows"]
    assert rows[-1]["after"] == "fuse_rope_attention"
    assert rows[-1]["dispatches"] <= rows[-2]["dispatches"] - LAYERS
    assert rows[-1]["dispatches"] <= 5 * LAYERS + 6
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nexecution: {target: npu, precision: bfloat16, allow_fallback: [cpu]}\n")
    asked = [str(config), "--dispatches", "--capacity", "64", "--policy", str(policy), "--json"]
    fell = CliRunner().invoke(app, ["generate", *asked])
    assert json.loads(fell.stdout)["rows"][0]["after"] == "as it is built"  # bfloat16
    assert "is generated for cpu" in fell.stderr
    policy.write_text("version: 1\nexecution: {target: npu}\n")
    refused = json.loads(CliRunner().invoke(app, ["generate", *asked]).stdout)
    assert "cannot honor target" in refused["what"]
    no = CliRunner().invoke(app, ["generate", str(config), "--dispatches", "--precision", "float31"])
    assert no.exit_code != 0
    assert "float31" in no.stderr
    no = CliRunner().invoke(app, ["generate", str(config), "--dispatches", "--capacity", "999999999"])
    assert no.exit_code != 0
    assert "999999999" in no.stderr
    assert "Give 1 to 256." in no.stderr


def test_what_is_written_out_is_the_decoder() -> None:
    found = open_checkpoint(reference("qwen2"))
    graph = decoder_graph(found.config, length=3, capacity=16, batch=2, all_logits=True)
    plain = written_out(graph)
    assert not {n.op for n in plain.nodes} & {"rms_norm", "rope", "attention"}
    again = run_passes(plain, FUSIONS)
    assert {n.op for n in again.nodes} >= {"norm_linear", "rope_attention"}
    feeds = {
        "tokens": np.array([prompt(3), prompt(3, seed=1)]),
        "positions": np.array([[0, 1, 2], [4, 5, 5]]),
        "last": np.array([2, 5]),
    }
    want, *others = (
        interp.run(g, feeds, weights=dict(found.arrays), states={})["logits"] for g in (graph, plain, again)
    )
    assert all(abs(x - want).max() < 1e-5 * abs(want).max() for x in others)


def test_written_out_or_not_the_end_is_the_same() -> None:
    config = DecoderConfig.from_json(reference("llama").config.to_dict())
    graph = decoder_graph(config, length=1, capacity=64)
    counts = [dispatches(run_passes(g, FUSIONS)) for g in (graph, written_out(graph))]
    assert counts[0] == counts[1]
    rows = dispatch_table(config, capacity=64, fusions=[["recognize_norm"]])
    assert [r.after for r in rows] == ["written out", "recognize_norm"]
