"""Sessions checked before they are trusted: outputs compared with an independent reference that is at hand.

``check`` compares, ``references`` compute, ``locate`` names the first node that differs, ``record`` keeps what was found, ``opening`` is where sessions
call it. Nothing here decides what is compiled: programs are the same byte for byte, checked or not.
"""

from __future__ import annotations

from .check import SelfCheck
from .opening import ADVICE, checked_on_opening
from .verdict import QUESTION, Verdict

__all__ = ["ADVICE", "QUESTION", "SelfCheck", "Verdict", "checked_on_opening"]
