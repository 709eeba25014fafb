"""The devices of these tests: the host, and a CUDA device where there is one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """A device that training ops run on."""
    return str(request.param)


@pytest.fixture(autouse=True)
def no_policy_left() -> object:
    """Fail a test that leaves a policy behind."""
    from xpuruntime.policies import Policy, current_policy
    from xpuruntime.pytorch import reset_kernel_policy

    yield
    left = current_policy()
    reset_kernel_policy()
    assert left == Policy(), "the test left a policy"
