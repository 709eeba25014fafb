"""Reading a page: a detection map becomes rectangles, rectangles become upright crops, and crops become words.

``read_page`` takes the two models as functions from inputs to outputs, so any engine can run them.

The detection step is that of differentiable binarization (Minghui Liao and others, AAAI 2020): the network marks a
shrunken core of each line of text, and the core's tightest rectangle is grown again by area x ratio / perimeter. The
recognition step is CTC with greedy decoding (Alex Graves and others, ICML 2006): the best symbol of every time step,
repeats merged, blanks dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from .base import Arrays
from .images import open_rgb, planes

Run = Callable[[dict[str, np.ndarray]], Arrays]

CORE, SURE, GROW = (
    0.3,
    0.5,
    1.6,
)  # pixel threshold, mean score of a line, unclip ratio: the models' published settings
STRIDE = 32  # the detector halves its input five times
HEIGHT, NARROWEST = 48, 320  # of the recognizer's input, in pixels


@dataclass(frozen=True)
class Box:
    """A line of text: a rectangle by its center, size (pixels) and the angle of its long side (radians, y downwards)."""

    x: float
    y: float
    width: float
    height: float
    angle: float
    score: float


@dataclass(frozen=True)
class Word:
    """What one box says, and how sure the recognizer is of it (mean probability of its symbols)."""

    box: Box
    text: str
    score: float


@dataclass(frozen=True)
class Page:
    """A page as read: its rows from top to bottom, each from left to right."""

    rows: tuple[tuple[Word, ...], ...]

    @property
    def text(self) -> str:
        """One row a line, two spaces between the words of a row."""
        return "\n".join("  ".join(word.text for word in row) for row in self.rows)


def detector_input(image: Image.Image) -> np.ndarray:
    """float32 [1, 3, H, W] in -1..1, BGR; each side scaled to the nearest multiple of 32."""
    size = tuple(max(STRIDE, round(side / STRIDE) * STRIDE) for side in image.size)
    return planes(image.resize(size, Image.Resampling.BILINEAR), 127.5, 127.5, bgr=True)[None]


def find_boxes(chances: np.ndarray, size: tuple[int, int]) -> list[Box]:
    """The text rectangles of a map [H, W] of probabilities, in pixels of the original image of ``size`` (width, height)."""
    from scipy import ndimage

    marks, _ = ndimage.label(chances > CORE, np.ones((3, 3)))
    scale = np.array([size[0] / chances.shape[1], size[1] / chances.shape[0]])
    boxes = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(marks), start=1):
        component = marks[rows, columns] == number
        score = float(chances[rows, columns][component].mean())
        if score < SURE or min(component.shape) < 3:
            continue
        y, x = np.nonzero(component)
        pixels = np.stack([x + columns.start, y + rows.start], axis=1)
        corners = np.concatenate([pixels + corner for corner in ((0, 0), (0, 1), (1, 0), (1, 1))])
        center, (width, height), angle = tightest_rectangle(corners * scale)
        grow = 2 * (width * height * GROW / (2 * (width + height)))
        boxes.append(Box(*center, width + grow, height + grow, angle, score))
    return boxes


def tightest_rectangle(points: np.ndarray) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Center, size and angle (within 45 degrees of level) of the smallest rectangle around ``points`` [N, 2].

    One of its sides is on an edge of the convex hull (Freeman and Shapira, 1975), so only those angles are tried.
    """
    from scipy.spatial import ConvexHull

    hull = points[ConvexHull(points).vertices]
    edges = np.roll(hull, -1, axis=0) - hull
    quarter = np.pi / 2
    angles = np.unique((np.arctan2(edges[:, 1], edges[:, 0]) + quarter / 2) % quarter - quarter / 2)
    axes = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    along = hull @ axes.T
    across = hull @ np.stack([-axes[:, 1], axes[:, 0]])
    width, height = np.ptp(along, axis=0), np.ptp(across, axis=0)
    best = int((width * height).argmin())
    u = (along[:, best].max() + along[:, best].min()) / 2
    v = (across[:, best].max() + across[:, best].min()) / 2
    cos, sin = axes[best]
    center = (float(u * cos - v * sin), float(u * sin + v * cos))
    return center, (float(width[best]), float(height[best])), float(angles[best])


def crop(image: Image.Image, box: Box) -> Image.Image:
    """The box cut out upright, 48 pixels high."""
    scale = box.height / HEIGHT
    width = max(1, round(box.width / scale))
    cos, sin = np.cos(box.angle) * scale, np.sin(box.angle) * scale
    left = box.x - cos * width / 2 + sin * HEIGHT / 2
    top = box.y - sin * width / 2 - cos * HEIGHT / 2
    return image.transform(
        (width, HEIGHT), Image.Transform.AFFINE, (cos, -sin, left, sin, cos, top), Image.Resampling.BICUBIC
    )


def recognizer_input(lines: Sequence[Image.Image]) -> np.ndarray:
    """float32 [lines, 3, 48, W] in -1..1, BGR; W is that of the widest line, the others end in zeros."""
    scaled = [line.resize((max(1, round(line.width * HEIGHT / line.height)), HEIGHT)) for line in lines]
    batch = np.zeros((len(scaled), 3, HEIGHT, max(NARROWEST, *(line.width for line in scaled))), np.float32)
    for row, line in zip(batch, scaled, strict=True):
        row[:, :, : line.width] = planes(line, 127.5, 127.5, bgr=True)
    return batch


def decode(chances: np.ndarray, symbols: Sequence[str]) -> tuple[str, float]:
    """Text and mean probability of one line's map [T, symbols + 2]: blank first, the symbols, a space last."""
    best = chances.argmax(axis=1)
    keep = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
    alphabet = ("", *symbols, " ")
    text = "".join(alphabet[i] for i in best[keep])
    return text, float(chances[keep, best[keep]].mean()) if keep.any() else 0.0


def read_page(image: Image.Image | str | Path, detect: Run, recognize: Run, symbols: Sequence[str]) -> Page:
    """Read a page with two models of any engine.

    ``detect`` and ``recognize`` take the input arrays by name and give the output arrays by name, one each; ``symbols``
    are the recognizer's (``ppocr_rec.symbols()``).
    """
    picture = image if isinstance(image, Image.Image) else open_rgb(image)
    chances = next(iter(detect({"x": detector_input(picture)}).values()))
    boxes = find_boxes(np.asarray(chances)[0, 0], picture.size)
    if not boxes:
        return Page(())
    maps = next(iter(recognize({"x": recognizer_input([crop(picture, box) for box in boxes])}).values()))
    words = [Word(box, *decode(np.asarray(line), symbols)) for box, line in zip(boxes, maps, strict=True)]
    return Page(rows_of([word for word in words if word.text]))


def rows_of(words: Sequence[Word]) -> tuple[tuple[Word, ...], ...]:
    """Words in rows: turned level by their median angle, a row continues while the next center is within half a height."""
    tilt = float(np.median([word.box.angle for word in words])) if words else 0.0

    def level(word: Word) -> tuple[float, float]:
        box = word.box
        return box.y * np.cos(tilt) - box.x * np.sin(tilt), box.x * np.cos(tilt) + box.y * np.sin(tilt)

    rows: list[list[Word]] = []
    for word in sorted(words, key=lambda word: level(word)[0]):
        if (
            rows
            and level(word)[0] - level(rows[-1][-1])[0] < min(word.box.height, rows[-1][-1].box.height) / 2
        ):
            rows[-1].append(word)
        else:
            rows.append([word])
    return tuple(tuple(sorted(row, key=lambda word: level(word)[1])) for row in rows)
