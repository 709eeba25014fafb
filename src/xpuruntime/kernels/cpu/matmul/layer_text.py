"""The C++ text around the matrix product of a decoder's linear layer: operands, the RMS norm before it, and the epilogue after it."""

from __future__ import annotations

from dataclasses import dataclass

from ....codegen.c_types import C_TYPES, accumulator
from ...portable.text import ACTIVATIONS
from ...spec.channel_codes import ChannelCodes
from ...spec.linear import LinearLayer
from .gemm_text import unscaled

__all__ = ["LayerText"]


@dataclass(frozen=True, slots=True)
class LayerText(LinearLayer):
    """A linear layer with the C++ text around its product."""

    @property
    def storage(self) -> str:
        """The C type of values in memory."""
        return C_TYPES[self.dtype]

    @property
    def sums(self) -> str:
        """The C type of sums."""
        return accumulator(self.dtype)

    def arguments(self, first: int) -> list[str]:
        """Return lines that declare the operands. ``first``: index of the first one among the arguments."""
        kind = self.storage
        return [
            f"const {kind} *{name} = (const {kind} *)args[{first + i}];"
            for i, (name, _) in enumerate(self.operands)
        ]

    def epilogue(self, columns: int, codes: ChannelCodes | None = None, gate_row: str = "r") -> list[str]:
        """Return the epilogue of row ``r`` of a panel, which stores to the result ``y``.

        codes:    the codes whose scales per output are the array ``scales``.
        gate_row: the row index into ``gate``, which holds the gate's sums in a gated layer.
        """
        t = self.sums
        lines = [
            f"const int64_t col = panel * {columns}, outputs = {self.n} - col < {columns} ? {self.n} - col : {columns};",
            "for (int64_t j = 0; j < outputs; j += L) {",
            "    const int64_t n = outputs - j < L ? outputs - j : L;",
        ]
        halves = [
            ("x", f"gate + {gate_row} * {columns}", "col + j"),
            ("up", "sums", f"{self.n} + col + j"),
        ]
        for name, sums, at in halves if self.halves == 2 else [("x", "sums", "col + j")]:
            lines.append(f"    auto {name} = load<L>({sums} + j);")
            if codes:
                scales = unscaled(codes, f"gemm_load<{t}>(scales + {at}, n)")
                lines.append(f"    {name} = {name} * ({scales});")
            if self.bias is not None:
                lines.append(f"    {name} = {name} + gemm_load<{t}>(bias + {at}, n);")
        if self.residual is not None:
            lines.append(f"    x = x + gemm_load<{t}>(residual + r * {self.n} + col + j, n);")
        if self.act != "none":
            lines.append(f"    x = {ACTIVATIONS[self.act][0]};")
        if self.halves == 2:
            lines.append("    x = x * up;")
        return [*lines, f"    gemm_store<{t}>(y + r * {self.n} + col + j, x, n);", "}"]

    def keep_gate(self, columns: int, gate_row: str = "r") -> str:
        """Return the line that stores row ``gate_row`` of the gate's sums for the epilogue."""
        return f"for (int64_t j = 0; j < {columns}; j += L) store<L>(gate + {gate_row} * {columns} + j, load<L>(sums + j));"

    def normed(self, storage: str, to: str) -> str:
        """Return the line that computes the normalized rows."""
        t = self.sums
        return f"normed_rows<{t}, {self.storage}, {storage}>(x, {self.k}, norm, {self.m}, {self.k}, ({t}){self.eps!r}, {to});"

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the prelude that the text uses."""
        return frozenset({"decoder", *ACTIVATIONS[self.act][1]})

    def grain(self, panel_bytes: int) -> int:
        """Return the minimum panels of the weight per thread: those that a core reads in two microseconds at 20 GB/s."""
        return max(1, round(4e4 / max(panel_bytes, 1)))
