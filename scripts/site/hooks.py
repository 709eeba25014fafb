"""Hooks of mkdocs: pages of notebooks, files of the repository that pages link to, and tables on phones.

A notebook `docs/notebooks/NAME.ipynb` becomes a page with its cells and the outputs stored in it. A link that leaves `docs` puts its
target into the site, so that every link is checked and works offline.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OUTSIDE = "repository"  # the folder of the site with files from outside `docs`
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CODE = re.compile(r"<code>[^<]*</code>")
IMAGES = {"image/png": ("png", base64.b64decode), "image/svg+xml": ("svg", str.encode)}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook, and every file outside of `docs` that a page links to."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            _add_notebook(file, files, config)
    waiting = [ROOT / "docs" / f.src_uri for f in files if f.src_uri.endswith(".md")]
    added = set()
    while waiting:
        page = waiting.pop()
        if not page.is_file():
            continue
        for target in _targets(page):
            if target in added or target.is_relative_to(DOCS) or not target.is_file():
                continue
            added.add(target)
            uri = f"{OUTSIDE}/{target.relative_to(ROOT)}"
            files.append(File.generated(config, uri, abs_src_path=str(target)))
            waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Point links that leave `docs` at the copies within the site."""
    uri = page.file.src_uri
    if page.file.generated_by and not uri.startswith(OUTSIDE):
        return markdown
    source = ROOT / uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(OUTSIDE) else DOCS / uri
    here = (DOCS / uri).parent

    def rewritten(match: re.Match[str]) -> str:
        target = _resolved(source, match[2])
        if target is not None and target.suffix == ".ipynb":
            return f"{match[1]}{match[2].removesuffix('.ipynb')}.md{match[3]}"  # the notebook's page
        if target is None or (target.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return match[0]
        site_file = target if target.is_relative_to(DOCS) else DOCS / OUTSIDE / target.relative_to(ROOT)
        return f"{match[1]}{os.path.relpath(site_file, here)}{match[3]}"

    return _outside_of_fences(markdown, lambda text: LINK.sub(rewritten, text))


def on_page_content(html: str, **kwargs: Any) -> str:
    """Write each column's heading into its cells: on a phone, the rows of a table are stacked, and a cell shows its own heading.

    A `\\|` within code of a table is a bar, as on GitHub; Python-Markdown leaves the backslash there.
    """
    return TABLE.sub(
        lambda table: CODE.sub(lambda code: code[0].replace("\\|", "|"), _labeled(table[0])), html
    )


def _labeled(table: str) -> str:
    """Return a table of more than two columns with the attribute ``data-label`` in all but the first cell of each row."""
    headings = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)]
    if len(headings) < 3:
        return table

    def row(match: re.Match[str]) -> str:
        labels = iter(headings)

        def cell(opening: re.Match[str]) -> str:
            label = next(labels, "")
            return f'<td{opening[1]} data-label="{label}">' if label and label != headings[0] else opening[0]

        return re.sub(r"<td([^>]*)>", cell, match[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)


def _targets(page: Path) -> list[Path]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = (_resolved(page, match[2]) for match in LINK.finditer(text))
    return [target for target in targets if target is not None]


def _resolved(page: Path, link: str) -> Path | None:
    """Return the file that a link names; that of a folder is its README."""
    if re.match(r"[a-z]+:", link):
        return None
    target = Path(os.path.normpath(page.parent / link))
    return target / "README.md" if target.is_dir() else target


def _outside_of_fences(markdown: str, change: Any) -> str:
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def _add_notebook(file: File, files: Files, config: Any) -> None:
    """Add the page of a notebook; images among its outputs become files."""
    cells = json.loads(Path(file.abs_src_path).read_text(encoding="utf-8"))["cells"]
    stem, parts = file.src_uri.removesuffix(".ipynb"), []
    for cell in cells:
        text = "".join(cell["source"])
        code = cell["cell_type"] != "markdown"
        parts.append(f"```python\n{text}\n```" if code else text.replace(".ipynb)", ".md)"))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for kind, (suffix, decode) in IMAGES.items():
                if kind in data:
                    name = f"{stem}-{len(parts)}.{suffix}"
                    files.append(File.generated(config, name, content=decode("".join(data[kind]))))
                    parts.append(f"![Output of the cell above]({Path(name).name})")
                    break
            else:
                shown = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```{{.text .output}}\n{shown.rstrip()}\n```")
    name = Path(file.src_uri).name
    parts.insert(1, f"This page is the notebook [{name}]({name}).")
    files.append(File.generated(config, f"{stem}.md", content="\n\n".join(parts)))
