"""Inputs from files: every good kind gives the right array, every bad one a named error."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from xpuruntime.errors import InputError, StoreError
from xpuruntime.types import DType, TensorSpec, dim
from xpuruntime.workbench.inputs import ImageRecipe, Inputs, save_outputs

X = TensorSpec((2, 3), DType.FLOAT32, "x")
MASK = TensorSpec((2,), DType.INT64, "mask")
NCHW = TensorSpec((1, 3, 4, 6), DType.FLOAT32, "image")


def test_npz_holds_all(tmp_path: Path) -> None:
    x, mask = np.ones((2, 3), np.float32), np.zeros(2, np.int64)
    np.savez(tmp_path / "all.npz", x=x, mask=mask)
    (feeds,) = Inputs((str(tmp_path / "all.npz"),)).samples((X, MASK))
    assert feeds["x"].dtype == np.float32
    assert np.array_equal(feeds["mask"], mask)


def test_npy_by_name_and_without(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    (feeds,) = Inputs((f"x={tmp_path}/x.npy",)).samples((X,))
    (bare,) = Inputs((f"{tmp_path}/x.npy",)).samples((X,))
    assert np.array_equal(feeds["x"], bare["x"])


def test_the_rest_comes_from_the_recipe_only_when_a_seed_is_given(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    files = (f"x={tmp_path}/x.npy",)
    with pytest.raises(InputError, match="no file gives input 'mask'"):
        Inputs(files).samples((X, MASK))
    samples = Inputs(files, seed=3).samples((X, MASK), 2)
    assert len(samples) == 2
    assert samples[0]["mask"].tolist() == [1, 1]


def test_samples_differ_and_repeat() -> None:
    first, second = Inputs().samples((X,), 2)
    again = Inputs().samples((X,), 2)
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(second["x"], again[1]["x"])


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (("absent.npy",), r"no such file; got absent\.npy"),
        (("nam=x.npy",), "the model has no input of that name; got 'nam'"),
        (("x=x.npy", "x=x.npy"), "input 'x' is given twice"),
        (("x.npy",), "the model has several inputs, and the file is for none of them"),
        (("x=junk.npy",), "holds no readable array"),
        (("x=empty.npy",), "holds no readable array"),
        (("x=object.npy",), "holds no readable array"),
        (("cut.npz",), "holds no readable array"),
        (("other.npz",), "the model has no input of that name; got 'y'"),
        (("x=two.npz",), "the file holds several arrays"),
        (("x=model.txt",), "is not an array or image file"),
        (("x=junk.png",), "is not an image that can be read|takes no image"),
    ],
)
def test_bad_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((2, 3), np.float32))
    np.save("object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("other.npz", y=np.ones(2))
    np.savez("two.npz", a=np.ones(2), b=np.ones(2))
    np.savez("whole.npz", x=np.ones((2, 3)))
    Path("cut.npz").write_bytes(Path("whole.npz").read_bytes()[:100])
    for name in ("junk.npy", "junk.png", "model.txt"):
        Path(name).write_bytes(b"junk")
    Path("empty.npy").touch()
    with pytest.raises(InputError, match=text) as caught:
        Inputs(files).samples((X, MASK))
    assert caught.value.do


def _image(path: Path, mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> np.ndarray:
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image_module.fromarray(pixels).convert(mode).save(path)
    return np.asarray(image_module.open(path).convert("RGB"))


def test_image_as_documented(tmp_path: Path) -> None:
    pixels = _image(tmp_path / "a.png")
    recipe = ImageRecipe(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    (feeds,) = Inputs((str(tmp_path / "a.png"),), image=recipe).samples((NCHW,))
    wanted = ((pixels / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2.0]).transpose(2, 0, 1)[None]
    assert feeds["image"].dtype == np.float32
    assert feeds["image"].flags.c_contiguous
    np.testing.assert_allclose(feeds["image"], wanted, atol=1e-6)


def test_image_range_and_integers(tmp_path: Path) -> None:
    pixels = _image(tmp_path / "a.png")
    spec = TensorSpec((dim("n"), 4, 6, 3), DType.UINT8, "image")
    (feeds,) = Inputs((str(tmp_path / "a.png"),), image=ImageRecipe(range=(0, 255))).samples((spec,))
    assert np.array_equal(feeds["image"][0], pixels)
    low = ImageRecipe(range=(-1, 1)).tensor(tmp_path / "a.png", NCHW)
    np.testing.assert_allclose(low[0].transpose(1, 2, 0), pixels / 127.5 - 1, atol=1e-6)


def test_image_sizes(tmp_path: Path) -> None:
    _image(tmp_path / "a.png", size=(10, 20))
    free = TensorSpec((1, 3, dim("h"), dim("w")), DType.FLOAT32, "image")
    assert ImageRecipe().tensor(tmp_path / "a.png", NCHW).shape == (1, 3, 4, 6)
    assert ImageRecipe().tensor(tmp_path / "a.png", free).shape == (1, 3, 20, 10)
    assert ImageRecipe(size=(8, 5)).tensor(tmp_path / "a.png", free).shape == (1, 3, 8, 5)


def test_grey_image_for_one_channel_without_batch(tmp_path: Path) -> None:
    _image(tmp_path / "a.png")
    assert ImageRecipe().tensor(tmp_path / "a.png", TensorSpec((1, 4, 6), DType.FLOAT32, "g")).shape == (
        1,
        4,
        6,
    )


@pytest.mark.parametrize(
    ("spec", "recipe", "text"),
    [
        (X, ImageRecipe(), "takes no image"),
        (
            TensorSpec((1, 3, 5, 3), DType.FLOAT32, "i"),
            ImageRecipe(),
            "does not show which axis holds the channels",
        ),
        (TensorSpec((1, 7, 5, 5), DType.FLOAT32, "i"), ImageRecipe(layout="nchw"), "has 7 channels as nchw"),
        (
            TensorSpec((1, 1, 4, 6), DType.FLOAT32, "i"),
            ImageRecipe(mean=(1, 2, 3)),
            "--image-mean does not fit 1 channels",
        ),
    ],
)
def test_images_that_do_not_fit(tmp_path: Path, spec: TensorSpec, recipe: ImageRecipe, text: str) -> None:
    _image(tmp_path / "a.png")
    with pytest.raises(InputError, match=text):
        recipe.tensor(tmp_path / "a.png", spec)


def test_saved_outputs_come_back(tmp_path: Path) -> None:
    wide = np.arange(4, dtype=np.float32)
    outputs = {
        "a/b": np.ones((2, 2), np.int64),
        "file": np.float32(3).reshape(()),
        "low": wide.astype(ml_dtypes.bfloat16),
        "text": np.array(["one", "two"], dtype=object),
        "none": np.zeros((0, 3), np.float16),
    }
    save_outputs(tmp_path / "out.npz", outputs)
    with np.load(tmp_path / "out.npz") as stored:
        assert set(stored.files) == set(outputs)
        assert stored["low"].dtype == np.float32
        assert np.array_equal(stored["low"], wide)
        assert stored["text"].tolist() == ["one", "two"]
        assert stored["none"].shape == (0, 3)
        assert stored["file"].shape == ()


def test_an_output_may_exceed_the_size_that_plain_zip_files_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # instead of 2 GiB
    save_outputs(tmp_path / "out.npz", {"y": np.arange(300)})
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["y"].tolist() == list(range(300))


def test_bfloat16_input_comes_back_from_numpys_raw_bytes(tmp_path: Path) -> None:
    spec = TensorSpec((3,), DType.BFLOAT16, "x")
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], ml_dtypes.bfloat16))
    (feeds,) = Inputs((str(tmp_path / "x.npy"),)).samples((spec,))
    assert feeds["x"].dtype == ml_dtypes.bfloat16
    assert feeds["x"].astype(float).tolist() == [1, 2, 3]


def test_outputs_to_nowhere(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"must end in \.npz; got out\.txt"):
        save_outputs(tmp_path / "out.txt", {})
    for folder in (".", "..", "/"):
        text = f"[--output {folder}] must end in .npz; got the folder {folder!r}. Write {Path(folder) / 'outputs.npz'}."
        with pytest.raises(StoreError, match=re.escape(text)):
            save_outputs(Path(folder), {})
    with pytest.raises(StoreError, match="cannot be written; got No such file or directory"):
        save_outputs(tmp_path / "absent" / "out.npz", {"y": np.ones(1)})
