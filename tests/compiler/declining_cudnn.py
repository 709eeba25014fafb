"""Run by test_declined_calls.py in a process of its own, with XPU_LIBCUDA and XPU_LIBCUDNN naming simulated ones: `python declining_cudnn.py CASE`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.decisions import Candidate
from xpuruntime.errors import BuildError, KernelUnavailable


def graph() -> ir.Graph:
    """A convolution and what follows it: one call of cuDNN's."""
    b = ir.GraphBuilder("net")
    x, w = b.input("x", "float32[4, 3, 16, 16]"), b.weight("w", "float32[16, 3, 3, 3]")
    y = b.convolution(x, w, None, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, name="first")
    b.output("y", b.relu(y))
    return b.build()


def compiled(target: str = "cuda", policy: xrt.KernelPolicy | None = None) -> tuple[str, list[Candidate]]:
    """The kernel of the convolution, and what is said of cuDNN's. Without a policy cuDNN is preferred: in float32 our own kernel leads."""
    program = xrt.compile(graph(), target=target, policy=policy or xrt.KernelPolicy(conv="cudnn"))
    (kernel,) = {c.kernel for c in program.entries[0].plans[0].calls if c.kernel.startswith("conv/")}
    decided = [d for d in program.decisions if d.question == "kernel conv"]
    return kernel, [c for d in decided for c in d.rejected if c.name.startswith("cudnn")]


def declines() -> None:
    """Each engine of each list, and why not: another kernel computes it, and the decision has cuDNN's words."""
    for target in ("cuda", "cuda:0"):
        kernel, (said,) = compiled(target)
        assert kernel == "conv/implicit_gemm"
        assert said.code is xrt.Reason.FORBIDDEN
        assert said.reason.startswith(
            "the library declines: conv/cudnn: of cuDNN's 5 configurations on 13 engines none"
        )
        for engine in (
            "3 accumulates in a narrower type",
            "8 has no plan",
            "10 uses TF32",
            "11 needs 1073741824 bytes of workspace",
            "12 uses Winograd",
        ):
            assert engine in said.reason, said.reason
    assert compiled("cuda:sm_90") == ("conv/cudnn", [])  # for a machine that is not here nobody is asked


def every_engine() -> None:
    """Where the heuristics name none that computes in full, one that they do not name is taken."""
    assert compiled() == ("conv/cudnn", [])


def pinned() -> None:
    """A pin asks for that engine alone, named by a heuristic or not; one that is not there is an error with those that are."""

    def pin(engine: int) -> xrt.KernelPolicy:
        use = {"kernel": "cudnn", "engine": engine}
        return xrt.KernelPolicy(rules=[{"op": "conv", "use": use}])  # type: ignore[list-item]

    assert compiled(policy=pin(3))[0] == "conv/cudnn[engine=3]"
    assert compiled(policy=pin(10))[0] == "conv/cudnn[engine=10]"
    with pytest.raises(
        KernelUnavailable, match=r"cuDNN offers no engine 99 for this convolution. Available: 10"
    ):
        compiled(policy=pin(99))


def attention() -> None:
    """What leads where it is faster is asked, too; a session uses the library of this machine, a program for another machine uses our kernel."""
    b = ir.GraphBuilder("encoder")
    b.output("y", b.attention(*(b.input(name, "bfloat16[1, 2, 512, 64]") for name in "qkv")))
    graph = b.build()

    def kernel(target: str) -> str:
        (call,) = xrt.compile(graph, target=target).entries[0].plans[0].calls
        return call.kernel

    there = "a" in os.environ["XPU_TEST_CUDNN"]
    assert kernel("cuda") == kernel("cuda:0") == ("attention/cudnn" if there else "attention/flash_v2")
    assert kernel("cuda:sm_90") == "attention/flash_v2"
    if find_spec("onnx") is None:
        return
    import onnx

    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BFLOAT16, [1, 2, 512, 64]) for n in "qkvy"
    ]
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "encoder", values[:3], values[3:]),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
        ir_version=11,
    )
    if there:
        unchecked = xrt.ExecutionPolicy(self_check="off")  # the stand-in's kernels compute nothing
        with xrt.InferenceSession(model, device="cuda:0", engine="native", exec_policy=unchecked) as session:
            assert "attention/cudnn: attention" in str(session.receipt())
    else:  # it chooses before it asks, and compiles again without what the library declines: a binary of ours, which the driver cannot load
        with pytest.raises(BuildError, match="cuLibraryLoadData"):
            xrt.InferenceSession(model, device="cuda:0", engine="native")


def no_device() -> None:
    """There is no second one, and a machine without any says so."""
    with pytest.raises(xrt.DeviceUnavailable, match="has no visible CUDA device 7"):
        xrt.compile(graph(), target="cuda:7")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
