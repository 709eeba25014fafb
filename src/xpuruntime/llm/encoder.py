"""encoder_graph: the encoder of an encoder-decoder as a graph, built from its config alone.

It writes the states ``source_keys.0``, ``source_values.0`` ...: the keys and values of each layer of the decoder over the encoder's output,
[batch, kv heads, source capacity, head size]. They are computed once for a text; the decoder's graphs read them.

| input | | |
|---|---|---|
| tokens | int64[1, length] | |
| features | dtype[1, features, 2 * length] | instead of tokens, of an encoder that reads frames of audio |
| source_lengths | int64[1] | number of tokens; what follows them is padding |
| row | int64[1] | row of the states that is written |
| places | int64[length] | instead of the row, of states in blocks: rows that are written |

| output | | |
|---|---|---|
| encoded | dtype[1, length, hidden] | rows of padding have no meaning |
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..ir import Graph
from ..ir.graph import Source
from ..types import DType, TensorSpec
from .checkpoint.config import DecoderConfig
from .decoder import SOURCE, GraphWriter
from .paged import PagedCache

__all__ = ["encoder_graph"]


def encoder_graph(
    config: DecoderConfig,
    *,
    length: int,
    batch: int = 1,
    dtype: DType | None = None,
    stored: Mapping[str, TensorSpec] | None = None,
    files: Mapping[str, str] | None = None,
    paged: PagedCache | None = None,
    name: str = "encoder",
) -> Graph:
    """Return the graph for a text of up to ``length`` tokens, one of ``batch`` in the states. Arguments are as for ``decoder_graph``."""
    assert config.encoder is not None
    words = (1, dtype or config.dtype, stored or {}, files or {}, None, 0, name)
    return _EncoderWriter(config.encoder, length, length, *words).encoder(config, batch, paged)


class _EncoderWriter(GraphWriter):
    """Builder of the encoder's graph: every query sees every token of its text."""

    def encoder(self, decoder: DecoderConfig, texts: int, paged: PagedCache | None) -> Graph:
        """Return the graph. ``decoder``: the config that has this encoder. texts: rows of the states, unless they are ``paged``."""
        b, c, n, s = self.b, self.c, self.batch, self.length
        spec = f"{self.dtype.value}[{n}, {c.features}, {2 * s}]" if c.features else f"int64[{n}, {s}]"
        source = b.input("features" if c.features else "tokens", spec)
        self.present = self.lengths_mask(b.input("source_lengths", f"int64[{n}]"), s)
        self.positions = b.view(b.arange(end=s, dtype=DType.INT64), size=[1, s])
        x = self.convolved(source) if c.features else self.embedded(source)
        for i in range(c.layers):
            with b.source(Source(name=f"encoder.{i}", module=c.layer(i))):
                x = self.layer(i, x)
        x = self.norm(c.end("final_norm"), x) if "final_norm" in c.row.ends else x
        self.keep(decoder, x, texts, paged)
        b.output("encoded", x)
        return b.build()

    def convolved(self, features: str) -> str:
        """Return the first layer's input from frames of audio, two for each of its rows."""
        b, c = self.b, self.c
        x = features
        for part, stride in (("conv1", 1), ("conv2", 2)):
            weight, bias = (self.weight(f"{c.end(part)}.{name}") for name in ("weight", "bias"))
            x = b.gelu(b.convolution(x, weight, bias, stride=[stride], padding=[1], dilation=[1]))
        return self.positioned(b.permute(x, dims=[0, 2, 1]))

    def keep(self, decoder: DecoderConfig, x: str, texts: int, paged: PagedCache | None) -> None:
        """Write the keys and values of each layer of the decoder to a row of the states, and zeros after them; or to rows of blocks."""
        b = self.b
        at = b.input("places", f"int64[{self.length}]") if paged else b.input("row", "int64[1]")
        writer = GraphWriter(
            decoder,
            self.length,
            self.length,
            self.batch,
            self.dtype,
            self.stored,
            self.files,
            paged,
            0,
            b.name,
            b,
        )
        assert decoder.encoder is not None
        rest = decoder.encoder.max_positions - self.length
        for i in range(decoder.layers):
            for name, part in zip(SOURCE, ("cross_k", "cross_v"), strict=True):
                new = writer.heads(i, part, writer.linear(i, part, x), decoder.kv_heads)
                if paged:
                    rows = b.permute(new, dims=[0, 2, 1, 3])
                    rows = b.view(rows, size=[self.length, decoder.kv_heads, decoder.head_dim])
                else:
                    rows = b.pad(new, pads=[0, 0, 0, 0, 0, 0, rest, 0]) if rest else new
                state = writer.source_state(name, i, texts)
                b.set_state(state, b.index_copy(state, at, rows, dim=0))

    def kept(self, i: int, keys: str, values: str) -> tuple[str, str]:
        """Return the keys and values; an encoder has no cache."""
        return keys, values

    def mask(self, window: int) -> str:
        """Return which keys each query sees: the tokens of its text. With learned biases it is the bias of each score."""
        b, s = self.b, self.length
        if window not in self.masks:
            self.masks[window] = self.present
            if self.c.buckets:
                keys = b.arange(end=s, dtype=DType.INT64)
                biases = self.learned_biases(keys, b.view(self.positions, size=[s, 1]))
                self.masks[window] = b.where(self.present, biases, -math.inf, name="mask_bias")
        return self.masks[window]
