"""Compiled texts in the store: a text that was compiled before costs one read.

A key holds all that decides the binary: the text, the flags, and the identity of the compiler. A text that reads other files is never kept,
since they may change while the text stays the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from ..errors import StoreError
from ..storage.store import Store, digest

__all__ = ["cached_binary", "is_self_contained"]

# Words of a text whose binary depends on more than the text: other files, and the time.
_OUTSIDE = re.compile(
    r"\b(include|include_next|import|embed|incbin|__has_include|__has_embed|__DATE__|__TIME__|__TIMESTAMP__)\b"
)


def is_self_contained(text: str, flags: Sequence[str] = ()) -> bool:
    """Return True if a user's text is all that its compiler reads. A flag can name a file, so flags of users are a no."""
    return not flags and _OUTSIDE.search(text.replace("\\\n", "")) is None


def cached_binary(
    kind: str,
    source: str,
    facts: Mapping[str, object],
    build: Callable[[], bytes],
    store: Store | None = None,
) -> bytes:
    """Return the binary of a source text, from the store if it is there; otherwise build and keep it.

    kind:  the store's name for such binaries.
    facts: what else decides the binary: flags, architecture, compiler.
    A store that cannot be written costs the next start some time, and nothing now.
    """
    store = Store() if store is None else store
    ingredients = {"source": hashlib.sha256(source.encode()).hexdigest(), **facts}
    cached = store.get(kind, digest(ingredients))
    if cached is not None:
        return cached
    binary = build()
    with contextlib.suppress(StoreError):
        store.put(kind, ingredients, binary)
    return binary
