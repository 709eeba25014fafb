"""ChannelCodes: weights of linear layers as codes of eight bits, with one float32 scale per output channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...program.program import RecipeStep
from ...types import DType, TensorSpec
from ..kernel import Packed

__all__ = ["FP8", "INT8", "ChannelCodes", "shifted"]


@dataclass(frozen=True, slots=True)
class ChannelCodes:
    """A type of codes. A weight is ``code * scale`` of its output channel.

    word: the word of ``weights`` in policies, and the suffix of the recipe ops (``scale_int8``, ``quantize_int8``).
    """

    word: str
    dtype: DType

    def scales(self, outputs: int) -> Packed:
        """Return the recipe of the scales of a weight [outputs, inputs]."""
        step = RecipeStep(f"scale_{self.word}", ("%in",), {"dim": 0})
        return Packed((step,), TensorSpec((outputs,), DType.FLOAT32))

    @property
    def quantize(self) -> RecipeStep:
        """The step from a weight [outputs, inputs] to its codes."""
        return RecipeStep(f"quantize_{self.word}", ("%in",), {"dim": 0})

    def packed(self, floats: Packed) -> Packed:
        """Return the packing of a weight's codes, from that of its floats."""
        steps = (self.quantize, *(shifted(s) for s in floats.steps))
        return Packed(steps, replace(floats.spec, dtype=self.dtype))


def shifted(step: RecipeStep) -> RecipeStep:
    """Return a step behind one more step, whose result it reads instead of ``%in``."""
    inputs = tuple("%0" if i == "%in" else f"%{int(i[1:]) + 1}" for i in step.inputs)
    return replace(step, inputs=inputs)


INT8 = ChannelCodes("int8", DType.INT8)
FP8 = ChannelCodes("fp8", DType.FLOAT8_E4M3FN)
