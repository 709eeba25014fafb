"""Run by test_simulated_cuda.py in a process of its own, with XPU_LIBCUDA naming the simulated driver: `python simulated_cuda.py CASE KERNELS`."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import buffer, f32
from simulated_program import N, W, executor, program, right, x_of
from table_library import Tensor

from xpuruntime.errors import DeviceUnavailable, InputError, RunError, UnavailableError
from xpuruntime.program.program import (
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
    KernelParam,
)
from xpuruntime.runtime import (
    CudaBackend,
    Device,
    DeviceBuffer,
    Executor,
    Stream,
    load_weights,
)
from xpuruntime.types import DType, TensorSpec


def arrays() -> None:
    made = executor()
    for seed in range(4):
        (y,) = made.run_arrays([x_of(seed)])
        assert right(x_of(seed), y)
    x = x_of(9)
    assert right(x[::-1], made.run_arrays([x[::-1]])[0])  # copied, since it is not contiguous
    assert made.backend.counters() == {"captures": 1, "updates": 0, "replays": 4, "plain": 1, "declined": []}
    assert (made.counters["sent"], made.counters["fetched"]) == (5 * 4 * N, 5 * 4 * N)
    crossed, graphs = made.notes
    assert crossed == f"{20 * N} bytes were copied to cuda:0 and {20 * N} back, in 5 runs"
    assert graphs.startswith(
        "on Simulated GPU: 4 submissions as a CUDA graph (1 captured, 0 updated to other addresses)"
    )
    with pytest.raises(InputError, match=r"must be float32\[1000\]"):
        made.run_arrays([x.astype(np.float64)])


def buffers() -> None:
    made = executor()
    x = DeviceBuffer.from_numpy(x_of(1), "cuda:0")
    assert right(x_of(1), made.run({"input": x})["output"].to_numpy())
    assert right(x_of(2), made.run({"input": x_of(2)})["output"].to_numpy())  # an array of the host
    queued = made.run({"input": x}, stream=0)["output"]
    assert queued.pending == 0
    assert right(x_of(1), queued.to_numpy())  # waits
    assert queued.pending is None
    zeros = DeviceBuffer.zeros(TensorSpec((8,), DType.INT32), "cuda:0")
    assert zeros.to_numpy().tolist() == [0] * 8
    assert x.__dlpack_device__() == (2, 0)
    on_host = Executor(program(), "cuda:0").backend
    assert on_host.shares_memory(made.backend)


def refusals() -> None:
    with pytest.raises(DeviceUnavailable) as refused:
        Device("cuda:3")
    assert str(refused.value) == (
        "[device cuda:3] cannot be used; got there is no cuda:3. This machine has 1 CUDA devices, counted from 0."
    )
    with pytest.raises(UnavailableError, match=r"this machine lacks cuda:sm_100 \(it is cuda:sm_90\)"):
        executor(requires="cuda:sm_100")
    missing = CudaBackend().missing
    assert missing(("cuda:sm_90", "cuda:sm_90a")) == []
    assert missing(("cuda:sm_80",)) == ["cuda:sm_80 (it is cuda:sm_90)"]


def picking() -> CompiledProgram:
    """y[i] = w[x[i]] of N elements: a kernel that reports."""
    launch = {"grid": [N, 1, 1], "block": [1, 1, 1], "shared": 0}
    size = (KernelParam("size", "i64", N),)
    pick = KernelCall(
        "test/pick", "pick", ("w", "x"), ("y",), size, N, scratch_bytes=64, options=launch, nodes=("embed",)
    )
    kinds = {"x": BufferKind.INPUT, "w": BufferKind.WEIGHT, "y": BufferKind.OUTPUT}
    made = tuple(buffer(name, kind, f32(name, N)) for name, kind in kinds.items())
    plan = ExecutionPlan("cuda:sm_90", 0, (pick,), made, 0, 1000)
    return replace(
        program(),
        entries=(EntryPoint("main", (f32("input", N),), (f32("output", N),), ("x",), ("y",), (plan,)),),
        binaries=(replace(program().binaries[0], symbols=("pick",)),),
    )


def reports() -> None:
    """An index outside is an error of the run that met it, or of whoever waits for that run."""
    made = Executor(picking(), "cuda:0")
    made.bind({"w": W})
    inside, outside = np.full(N, 3, np.float32), np.full(N, -5, np.float32)
    said = r"kernel test/pick \(node embed\): index -5 is outside a dim of 1000"
    for _ in range(3):
        assert (made.run_arrays([inside])[0] == 3).all()
        with pytest.raises(RunError, match=said) as failed:
            made.run_arrays([outside])
        assert "the values of the inputs that are indices" in str(failed.value)
    x = DeviceBuffer.from_numpy(outside, "cuda:0")
    queued = made.run({"input": x}, stream=0)["output"]  # nobody waits
    with pytest.raises(RunError, match=f"a queued run failed: {said}"):
        queued.to_numpy()
    assert (made.run_arrays([inside])[0] == 3).all()
    made.run({"input": x}, stream=0)
    with pytest.raises(RunError, match=said):
        made.backend.synchronize()
    made.backend.synchronize()


def observed() -> None:
    """What CUPTI saw: of a first run single launches, later the graph; joined to the plan's calls."""
    made = executor()
    for i in range(3):
        found = made.observe([x_of(i)])
        assert found.absent == "", found
        assert (found.source, found.graph) == ("CUPTI 13.5", i > 0)
        assert {at: [s.name for s in seen] for at, seen in found.calls.items()} == {0: ["add"], 1: ["scale"]}
        (scale,) = found.calls[1]
        assert (scale.grid, scale.block, scale.registers, scale.time_us) == ((N, 1, 1), (1, 1, 1), 40, 1.0)
        how = ("one graph", "graph nodes") if i else ("single launches", "correlation")
        assert found.note() == f"CUPTI 13.5 recorded 2 activities of 2 calls in {how[0]}, matched by {how[1]}"
    assert right(x_of(7), made.run_arrays([x_of(7)])[0])


