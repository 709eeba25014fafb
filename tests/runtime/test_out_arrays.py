"""Memory for outputs: the other byte order, read-only and strided arrays, and whatever shares memory with inputs or other outputs is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.runtime import DeviceBuffer, Executor
from xpuruntime.runtime.memory.overlap import first_overlap

N = 16
X = np.arange(N * N, dtype=np.float32).reshape(N, N)


def graph() -> Graph:
    b = GraphBuilder("turn")
    x = b.input("x", f"float32[{N}, {N}]")
    b.output("turned", b.permute(x, dims=[1, 0]))
    b.output("doubled", b.add(x, x))
    return b.build()


def onnx_model() -> bytes:
    pytest.importorskip("onnx")  # the core alone has none
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [N, N]) for n in ("x", "turned", "doubled")]
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Add", ["x", "x"], ["doubled"]),
    ]
    made = helper.make_graph(nodes, "turn", values[:1], values[1:])
    return bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.fixture(scope="module")
def executor() -> Executor:
    return Executor(xrt.compile(graph()), threads=1)


def outs() -> list[Any]:
    return [np.zeros((N, N), np.float32), np.zeros((N, N), np.float32)]


def test_outputs_with_memory_of_their_own_are_written(executor: Executor) -> None:
    block = np.zeros((3, N, N), np.float32)  # neighbors share no byte
    block[0] = X
    executor.run_arrays([block[0]], out=[block[2], block[1]])
    np.testing.assert_array_equal(block[2], X.T)
    np.testing.assert_array_equal(block[1], 2 * X)


@pytest.mark.parametrize("which", [0, 1])
def test_the_other_byte_order_is_refused(executor: Executor, which: int) -> None:
    made = outs()
    made[which] = np.zeros((N, N), np.dtype(np.float32).newbyteorder())
    with pytest.raises(InputError, match=r"has the other byte order than this machine; got [<>]f4"):
        executor.run_arrays([X], out=made)
    assert not made[which].any()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("shift", [0, 1, N * N - 1])
def test_an_output_over_an_input_is_refused(executor: Executor, which: int, shift: int) -> None:
    block = np.zeros(3 * N * N, np.float32)
    given = block[N * N : 2 * N * N].reshape(N, N)
    given[:] = X
    for at in (N * N + shift, N * N - shift):
        made = outs()
        made[which] = block[at : at + N * N].reshape(N, N)
        with pytest.raises(InputError, match=f"output {which} shares memory with input 0"):
            executor.run_arrays([given], out=made)
        np.testing.assert_array_equal(given, X)


def test_two_outputs_over_each_other_are_refused(executor: Executor) -> None:
    block = np.zeros(2 * N * N, np.float32)
    first, second = block[: N * N].reshape(N, N), block[N : N * N + N].reshape(N, N)
    for made in ([first, first], [first, second], [second, first]):
        with pytest.raises(InputError, match=r"output [01] shares memory with output [01]"):
            executor.run_arrays([X], out=made)


def test_buffers_over_each_other_are_refused(executor: Executor) -> None:
    given = DeviceBuffer.from_numpy(X.copy())
    with pytest.raises(InputError, match="output 0 shares memory with input 0"):
        executor.run({"x": given}, out={"turned": given})
    other = DeviceBuffer.from_numpy(np.zeros((N, N), np.float32))
    with pytest.raises(InputError, match="shares memory with output"):
        executor.run({"x": given}, out={"turned": other, "doubled": other})
    np.testing.assert_array_equal(given.to_numpy(), X)


@pytest.mark.parametrize(
    "bad",
    [
        np.broadcast_to(np.float32(0), (N, N)),
        np.zeros((N, 2 * N), np.float32)[:, ::2],
        np.zeros((N, N), np.float32)[::-1],
        np.frombuffer(bytes(4 * N * N), np.float32).reshape(N, N),
        np.frombuffer(bytearray(4 * N * N + 1), np.float32, N * N, 1).reshape(N, N),
    ],
    ids=["broadcast", "strided", "backwards", "read-only", "unaligned"],
)
def test_memory_that_no_kernel_writes_is_refused(executor: Executor, bad: Any) -> None:
    with pytest.raises(InputError, match="must be C-contiguous, aligned and writeable"):
        executor.run_arrays([X], out=[outs()[0], bad])


@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_bound_outputs_over_inputs_are_refused(engine: str) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    with xrt.InferenceSession(onnx_model(), engine=engine) as session:
        block = np.zeros(2 * N * N, np.float32)
        given, made = block[: N * N].reshape(N, N), block[N : N * N + N].reshape(N, N)
        binding = session.io_binding()
        binding.bind_input("x", given)
        binding.bind_output("turned", made)
        with pytest.raises(InputError, match="output 'turned' shares memory with input 'x'"):
            session.run_with_iobinding(binding)
        binding.bind_output("turned", outs()[0])
        binding.bind_output("doubled", binding.get_outputs()[0].array)
        with pytest.raises(InputError, match=r"output '(turned|doubled)' shares memory with output"):
            session.run_with_iobinding(binding)


def test_ranges_are_told_apart_by_their_first_and_last_byte() -> None:
    block = np.arange(24, dtype=np.float32)
    assert first_overlap({"a": block[:8]}, {"y": block[8:16], "z": block[16:]}) is None
    assert first_overlap({"a": block[:8], "b": block[4:12]}, {"y": block[12:]}) is None
    assert first_overlap({"a": block[::-1]}, {"y": block[:1]}) == ("output 'y'", "input 'a'")
    assert first_overlap({"a": block[:24:5], "b": block[1:2]}, {"y": block[20:]}) == (
        "output 'y'",
        "input 'a'",
    )
    assert first_overlap({}, {"y": block[:9], "z": block[8:]}) == ("output 'z'", "output 'y'")
    assert first_overlap({"a": block[:0]}, {"y": block}) is None


@pytest.mark.parametrize("contexts", [65_537, 10**6, 2**31, 2**70])
def test_more_contexts_than_there_can_be_are_refused(contexts: int) -> None:
    with pytest.raises(InputError, match="contexts must be at most"):
        Executor(xrt.compile(graph()), contexts=contexts)


@pytest.mark.parametrize("contexts", [65_537, 2**70])
def test_more_contexts_of_a_session_than_there_can_be_are_refused(contexts: int) -> None:
    with pytest.raises(InputError, match="contexts must be at most 1024"):
        xrt.InferenceSession(onnx_model(), engine="native", contexts=contexts)


def test_closing_many_contexts_ends() -> None:
    executor = Executor(xrt.compile(graph()), threads=1, contexts=65_536)
    executor.run_arrays([X])
    executor.close()
    assert executor.counters["contexts"] == 0
