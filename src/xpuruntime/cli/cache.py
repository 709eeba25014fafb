"""``xpu cache``: list, verify, trim and clear the store on disk, and print its folder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_table, print_text
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from ..storage.store import Entry, Store

__all__ = ["cache"]

cache = typer.Typer(
    help="List, verify and remove stored artifacts and measurements.",
    no_args_is_help=True,
    add_completion=False,
)


def _store(folder: Path | None) -> Store:
    from ..storage.store import Store

    return Store(folder)


def _size_text(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


@cache.command(name="list")
@command
def list_(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> CommandResult:
    """List the entries, most recently used first."""
    store = _store(cache_dir)
    entries = store.entries()
    total = sum(e.bytes_ for e in entries)
    document = {
        "root": str(store.root),
        "mode": store.mode,
        "limit": store.limit,
        "bytes": total,
        "entries": [e.to_json() for e in entries],
    }

    def show() -> None:
        if entries:
            columns = ("kind", "key", "size", "last used", "content")
            print_table("", columns, [_row(e) for e in entries], right=("size",))
        print_line(
            f"{len(entries)} entries, {_size_text(total)} of {_size_text(store.limit)} in {store.root} (mode {store.mode})"
        )

    return CommandResult(document, show)


def _row(entry: Entry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    values = (entry.ingredients.get(k) for k in ("engine", "device", "precision"))
    labels = [
        v if isinstance(v, str) else str(v.get("engine", "")) if isinstance(v, dict) else "" for v in values
    ]
    model = str(entry.ingredients.get("model", ""))[:12]
    return (
        entry.kind,
        entry.key[:12],
        _size_text(entry.bytes_),
        used,
        " ".join(filter(None, [*labels, model])),
    )


@cache.command()
@command
def verify(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> CommandResult:
    """Read and check every entry. Exit 1 if one is damaged; remove none."""
    store = _store(cache_dir)
    problems = store.verify()
    count = len(store.entries())
    document = {"root": str(store.root), "entries": count, "damaged": [p.to_json() for p in problems]}

    def show() -> None:
        for problem in problems:
            print_text(str(problem))
        print_line(f"{count} readable entries in {store.root}, {len(problems)} damaged")

    return CommandResult(document, show, ExitCode.NO if problems else ExitCode.OK)


@cache.command()
@command
def trim(
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="SIZE", help="Largest remaining size, such as 512MiB. Default: XPU_CACHE_BYTES."
        ),
    ] = None,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Remove the least recently used entries until the store fits a size."""
    from ..env import parse_bytes

    try:
        limit = None if to is None else parse_bytes(to)
    except ValueError as error:
        raise typer.BadParameter(
            f"write a size such as 512MiB; got {to!r} ({error})", param_hint="--to"
        ) from error
    return _remove(_store(cache_dir), limit)


@cache.command()
@command
def clear(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> CommandResult:
    """Remove every entry, damaged ones included."""
    return _remove(_store(cache_dir), 0)


def _remove(store: Store, limit: int | None) -> CommandResult:
    from ..errors import StoreError

    removed = store.trim(limit)
    remaining = len(store.entries())
    if limit == 0 and remaining:
        do = "Check the folder's permissions, or delete the folder."
        raise StoreError(f"store {store.root}", "entries could not be removed", got=remaining, do=do)
    document = {"root": str(store.root), "removed": [str(p) for p in removed], "entries": remaining}
    return CommandResult(
        document, lambda: print_line(f"removed {len(removed)} entries, {remaining} left in {store.root}")
    )


@cache.command()
@command
def path(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> CommandResult:
    """Print the folder of the store."""
    store = _store(cache_dir)
    document = {"root": str(store.root), "mode": store.mode, "limit": store.limit}
    return CommandResult(document, lambda: print_line(str(store.root)))
