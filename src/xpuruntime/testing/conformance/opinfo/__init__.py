"""PyTorch's own samples of its ops (OpInfo) as calls of our ops, with PyTorch's answers: a judge for whatever computes a node.

    for call in calls("softmax", "float32"):
        got = interp.apply(call.op, *call.operands, outputs=len(call.want), **call.attrs)

``BRIDGES`` maps an OpInfo name to our op and to the function that turns a sample into operands and attributes. A sample that
uses what a frontend takes care of, not the op (a dtype that it would cast to, a string padding), is ``Unfit`` with its reason.
Everything here needs torch; importing this module does not.
"""

from __future__ import annotations

from .bridge import Bridge, Unfit
from .calls import Call, calls, graph_of, names_for, to_numpy
from .judge import LOOSE, TOLERANCE, disagreement
from .table import BRIDGES

__all__ = [
    "BRIDGES",
    "LOOSE",
    "TOLERANCE",
    "Bridge",
    "Call",
    "Unfit",
    "calls",
    "disagreement",
    "graph_of",
    "names_for",
    "to_numpy",
]
