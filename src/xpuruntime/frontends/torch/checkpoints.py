"""Names of a module's tensors in checkpoints, where they differ from the module's.

transformers 5 renames weights when it saves and loads (``vit.layers.0`` is ``vit.encoder.layer.0`` in a file). Only the library
itself knows these names, and it is already imported if such a model exists.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["saved_names"]

_log = logging.getLogger(__name__)
_LIBRARY = "transformers.core_model_loading"


def saved_names(module: Any) -> dict[str, str]:
    """Return the name that ``save_pretrained`` uses for a tensor, by the tensor's name in the module.

    Unchanged names, and tensors that are saved in pieces, are left out. Names of a model inside a module keep its prefix.
    """
    revert = getattr(sys.modules.get(_LIBRARY), "revert_weight_conversion", None)
    names: dict[str, str] = {}
    if revert is None:
        return names
    handled: list[str] = []
    for prefix, model in module.named_modules():
        inside = any(prefix.startswith(p) for p in handled)
        if inside or not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
            continue
        start = f"{prefix}." if prefix else ""
        handled.append(start)
        marks = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        try:
            saved_by_id = {id(mark): name for name, mark in revert(model, dict(marks)).items()}
        except Exception as error:  # a third-party function failed: fall back to the module's own names
            _log.debug("names in checkpoints of %s are unknown: %s", type(model).__name__, error)
            continue
        for name, mark in marks.items():
            saved = saved_by_id.get(id(mark), name)
            if saved != name:
                names[start + name] = start + saved
    return names
