"""InferenceSession against the ONNX reference evaluator, and the table "Honored, or said" cell by cell."""

from __future__ import annotations

import json
import logging
import threading

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import (
    DeviceUnavailable,
    EngineUnavailable,
    InputError,
    KernelUnavailable,
    PolicyError,
    PrecisionUnavailable,
    RunError,
    StrictError,
)

pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="two engines are needed")

ENGINES = ("onnxruntime", "openvino")
LEFT_OUT = (
    "AzureExecutionProvider"  # in every plain build of ONNX Runtime, and takes no node of an ordinary model
)
CPU = {"device": "cpu", "engine": "onnxruntime"}


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("engine", [*ENGINES, "onnxrt", "auto", None])
@pytest.mark.parametrize("kind", ["path", "str", "bytes", "proto"])
def test_every_kind_of_model_on_every_engine_equals_the_reference(
    engine, kind, path, proto, x, expected
) -> None:
    model = {"path": path, "str": str(path), "bytes": path.read_bytes(), "proto": proto}[kind]
    with xrt.InferenceSession(model, device="cpu", engine=engine) as sess:
        close(sess.run({"input": x})["output"], expected)


def test_inputs_as_dict_list_keywords_or_one_bare_tensor(path, x, expected) -> None:
    with xrt.InferenceSession(path, **CPU) as sess:
        for out in (sess.run({"input": x}), sess.run([x]), sess.run(input=x), sess.run(x)):
            assert list(out) == ["output"]
            close(out["output"], expected)


def test_torch_in_torch_out(path, x, expected) -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra")
    with xrt.InferenceSession(path, **CPU) as sess:
        out = sess.run(input=torch.from_numpy(x))["output"]
    assert isinstance(out, torch.Tensor)
    close(out.numpy(), expected)


def test_backend_is_a_name_of_engine_and_contradiction_is_an_error(path) -> None:
    with xrt.InferenceSession(path, device="cpu", backend="openvino") as sess:
        assert sess.plan.regions[0].engine == "openvino"
    with pytest.raises(PolicyError, match="name the same option"):
        xrt.InferenceSession(path, engine="openvino", backend="onnxruntime")


def test_info_and_plan_before_the_first_run(path) -> None:
    with xrt.InferenceSession(path, threads=1, **CPU) as sess:
        assert [str(s) for s in sess.input_info] == ["float32[batch, 3, 8, 8]"]
        assert [s.name for s in sess.output_info] == ["output"]
        plan = sess.plan
    assert [n.name for n in plan.nodes] == [
        "conv",
        "relu",
        "pool",
        "flatten",
        "fc1",
        "tanh",
        "fc2",
        "softmax",
    ]
    assert [n.family for n in plan.nodes[:2]] == ["conv", "activation"]
    assert plan.regions[0].threads == 1
    assert "onnxruntime" in str(plan)
    assert "requested: target=cpu (argument), engine=onnxruntime (argument)" in plan.explain()
    assert xrt.Plan.from_json(json.dumps(plan.to_json())) == plan


@pytest.mark.parametrize("engine", ENGINES)
def test_the_receipt_says_what_ran(engine, path, x) -> None:
    with xrt.InferenceSession(path, device="cpu", engine=engine) as sess:
        before = sess.receipt()
        sess.run(input=x)
        sess.run(input=x)
        receipt = sess.receipt()
    assert before.runs == 0
    assert receipt.runs == 2
    assert receipt.confirmed, receipt.text()
    evidence = receipt.evidence["r0"]
    assert evidence.engine == engine
    assert evidence.rows
    assert sum(row.time_us or 0 for row in evidence.rows) > 0
    named = {n for row in evidence.rows for n in row.nodes}
    assert {"conv", "fc1", "fc2"} <= named
    assert receipt.coverage >= 0.5
    assert json.loads(json.dumps(receipt.to_json()))["confirmed"] is True
    assert engine in receipt.text()


