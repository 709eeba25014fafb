"""decoder_graph: a decoder of the Llama and Qwen2 families as a graph, from its config alone.

    graph = decoder_graph(config, length=1, capacity=2048)           # decode: one token
    graph = decoder_graph(config, length=128, capacity=2048)         # prefill of up to 128 tokens

Both read and write one state per layer and side, ``keys.0``, ``values.0`` ...: [1, kv heads, capacity, head size]. Rows are written at
the given positions, where they lie. Weights have the names of a checkpoint. Nodes are plain: passes fuse them.

| input | | |
|---|---|---|
| tokens | int64[1, length] | |
| positions | int64[1, length] | where each token stands, below ``capacity`` |
| last | int64[1] | the row whose next token is asked for |

| output | | |
|---|---|---|
| token | int64[1] | the most likely next token, the first of equal ones |
| logits | dtype[1, vocab], or dtype[length, vocab] with ``every`` | |
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph, GraphBuilder
from ..ir.graph import Source
from ..types import DType, TensorSpec
from .config import DecoderConfig

__all__ = ["decoder_graph", "table_specs"]


def table_specs(config: DecoderConfig, capacity: int) -> dict[str, tuple[int, ...]]:
    """The weights that no checkpoint has: rotary tables."""
    return {f"rotary.{side}": (capacity, config.head_dim // 2) for side in ("cos", "sin")}


def decoder_graph(
    config: DecoderConfig,
    *,
    length: int,
    capacity: int,
    dtype: DType | None = None,
    stored: Mapping[str, TensorSpec] | None = None,
    files: Mapping[str, str] | None = None,
    every: bool = False,
    name: str = "decoder",
) -> Graph:
    """The graph for ``length`` tokens over a cache of ``capacity`` positions.

    dtype:  what is computed in, by default the checkpoint's.
    stored: specs of the weights as they lie, where they differ from ``dtype``; they are cast when they are loaded.
    files:  the safetensors file of each weight.
    every:  logits of every row instead of the last one (to compare; a long prompt should not).
    """
    return _Writer(config, length, capacity, dtype or config.dtype, stored or {}, files or {}, name).graph(
        every
    )


class _Writer:
    """Writes one graph; methods are the model's parts."""

    def __init__(
        self,
        config: DecoderConfig,
        length: int,
        capacity: int,
        dtype: DType,
        stored: Mapping[str, TensorSpec],
        files: Mapping[str, str],
        name: str,
    ) -> None:
        self.c, self.length, self.capacity, self.dtype = config, length, capacity, dtype
        self.stored, self.files = stored, files
        self.b = GraphBuilder(name)
        self.b.metadata["decoder"] = {"family": config.family, "length": length, "capacity": capacity}
        self.made: dict[str, str] = {}
        self.shapes = {**config.shapes(), **table_specs(config, capacity)}

    def graph(self, every: bool) -> Graph:
        b, c, s = self.b, self.c, self.length
        tokens = b.input("tokens", f"int64[1, {s}]")
        self.positions = b.input("positions", f"int64[1, {s}]")
        self.places = b.view(self.positions, size=[s])
        places = b.arange(end=self.capacity, dtype=DType.INT64)
        self.mask = b.le(places, b.view(self.positions, size=[s, 1]), name="mask")
        x = b.embedding(self.weight("model.embed_tokens.weight"), tokens, name="embedded")
        for i in range(c.layers):
            with b.source(Source(name=f"layers.{i}", module=f"model.layers.{i}")):
                x = self.attention(i, x)
                x = self.feed_forward(i, x)
        head = "model.embed_tokens.weight" if c.tied else "lm_head.weight"
        last = b.input("last", "int64[1]")
        x = b.view(x, size=[s, c.hidden])
        if s > 1 and not every:
            x = b.index_select(x, last, dim=0, name="last_row")
        logits = b.linear(self.norm("model.norm", x), self.weight(head), name="scores")
        final = b.index_select(logits, last, dim=0) if s > 1 and every else logits
        b.output("token", b.argmax(final, dim=1))
        b.output("logits", logits)
        return b.build()

    def attention(self, i: int, x: str) -> str:
        b, c, s, where = self.b, self.c, self.length, f"model.layers.{i}.self_attn"
        y = self.norm(f"model.layers.{i}.input_layernorm", x)
        q, k, v = (
            self.heads(self.linear(f"{where}.{side}_proj", y), heads)
            for side, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        )
        tables = [self.weight(f"rotary.{side}") for side in ("cos", "sin")]
        q, k = (b.rope(side, *tables, self.positions) for side in (q, k))
        cache = f"{self.dtype.value}[1, {c.kv_heads}, {self.capacity}, {c.head_dim}]"
        kept = []
        for side, new in (("keys", k), ("values", v)):
            state = b.state(f"{side}.{i}", cache)
            kept.append(b.index_copy(state, self.places, new, dim=2))
            b.set_state(state, kept[-1])
        y = b.attention(q, *kept, self.mask, scale=c.head_dim**-0.5)
        y = b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[1, s, c.heads * c.head_dim])
        return str(b.add(x, self.linear(f"{where}.o_proj", y)))

    def feed_forward(self, i: int, x: str) -> str:
        b, where = self.b, f"model.layers.{i}.mlp"
        y = self.norm(f"model.layers.{i}.post_attention_layernorm", x)
        gate, up = self.linear(f"{where}.gate_proj", y), self.linear(f"{where}.up_proj", y)
        y = b.mul(b.silu(gate), up)
        return str(b.add(x, self.linear(f"{where}.down_proj", y)))

    def heads(self, x: str, heads: int) -> str:
        """[1, length, heads * size] -> [1, heads, length, size]"""
        split = self.b.view(x, size=[1, self.length, heads, self.c.head_dim])
        return str(self.b.permute(split, dims=[0, 2, 1, 3]))

    def norm(self, name: str, x: str) -> str:
        shape = [self.c.hidden]
        return str(self.b.rms_norm(x, self.weight(f"{name}.weight"), normalized_shape=shape, eps=self.c.eps))

    def linear(self, name: str, x: str) -> str:
        bias = [self.weight(f"{name}.bias")] if f"{name}.bias" in self.shapes else []
        return str(self.b.linear(x, self.weight(f"{name}.weight"), *bias))

    def weight(self, name: str) -> str:
        """The weight in the type that is computed in; cast when it is loaded."""
        if name not in self.made:
            spec = self.stored.get(name, TensorSpec(self.shapes[name], self.dtype))
            file = self.files.get(name, "")
            where = {"file": file, "format": "safetensors", "key": name} if file else {}
            value = self.b.weight(name, spec, **where)
            if spec.dtype is not self.dtype:
                value = self.b.cast(value, dtype=self.dtype)
            self.made[name] = value
        return self.made[name]
