"""PyTorch's samples of its ops (OpInfo) as calls of our ops, with PyTorch's answers.

    for call in calls("softmax", "float32"):
        got = interp.apply(call.op, *call.operands, outputs=len(call.want), **call.attrs)

``BRIDGES`` maps an OpInfo name to our op and to the function that converts a sample to operands and attributes. A sample that
needs work of a frontend (a dtype conversion, padding given as a string) is ``NotComparable`` with its reason.
Everything here needs torch; importing this module does not.
"""

from __future__ import annotations

from .bridge import Bridge, NotComparable
from .calls import OpInfoCall, calls, graph_of, names_for, to_numpy
from .judge import LOOSE, TOLERANCE, disagreement
from .table import BRIDGES

__all__ = [
    "BRIDGES",
    "LOOSE",
    "TOLERANCE",
    "Bridge",
    "NotComparable",
    "OpInfoCall",
    "calls",
    "disagreement",
    "graph_of",
    "names_for",
    "to_numpy",
]
