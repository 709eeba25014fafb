"""Make ``photos/`` from the originals in scikit-image's wheel, uncropped and in their own size: PNG becomes JPEG.

pip install scikit-image==0.26.0 pillow && python examples/data/prepare_photos.py
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from PIL import Image

ORIGINALS = {"chelsea": "chelsea.png", "coffee": "coffee.png", "rocket": "rocket.jpg"}


def main() -> None:
    target = Path(__file__).parent / "photos"
    target.mkdir(exist_ok=True)
    package = metadata.distribution("scikit-image")
    for name, original in ORIGINALS.items():
        source = Path(str(package.locate_file(f"skimage/data/{original}")))
        if source.suffix == ".jpg":
            (target / f"{name}.jpg").write_bytes(source.read_bytes())
            continue
        with Image.open(source) as image:
            image.convert("RGB").save(target / f"{name}.jpg", quality=90)


if __name__ == "__main__":
    main()
