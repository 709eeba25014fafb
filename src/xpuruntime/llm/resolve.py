"""Device and precision of a language model: from the arguments, the policy and the checkpoint."""

from __future__ import annotations

from typing import Any

from ..arguments import check_argument
from ..errors import PrecisionUnavailable
from ..inference.native.targets import reaches
from ..policies import Resolved
from ..policies.entrances import INSTEAD_OF_INT8
from ..runtime import Device
from ..targets import DeviceId
from ..types import DType

__all__ = ["computed_in", "device_for"]

_COMPUTED = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def device_for(device: Any, target: Any, demands: Resolved, notes: list[str]) -> Any:
    """Return the argument, else the policy's device, else the CPU. If it is unavailable, return the first available device of
    ``allow_fallback``.
    """
    if device is not None:
        do = "Name it, such as 'cpu' or 'cuda:0'."
        check_argument("Generator", "device", device, str | DeviceId | Device, "a device", do)
    execution = demands.policy.execution
    requested = device if device is not None else execution.target
    name = "cpu" if requested in (None, "auto") else requested
    if target is not None or reaches(DeviceId.parse(name)):
        return name
    for alternative in execution.allow_fallback or ():
        if reaches(fallback := DeviceId.parse(alternative)):
            why = reaches(DeviceId.parse(name)).reason
            notes.append(f"device {name} is unavailable ({why}); {fallback} is used instead")
            return str(fallback)
    return name  # own_target raises the error with the reason


def computed_in(
    dtype: DType | str | None, checkpoint_dtype: DType, demands: Resolved, notes: list[str]
) -> tuple[DType, Resolved]:
    """Return the dtype to compute in (the argument, else the policy's precision, else the checkpoint's own) and the remaining demands.

    Raises PrecisionUnavailable.
    """
    requested = demands.policy.execution.precision
    if dtype is not None:
        try:
            computed = DType.of(dtype)
        except (ValueError, TypeError):
            computed = None
        if computed is None or not computed.is_float:
            do = f"Use one of {', '.join(d.value for d in _COMPUTED)}."
            raise PrecisionUnavailable("Generator", "has an unsupported dtype", got=str(dtype)[:80], do=do)
        return computed, demands.without("precision")
    if requested in (None, "model"):
        return checkpoint_dtype, demands
    precision = DType.of(requested)
    if precision in _COMPUTED:
        return precision, demands.without("precision")
    if demands.policy.execution.allow_fallback:
        notes.append(
            f"precision {precision.value} is not supported; {checkpoint_dtype.value} is used instead"
        )
        return checkpoint_dtype, demands.without("precision")
    do = INSTEAD_OF_INT8 if precision.is_integer else f"Use one of {', '.join(d.value for d in _COMPUTED)}."
    raise PrecisionUnavailable(
        "Generator", f"precision {precision.value} is not supported", got=requested, do=do
    )
