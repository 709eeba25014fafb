"""A KernelPolicy on a vendor's region: by the vendor's option where one exists, and the option does what the word says."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.engines.onnxruntime import kernel_options as theirs
from xpuruntime.engines.openvino import kernel_options as openvinos
from xpuruntime.inference.selection.vendor_options import met_by_options
from xpuruntime.policies.fields.kinds import kernels_of
from xpuruntime.targets import DeviceId

pytest.importorskip("onnxruntime")


def fused_with_conv(sess, x) -> bool:
    sess.run(input=x)
    rows = sess.receipt().evidence["r0"].rows
    return any({"conv", "relu"} <= set(row.nodes) for row in rows)


@pytest.mark.parametrize(
    "demand", [{"conv": "naive"}, {"rules": [{"op": "conv", "use": "naive"}]}], ids=["prefer", "use"]
)
def test_a_word_with_an_option_reaches_onnx_runtime(demand, x, expected, tmp_path) -> None:
    policy = {"version": 1, "kernel": demand}
    with xrt.InferenceSession(
        small_classifier(), device="cpu", engine="onnxruntime", policy=policy, cache_dir=tmp_path
    ) as sess:
        assert len(sess.plan.regions) == 1, "nothing is cut out"
        assert not fused_with_conv(sess, x)
        assert np.abs(sess.run(input=x)["output"] - expected).max() <= 1e-5
        (made,) = [d for d in sess.plan.decisions if d.question == "conv kernel"]
        assert (made.chosen.name, made.chosen.code) == ("naive", Reason.REQUESTED)
        assert "ConvActivationFusion" in made.chosen.reason
    with xrt.InferenceSession(
        small_classifier(), device="cpu", engine="onnxruntime", cache_dir=tmp_path
    ) as sess:
        assert fused_with_conv(sess, x), "without the demand it fuses"


def test_what_was_said_by_the_option_s_own_name_stays() -> None:
    policy = xrt.KernelPolicy(conv="naive", matmul=["onednn", "naive"], norm="naive")
    cpu = DeviceId("cpu")
    options, met = met_by_options(theirs, cpu, policy, {})
    (value,) = options.values()
    assert {"NchwcTransformer", "MatMulAddFusion", "SkipLayerNormFusion"} <= set(value.split(";"))
    assert {f: k for f, (k, _) in met.items()} == {"conv": "naive", "matmul": "naive", "norm": "naive"}
    assert met_by_options(theirs, cpu, policy, dict.fromkeys(options, "NchwcTransformer")) == ({}, {})
    assert met_by_options(openvinos, cpu, policy, {}) == ({}, {})
    assert met_by_options(object(), cpu, policy, {}) == ({}, {})


def test_a_rule_for_some_nodes_is_no_matter_of_an_option() -> None:
    policy = xrt.KernelPolicy(rules=[xrt.Rule(op="conv", node="conv", prefer="naive")])
    assert met_by_options(theirs, DeviceId("cpu"), policy, {}) == ({}, {})


@pytest.mark.parametrize("module", [theirs, openvinos], ids=["onnxruntime", "openvino"])
def test_every_row_of_the_tables_names_a_kernel_of_its_family(module) -> None:
    for kind in ("cpu", "cuda", "gpu"):
        for (family, kernel), options in module.kernel_options(DeviceId(kind)).items():
            assert kernel in kernels_of([family]), (kind, family, kernel)
            assert options
