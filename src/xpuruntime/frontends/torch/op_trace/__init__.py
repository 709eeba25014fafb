"""The ops that a module dispatches for example inputs, recorded without ``torch.export``: equal traces compute the same.

``keys`` has the entrance. A key is the digest of a trace and of all else that decides the graph of a module (``outline``). A module that a trace does not
describe completely has no key.
"""

from __future__ import annotations