def test_a_closed_session_says_so_and_close_may_be_repeated(path, x) -> None:
    sess = xrt.InferenceSession(path, **CPU)
    sess.close()
    sess.close()
    with pytest.raises(RunError, match="closed"):
        sess.run(input=x)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_share_one_session(engine, path, x, expected) -> None:
    wrong: list[object] = []
    with xrt.InferenceSession(path, device="cpu", engine=engine, threads=1) as sess:

        def work(k: int) -> None:
            part = x[k % 2 : k % 2 + 1]
            for _ in range(50):
                out = sess.run(input=part)["output"]
                if not np.allclose(out, expected[k % 2], atol=1e-6):
                    wrong.append(out)

        workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    assert not wrong


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wrong_input_is_our_error_and_the_session_goes_on(engine, path, x, expected) -> None:
    with xrt.InferenceSession(path, device="cpu", engine=engine) as sess:
        with pytest.raises(InputError, match="axis 1 must be 3"):
            sess.run(input=np.zeros((1, 4, 8, 8), np.float32))
        close(sess.run(input=x)["output"], expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_size_strided_and_nan_arrays_work(engine, path, x) -> None:
    with xrt.InferenceSession(path, device="cpu", engine=engine) as sess:
        assert sess.run(input=x[:0])["output"].shape == (0, 10)
        strided = np.asfortranarray(np.concatenate([x, x]))[::2]
        close(sess.run(input=strided)["output"], sess.run(input=np.ascontiguousarray(strided))["output"])
        bad = x.copy()
        bad[1, 0, 0, 0] = np.nan
        out = sess.run(input=bad)["output"]
        close(out[:1], sess.run(input=x[:1])["output"])
        # OpenVINO's ReLU is max(x, 0), which drops NaN; ONNX Runtime's keeps it. Neither touches the other row.
        assert np.isnan(out[1]).any() == (engine == "onnxruntime")


class TestNamedAndNothingAboutFallback:
    """Row 1: what is named is honored or is an error that says who, why, what to do."""

    def test_an_engine_that_is_not_installed(self, path) -> None:
        with pytest.raises(EngineUnavailable) as caught:
            xrt.InferenceSession(path, device="cuda:0", engine="tensorrt", fp16=True)
        assert caught.value.decision is not None
        assert caught.value.decision.chosen is None
        assert "engine 'tensorrt' device 'cuda:0' cannot be had" in str(caught.value)
        assert "xpuruntime[tensorrt]" in caught.value.do

    def test_a_device_without_hardware_repeats_the_vendors_reason(self, path) -> None:
        with pytest.raises(DeviceUnavailable) as caught:
            xrt.InferenceSession(path, device="npu", engine="openvino")
        first = caught.value.decision.rejected[0]
        assert first.name == "openvino on npu"
        assert first.code in (Reason.DEVICE_REFUSED, Reason.NO_DEVICE)
        assert len(first.reason) > 20

    def test_a_device_that_no_engine_reaches(self, path) -> None:
        with pytest.raises(DeviceUnavailable) as caught:
            xrt.InferenceSession(path, device="cuda:0")
        assert {c.name for c in caught.value.decision.rejected} >= {"onnxruntime on cuda:0"}

    def test_a_precision(self, path) -> None:
        with pytest.raises(PrecisionUnavailable, match="float16"):
            xrt.InferenceSession(path, exec_policy=xrt.ExecutionPolicy(precision="float16"), **CPU)

    def test_a_use_rule(self, path) -> None:
        policy = xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublas")])
        with pytest.raises(KernelUnavailable, match="forces 'cublas'"):
            xrt.InferenceSession(path, kernel_policy=policy, **CPU)

    def test_a_typing_error_is_never_a_fallback(self, path) -> None:
        with pytest.raises(EngineUnavailable, match="Did you mean 'openvino'"):
            xrt.InferenceSession(
                path, engine="openvin", exec_policy=xrt.ExecutionPolicy(allow_fallback="cpu")
            )
        with pytest.raises(DeviceUnavailable, match="Did you mean 'cuda'"):
            xrt.InferenceSession(path, device="cudo")


class TestNamedWithFallback:
    """Row 2: the first that works, recorded, one WARNING line, the same outputs."""

    FALLBACK = xrt.ExecutionPolicy(allow_fallback=["cuda", "cpu"])

    @pytest.mark.parametrize(
        "asked",
        [
            {"engine": "tensorrt", "device": "cuda:0"},
            {"engine": "qnn", "device": "npu"},
            {"engine": "openvino", "device": "npu"},
            {"device": "cuda:0"},
        ],
    )
    def test_engine_and_device(self, asked, path, x, expected, caplog) -> None:
        with caplog.at_level(logging.WARNING, "xpuruntime"):
            sess = xrt.InferenceSession(path, exec_policy=self.FALLBACK, **asked)
        with sess:
            close(sess.run(input=x)["output"], expected)
            decision = sess.plan.decision("engine")
            receipt = sess.receipt()
        assert decision.chosen.code is Reason.FALLBACK
        assert decision.chosen.name.endswith("on cpu")
        assert decision.rejected
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "cannot be had" in caplog.text
        assert receipt.plan.warnings
        assert decision.rejected[0].reason in receipt.text()

    def test_precision(self, path, x, expected) -> None:
        policy = xrt.ExecutionPolicy(precision="int8", allow_fallback="cpu")
        with xrt.InferenceSession(path, device="npu", engine="openvino", exec_policy=policy) as sess:
            assert sess.plan.regions[0].precision == "float32"
            np.testing.assert_allclose(sess.run(input=x)["output"], expected, atol=1e-5)

    def test_what_can_be_had_does_not_fall_back(self, path) -> None:
        with xrt.InferenceSession(path, device="cpu", engine="openvino", exec_policy=self.FALLBACK) as sess:
            assert sess.plan.decision("engine").chosen.code is Reason.REQUESTED
            assert "onnxruntime on cpu" in sess.plan.regions[0].alternatives


class TestPreferAutoOrNothing:
    """Row 3: the next candidate, recorded."""

    def test_nothing_takes_the_first_of_the_order(self, path) -> None:
        with xrt.InferenceSession(path) as sess:
            decision = sess.plan.decision("engine")
        assert decision.chosen.code is Reason.DEFAULT
        assert {c.name: c.code for c in decision.rejected}["native on cpu"] is Reason.LOWER_PREFERENCE

    def test_prefer_is_recorded_as_not_applicable(self, path) -> None:
        with xrt.InferenceSession(path, kernel_policy=xrt.KernelPolicy(matmul="cublasLt"), **CPU) as sess:
            decision = sess.plan.decision("kernel matmul")
        assert decision.subject == "2 nodes of r0"
        assert [(c.name, c.code) for c in decision.rejected] == [("cublasLt", Reason.NOT_APPLICABLE)]

    def test_a_family_that_the_model_lacks_causes_no_decision(self, path) -> None:
        with xrt.InferenceSession(path, kernel_policy=xrt.KernelPolicy(attention="flash_v2"), **CPU) as sess:
            assert sess.plan.decision("kernel attention") is None

    def test_fp16_is_a_permission(self, path, x, expected, caplog) -> None:
        with (
            caplog.at_level(logging.WARNING, "xpuruntime"),
            xrt.InferenceSession(path, fp16=True, **CPU) as sess,
        ):
            close(sess.run(input=x)["output"], expected)
        decision = sess.plan.decision("precision")
        assert decision.chosen.name == "float32"
        assert decision.rejected[0].code is Reason.PRECISION_UNSUPPORTED
        assert len(caplog.records) == 1


class TestStrict:
    """Row 4: what a vendor does behind one's back is an error."""

    def test_fp16_that_cannot_be_had(self, path) -> None:
        with pytest.raises(StrictError, match="float16"):
            xrt.InferenceSession(path, fp16=True, strict=True, **CPU)

    def test_a_provider_that_takes_no_node(self, path, caplog) -> None:
        options = {"onnxruntime": {"providers": LEFT_OUT}}
        policy = xrt.ExecutionPolicy(engine_options=options)
        ask = {"device": "auto", "engine": "onnxruntime"}
        with pytest.raises(StrictError) as caught:
            xrt.InferenceSession(path, exec_policy=policy, strict=True, **ask)
        assert LEFT_OUT in str(caught.value)
        with (
            caplog.at_level(logging.WARNING, "xpuruntime"),
            xrt.InferenceSession(path, exec_policy=policy, **ask) as sess,
        ):
            assert not sess.receipt().confirmed
        assert LEFT_OUT in caplog.text

    @pytest.mark.parametrize("engine", ENGINES)
    def test_what_runs_as_asked_passes(self, engine, path, x, expected) -> None:
        with xrt.InferenceSession(path, device="cpu", engine=engine, strict=True) as sess:
            close(sess.run(input=x)["output"], expected)


class TestPolicySources:
    """Argument over policy over context over environment over built-in."""

    def test_precedence(self, path, monkeypatch, tmp_path) -> None:
        def engine(**more: object) -> str:
            with xrt.InferenceSession(path, device="cpu", **more) as sess:
                return sess.plan.regions[0].engine

        file = tmp_path / "p.yaml"
        file.write_text("version: 1\nexecution:\n  engine: openvino\n")
        monkeypatch.setenv("XPU_ENGINE", "openvino")
        assert engine() == "openvino"
        with xrt.with_policy(xrt.ExecutionPolicy(engine="onnxruntime")):
            assert engine() == "onnxruntime"
            assert engine(policy=file) == "openvino"
            assert engine(policy=file, engine="onnxrt") == "onnxruntime"

    def test_an_unknown_vendor_option_is_an_error(self, path) -> None:
        policy = xrt.ExecutionPolicy(engine_options={"onnxruntime": {"graph_optimisation_level": "3"}})
        with pytest.raises(PolicyError, match="graph_optimization_level"):
            xrt.InferenceSession(path, exec_policy=policy, **CPU)

    def test_fp16_must_be_a_bool(self, path) -> None:
        with pytest.raises(PolicyError, match="fp16 must be True or False; got 'no'"):
            xrt.InferenceSession(path, fp16="no", **CPU)

    @pytest.mark.parametrize("threads", [0, -1, True, "2"])
    def test_threads_must_be_a_positive_integer(self, threads, path) -> None:
        with pytest.raises(InputError, match=r"threads must be (a whole number|at least 1)"):
            xrt.InferenceSession(path, threads=threads, **CPU)

    def test_static_shape_needs_sizes(self, path) -> None:
        with pytest.raises(PolicyError, match="no size for batch"):
            xrt.InferenceSession(path, exec_policy=xrt.ExecutionPolicy(static_shape=True), **CPU)

    @pytest.mark.parametrize("shapes", [{"input": [2, 3, 8, 8]}, {"batch": 2}])
    def test_fixed_shapes_by_input_or_by_symbol(self, shapes, path, x, expected) -> None:
        policy = xrt.ExecutionPolicy(static_shape=True, fixed_shapes=shapes)
        with xrt.InferenceSession(path, exec_policy=policy, **CPU) as sess:
            assert str(sess.input_info[0]) == "float32[2, 3, 8, 8]"
            close(sess.run(input=x)["output"], expected)
            with pytest.raises(InputError, match="axis 0 must be 2"):
                sess.run(input=x[:1])

    @pytest.mark.parametrize(
        ("shapes", "words"),
        [({"batsh": 2}, "Did you mean 'batch'"), ({"input": [2, 4, 8, 8]}, "contradicts input 'input'")],
    )
    def test_fixed_shapes_that_do_not_fit(self, shapes, words, path) -> None:
        with pytest.raises(PolicyError, match=words):
            xrt.InferenceSession(path, exec_policy=xrt.ExecutionPolicy(fixed_shapes=shapes), **CPU)
