"""Run the notebooks of docs/notebooks and store what their cells print: `python scripts/notebooks.py [--check] [NAME ...]`.

With --check nothing is written. Cells of a notebook share one process and a temporary folder. No Jupyter is needed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"


def run(notebook: dict[str, Any], name: str) -> None:
    """Run the code cells in order and put what they print into them. Raises what a cell raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        code = compile("".join(cell["source"]), f"{name}, cell {number}", "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        text = printed.getvalue()
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["execution_count"], cell["outputs"] = count, [stream] if text else []


def main(arguments: list[str]) -> None:
    """Run the notebooks that are named, or all, each in a temporary folder."""
    check = "--check" in arguments
    named = [a for a in arguments if a != "--check"]
    for path in sorted(FOLDER.glob("*.ipynb")):
        if named and path.stem not in named:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XPU_CACHE_DIR"] = str(Path(folder) / "cache")
            run(notebook, path.name)
        if not check:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"ran {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
