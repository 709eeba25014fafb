"""Training that is killed and continued, and training of many steps whose memory stays flat."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import checkpointed_training
from support.checkpointed_training import MODES, POLICY, Net, batch

import xpuruntime.pytorch as xrt_torch

STEPS = 30


def losses(folder: Path) -> dict[int, int]:
    """Return the bits of each step's loss. A step that was repeated after a kill must repeat its loss."""
    values: dict[int, int] = {}
    text = (folder / "losses.txt").read_text() if (folder / "losses.txt").exists() else ""
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n") or len(line.split()) != 2:
            continue  # the process was killed while it wrote
        step, bits = map(int, line.split())
        assert values.setdefault(step, bits) == bits, f"step {step} has another loss after a kill"
    return values


def process(folder: Path, *how: str) -> subprocess.Popen[bytes]:
    paths = [
        str(Path(checkpointed_training.__file__).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, checkpointed_training.__file__, str(folder), str(STEPS), *how]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


@pytest.mark.timeout(300)
@pytest.mark.sampled(1, one_in=3)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_killed_at_random_moments_has_the_losses_of_an_undisturbed_one(
    tmp_path: Path, device: str, mode: str
) -> None:
    """Under a deterministic policy, in each way to run a step. On the host nothing is captured: the step runs as it is."""
    whole = tmp_path / "whole"
    whole.mkdir()
    checkpointed_training.train(whole, STEPS, device, mode)
    killed = tmp_path / "killed"
    killed.mkdir()
    draw, kills = random.Random(0), 0
    for goal in sorted(draw.sample(range(1, STEPS - 8), 2)):
        run = process(killed, device, mode)
        while run.poll() is None and len(losses(killed)) < goal:
            time.sleep(0.002)
        kills += run.poll() is None
        run.kill()
        _, error = run.communicate()
        assert run.returncode in (0, -9), error.decode()
    checkpointed_training.train(killed, STEPS, device, mode)
    assert kills
    assert losses(killed) == losses(whole)
    assert len(losses(whole)) == STEPS


def flat(steps: int, warm: int) -> int:
    """Assert that tensors, programs and numbered policies are as many after the steps as before them. Return how many more blocks Python has."""
    from xpuruntime.pytorch import numbered_policies, programs

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run(count: int) -> None:
        for step in range(count):
            x, t = batch(step % 7)
            optimizer.zero_grad()
            with xrt_torch.set_kernel_policy(POLICY), xrt_torch.autocast(bf16=True):
                y = model(x)
            torch.nn.functional.mse_loss(y.float(), t).backward()
            optimizer.step()

    def counted() -> tuple[int, int, int, int]:
        for _ in range(10):  # extensions release some objects only after others were collected
            if not gc.collect():
                break
        tensors = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
        return tensors, len(programs._prepared), len(numbered_policies._policies), sys.getallocatedblocks()

    run(warm)
    before = counted()
    run(steps)
    after = counted()
    assert after[0] <= before[0]  # tensors of earlier tests may be freed
    assert after[1:3] == before[1:3]
    return after[3] - before[3]


def test_steps_under_a_policy_keep_the_memory_flat() -> None:
    flat(100, 10)


@pytest.mark.sampled(0)
@pytest.mark.timeout(1200)
def test_ten_thousand_steps_keep_the_memory_of_the_process_flat() -> None:
    resource = pytest.importorskip("resource")
    flat(1000, 100)  # fills caches of PyTorch
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blocks = flat(10_000, 10)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10, f"{grown} KiB more"
    assert blocks < 5_000
