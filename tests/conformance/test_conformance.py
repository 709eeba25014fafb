"""The suites behind ``xpu conformance``: what is right, wrong, refused or a vendor's own fault on a subject."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import EdgeTarget
from xpuruntime.errors import DeviceUnavailable, EngineUnavailable, InputError
from xpuruntime.kernels.catalogue import kernels as catalogue
from xpuruntime.testing import conformance as kit
from xpuruntime.testing.conformance import conformance, kernels, nodes, ops, subject
from xpuruntime.testing.conformance.finding import CaseFinding
from xpuruntime.testing.conformance.onnx_backend.native import check_natively
from xpuruntime.testing.conformance.onnx_backend.suite import cases, differs
from xpuruntime.testing.conformance.opinfo import BRIDGES
from xpuruntime.testing.conformance.opinfo.native import check_samples
from xpuruntime.testing.conformance.vendor import excused
from xpuruntime.testing.emulation.cuda_host import cuda_host

ONLY_BY_PASSES = {"fused"}
"""Ops that networks meet, and no call of a single node."""


def test_every_kernel_of_the_processor_s_catalogue_is_right_under_its_own_name() -> None:
    report = conformance("cpu", suites=("kernels",), sample=2)
    assert report.ok, report.wrong
    (suite,) = report.suites
    met = {name for name, _ in suite.kernels}
    refused = {f.case.split()[0] for f in suite.findings if f.outcome == "refused"}
    named = {k.name for k in kernels.rows("cpu")}
    assert named <= met | refused
    assert len(named & met) > 0.9 * len(named), named - met
    assert all(f.reason for f in suite.findings if f.outcome == "refused")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_only_what_passes_make_has_no_call(kind: str) -> None:
    assert {op for _, ops in kernels.without_calls(kind) for op in ops} == ONLY_BY_PASSES
    assert {k.name for k in catalogue(kind) if k.on_request} <= {
        "matmul/int8_weights", "matmul/fp8_weights", "matmul/int4_weights", "matmul/int4_weights_64", "matmul/int4_weights_128",
        "matmul/stored_weights",
        "matmul/int4_by_int8", "matmul/int4_64_by_int8", "matmul/int4_128_by_int8", "matmul/stored_by_int8", "matmul/int8_by_int8",
    }  # fmt: skip


def test_kernels_of_a_gpu_are_judged_on_the_stand_in() -> None:
    report = conformance("cpu", target=cuda_host(), suites=("kernels",), sample=1)
    assert report.ok, report.wrong
    assert {"conv/implicit_gemm", "matmul/gemv"} <= {name for name, _ in report.suites[0].kernels}


def test_a_backend_of_one_s_own() -> None:
    report = conformance(EdgeBackend(), target=EdgeTarget(), suites=("kernels",), sample=1)
    assert report.ok, report.wrong
    (suite,) = report.suites
    assert suite.count("right") > 6
    assert "npu-sim:edge has no kernel for addmm: fused.py has no addmm" in dict(suite.reasons)
    assert report.to_json()["subject"]["target"] == "npu-sim:edge"


class Careless(EdgeTarget):
    """Adds where it should multiply."""

    def shader_source(self, filename: str) -> str:
        return super().shader_source(filename).replace("np.multiply(a, b, out=out)", "np.add(a, b, out=out)")


def test_a_wrong_kernel_is_wrong() -> None:
    report = conformance(EdgeBackend(), target=Careless(), suites=("kernels",))
    assert not report.ok
    assert {f.case.split("(")[0] for f in report.wrong} == {"mul"}
    assert report.to_json()["suites"][0]["wrong_cases"][0]["why"]


def test_several_compilers_at_once_change_no_order() -> None:
    pytest.importorskip("onnx")
    some = [
        c
        for c in cases("node")
        if c.name in {"test_abs", "test_add", "test_relu", "test_nonzero_example", "test_softmax_axis_0"}
    ]
    one = [(j.verdict.case, j.verdict.outcome) for j in check_natively(some, batch=1, jobs=1)]
    three = [(j.verdict.case, j.verdict.outcome) for j in check_natively(some, batch=1, jobs=3)]
    assert one == three
    assert dict(one)["test_add"] == "right"


def test_node_cases_of_each_op() -> None:
    pytest.importorskip("onnx")
    few, more = nodes.chosen(1), nodes.chosen(2)
    assert len(few) < len(more) < len(nodes.chosen(0))
    assert len({c.ops[0] for c in few}) == len(few)


def test_a_vendor_s_engine_in_sessions() -> None:
    pytest.importorskip("onnxruntime")
    report = conformance("onnxrt", suites=("kernels",), sample=1)
    assert report.ok, report.wrong
    assert report.facts["engine"] == "onnxruntime"
    assert report.suites[0].count("right") > 25


def test_what_the_vendor_s_own_api_gives_as_well_is_the_vendor_s() -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "neg", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    feeds, found = {"x": np.array([1, 2], np.float32)}, CaseFinding("neg", "wrong", "is 1")

    def wrong(want: list[float], made: list[Any]) -> str:
        return "" if made[0].tolist() == want else f"is {made[0].tolist()}"

    ours = excused(found, "onnxruntime", model, feeds, partial(wrong, [-1, -2]))
    assert ours == found, "the vendor is right, so the fault is ours"
    theirs = excused(found, "onnxruntime", model, feeds, partial(wrong, [1, 2]))
    assert (theirs.outcome, theirs.why) == ("excused", "onnxruntime's own API is wrong, too: is [-1.0, -2.0]")
    assert excused(found, "somebody", model, feeds, partial(wrong, [1, 2])) == found


def test_cases_are_compared_as_the_suite_compares() -> None:
    pytest.importorskip("onnx")
    case = next(c for c in cases("node") if c.name == "test_abs")
    ((_, expected),) = case.data()
    assert differs(case, expected, expected) == ""
    assert differs(case, expected, [expected[0] + 1]) != ""


@pytest.mark.parametrize(
    ("where", "options", "error", "says"),
    [
        ("onnxruntme", {}, EngineUnavailable, "Did you mean 'onnxruntime'"),
        (EdgeBackend(), {}, DeviceUnavailable, "its target is unknown"),
        ("json:JSONDecoder", {"target": EdgeTarget()}, DeviceUnavailable, "is not a backend of native programs"),
        ("no_such_package:Backend", {}, DeviceUnavailable, "cannot be imported: ModuleNotFoundError"),
        ("cpu:x86-64-v9", {}, DeviceUnavailable, "x86-64-v9"),
        ("cpu", {"suites": ("node",)}, InputError, "Suites are nodes, ops, kernels, networks"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_said(
    where: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        conformance(where, **options)
    assert says in str(caught.value)


def test_a_level_of_the_processor_is_a_subject() -> None:
    found = subject("cpu:x86-64-v2")
    assert (found.device, found.target and found.target.name) == ("cpu", "cpu:x86-64-v2")


def test_a_suite_without_its_packages_is_not_run_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        NEEDS = ("no_such_package",)

    monkeypatch.setattr(kit, "SUITES", {"kernels": kernels, "ops": Missing})
    monkeypatch.setattr(kit, "USUAL", ("kernels", "ops"))
    report = conformance(EdgeBackend(), target=EdgeTarget(), sample=1)
    assert [s.not_run for s in report.suites] == ["", "needs the Python package no_such_package"]
    with pytest.raises(InputError, match="pip install no_such_package"):
        conformance(EdgeBackend(), target=EdgeTarget(), suites=("ops",))


def test_entries_that_this_pytorch_has_not_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its releases differ in names and variants of their samples; the rest is checked all the same."""
    pytest.importorskip("torch")
    pytest.importorskip("expecttest")
    monkeypatch.setitem(BRIDGES, "renamed", replace(BRIDGES["abs"], info="no_such_entry"))
    monkeypatch.setitem(BRIDGES, "other_variant", replace(BRIDGES["abs"], info="abs", variants=("no_such",)))
    some = ("abs", "renamed", "other_variant", "unknown", "neg")
    with pytest.raises(LookupError, match="no OpInfo 'no_such_entry'"):
        list(check_samples(some, ("float32",), 1))
    monkeypatch.setattr(ops, "check_samples", partial(check_samples, some, ("float32",)))
    report = conformance("cpu", suites=("ops",), sample=1)
    assert report.ok, report.wrong
    (suite,) = report.suites
    assert {f.case for f in suite.findings if f.outcome == "right"} == {"abs float32", "neg float32"}
    document = suite.to_json()
    assert set(document["cases_not_run"]) == {"renamed", "other_variant", "unknown"}
    assert document["cases_not_run"]["renamed"].startswith(
        "LookupError: no OpInfo 'no_such_entry' with a variant of"
    )
    assert document["cases"] == suite.count("right") == 2
