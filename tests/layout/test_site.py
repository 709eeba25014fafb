"""The documentation site: menu, titles and file names agree, and the reference pages are what the code says. `make docs` builds it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import xpuruntime

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def entries(nav: list[Any]) -> Iterator[str]:
    """Yield the paths of a menu; an entry with a title of its own is a section, or the first page."""
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            ((title, inner),) = item.items()
            yield from [inner] if isinstance(inner, str) and title == "Home" else entries(inner)


def slug(title: str) -> str:
    """Return the file name of a title."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower().replace("i/o", "io").replace("c++", "cpp")).strip("-")


def test_every_page_is_in_the_menu_once() -> None:
    menu = [entry for entry in entries(CONFIG["nav"]) if not entry.startswith("repository/")]
    notebooks = [p.relative_to(DOCS).with_suffix(".md").as_posix() for p in DOCS.rglob("*.ipynb")]
    assert sorted(menu) == sorted(PAGES + notebooks)


@pytest.mark.parametrize("page", [p for p in PAGES if p != "README.md"])
def test_a_page_s_title_is_its_file_name(page: str) -> None:
    title = (DOCS / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert slug(title) == Path(page).stem


def test_every_public_name_has_one_entry() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "api").glob("*.md")]
    listed = re.findall(r"^::: xpuruntime\.(\w+)$", "\n".join(texts), re.MULTILINE)
    assert sorted(listed) == sorted(set(xpuruntime.__all__) - {"__version__"})


def test_the_pages_of_commands_are_current() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "cli_pages.py"))["pages"]()
    written = {p.name: p.read_text(encoding="utf-8") for p in (DOCS / "reference" / "cli").glob("*.md")}
    assert written == made, "run: python scripts/cli_pages.py"


@pytest.mark.parametrize("name", ["policy", "program"])
def test_the_page_of_a_schema_is_current(name: str) -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "schema_pages.py"))["page"](name)
    written = (DOCS / "reference" / f"{name}-schema.md").read_text(encoding="utf-8")
    assert written == made, "run: python scripts/schema_pages.py"


def test_the_diagrams_are_current() -> None:
    drawn = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["DIAGRAMS"]
    written = {p.stem: p.read_text(encoding="utf-8") for p in (DOCS / "images").glob("*.svg")}
    assert written == {name: draw().svg() for name, draw in drawn.items()}, "run: python scripts/diagrams.py"


def test_every_option_of_a_command_is_on_its_page() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "cli_pages.py"))
    root = script["typer"].main.get_command(script["app"])
    for word, command in root.commands.items():
        page = (DOCS / "reference" / "cli" / f"xpu-{word}.md").read_text(encoding="utf-8")
        for _, child in script["commands"](command):
            for parameter in child.params:
                if parameter.param_type_name == "option" and not parameter.hidden:
                    assert all(f"`{name}`" in page for name in parameter.opts), (word, parameter.opts)


def test_nothing_is_loaded_from_a_network() -> None:
    texts = [
        p.read_text(encoding="utf-8") for p in (DOCS / "assets").rglob("*") if p.suffix in (".css", ".svg")
    ]
    assert CONFIG["theme"]["font"] is False
    assert "extra_javascript" not in CONFIG
    assert [t for t in texts if re.search(r"(?:href|src|url\()=?[\"'(]?https?:", t)] == []
