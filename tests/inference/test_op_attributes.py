"""Attributes of single ops that no op takes: an InputError, also where reading them could end the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError

X, W = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)


@pytest.mark.parametrize("stride", [2**70, (1, -(2**70)), "1", {"a": 1}, (1, "x"), object(), ((((((((((1,),),),),),),),),),)])  # fmt: skip
def test_attributes_that_are_no_numbers_are_refused(stride: Any) -> None:
    with pytest.raises(InputError):
        xrt.ops.conv2d(X, W, stride=stride)


def test_tuples_nested_a_million_times_are_refused() -> None:
    code = """
import numpy as np, xpuruntime as xrt
from xpuruntime.errors import InputError
deep = (1,)
for _ in range(1_000_000): deep = (deep,)
for stride in (deep, (deep, 1)):
    try: xrt.ops.conv2d(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32), stride=stride)
    except InputError as error: print("nested too deeply" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr[-2000:]
