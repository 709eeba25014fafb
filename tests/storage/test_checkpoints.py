"""Checkpoints: one file, shards, folders; names that differ by a prefix; files with false metadata."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import FormatError, InputError
from xpuruntime.ir import GraphBuilder
from xpuruntime.storage.checkpoints import CheckpointWeight, WeightSource, match_names, read_checkpoint
from xpuruntime.storage.tensor_files import write_safetensors
from xpuruntime.types import DType, TensorSpec

A, B = np.arange(4, dtype=np.float32), np.ones((2, 3), ml_dtypes.bfloat16)


def shards(folder: Path) -> Path:
    write_safetensors({"a": A}, folder / "model-00001-of-00002.safetensors")
    write_safetensors({"b": B}, folder / "model-00002-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}), encoding="utf-8")
    return index


def test_a_file_a_folder_an_index_and_its_folder_are_read(tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir(), many.mkdir()
    write_safetensors({"a": A, "b": B}, one / "model.safetensors")
    write_safetensors({"a": A}, one / "adapter.safetensors")  # next to the model's own
    for path in (one / "model.safetensors", one, shards(many), many):
        arrays = read_checkpoint(path)
        assert set(arrays) == {"a", "b"}, path
        np.testing.assert_array_equal(arrays["a"], A)
        np.testing.assert_array_equal(arrays["b"], B)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ('{"weight_map": {"a": "../secret.safetensors"}}', "names a file outside its folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "names a file outside its folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot be read"),
        ('{"weight_map": {"z": "model-00001-of-00002.safetensors"}}', "a tensor that no shard has; got z"),
        ('{"weight_map": {"a": 3}}', "has a damaged index"),
        ('{"weight_map": [1]}', "has a damaged index"),
        ("[" * 100_000, "has a damaged index"),
        ("{}", "has a damaged index"),
    ],
)
def test_an_index_is_trusted_with_nothing(index: str, says: str, tmp_path: Path) -> None:
    shards(tmp_path).write_text(index, encoding="utf-8")
    with pytest.raises(FormatError, match=says):
        read_checkpoint(tmp_path)


def test_a_folder_without_safetensors_or_with_several_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FormatError, match=r"holds no safetensors; got pytorch_model\.bin\. Save it with"):
        read_checkpoint(tmp_path)
    for name in ("unet", "vae"):
        write_safetensors({"a": A}, tmp_path / f"{name}.safetensors")
    with pytest.raises(FormatError, match=r"holds several models; got unet\.safetensors, vae\.safetensors"):
        read_checkpoint(tmp_path)


def wanted(*names: str, shape: tuple[int, ...] = (4,)) -> list[CheckpointWeight]:
    return [CheckpointWeight((n,), TensorSpec(shape, DType.FLOAT32)) for n in names]


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["l.0.w", "l.1.w"], ["model.l.0.w", "model.l.1.w"]),  # a base model of a larger one
        (["m.l.0.w", "m.l.1.w"], ["l.0.w", "l.1.w"]),  # a module that wraps the model
        (["m.l.0.w", "m.l.1.w"], ["model.l.0.w", "model.l.1.w"]),
    ],
)
def test_names_may_differ_by_one_prefix(names: list[str], keys: list[str]) -> None:
    arrays = dict.fromkeys(keys, A)
    assert match_names("w", wanted(*names), arrays) == dict(zip(names, keys, strict=True))


def test_a_prefix_holds_for_every_weight_or_none() -> None:
    arrays = {"model.l.0.w": A, "other.l.1.w": A}
    assert match_names("w", wanted("l.0.w", "l.1.w"), arrays) == {}
    assert match_names("w", wanted("l.0.w", shape=(5,)), {"model.l.0.w": A}) == {}, "another shape"


def test_two_prefixes_that_fit_are_an_error() -> None:
    arrays = {"encoder.l.w": A, "decoder.l.w": A}
    with pytest.raises(InputError, match=r"several prefixes; got 'encoder\.' or 'decoder\.'"):
        match_names("w", wanted("l.w"), arrays)


def test_names_that_are_hostile_end_in_time() -> None:
    long = ".".join("abcdefgh" * 20_000)
    assert match_names("w", wanted(long), {f"{i}.{long}x": A for i in range(200)}) == {}
    assert match_names("w", wanted("a"), {3: A, None: A}) == {}  # type: ignore[dict-item]
    assert match_names("w", wanted("a"), {"b.a": "no array"}) == {}


def test_a_graph_whose_aliases_lie_compiles() -> None:
    b = GraphBuilder("liar")
    b.output("y", b.mul(b.input("x", "float32[4]"), b.weight("w", "float32[4]")))
    good = b.build()
    for lie in (3, {"w": 3}, {"w": [1, None]}, ["w"]):
        data = good.to_json() | {"metadata": {"aliases": {"map": lie} if isinstance(lie, dict) else lie}}
        program = xrt.compile(data)
        weights = xrt.load_weights({"w": A}, program)
        np.testing.assert_array_equal(xrt.Executor(program).run({"x": A}, weights)["y"].to_numpy(), A * A)


def test_a_tied_weight_has_any_of_its_names() -> None:
    tied = [CheckpointWeight(("embed.w", "head.w"), TensorSpec((4,), DType.FLOAT32))]
    assert match_names("w", tied, {"head.w": A}) == {"embed.w": "head.w"}
    assert match_names("w", tied, {"model.head.w": A}) == {"embed.w": "model.head.w"}


def test_a_weight_has_the_names_of_its_aliases() -> None:
    b = GraphBuilder("tied")
    b.output("y", b.add(b.input("x", "float32[4]"), b.weight("w", "float32[4]")))
    weights = b.build().weights
    assert WeightSource("w", {"old": A}, weights, {"w": ["old"]}).find(weights[0]) is A
    assert WeightSource("w", {"old": A}, weights, {"w": "old"}).find(weights[0]) is None


def test_what_a_model_holds_itself_is_taken_from_a_checkpoint_where_it_fits(tmp_path: Path) -> None:
    b = GraphBuilder("held")
    b.weight("a", "float32[4]", data="AAAAAAAAgD8AAABAAABAQA==")
    b.output("y", b.relu("a"))
    (weight,) = b.build().weights
    np.testing.assert_array_equal(weight.array(), A)
    for array, taken in ((2 * A, True), (A.astype(np.float16), False), (A[:3], False)):
        write_safetensors({"a": array}, tmp_path / "model.safetensors")
        assert (WeightSource("w", tmp_path / "model.safetensors", [weight]).find(weight) is not None) is taken
    assert WeightSource("w", {"a": A[:3]}, [weight]).find(weight) is not None, (
        "handed in by name: checked by its reader"
    )
    for lie in ({"a": 3}, {"a": [3]}, 3, [], {"b": "a"}):
        assert WeightSource("w", {"b": A}, [weight], lie).find(weight) is None
