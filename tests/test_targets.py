"""Devices are named one way, and a word that names none is told the nearest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import DeviceUnavailable
from xpuruntime.targets import CUDA_GPU, DEVICE_KINDS, TARGETS, DeviceId


@given(st.sampled_from(list(DEVICE_KINDS)), st.integers(0, 9999))
def test_what_a_device_prints_parses_back(kind: str, index: int) -> None:
    device = DeviceId(kind, index)
    assert DeviceId.parse(str(device)) == device
    assert DeviceId.parse(device) is device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", DeviceId("cpu")),
        ("CUDA:0", DeviceId("cuda")),
        (" cuda:12 ", DeviceId("cuda", 12)),
        ("AUTO", DeviceId("auto")),
    ],
)
def test_spellings(text: str, device: DeviceId) -> None:
    assert DeviceId.parse(text) == device


@pytest.mark.parametrize(
    "text", ["", "tpu", "cuda:", "cuda:-1", "cuda:1:2", "cuda 0", "cuda:99999", "cpu\n0", "gpu.0"]
)
def test_a_word_that_names_no_device(text: str) -> None:
    with pytest.raises(
        DeviceUnavailable, match=r"\[device\] no such device; got .*Use one of cpu, cuda, gpu, npu"
    ) as caught:
        DeviceId.parse(text)
    assert caught.value.got == repr(text)


@pytest.mark.parametrize("text", ["h200", "cuda:a100"])
def test_a_model_of_gpu_that_is_not_here_can_be_compiled_for(text: str) -> None:
    model = text.rpartition(":")[2]
    with pytest.raises(DeviceUnavailable, match=f"--target cuda:{model}.*--times FILE --device {model}"):
        DeviceId.parse(text)


def test_the_nearest_word_is_offered() -> None:
    with pytest.raises(DeviceUnavailable, match="Did you mean 'cuda'"):
        DeviceId.parse("cude:0")


def test_the_porting_guide_s_instances_are_there() -> None:
    assert TARGETS["cuda_gpu"] is CUDA_GPU
    assert [name for name, target in TARGETS.items() if target.name != name] == []
    assert (CUDA_GPU.num_sms, CUDA_GPU.smem_per_block, CUDA_GPU.max_cluster_size) == (0, 0, 0)
    assert (CUDA_GPU.max_threadgroup_1d, CUDA_GPU.matmul_tile, CUDA_GPU.channel_tile) == (1024, 32, 64)