def receipt() -> None:
    """A session's receipt names what the driver ran under each call of the plan; and says so when it was something else."""
    import xpuruntime as xrt

    weight = replace(program().weights[0], data=W.tobytes())
    calls = tuple(
        replace(c, nodes=(f"node_{c.symbol}",), ops=("add",)) for c in program().entries[0].plans[0].calls
    )
    (entry,) = program().entries
    whole = replace(
        program(), weights=(weight,), entries=(replace(entry, plans=(replace(entry.plans[0], calls=calls),)),)
    )
    sess = xrt.InferenceSession(whole, device="cuda:0", engine="native")
    assert right(x_of(1), sess.run({"input": x_of(1)})["output"])
    plain = sess.receipt()
    assert plain.confirmed
    (evidence,) = plain.evidence.values()
    assert [[s.name for s in row.seen] for row in evidence.rows] == [["add"], ["scale"]]
    assert evidence.rows[1].to_json()["seen"] == [
        {
            "name": "scale",
            "grid": [N, 1, 1],
            "block": [1, 1, 1],
            "registers": 40,
            "shared_bytes": 128,
            "bytes": 0,
            "time_us": 1.0,
            "start_us": 1.0,
        }
    ]
    text = plain.text()
    assert "ran scale (1000x1x1 of 1x1x1, 40 registers, 128 bytes shared) 1.0 us" in text
    assert "note: CUPTI 13.5 recorded 2 activities of 2 calls in one graph, matched by graph nodes" in text


def unobserved() -> None:
    """Without CUPTI a run is as any other, and the reason is told."""
    made = executor()
    found = made.observe([x_of(1)])
    assert not found.calls
    assert found.note().startswith(
        "no record of what the driver ran: NVIDIA CUPTI: no file found; tried /nonexistent/cupti.so"
    )
    assert "XPU_LIBCUPTI names this file" in found.note()
    assert right(x_of(7), made.run_arrays([x_of(7)])[0])


