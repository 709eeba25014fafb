#!/usr/bin/env python3
"""Check that a tag, pyproject.toml, CMakeLists.txt and CHANGELOG.md name one version.

scripts/release_check.py v0.2.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file names; an empty text where a file names none."""
    cmake = re.search(r"project\(\w+ VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text(encoding="utf-8"))
    change = re.search(
        r"^## \[(\d[^\]]*)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "version"
        ],
        "CMakeLists.txt": cmake[1] if cmake else "",
        "CHANGELOG.md": change[1] if change else "",
    }


def main() -> int:
    """Compare each version with the tag's and print those that differ."""
    tag = sys.argv[1].removeprefix("v") if len(sys.argv) == 2 else ""
    if not tag:
        print(__doc__, file=sys.stderr)
        return 2
    wrong = {file: v for file, v in versions(Path(__file__).resolve().parents[1]).items() if v != tag}
    for file, version in wrong.items():
        print(
            f"release_check: {file} names version {version or 'none'}; the tag names {tag}", file=sys.stderr
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
