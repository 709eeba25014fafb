"""``xpu check``: each kind of rule passes and fails, results as JUnit and Markdown, bad rules files, the published schema."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpuruntime.errors import InputError, PolicyError
from xpuruntime.policies.fields.record import Problem
from xpuruntime.policies.files.document import to_yaml_text
from xpuruntime.program.plan import Transfer
from xpuruntime.workbench.review.check import CheckReport, check
from xpuruntime.workbench.review.check_reports import check_markdown, junit_xml
from xpuruntime.workbench.review.rules import RULE_KINDS, check_schema, load_rules, parse_rules
from xpuruntime.workbench.review.snapshot import NodeState, Snapshot

ROOT = Path(__file__).parents[2]

NODES = (
    NodeState("fc1", "MatMul", "matmul", "native", "cuda:0", "r0", "matmul/cublasLt[algorithm=3]", "float32", ("fc1",), 2.0, 0.5),
    NodeState("top", "Softmax", "softmax", "native", "cuda:0", "r0", "softmax/generated", "float32", ("top",), 1.0, 0.1),
    NodeState("view", "Reshape", "data_movement", "native", "cuda:0", "r0", "", "float32", ("view",)),
)  # fmt: skip
SIDE = Snapshot(
    "receipt", "a.json", "m", "d", NODES, ("cuda:0",), ("native",), {"r0": "cuda:0"}, (), {}, 3.0, 0.6, 5, 4096, 0.75, True
)  # fmt: skip


def changed(node: str, **fields: Any) -> tuple[NodeState, ...]:
    return tuple(replace(n, **fields) if n.name == node else n for n in NODES)


def run(rule: Mapping[str, Any], side: Snapshot, against: Snapshot | None = SIDE) -> CheckReport:
    return check(side, parse_rules({"version": 1, "rules": [dict(rule)]}), against)


CASES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    # a rule, what differs from SIDE, the status, a part of the text
    ({"rule": "stays_on", "device": "cuda"}, {}, "passed", "3 nodes are on cuda"),
    ({"rule": "stays_on", "device": "cuda:1"}, {}, "failed", "fc1: on cuda:0"),
    ({"rule": "stays_on", "device": "gpu"}, {}, "passed", "3 nodes"),
    ({"rule": "stays_on"}, {}, "passed", "3 nodes are where they were"),
    ({"rule": "stays_on"}, {"nodes": changed("top", device="cpu")}, "failed", "top: cuda:0 -> cpu"),
    ({"rule": "stays_on"}, {"nodes": (NodeState("other", device="cpu"),)}, "unknown", "no node of the same name"),
    ({"rule": "engines", "allow": "native"}, {}, "passed", "3 nodes run on native"),
    ({"rule": "engines", "allow": ["native"]}, {"nodes": changed("fc1", engine="openvino")}, "failed", "fc1: openvino"),
    ({"rule": "no_new_host_copy"}, {}, "passed", "0 copies"),
    ({"rule": "no_new_host_copy"}, {"transfers": (Transfer("v", "r0", "r1", 8),), "regions": {"r0": "cuda:0", "r1": "cpu"}},
     "failed", "1 new: v (r0 -> r1, 8 bytes)"),
    ({"rule": "no_new_host_copy"}, {"transfers": (Transfer("v", "r0", "r1", 8, shared=True),), "regions": {"r0": "cuda:0", "r1": "cpu"}},
     "passed", "0 copies"),
    ({"rule": "no_new_host_copy"}, {"transfers": (Transfer("v", "r0", "r1", 8),), "regions": {"r0": "cpu", "r1": "cuda:0"}},
     "passed", "0 copies"),
    ({"rule": "no_precision_loss"}, {}, "passed", "3 nodes"),
    ({"rule": "no_precision_loss"}, {"nodes": changed("fc1", precision="bfloat16")}, "failed", "fc1: float32 -> bfloat16"),
    ({"rule": "no_precision_loss"}, {"nodes": changed("fc1", precision="float64")}, "passed", "3 nodes"),
    ({"rule": "time_within", "percent": 10}, {"time_us": 3.2}, "passed", "medians of 5 runs"),
    ({"rule": "time_within", "percent": 10}, {"time_us": 3.6}, "failed", "3.0 us -> 3.6 us, +20.0% (at most +10%); spread 0.6 us"),
    ({"rule": "time_within", "percent": 10, "min_runs": 20}, {}, "unknown", "the rule needs 20 runs"),
    ({"rule": "time_within", "percent": 10}, {"time_us": None}, "unknown", "does not say measured times"),
    ({"rule": "coverage", "percent": 75}, {}, "passed", "75.0%"),
    ({"rule": "coverage", "percent": 76}, {}, "failed", "75.0% of 3 nodes"),
    ({"rule": "coverage", "percent": 1}, {"coverage": None}, "unknown", "does not say what ran"),
    ({"rule": "kernels", "op": "matmul", "forbid": "generated"}, {}, "passed", "1 nodes match"),
    ({"rule": "kernels", "op": "matmul", "forbid": "cublasLt"}, {}, "failed", "fc1: cublasLt is forbidden"),
    ({"rule": "kernels", "op": "softmax", "require": "ported"}, {}, "failed", "top: has softmax/generated"),
    ({"rule": "kernels", "node": "t*", "require": "generated"}, {}, "passed", "1 nodes match"),
    ({"rule": "kernels", "forbid": "naive"}, {"nodes": tuple(replace(n, kernel="") for n in NODES)}, "unknown", "kernels of nodes"),
    ({"rule": "confirmed"}, {}, "passed", "confirms"),
    ({"rule": "confirmed"}, {"confirmed": False, "unconfirmed": ("every step ran on cuda:0: cpu",)}, "failed", "every step ran on cuda:0: cpu"),
    ({"rule": "memory", "bytes": "4 KiB"}, {}, "passed", "4096 bytes"),
    ({"rule": "memory", "bytes": 4095}, {}, "failed", "at most 4095"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "differs", "status", "text"), CASES, ids=lambda v: None)
def test_each_kind_of_rule(rule: dict[str, Any], differs: dict[str, Any], status: str, text: str) -> None:
    report = run(rule, replace(SIDE, name="b.json", **differs))
    (result,) = report.results
    assert (result.status, result.ok, report.ok) == (status, status == "passed", status == "passed")
    assert text in result.text


def test_every_kind_passes_and_fails_somewhere() -> None:
    seen = {(rule["rule"], status) for rule, _, status, _ in CASES}
    assert seen >= {(kind, status) for kind in RULE_KINDS for status in ("passed", "failed")}


def test_a_rule_that_compares_needs_another_file_of_the_same_kind() -> None:
    for rule in ({"rule": "stays_on"}, {"rule": "no_precision_loss"}, {"rule": "time_within", "percent": 1}):
        with pytest.raises(InputError, match=f"rule {rule['rule']} compares with another file"):
            run(rule, SIDE, None)
    with pytest.raises(InputError, match="one kind"):
        run({"rule": "confirmed"}, SIDE, replace(SIDE, kind="plan"))


# ── results for others ──

STRANGE = ("plain", 'a "b" <c> & d', "\x1b[31mred", "nul\0", "￿￾", "line\nline", "\ud800", "| * _ `")


def strange_report() -> CheckReport:
    nodes = tuple(replace(NODES[0], name=name) for name in STRANGE)
    rules = [
        {"rule": "kernels", "forbid": "cublasLt", "name": 'forbid "cublasLt" <&>'},
        {"rule": "confirmed"},
        {"rule": "time_within", "percent": 1, "min_runs": 100},
    ]
    side = replace(SIDE, nodes=nodes, name="b <&>.json")
    return check(side, parse_rules({"version": 1, "rules": rules}), SIDE)


def test_a_junit_parser_reads_the_results() -> None:
    junitparser = pytest.importorskip("junitparser")
    document = junitparser.JUnitXml.fromstring(junit_xml(strange_report()))
    assert (document.tests, document.failures, document.errors) == (3, 1, 1)
    (suite,) = list(document)
    cases = list(suite)
    assert [type(r).__name__ for c in cases for r in c.result] == ["Failure", "Error"]
    assert cases[0].name == 'forbid "cublasLt" <&>'
    assert cases[0].classname == "xpu.check.kernels"
    assert "cublasLt is forbidden" in cases[0].result[0].message
    assert "the rule needs 100 runs" in cases[2].result[0].message


# Jenkins's schema (xunit-plugin, MIT license in the file), by which pytest checks its own reports, too.
JUNIT = Path(__file__).with_name("schemas") / "junit-10.xsd"


def test_the_document_is_valid_by_the_published_schema() -> None:
    import xml.etree.ElementTree as ET

    xmlschema = pytest.importorskip("xmlschema")
    schema, text = xmlschema.XMLSchema(JUNIT), junit_xml(strange_report())
    schema.validate(text.decode())
    root = ET.fromstring(text)
    totals = [
        sum(len(root.findall(f".//{tag}")) for tag in tags)
        for tags in (("testcase",), ("failure",), ("error",))
    ]
    assert [root.get(k) for k in ("tests", "failures", "errors")] == list(map(str, totals))
    for good, broken in ((b' failures="1"', b""), (b"</testsuite>", b"<other/></testsuite>")):
        assert good in text
        assert not schema.is_valid(text.replace(good, broken).decode())


def test_markdown_has_one_row_per_rule_whatever_names_hold() -> None:
    text = check_markdown(strange_report())
    lines = text.splitlines()
    assert "2 of 3 rules are not satisfied" in lines[0]
    assert [line.startswith("|") for line in lines[2:]] == [True] * 5
    assert "\x1b" not in text
    assert "**FAIL**" in lines[4]


# ── rules files ──

BAD = [
    ("version: 1\nrules:\n  - {rule: stays_one, device: cpu}\n", "bad.yaml:3] rules[0].rule: no such kind of rule; got 'stays_one'. Did you mean 'stays_on'?"),
    ("version: 1\nrules:\n  - rule: coverage\n    percent: 101\n", "bad.yaml:4] rules[0].percent: must be a number from 0 to 100; got 101"),
    ("version: 1\nrules:\n  - {rule: engines}\n", "rules[0].allow: is missing"),
    ("version: 1\nrules:\n  - {rule: confirmed}\n  - {rule: kernels, op: matmul}\n", "bad.yaml:4] rules[1]: demands nothing"),
    ("version: 1\nrules:\n  - {rule: confirmed, percent: 3}\n", "rules[0].percent: unknown key"),
    ("version: 1\nrules:\n  - {rule: kernels, op: matmul, forbid: genrated}\n", "rules[0].forbid: no such kernel of matmul; got 'genrated'. Did you mean 'generated'?"),
    ("version: 2\nrules: []\n", "bad.yaml:1] version: must be 1; got 2"),
    ("version: 1\nrules: []\n", "rules: must be a list of 1 to 1000 rules"),
    ("version: 1\nrule: []\n", "rule: unknown key"),
    ("rules: [\n", "is not YAML"),
    ("- 1\n", "must be a mapping"),
    ("", "must be a mapping"),
    ("version: 1\nrules:\n  - {rule: memory, bytes: lots}\n", "must be bytes"),
    ("version: 1\nrules:\n  - {rule: time_within, percent: .inf}\n", "must be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_rules_file_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError) as raised:
        load_rules(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith("[rules ")


def example(kind: str, draw: random.Random) -> dict[str, Any]:
    values: dict[str, dict[str, Any]] = {
        "stays_on": draw.choice([{}, {"device": "cuda:0"}]),
        "engines": {"allow": draw.choice(["native", ["native", "openvino"]])},
        "time_within": {"percent": draw.choice([0, 2.5]), **draw.choice([{}, {"min_runs": 5}])},
        "coverage": {"percent": draw.choice([0, 99.5, 100])},
        "kernels": {
            "op": draw.choice(["matmul", ["conv", "norm"]]),
            draw.choice(["forbid", "require"]): "naive",
        },
        "memory": {"bytes": draw.choice([0, "512 MiB"])},
    }
    return {"rule": kind, **values.get(kind, {}), **draw.choice([{}, {"name": "a name"}])}


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_rules_files_round_trip_and_satisfy_the_schema(seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    draw = random.Random(seed)
    rules = [example(kind, draw) for kind in draw.sample(list(RULE_KINDS), 4)]
    loaded = parse_rules({"version": 1, "rules": rules})
    document = loaded.to_dict()
    assert parse_rules(document).rules == loaded.rules
    for data in (document, {"version": 1, "rules": rules}):
        jsonschema.Draft202012Validator(check_schema()).validate(json.loads(json.dumps(data)))


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_rules_are_written_and_read(tmp_path: Path, suffix: str) -> None:
    loaded = parse_rules({"version": 1, "rules": [example(kind, random.Random(1)) for kind in RULE_KINDS]})
    loaded.save(tmp_path / f"r{suffix}")
    again = load_rules(tmp_path / f"r{suffix}")
    assert again.rules == loaded.rules
    assert all(again.lines)


@pytest.mark.parametrize(("text", "message"), BAD)
def test_the_schema_refuses_what_the_reader_refuses(text: str, message: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from xpuruntime.policies.files.document import parse_yaml

    try:
        data, _ = parse_yaml(text)
    except Problem:
        return  # no document
    only_the_reader_knows = "no such kernel" in message
    assert jsonschema.Draft202012Validator(check_schema()).is_valid(data) is only_the_reader_knows, message


def test_the_committed_schema_is_current() -> None:
    command = [sys.executable, "-m", "xpuruntime.workbench.review.rules"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs" / "schema" / "check.schema.json").read_text() == printed, (
        "run: python -m xpuruntime.workbench.review.rules > docs/schema/check.schema.json"
    )


def test_rules_of_the_docs_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "review-policy-changes.md").read_text()
    block = page.partition("cat > rules.yaml << 'END'\n")[2].partition("END\n")[0]
    (tmp_path / "r.yaml").write_text(block)
    assert len(load_rules(tmp_path / "r.yaml").rules) >= 5
    assert to_yaml_text(load_rules(tmp_path / "r.yaml").to_dict())