def tensors() -> None:
    """Tensors of the device, of a library with DLPack's table: one call into the core, queued on that library's stream, results of its own."""
    import xpuruntime as xrt
    from xpuruntime import _core

    made = executor()
    Tensor.backend = made.backend
    queue = made.backend.new_stream()
    Tensor.stream = queue.handle
    x = Tensor.of(x_of(1))
    out = made.run_tensors({"input": x})
    assert out is not None
    y = out["output"]
    assert type(y) is Tensor
    assert not queue.done  # nobody waited
    assert right(x_of(1), y.numpy())
    for seed in range(2, 5):
        again = made.run_tensors({"input": Tensor.of(x_of(seed))})
        assert again is not None
        assert right(x_of(seed), again["output"].numpy())
    assert made.backend.counters()["replays"] >= 2

    borrowing = Executor(program(), "cuda:0", borrows_arena=True)
    borrowing.bind({"w": W})
    for seed in range(4):
        out = borrowing.run_tensors({"input": Tensor.of(x_of(seed))})
        assert out is not None
        assert list(out) == ["output"]
        assert right(x_of(seed), out["output"].numpy())
    assert borrowing.counters["allocations"] == 0  # each run takes its arena from the tensors' library
    assert made.counters["allocations"] == 1

    for wrong in ({"input": x_of(1)}, {"input": Tensor((N + 1,))}, {"other": x}, {}, {"input": x, "more": x}):
        assert made.run_tensors(wrong) is None

    weight = replace(program().weights[0], data=W.tobytes())
    sess = xrt.InferenceSession(replace(program(), weights=(weight,)), device="cuda:0", engine="native")
    for seed in range(3):
        found = sess.run({"input": Tensor.of(x_of(seed))})["output"]
        assert type(found) is Tensor
        assert right(x_of(seed), found.numpy())
    assert right(x_of(9), sess.run({"input": x_of(9)})["output"])  # and arrays as before
    sess.close()
    with pytest.raises(RunError, match="closed"):
        sess.run({"input": x})

    table, policy = _core.Ops(2), object()
    table.know_policy(policy, 1)
    where = (7, policy, (2.5, None, (1, 2)), (x, None))
    assert table.run(*where, None) is None
    core, bindings, dtype = made.core, made.bind({"w": W}), np.dtype(np.float32)
    table.put(*where, core, bindings, [0], [N], (2, 32), dtype, 0, "why")
    got = table.run(*where, None)
    assert type(got) is Tensor
    assert right(x_of(1), got.numpy())
    into = Tensor((N,))
    assert table.run(*where, into) is into
    assert right(x_of(1), into.numpy())
    assert table.run(*where, x) == -3  # it would be written while it is read
    assert table.run(*where, x_of(1)) == -2  # it is stored elsewhere
    assert table.run(7, policy, (2.0, None, (1, 2)), (x, None), None) is None
    assert table.payload(*where) == "why"
    assert (table.counters.hits, table.counters.misses, table.counters.entries) == (4, 2, 1)


def streams() -> None:
    """Work on one stream waits for work on another; the events in between are used again."""
    made = executor()
    backend = made.backend
    one, two = backend.new_stream(), backend.new_stream()
    for seed in range(20):
        x = DeviceBuffer.from_numpy(x_of(seed), backend)
        first, second = (one.handle, two.handle) if seed % 2 else (two.handle, one.handle)
        y = made.run({"input": x}, stream=first)["output"]
        backend.order(second, first)
        z = made.run({"input": y}, stream=second)["output"]
        backend.order(0, second)
        assert not (one.done and two.done)  # nobody waited
        want = ((x_of(seed) + W) * np.float32(0.5) + 3 + W) * np.float32(0.5) + 3
        assert np.array_equal(z.to_numpy(), want)
    assert len(backend._events) == 1
    assert backend._streams.keys() == {0, one.handle, two.handle}
    backend.order(one.handle, one.handle)
    assert len(backend._events) == 1


