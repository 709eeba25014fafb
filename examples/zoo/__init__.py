"""Trained models that registry packages carry, as ONNX files with real inputs and readable answers.

>>> from examples.zoo import MODELS
>>> model = MODELS["efficientnet-lite0"]
>>> path = model.onnx_path()                      # build/zoo/efficientnet-lite0.onnx, built once
>>> sample = model.samples()[0]                   # a photo of a cat
>>> print(model.interpret(outputs, sample))       # outputs of any engine, for model.inputs(sample)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import basic_pitch, efficientnet_lite0, magika, minilm, ppocr_det, ppocr_rec
from .base import CACHE, DATA, Answer, Sample, ZooError, ZooModel
from .ocr import read_page

__all__ = ["CACHE", "DATA", "MODELS", "Answer", "Sample", "ZooError", "ZooModel", "read_page"]

MODELS: Mapping[str, ZooModel] = MappingProxyType(
    {
        module.MODEL.name: module.MODEL
        for module in (efficientnet_lite0, ppocr_det, ppocr_rec, minilm, magika, basic_pitch)
    }
)
