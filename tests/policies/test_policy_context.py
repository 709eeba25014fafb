"""with_policy: nested, and apart per thread and per async task."""

from __future__ import annotations

import asyncio
import threading

import pytest

import xpuruntime as xrt
from xpuruntime.errors import PolicyError
from xpuruntime.policies import current_policy


def test_nested_blocks_merge_and_end():
    outer = xrt.KernelPolicy(matmul="cublas", conv="cudnn")
    inner = xrt.ExecutionPolicy(engine="native")
    with xrt.with_policy(outer) as first:
        assert first == current_policy() == xrt.Policy(kernel=outer)
        with xrt.with_policy(inner), xrt.with_policy(xrt.KernelPolicy(matmul="gemv")):
            assert current_policy().execution == inner
            assert [layer.matmul for layer in current_policy().kernel.layers] == [("gemv",), ("cublas",)]
        assert current_policy() == first
    assert current_policy() == xrt.Policy()


def test_an_error_inside_ends_the_block():
    with pytest.raises(ZeroDivisionError), xrt.with_policy(xrt.KernelPolicy(matmul="gemv")):
        raise ZeroDivisionError
    assert current_policy() == xrt.Policy()


def test_a_wrong_policy_changes_nothing():
    with pytest.raises(PolicyError, match="no such kernel"), xrt.with_policy(xrt.KernelPolicy(matmul="gemw")):
        pass
    assert current_policy() == xrt.Policy()


def test_as_a_decorator():
    @xrt.with_policy(xrt.KernelPolicy(matmul="gemv"))
    def seen():
        return current_policy().kernel.matmul

    assert seen() == seen() == ("gemv",)
    assert current_policy() == xrt.Policy()


def test_threads_do_not_see_each_other():
    together = threading.Barrier(8)
    seen = {}

    def work(i):
        before = current_policy()
        with xrt.with_policy(xrt.ExecutionPolicy(run_timeout_s=i + 1)):
            together.wait(10)
            seen[i] = (before, current_policy().execution.run_timeout_s)
            together.wait(10)

    with xrt.with_policy(xrt.KernelPolicy(matmul="gemv")):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert seen == {i: (xrt.Policy(), float(i + 1)) for i in range(8)}


def test_async_tasks_inherit_and_do_not_leak():
    async def task(i):
        with xrt.with_policy(xrt.ExecutionPolicy(run_timeout_s=i + 1)):
            await asyncio.sleep(0.001 * (5 - i))
            return current_policy().execution.run_timeout_s, current_policy().kernel.matmul

    async def main():
        with xrt.with_policy(xrt.KernelPolicy(matmul="gemv")):
            results = await asyncio.gather(*(task(i) for i in range(5)))
            assert current_policy().execution == xrt.ExecutionPolicy()
            return results

    assert asyncio.run(main()) == [(float(i + 1), ("gemv",)) for i in range(5)]
