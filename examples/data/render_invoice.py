"""Draw the invoice that the OCR models read, as a clean page and as a crooked, noisy scan of it.

    python examples/data/render_invoice.py

writes ``invoice.png``, ``invoice_scan.jpg``, ``line_*.png`` (single lines, cut from the page where they were drawn) and
``invoice.txt``: the words on the page, one row a line, two spaces between columns. All of it is ours; the letters are
those of Pillow's built-in font (Aileron by Sora Sagano, CC0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIZE = (800, 640)
INK = (24, 28, 38)

# (y, font size, ((x, anchor, text), ...)): anchors as in Pillow, "l" left and "r" right of x.
ROWS = (
    (56, 34, ((60, "l", "Northwind Instruments"),)),
    (104, 20, ((60, "l", "14 Harbour Street, Rotterdam"),)),
    (164, 26, ((60, "l", "Invoice 2026-1121"), (740, "r", "21 November 2026"))),
    (212, 20, ((60, "l", "Bill to: Aurora Labs, Unit 7, Leiden"),)),
    (278, 20, ((60, "l", "Description"), (470, "r", "Qty"), (600, "r", "Price"), (740, "r", "Amount"))),
    (326, 20, ((60, "l", "Spectrometer probe"), (470, "r", "3"), (600, "r", "245.00"), (740, "r", "735.00"))),
    (368, 20, ((60, "l", "Fibre cable, 2 m"), (470, "r", "12"), (600, "r", "18.75"), (740, "r", "225.00"))),
    (
        410,
        20,
        ((60, "l", "Calibration service"), (470, "r", "1"), (600, "r", "324.50"), (740, "r", "324.50")),
    ),
    (474, 24, ((60, "l", "Total"), (740, "r", "1,284.50 EUR"))),
    (540, 20, ((60, "l", "Please pay within 30 days to NL00 TEST 0123 4567 89"),)),
    (580, 20, ((60, "l", "Thank you for your order!"),)),
)
RULES = (246, 298, 440)
LINES = {
    "number": (164, 60),
    "item": (326, 60),
    "total": (474, 740),
}  # (y, x) of the words cut out as single lines


def draw() -> tuple[Image.Image, dict[tuple[int, int], tuple[float, float, float, float]]]:
    """The page, and the position of each word group as (y, x)."""
    page = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(page)
    boxes = {}
    for y in RULES:
        pen.line((60, y, 740, y), fill=(150, 155, 165), width=1)
    for y, size, words in ROWS:
        font = ImageFont.load_default(size)
        for x, anchor, text in words:
            pen.text((x, y), text, fill=INK, font=font, anchor=f"{anchor}m")
            boxes[y, x] = pen.textbbox((x, y), text, font=font, anchor=f"{anchor}m")
    return page, boxes


def scan(page: Image.Image) -> Image.Image:
    """The page as a cheap scanner sees it: 2 degrees askew, a little soft, grey, noisy."""
    turned = page.rotate(2.0, Image.Resampling.BICUBIC, fillcolor="white").filter(
        ImageFilter.GaussianBlur(0.6)
    )
    pixels = np.asarray(turned, np.float32) * 0.86 + 18
    noise = np.random.default_rng(2026).normal(0, 9, (*pixels.shape[:2], 1))
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def main() -> None:
    folder = Path(__file__).parent
    page, boxes = draw()
    page.save(folder / "invoice.png", optimize=True)
    scan(page).save(folder / "invoice_scan.jpg", quality=80)
    for name, where in LINES.items():
        left, top, right, bottom = boxes[where]
        page.crop((int(left) - 6, int(top) - 6, int(right) + 6, int(bottom) + 6)).save(
            folder / f"line_{name}.png"
        )
    rows = ["  ".join(text for _, _, text in words) for _, _, words in ROWS]
    (folder / "invoice.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
