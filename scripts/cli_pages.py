"""Write docs/reference/cli from the commands of `xpu`: `python scripts/cli_pages.py`. A test fails when a page is stale."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from xpuruntime.cli.app import app

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli"
NOTE = "<!-- Written by scripts/cli_pages.py from the commands of xpu; change src/xpuruntime/cli, then run it. -->"

PLACEHOLDERS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def commands(command: Any, name: str = "xpu") -> Iterator[tuple[str, Any]]:
    """Yield every command that runs something, by its full name."""
    if not hasattr(command, "commands"):
        yield name, command
    for subcommand, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {subcommand}")


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    root = typer.main.get_command(app)
    texts = {}
    for subcommand, command in root.commands.items():
        subcommands = list(commands(command, f"xpu {subcommand}"))
        parts = [f"# xpu {subcommand}\n\n{NOTE}\n\n{_help(command)}\n"]
        for name, child in subcommands:
            if child is not command:
                parts.append(f"\n## {name}\n\n{_help(child)}\n")
            parts.append(_usage(name, child))
            parts += _tables(child, "##" if child is command else "###")
        parts.append("\nThe exit codes are those of [every command](../command-line.md#exit-codes).\n")
        texts[f"xpu-{subcommand}.md"] = "".join(parts)
    return texts


def _help(command: Any) -> str:
    return _cell(inspect.cleandoc(command.help or "").replace("\f", ""), "\n\n")


def _usage(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [name, "[OPTIONS]", *(_argument(p) for p in arguments)]
    return f"\n```text\n{' '.join(words)}\n```\n"


def _argument(parameter: Any) -> str:
    name = _metavar(parameter) or (parameter.name or "").upper()
    name = name.strip("[]").removesuffix("...")
    name += "..." if parameter.nargs == -1 or parameter.multiple else ""
    return name if parameter.required else f"[{name}]"


def _tables(command: Any, heading: str) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    if arguments:
        rows = [f"| `{_argument(p)}` | {_cell(p.help or '')} |\n" for p in arguments]
        yield f"\n{heading} Arguments\n\n| argument | meaning |\n|---|---|\n" + "".join(rows)
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if parameter.param_type_name != "argument" and not parameter.hidden:
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(parameter)
    for panel in sorted(panels, key=lambda name: name == "Options"):
        rows = [_option(p) for p in panels[panel]]
        yield (
            f"\n{heading} {panel}\n\n| option | value | default | meaning |\n|---|---|---|---|\n"
            + "".join(rows)
        )


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f"`{_metavar(parameter)}`{_limits(parameter)}"
    text = parameter.help or ""
    if parameter.multiple and "repeatable" not in text.lower():
        text += " Repeatable."
    cells = [names, value.replace("|", "\\|"), _default(parameter), _cell(text)]
    return "| " + " | ".join(cells) + " |\n"


def _metavar(parameter: Any) -> str:
    """Return the placeholder of a parameter's value."""
    if parameter.metavar:
        return str(parameter.metavar)
    kind = parameter.type_descriptor.annotation
    kind = (get_args(kind) or (kind,))[0] if get_origin(kind) in (list, tuple) else kind
    if get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(choice.value) for choice in kind)
    return PLACEHOLDERS[kind]


def _limits(parameter: Any) -> str:
    limits = [f"at least {parameter.min}"] if parameter.min is not None else []
    limits += [f"at most {parameter.max}"] if parameter.max is not None else []
    return f" ({', '.join(limits)})" if limits else ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if callable(default) or default is None or isinstance(default, bool) or default in ("", (), []):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _cell(text: str, gap: str = " ") -> str:
    """Return a help text as one Markdown cell; `gap` separates paragraphs."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return gap.join(paragraphs).replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;").strip()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    text_by_file = pages()
    for stale in {path.name for path in FOLDER.glob("*.md")} - text_by_file.keys():
        (FOLDER / stale).unlink()
    for name, text in text_by_file.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(text_by_file)} pages")
