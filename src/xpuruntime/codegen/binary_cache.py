"""Compiled texts in the store: a text that was compiled before costs one read.

A key has everything that determines the binary: the text, the flags, and the identity of the compiler. A text that reads other files is not
cached, because they may change.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from ..errors import StoreError
from ..storage.store import Store, digest

__all__ = ["cached_binary", "is_self_contained"]

# Words that make a binary depend on more than its text: on other files, or on the time.
_OUTSIDE = re.compile(
    r"\b(include|include_next|import|embed|incbin|__has_include|__has_embed|__DATE__|__TIME__|__TIMESTAMP__)\b"
)


def is_self_contained(text: str, flags: Sequence[str] = ()) -> bool:
    """Return True if a user's text is all that its compiler reads. False with user flags, which may name a file."""
    return not flags and _OUTSIDE.search(text.replace("\\\n", "")) is None


def cached_binary(
    kind: str,
    source: str,
    facts: Mapping[str, object],
    build: Callable[[], bytes],
    store: Store | None = None,
) -> bytes:
    """Return the binary of a source text from the store; build and store it if it is not there.

    kind:  the store's name for such binaries.
    facts: everything else that determines the binary: flags, architecture, compiler.
    A store that cannot be written is ignored.
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
