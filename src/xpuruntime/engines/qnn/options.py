"""Options of the QNN provider: the known ones and their values.

The provider silently takes its default for an unknown option or value, and after an invalid one every later session of the process fails.
So each value is checked here. The names are the vendor's, except ``emulator``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from ...decisions import Reason, Support
from ...protocols import EngineRequest
from ...types import DType
from .library import library_file

__all__ = ["HTP_ARCHITECTURES", "QnnSettings", "parse"]

HTP_ARCHITECTURES = ("68", "69", "73", "75", "79", "81")
_SWITCH = ("0", "1")
_INTEGER: tuple[str, ...] = ()

# Option -> the allowed values; an empty tuple: any non-negative integer.
_VALUES: Mapping[str, tuple[str, ...]] = {
    "emulator": _SWITCH,
    "htp_arch": HTP_ARCHITECTURES,
    "soc_model": _INTEGER,
    "vtcm_mb": _INTEGER,
    "htp_graph_finalization_optimization_mode": ("0", "1", "2", "3"),
    "htp_performance_mode": (
        "default", "burst", "balanced", "high_performance", "high_power_saver", "low_balanced", "low_power_saver", "power_saver",
        "extreme_power_saver", "sustained_high_performance",
    ),
    "qnn_context_priority": ("low", "normal", "normal_high", "high"),
    "offload_graph_io_quantization": _SWITCH,
    "enable_htp_spill_fill_buffer": _SWITCH,
    "enable_htp_shared_memory_allocator": _SWITCH,
    "num_graph_prepare_threads": _INTEGER,
}  # fmt: skip

# The provider's default, 1, leaves the quantization of inputs and outputs to the CPU.
_DEFAULTS = {"offload_graph_io_quantization": "0"}

_SET_BY_ENGINE = {
    "backend_path": "The engine uses the HTP.",
    "backend_type": "The engine uses the HTP.",
    "device_id": "Use device=.",
    "enable_htp_fp16_precision": "Use precision= (or fp16=True).",
    "profiling_level": "Use receipt(), which profiles a twin of the session.",
    "profiling_file_path": "Use receipt(), which profiles a twin of the session.",
}


@dataclass(frozen=True, slots=True)
class QnnSettings:
    """A request as options of the provider. ``emulator``: the emulator may be used."""

    options: Mapping[str, str]
    emulator: bool = False

    @property
    def architecture(self) -> str:
        """Return the HTP architecture as evidence names it: ``v75``, or ``default``."""
        arch = self.options.get("htp_arch", "")
        return f"v{arch}" if arch else "default"


def parse(request: EngineRequest) -> QnnSettings | Support:
    """Return the request's settings, or the reason why an option or a value is not supported."""
    for key, value in request.options.items():
        if key in _SET_BY_ENGINE:
            text = f"QNN option {key!r} is set by xpuruntime"
            return Support.no(Reason.OPTION_UNKNOWN, text, do=_SET_BY_ENGINE[key])
        if key not in _VALUES:
            near = difflib.get_close_matches(key, _VALUES, n=1)
            do = f"Did you mean {near[0]!r}? " if near else ""
            text = f"QNN has no option {key!r} (the provider would ignore it)"
            return Support.no(Reason.OPTION_UNKNOWN, text, do=f"{do}Options are {', '.join(_VALUES)}.")
        allowed = _VALUES[key]
        if value not in allowed if allowed else not (value.isdecimal() and len(value) < 7):
            text = f"QNN option {key!r} cannot be {value!r} (the provider would use its default)"
            values = f"one of {', '.join(allowed)}" if allowed else "a non-negative integer"
            return Support.no(Reason.OPTION_UNKNOWN, text, do=f"Use {values}.")
    own = {**_DEFAULTS, **{k: v for k, v in request.options.items() if k != "emulator"}}
    half = "1" if request.precision is DType.FLOAT16 else "0"  # the provider's default is 1
    fixed = {"backend_path": str(library_file("QnnHtp")), "enable_htp_fp16_precision": half}
    return QnnSettings({**own, **fixed}, request.options.get("emulator") == "1")
