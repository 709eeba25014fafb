"""The reading pipeline's own steps, with no model: rectangles, crops, greedy decoding, rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("scipy")
Image = pytest.importorskip("PIL.Image")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from examples.zoo import magika, ocr  # noqa: E402
from examples.zoo.base import Sample  # noqa: E402


@given(
    angle=st.floats(-0.7, 0.7),
    width=st.floats(20, 300),
    height=st.floats(5, 19),
    x=st.floats(-500, 500),
    y=st.floats(-500, 500),
)
def test_the_tightest_rectangle_of_a_turned_rectangle_is_itself(angle, width, height, x, y) -> None:
    across, down = np.meshgrid(np.linspace(-0.5, 0.5, 7) * width, np.linspace(-0.5, 0.5, 5) * height)
    points = np.stack(
        [
            x + across.ravel() * math.cos(angle) - down.ravel() * math.sin(angle),
            y + across.ravel() * math.sin(angle) + down.ravel() * math.cos(angle),
        ],
        axis=1,
    )
    center, size, turned = ocr.tightest_rectangle(points)
    assert center == pytest.approx((x, y), abs=1e-6)
    assert size == pytest.approx((width, height), rel=1e-6)
    assert turned == pytest.approx(angle, abs=1e-6)


def test_a_map_with_two_bars_has_two_boxes() -> None:
    chances = np.zeros((64, 128), np.float32)
    chances[10:18, 8:60] = 0.9
    chances[40:48, 70:120] = 0.8
    chances[30:33, 4:20] = 0.4  # above the pixel threshold, below what a line needs
    first, second = ocr.find_boxes(chances, (256, 128))
    assert (first.x, first.y) == (68, 28)  # twice the map's scale
    assert first.score > second.score > 0.5
    # the bar is 104 x 16 of 256 x 128 pixels and grows by 2 * area * 1.6 / perimeter
    assert first.width - first.height == pytest.approx(104 - 16, abs=0.1)
    assert first.height > 16 + 20


def test_a_turned_line_is_cut_out_upright() -> None:
    page = Image.new("RGB", (400, 200), "white")
    page.paste((200, 0, 0), (100, 88, 200, 112))
    page.paste((0, 0, 200), (200, 88, 300, 112))
    turned = page.rotate(
        -10, Image.Resampling.BICUBIC, fillcolor="white"
    )  # clockwise on the screen: y grows downwards
    line = np.asarray(ocr.crop(turned, ocr.Box(200, 100, 200, 24, math.radians(10), 1.0)), int)
    assert line.shape == (48, 400, 3)
    red, blue = line[8:40, 20:180].reshape(-1, 3), line[8:40, 220:380].reshape(-1, 3)
    assert np.abs(red - (200, 0, 0)).max() < 8
    assert np.abs(blue - (0, 0, 200)).max() < 8


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([1, 1, 0, 2, 2], "ab"),
        ([1, 0, 1], "aa"),
        ([1, 1, 1], "a"),
        ([1, 4, 2], "a b"),
        ([0, 0], ""),
        ([3, 0, 3, 3], "cc"),
    ],
)
def test_greedy_decoding(path: list[int], text: str) -> None:
    chances = np.full((len(path), 5), 0.05)
    chances[np.arange(len(path)), path] = 0.8
    assert ocr.decode(chances, "abc") == (text, pytest.approx(0.8 if text else 0.0))


def test_rows_of_a_tilted_page() -> None:
    tilt = math.radians(3)

    def word(text: str, x: float, y: float) -> ocr.Word:
        cos, sin = math.cos(tilt), math.sin(tilt)
        return ocr.Word(ocr.Box(x * cos - y * sin, x * sin + y * cos, 60, 20, tilt, 1.0), text, 1.0)

    words = [word("d", 600, 40), word("b", 600, 0), word("a", 0, 0), word("c", 0, 40)]
    assert ocr.Page(ocr.rows_of(words)).text == "a  b\nc  d"
    assert ocr.rows_of([]) == ()


def test_inputs_are_what_the_models_take() -> None:
    page = ocr.detector_input(Image.new("RGB", (100, 50), (255, 0, 0)))
    assert page.shape == (1, 3, 64, 96)
    assert page.dtype == np.float32
    assert page[0, :, 0, 0].tolist() == [-1.0, -1.0, 1.0]  # blue, green, red
    lines = ocr.recognizer_input([Image.new("RGB", (10, 24), "white"), Image.new("RGB", (400, 48), "white")])
    assert lines.shape == (2, 3, 48, 400)
    assert lines[0, 0, 0, 19] == 1
    assert lines[0, 0, 0, 20] == 0


def test_the_two_ends_of_a_file(tmp_path, monkeypatch) -> None:
    facts = {"beg_size": 6, "end_size": 4, "block_size": 8, "padding_token": 256}
    monkeypatch.setattr(magika, "settings", lambda: facts)

    def tokens(content: bytes) -> list[int]:
        (tmp_path / "file").write_bytes(content)
        return magika.inputs(Sample("file", "", tmp_path / "file"))["bytes"][0].tolist()

    assert tokens(b" ab\n") == [*b"ab\n", 256, 256, 256, 256, *b" ab"]
    assert tokens(b"  ABCDEFGHIJKLMNOP  ") == [*b"ABCDEF", *b"MNOP"]
    assert tokens(b"") == [256] * 10
