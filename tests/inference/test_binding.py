"""IOBinding on every engine: in place, again and again, and ONNX Runtime's names next to ours."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError, PolicyError, RunError

ort = pytest.importorskip("onnxruntime", reason="the names are compared with it")
pytest.importorskip("openvino", reason="an engine is needed")

ENGINES = ("onnxruntime", "openvino", "native")


def fixed(path, engine: str, **more) -> xrt.InferenceSession:
    policy = xrt.ExecutionPolicy(static_shape=True, fixed_shapes={"batch": 2})
    return xrt.InferenceSession(path, device="cpu", engine=engine, exec_policy=policy, **more)


@pytest.mark.parametrize("engine", ENGINES)
def test_bound_memory_is_read_and_written_in_place(engine, path, x) -> None:
    with fixed(path, engine) as sess:
        binding = sess.io_binding()
        given, made = x.copy(), np.zeros((2, 10), np.float32)
        binding.bind_input("input", given)
        binding.bind_output("output", made)
        for scale in (1.0, -0.5, 2.0):
            np.multiply(x, scale, out=given)
            sess.run_with_iobinding(binding)
            np.testing.assert_array_equal(made, sess.run(input=given)["output"])
        assert binding.get_outputs()[0].numpy() is made
        kept = binding.copy_outputs_to_cpu()[0]
        given[:] = 0
        sess.run_with_iobinding(binding)
        assert not np.array_equal(kept, made)
        assert sess.receipt(times=False).runs == 7


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_on_bound_memory_allocates_nothing(engine, path, x) -> None:
    with fixed(path, engine, threads=1) as sess:
        binding = sess.io_binding()
        binding.bind_cpu_input("input", x.copy())
        binding.bind_output("output")
        for _ in range(5):
            sess.run_with_iobinding(binding)
        address = binding.get_outputs()[0].data_ptr()
        counted = sess._executable.counters if engine == "native" else {}
        tracemalloc.start()
        try:
            for _ in range(3):
                sess.run_with_iobinding(binding)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for _ in range(1000):
                sess.run_with_iobinding(binding)
            peak = tracemalloc.get_traced_memory()[1]
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert after - before < 40_000, (
            "memory is kept from run to run"
        )  # 40 bytes a run: no array has as few
        if engine != "openvino":  # whose Python package makes small objects in cycles
            assert peak - before < 4096, "a run makes arrays"
        assert binding.get_outputs()[0].data_ptr() == address
        if engine == "native":
            now = sess._executable.counters
            assert now["runs"] == counted["runs"] + 1003
            for name in ("allocations", "copies", "contexts", "prepared"):
                assert now[name] == counted[name]


@pytest.mark.parametrize("engine", ENGINES)
def test_open_shapes_and_outputs_of_any_size(engine, path, x) -> None:
    with xrt.InferenceSession(path, device="cpu", engine=engine) as sess:
        binding = sess.io_binding()
        binding.bind_output("output")
        for part in (x, x[:1]):
            binding.bind_input("input", part)
            sess.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), sess.run(input=part)["output"])
        bound = np.empty((1, 10), np.float32)
        binding.bind_output("output", bound)
        sess.run_with_iobinding(binding)
        np.testing.assert_array_equal(bound, sess.run(input=x[:1])["output"])


def test_what_cannot_be_bound(path, x) -> None:
    with fixed(path, "onnxruntime") as sess:
        binding = sess.io_binding()
        with pytest.raises(InputError, match="input 'input' is not bound"):
            sess.run_with_iobinding(binding)
        with pytest.raises(InputError, match="no values yet"):
            binding.get_outputs()
        with pytest.raises(InputError, match="no input of that name; got 'x'"):
            binding.bind_input("x", x)
        with pytest.raises(InputError, match="must be C-contiguous"):
            binding.bind_input("input", x[:, :, ::-1])
        with pytest.raises(InputError, match="must be float32; got float64"):
            binding.bind_input("input", x.astype(np.float64))
        with pytest.raises(InputError, match="axis 1 must be 10"):
            binding.bind_output("output", np.zeros((2, 11), np.float32))
        with pytest.raises(InputError, match="memory of the host only; got cuda:0"):
            binding.bind_output("output", "cuda")
        read_only = np.zeros((2, 10), np.float32)
        read_only.flags.writeable = False
        with pytest.raises(InputError, match="must be writeable"):
            binding.bind_output("output", read_only)
        with pytest.raises(InputError, match="takes no RunOptions"):
            sess.run_with_iobinding(binding, ort.RunOptions())
        binding.bind_input("input", x)
        sess.close()
        with pytest.raises(RunError, match="closed"):
            sess.run_with_iobinding(binding)


def test_an_address_is_bound_as_onnx_runtime_has_it(path, x) -> None:
    given, made = x.copy(), np.zeros((2, 10), np.float32)
    results = []
    theirs = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for sess in (theirs, xrt.InferenceSession(path, providers=["CPUExecutionProvider"])):
        binding = sess.io_binding()
        binding.bind_input("input", "cpu", 0, np.float32, given.shape, given.ctypes.data)
        binding.bind_output("output", "cpu", 0, np.float32, made.shape, made.ctypes.data)
        sess.run_with_iobinding(binding)
        results.append(binding.copy_outputs_to_cpu()[0].copy())
    np.testing.assert_array_equal(*results)


def test_one_program_runs_under_both_imports(path, x) -> None:
    """The same lines, word for word, by ONNX Runtime's package and by ours."""

    def program(package):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        sess = package.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        name = sess.get_inputs()[0].name
        out = sess.get_outputs()[0]
        result = sess.run([out.name], {name: x})
        assert len(sess.run(None, {name: x})) == len(sess.get_outputs())
        given = [(i.name, i.type, i.shape) for i in (*sess.get_inputs(), *sess.get_outputs())]
        return given, result

    theirs, ours = program(ort), program(xrt)
    assert theirs[0] == ours[0]
    assert type(ours[1]) is list
    np.testing.assert_array_equal(theirs[1][0], ours[1][0])


def test_providers_name_the_engine_and_the_device(path) -> None:
    with xrt.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]) as sess:
        region = sess.plan.regions[0]
        assert (region.engine, region.device) == ("onnxruntime", "cpu")
        assert sess.plan.decision("engine").chosen.code is xrt.Reason.FALLBACK
    with xrt.InferenceSession(path, providers=["CPUExecutionProvider"], engine="openvino") as sess:
        assert sess.plan.regions[0].engine == "openvino"
    with pytest.raises(PolicyError, match=r"no provider of that name; got 'CPUProvider'"):
        xrt.InferenceSession(path, providers=["CPUProvider"])
    profiling = ort.SessionOptions()
    profiling.enable_profiling = True
    with pytest.raises(PolicyError, match=r"SessionOptions\.enable_profiling is not taken"):
        xrt.InferenceSession(path, profiling)


def test_names_that_are_no_outputs_and_options(path, x) -> None:
    with xrt.InferenceSession(path, providers=["CPUExecutionProvider"]) as sess:
        with pytest.raises(InputError, match=r"no output of that name; got 'y'\. Outputs are output"):
            sess.run(["y"], {"input": x})
        with pytest.raises(InputError, match="takes no RunOptions"):
            sess.run(None, {"input": x}, ort.RunOptions())
