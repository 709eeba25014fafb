"""Tuning: kernels measured per call and shape on this device, and predictions by such measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .prediction import Prediction, predict
    from .report import TunedCall, TuneResult
    from .tuner import tune

__all__ = ["Prediction", "TuneResult", "TunedCall", "predict", "tune"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Prediction": "xpuruntime.workbench.tune.prediction",
        "TuneResult": "xpuruntime.workbench.tune.report",
        "TunedCall": "xpuruntime.workbench.tune.report",
        "predict": "xpuruntime.workbench.tune.prediction",
        "tune": "xpuruntime.workbench.tune.tuner",
    },
)
