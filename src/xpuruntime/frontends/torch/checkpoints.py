"""Names by which checkpoints hold a module's tensors, where these differ from the module's own.

transformers 5 renames weights when it saves and loads (``vit.layers.0`` is ``vit.encoder.layer.0`` in a file). Which names it writes is known
to the model's own library only, which is loaded already where such a model is.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["saved_names"]

_log = logging.getLogger(__name__)
_LIBRARY = "transformers.core_model_loading"


def saved_names(module: Any) -> dict[str, str]:
    """Return, by the name of a tensor in the module, what ``save_pretrained`` of the model that holds it calls the tensor.

    Names that stay the same, and tensors that are saved in pieces, are not in it. The names of a model inside a module keep its prefix.
    """
    revert = getattr(sys.modules.get(_LIBRARY), "revert_weight_conversion", None)
    found: dict[str, str] = {}
    if revert is None:
        return found
    done: list[str] = []
    for prefix, model in module.named_modules():
        inside = any(prefix.startswith(p) for p in done)
        if inside or not (hasattr(model, "save_pretrained") and hasattr(model, "config")):
            continue
        start = f"{prefix}." if prefix else ""
        done.append(start)
        marks = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        try:
            written = {id(mark): name for name, mark in revert(model, dict(marks)).items()}
        except Exception as error:  # a function of another project, for whose models the own names are tried
            _log.debug("names in checkpoints of %s are unknown: %s", type(model).__name__, error)
            continue
        for name, mark in marks.items():
            saved = written.get(id(mark), name)
            if saved != name:
                found[start + name] = start + saved
    return found
