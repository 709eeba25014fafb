"""load_weights: sources, checks, sharing, memory."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from xpuruntime import _core
from xpuruntime.errors import FormatError, InputError, ModelError
from xpuruntime.program.program import RecipeStep, WeightRef, WeightTransformRecipe
from xpuruntime.runtime import Executor, load_weights
from xpuruntime.storage.tensor_files import write_safetensors
from xpuruntime.types import DType, Layout, TensorSpec

sys.path.insert(0, str(Path(__file__).parent))
from handmade import chain, f32

sys.path.pop(0)

W = np.arange(64, dtype=np.float32)


def test_every_source_gives_the_same_buffers(tmp_path: Path) -> None:
    program = chain()
    write_safetensors({"model.w": W}, tmp_path / "m.safetensors")
    held = dataclasses.replace(program, weights=(WeightRef("w", f32("w", 64), data=W.tobytes()),))
    filed = dataclasses.replace(
        program, weights=(WeightRef("w", f32("w", 64), "m.safetensors", "safetensors", "model.w"),)
    )
    for weights in (
        load_weights({"w": W}, program),
        load_weights({"model.w": W}, program),
        load_weights(tmp_path / "m.safetensors", program),
        load_weights(str(tmp_path / "m.safetensors"), program),
        load_weights(None, held),
        load_weights({}, held),
        load_weights(tmp_path, filed),
    ):
        assert list(weights) == ["w"]
        assert weights["w"].to_numpy().tolist() == W.tolist()
        assert weights["w"].address % 64 == 0
        assert weights.size_bytes == 256


def test_what_is_missing_or_another_is_said() -> None:
    program = chain()
    with pytest.raises(
        InputError,
        match=r"weight 'w' is missing; got 1 arrays, none called 'w' or 'model.w'. Pass float32\[64\]",
    ):
        load_weights({"v": W}, program)
    with pytest.raises(InputError, match=r"weight 'w' must be float32\[64\]; got float32\[65\]"):
        load_weights({"w": np.zeros(65, np.float32)}, program)
    with pytest.raises(InputError, match=r"weight 'w' must be float32\[64\]; got float64\[64\]"):
        load_weights({"w": np.zeros(64)}, program)
    with pytest.raises(FormatError, match="cannot be read"):
        load_weights("/nowhere/model.safetensors", program)
    with pytest.raises(InputError, match="weight 'w' is missing"):
        Executor(program).run_arrays([W])


def test_files_of_the_program_stay_below_their_folder(tmp_path: Path) -> None:
    ref = WeightRef("w", f32("w", 64), "../m.safetensors", "safetensors")
    with pytest.raises(ModelError, match="names a file outside"):
        load_weights(tmp_path, dataclasses.replace(chain(), weights=(ref,)))


@pytest.mark.usefixtures("no_garbage")
def test_recipes_run_once_and_executors_share() -> None:
    spec = TensorSpec((2, 3), DType.BFLOAT16, "p", Layout((1, 0), (4, 3)))
    steps = (
        RecipeStep("reshape", ("w",), {"shape": [8, 8]}),
        RecipeStep("slice", ("%0",), {"dim": 0, "begin": 0, "end": 2}),
        RecipeStep("slice", ("%1",), {"dim": 1, "begin": 0, "end": 3}),
        RecipeStep("cast", ("%2",), {"dtype": "bfloat16"}),
    )
    program = chain()
    recipes = (*program.recipes, WeightTransformRecipe("p", spec, "w", steps))
    program = dataclasses.replace(program, recipes=recipes)
    before = _core.host_memory().live_bytes
    weights = load_weights({"w": W}, program)
    assert _core.host_memory().live_bytes - before == 256 + 64  # 24 bytes take a cache line
    assert weights.size_bytes == 256 + 24
    assert weights["p"].to_numpy().tolist() == [[0, 1, 2], [8, 9, 10]]
    assert weights["p"].alloc_shape == (4, 3)
    assert weights["p"].dtype == ml_dtypes.bfloat16
    executors = [Executor(program, threads=t) for t in (1, 2)]
    for executor in executors:
        assert executor.run({"input": W}, weights=weights)["output"].to_numpy().tolist() == (W + 3).tolist()
    now = _core.host_memory().live_bytes
    again = [e.run({"input": W}, weights=weights) for e in executors]
    assert _core.host_memory().live_bytes - now == 2 * 256  # the two outputs
    del again


def test_weights_of_another_program_are_refused() -> None:
    weights = load_weights({"w": W}, chain())
    with pytest.raises(InputError, match="needs weights of its own program"):
        Executor(chain(), threads=1).run({"input": W}, weights=weights)
    same = dataclasses.replace(chain(), digest="d")
    weights = load_weights({"w": W}, same)
    executor = Executor(dataclasses.replace(chain(), digest="d"))
    assert executor.run({"input": W}, weights=weights)["output"].to_numpy()[0] == 3


def proved(digest: str) -> dict[str, object]:
    """Programs that state what the elements of their weight are: by name, and in a file."""
    named = WeightRef("w", f32("w", 64), key="model.w", digest=digest)
    filed = WeightRef("w", f32("w", 64), "m.safetensors", "safetensors", "model.w", digest=digest)
    return {
        "named": dataclasses.replace(chain(), weights=(named,)),
        "filed": dataclasses.replace(chain(), weights=(filed,)),
    }


def test_weights_are_those_that_the_program_was_compiled_for(tmp_path: Path) -> None:
    digest = write_safetensors({"model.w": W}, tmp_path / "m.safetensors")["model.w"]
    programs = proved(digest)
    load_weights({"w": W}, programs["named"])
    load_weights({"w": np.stack([W, W], 1)[:, 0]}, programs["named"])  # not row-major
    load_weights(tmp_path, programs["filed"])
    other = W.copy()
    other[63] += 1
    text = (
        r"weight 'w' has other elements than in the compiled model; got sha256 \w{12}\.\.\., expected "
        + digest[:12]
    )
    with pytest.raises(InputError, match=text):
        load_weights({"w": other}, programs["named"])
    with pytest.raises(InputError, match="check=False to accept others of the same types"):
        Executor(programs["named"]).bind({"w": other})
    assert load_weights({"w": other}, programs["named"], check=False)["w"].to_numpy()[63] == 64
    write_safetensors({"model.w": other}, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match=text):
        load_weights(tmp_path, programs["filed"])
    assert load_weights(tmp_path, programs["filed"], check=False)["w"].to_numpy()[63] == 64


def test_weights_that_no_recipe_reads_are_not_read_for_their_digests(tmp_path: Path) -> None:
    unread = WeightRef("big", f32("big", 1 << 20), "none.safetensors", "safetensors", digest="0" * 64)
    program = dataclasses.replace(chain(), weights=(*chain().weights, unread))
    assert list(load_weights({"w": W}, program)) == ["w"]
