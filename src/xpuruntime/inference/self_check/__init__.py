"""Self-checks of sessions: outputs are compared with an independent reference before the session is used.

``check`` compares, ``references`` compute, ``locate`` names the first wrong node, ``record`` stores verdicts, and ``opening`` is called by
sessions. A check never changes what is compiled: programs are byte-identical with and without it.
"""

from __future__ import annotations

from .check import SelfCheck
from .opening import ADVICE, checked_on_opening
from .verdict import QUESTION, Verdict

__all__ = ["ADVICE", "QUESTION", "SelfCheck", "Verdict", "checked_on_opening"]
