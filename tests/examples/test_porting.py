"""The example backend: right, entered once a run, with states, threads and errors as the core has them."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import EDGE, EdgeTarget
from examples.porting.run_edge import classifier, main
from xpuruntime.compiler import compile as compile_program
from xpuruntime.errors import KernelUnavailable, RunError, UnavailableError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.runtime import DeviceBuffer, Executor, LinearDispatch


def feeds_and_weights(graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(1)

    def array(spec: Any) -> Any:
        return rng.standard_normal([int(d) for d in spec.shape], np.float32)

    return {s.name: array(s) for s in graph.input_specs}, {w.name: array(w.spec) for w in graph.weights}


def test_it_is_right_and_entered_once_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert float(re.findall(r"= (\S+)$", capsys.readouterr().out.strip())[0]) < 1e-6
    graph = classifier()
    feeds, weights = feeds_and_weights(graph)
    backend = EdgeBackend()
    executor = backend.create_executor(compile_program(graph, target=EdgeTarget()))
    want = interp.run(graph, feeds, weights=weights)["output"]
    executor.bind(weights)
    for _ in range(3):
        np.testing.assert_allclose(executor.run_arrays([feeds["input"]])[0], want, rtol=1e-5, atol=1e-7)
    calls = len(executor.plan.calls)
    assert calls == 4
    assert backend.launches == [3, 3 * calls]
    assert executor.counters["dispatches"] == 3 * calls
    assert executor.counters["prepared"] == calls


def test_buffers_stay_on_the_device() -> None:
    graph = classifier()
    feeds, weights = feeds_and_weights(graph)
    backend = EdgeBackend()
    program = compile_program(graph, target=EdgeTarget())
    given = backend.allocate_buffer(feeds["input"], spec=program.input_specs[0])
    outputs = backend.execute(program, {"input": given}, weights)
    assert outputs["output"].backend is backend
    np.testing.assert_allclose(
        outputs["output"].to_numpy(),
        interp.run(graph, feeds, weights=weights)["output"],
        rtol=1e-5,
        atol=1e-7,
    )
    host = DeviceBuffer.from_numpy(feeds["input"])
    with pytest.raises(xrt.InputError, match="must be on npu-sim; got a tensor on cpu"):
        backend.create_executor(program).run({"input": host}, weights=weights)


def test_states_and_threads_come_from_the_core() -> None:
    b = GraphBuilder("sum")
    x = b.input("x", "float32[8]")
    total = b.state("total", "float32[8]")
    after = b.add(total, x)
    b.set_state("total", after)
    b.output("y", after)
    executor = Executor(compile_program(b.build(), target=EdgeTarget()), EdgeBackend())
    one = np.ones(8, np.float32)

    def work() -> None:
        for _ in range(50):
            executor.run_arrays([one])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert executor.run_arrays([one])[0].tolist() == [151.0] * 8


def test_an_op_that_the_device_lacks_is_refused_with_the_targets_words() -> None:
    b = GraphBuilder("lacks")
    b.output("y", b.erf(b.input("x", "float32[8]")))
    with pytest.raises(KernelUnavailable) as caught:
        compile_program(b.build(), target=EdgeTarget())
    assert "npu-sim:edge has no kernel for erf: elementwise.py has no erf" in caught.value.decision.explain()  # type: ignore[union-attr]


def test_what_the_driver_raises_comes_through() -> None:
    class Broken(EdgeBackend):
        def submit(self, calls: Any, memory: Any) -> None:
            raise OSError("the device fell off the bus")

    graph = classifier()
    feeds, weights = feeds_and_weights(graph)
    executor = Broken().create_executor(compile_program(graph, target=EdgeTarget()))
    with pytest.raises(OSError, match="fell off the bus"):
        executor.run(feeds, weights=weights)
    executor.close()
    with pytest.raises(RunError, match="is closed"):
        executor.run(feeds, weights=weights)


def test_a_program_runs_only_where_it_was_compiled_for() -> None:
    graph = classifier()
    with pytest.raises(UnavailableError, match="compiled for npu-sim; the device is cpu"):
        Executor(compile_program(graph, target=EdgeTarget()))
    with pytest.raises(UnavailableError, match="compiled for cpu; the device is npu-sim"):
        Executor(compile_program(graph, target="cpu"), EdgeBackend())
    both = compile_program(graph, target=[EdgeTarget(), "cpu"])
    feeds, weights = feeds_and_weights(graph)
    want = interp.run(graph, feeds, weights=weights)["output"]
    for device, kind in ((EdgeBackend(), "npu-sim"), ("cpu", "cpu")):
        executor = Executor(both, device)
        assert executor.plan.target.startswith(kind)
        executor.bind(weights)
        np.testing.assert_allclose(executor.run_arrays([feeds["input"]])[0], want, rtol=1e-5, atol=1e-7)


def test_grids() -> None:
    graph = classifier()
    program = compile_program(graph, target=EdgeTarget())
    grids = [LinearDispatch(EDGE).compute_dispatch(c, None) for c in program.entries[0].plans[0].calls]
    assert grids == [
        ((1, 1, 1), (128, 1, 1)),
        ((1, 1, 1), (128, 1, 1)),
        ((1, 1, 1), (40, 1, 1)),
        ((1, 1, 1), (40, 1, 1)),
    ]