def copies() -> None:
    """The counter of the GPU scripts sees each copy between the host and the device, and no other."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
    from device_copies import CopyCounter

    made = executor()
    x = DeviceBuffer.from_numpy(x_of(1), "cuda:0")
    y = made.run({"input": x}, stream=0)["output"]
    with CopyCounter() as seen:
        y = made.run({"input": y}, stream=0)["output"]
        made.backend.synchronize()
    assert (seen.host, seen.dropped) == ([], 0)
    with CopyCounter() as seen:
        x = DeviceBuffer.from_numpy(x_of(2), "cuda:0")
        made.run({"input": x}, stream=0)["output"].to_numpy()
        y.to_numpy()
        made.backend.synchronize()
    assert sorted(seen.host) == [("to the device", 4 * N), ("to the host", 4 * N), ("to the host", 4 * N)]


def regions() -> None:
    """A native region between two of a vendor: values stay on the device, and so do inputs and outputs of the caller.

    The vendor is ONNX Runtime's CPU provider on the simulated device's memory, which waits for what is queued before it.
    """
    from onnx import TensorProto, helper, numpy_helper

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
    from device_copies import CopyCounter

    import xpuruntime as xrt
    from xpuruntime.decisions import Support
    from xpuruntime.engines.onnxruntime import options
    from xpuruntime.engines.onnxruntime.device_run import OrtDeviceExecutable
    from xpuruntime.frontends.model_file import open_model
    from xpuruntime.frontends.onnx.importer import import_onnx
    from xpuruntime.inference.partitioned import region_runners
    from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
    from xpuruntime.inference.selection.candidate import LoadedEngine
    from xpuruntime.protocols import EngineRequest
    from xpuruntime.targets import DeviceId

    class OnSimulatedDevice(OrtDeviceExecutable):
        def _execute_on(self, stream, binding):  # type: ignore[no-untyped-def]
            self._backend.synchronize()
            self.execute(binding)

    opened = []

    def attempt(model, candidate, store):  # type: ignore[no-untyped-def]
        request = EngineRequest(DeviceId("cpu"), threads=1)
        executable = OnSimulatedDevice(
            model, request, options.parse(request), Device(str(candidate.device)).backend
        )
        opened.append(executable)
        return LoadedEngine(candidate, model, executable, "1", DType.FLOAT32, Support.yes(), {})

    region_runners.attempt = attempt
    node = helper.make_node
    nodes = [
        node("Neg", ["x"], ["a"], name="first"),
        node("Add", ["a", "w"], ["b"], name="add"),
        node("Mul", ["b", "half"], ["c"], name="mul"),
        node("Add", ["c", "three"], ["d"], name="shift"),
        node("Relu", ["d"], ["y"], name="last"),
    ]
    constants = {"w": W, "half": np.float32(0.5), "three": np.float32(3)}
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [N]) for n in "xy"]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "net", io[:1], io[1:], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph, values = import_onnx(proto)
    vendor = "onnxruntime on cuda:0"
    plan = xrt.partition(
        graph,
        engine="native on cuda:0",
        others=(vendor,),
        place={
            "first": vendor,
            "last": vendor,
            "add": "native on cuda:0",
            "mul": "native on cuda:0",
            "shift": "native on cuda:0",
        },
    )
    assert [r.engine for r in plan.regions] == ["onnxruntime", "native", "onnxruntime"]
    with DAGExecutor(plan, "cuda:0", compile_fn=lambda graph: program(), original=open_model(proto)) as dag:
        dag.load_weights(values)

        def want(x: np.ndarray) -> np.ndarray:
            return np.maximum((-x + W) * np.float32(0.5) + 3, 0)

        assert np.array_equal(
            dag.execute({"x": x_of(0)})["y"], want(x_of(0))
        )  # of the host: copied in and out
        assert dag.counters["copies"] == 2
        for seed in range(1, 4):
            x = DeviceBuffer.from_numpy(x_of(seed), "cuda:0")
            with CopyCounter() as seen:
                y = dag.execute({"x": x})["y"]
                y.settle()
            assert seen.host == []
            assert isinstance(y, DeviceBuffer)
            assert np.array_equal(y.to_numpy(), want(x_of(seed)))
        assert dag.counters["copies"] == 2
        evidence = dag.evidence({"x": x})
        assert [e.transfers.get("inner_d2h", 0) for e in evidence.values()] == [0, 0, 0]
        assert len(opened) == 2
        with pytest.raises(InputError, match="must be float32"):
            dag.execute({"x": DeviceBuffer.from_numpy(x_of(0).astype(np.float64), "cuda:0")})


def constants() -> None:
    """A model without regions, whose outputs are a constant and an input: for a caller on the device they are copied there."""
    from xpuruntime.compiler.partition.partitioner import partition
    from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
    from xpuruntime.ir import GraphBuilder

    b = GraphBuilder("constants")
    b.output("same", b.input("x", f"float32[{N}]"))
    b.output("fixed", b.constant(W))
    plan = partition(b.build(), others=("onnxruntime",))
    assert plan.regions == ()
    with DAGExecutor(plan, "cuda:0") as dag:
        dag.load_weights({})
        outputs = dag.execute({"x": DeviceBuffer.from_numpy(x_of(1), "cuda:0")})
        assert all(isinstance(v, DeviceBuffer) for v in outputs.values())
        assert np.array_equal(outputs["same"].to_numpy(), x_of(1))
        assert np.array_equal(outputs["fixed"].to_numpy(), W)
        assert {k: dag.counters[k] for k in ("runs", "regions", "copies", "bytes")} == {
            "runs": 1,
            "regions": 0,
            "copies": 1,
            "bytes": 4 * N,
        }
        assert dag.evidence({"x": x_of(1)}) == {}


def two_devices() -> None:
    """Two devices in one process, whose driver refuses a stream or an event of the other one. Four threads run in every way."""
    import xpuruntime as xrt

    executors = [Executor(program(), f"cuda:{i}") for i in range(2)]
    for each in executors:
        each.bind({"w": W})
    first, second = executors
    Tensor.backends.update({i: each.backend for i, each in enumerate(executors)})
    embedded = replace(program(), weights=(replace(program().weights[0], data=W.tobytes()),))
    sessions = [xrt.InferenceSession(embedded, device=f"cuda:{i}", engine="native") for i in range(2)]
    errors: list[str] = []

    def thread(which: int) -> None:
        try:
            for seed in range(int(os.environ.get("SEEDS", "40"))):
                x, on, session = x_of(seed), executors[which % 2], sessions[which % 2]
                buffer = DeviceBuffer.from_numpy(x, f"cuda:{which % 2}")
                results = (
                    on.run_arrays([x])[0],
                    on.run({"input": buffer})["output"].to_numpy(),
                    session.run({"input": x})["output"],
                    session.run({"input": Tensor.of(x, which % 2)})["output"].numpy(),
                )
                errors.extend(f"input {seed} on cuda:{which % 2}" for y in results if not right(x, y))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=thread, args=(i,)) for i in range(4)]
    for each_thread in threads:
        each_thread.start()
    for each_thread in threads:
        each_thread.join()
    assert not errors, errors[:3]
    for each_session in sessions:
        each_session.close()

    here, there = (DeviceBuffer.from_numpy(x_of(1), f"cuda:{i}") for i in range(2))
    with pytest.raises(
        InputError, match=r"input 'input' must be on cuda:0; got a tensor on cuda:1\. Copy it to cuda:0"
    ):
        first.run({"input": there})
    out = DeviceBuffer.from_numpy(x_of(1), "cuda:0")
    with pytest.raises(InputError, match="output 'output' must be on cuda:1; got a tensor on cuda:0"):
        second.run({"input": there}, out={"output": out})
    with pytest.raises(InputError, match="needs weights on cuda:0; got weights on cuda:1"):
        first.bind(load_weights({"w": W}, first.program, "cuda:1"))
    with pytest.raises(InputError, match="runs executors of its own device only"):
        Stream("cuda:1").run(first, {"input": here})
    with pytest.raises(DeviceUnavailable, match=r"there is no cuda:7\. This machine has 2 CUDA devices"):
        Device("cuda:7")

    backend, peer = second.backend, first.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(peer, CudaBackend)
    assert backend.reaches_peer(peer) is ("SIMULATED_NO_PEERS" not in os.environ)
    for stream in (0, peer.new_stream().handle):
        queued = first.run({"input": here}, stream=stream)["output"]
        copied, direct = backend.take(queued)
        assert direct is backend.reaches_peer(peer)
        assert copied.backend is backend
        assert right(x_of(1), copied.to_numpy())
        again = second.run({"input": copied})["output"].to_numpy()
        assert right(copied.to_numpy(), again)
        assert right(x_of(1), queued.to_numpy())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
