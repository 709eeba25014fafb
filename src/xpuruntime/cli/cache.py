"""``xpu cache``: the store on disk. Lists, verifies, trims, clears it, and says where it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .answer import Answer, verb
from .console import page, say, table
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..store import Entry, Store

__all__ = ["cache"]

cache = typer.Typer(
    help="Look at and tidy the store of built artifacts and measured choices.",
    no_args_is_help=True,
    add_completion=False,
)


def _store(folder: options.CacheDir) -> Store:
    from ..store import Store

    return Store(folder)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


@cache.command(name="list")
@verb
def list_(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> Answer:
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
            columns = ("kind", "key", "size", "used", "what")
            table("", columns, [_row(e) for e in entries], right=("size",))
        say(
            f"{len(entries)} entries, {_size(total)} of {_size(store.limit)} in {store.root} (mode {store.mode})"
        )

    return Answer(document, show)


def _row(entry: Entry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    known = (entry.ingredients.get(k) for k in ("engine", "device", "precision"))
    words = [
        w if isinstance(w, str) else str(w.get("engine", "")) if isinstance(w, dict) else "" for w in known
    ]
    model = str(entry.ingredients.get("model", ""))[:12]
    return entry.kind, entry.key[:12], _size(entry.bytes_), used, " ".join(filter(None, [*words, model]))


@cache.command()
@verb
def verify(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> Answer:
    """Read every entry wholly and check it; exit 1 when one is damaged. Removes nothing."""
    store = _store(cache_dir)
    problems = store.verify()
    count = len(store.entries())
    document = {"root": str(store.root), "entries": count, "damaged": [p.to_json() for p in problems]}

    def show() -> None:
        for problem in problems:
            page(str(problem))
        say(f"{count} readable entries in {store.root}, {len(problems)} damaged")

    return Answer(document, show, ExitCode.NO if problems else ExitCode.OK)


@cache.command()
@verb
def trim(
    to: Annotated[
        str | None, typer.Option("--to", metavar="SIZE", help="Such as 512MiB; default XPU_CACHE_BYTES.")
    ] = None,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Remove the least recently used entries until the store is within a size."""
    from ..env import parse_bytes

    try:
        limit = None if to is None else parse_bytes(to)
    except ValueError as error:
        raise typer.BadParameter(
            f"write a size such as 512MiB; got {to!r} ({error})", param_hint="--to"
        ) from error
    return _remove(_store(cache_dir), limit)


@cache.command()
@verb
def clear(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> Answer:
    """Remove every entry, damaged ones too."""
    return _remove(_store(cache_dir), 0)


def _remove(store: Store, limit: int | None) -> Answer:
    from ..errors import StoreError

    removed = store.trim(limit)
    left = len(store.entries())
    if limit == 0 and left:
        do = "Check the folder's permissions, or remove it by hand."
        raise StoreError(f"store {store.root}", "entries could not be removed", got=left, do=do)
    document = {"root": str(store.root), "removed": [str(p) for p in removed], "entries": left}
    return Answer(document, lambda: say(f"removed {len(removed)} entries, {left} left in {store.root}"))


@cache.command()
@verb
def path(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> Answer:
    """Print the store's folder."""
    store = _store(cache_dir)
    return Answer(
        {"root": str(store.root), "mode": store.mode, "limit": store.limit}, lambda: say(str(store.root))
    )
