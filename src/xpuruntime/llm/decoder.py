"""decoder_graph: a decoder of the Llama and Qwen2 families as a graph, built from its config alone.

    graph = decoder_graph(config, length=1, capacity=2048)           # decode: one token
    graph = decoder_graph(config, length=128, capacity=2048)         # prefill of up to 128 tokens

Both read and write two states per layer, ``keys.0``, ``values.0`` ...: [batch, kv heads, capacity, head size]. Rows are written in place
at the given positions, which each sample of a batch has its own. Weights have the names of a checkpoint. Ops are not fused here; passes
fuse them.

| input | | |
|---|---|---|
| tokens | int64[batch, length] | |
| positions | int64[batch, length] | position of each token in its sample, below ``capacity`` |
| last | int64[batch] | index of each sample's last row among all batch * length rows; its logits give the next token |

| output | | |
|---|---|---|
| token | int64[batch] | the most likely next tokens, the first of equal ones |
| logits | dtype[batch, vocab], or dtype[batch * length, vocab] with ``all_logits`` | |
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Graph, GraphBuilder
from ..ir.graph import Source
from ..types import DType, TensorSpec
from .checkpoint.config import DecoderConfig

__all__ = ["decoder_graph"]


def decoder_graph(
    config: DecoderConfig,
    *,
    length: int,
    capacity: int,
    batch: int = 1,
    dtype: DType | None = None,
    stored: Mapping[str, TensorSpec] | None = None,
    files: Mapping[str, str] | None = None,
    all_logits: bool = False,
    name: str = "decoder",
) -> Graph:
    """Return the graph for ``length`` tokens of each of ``batch`` samples over a cache of ``capacity`` positions each.

    dtype:      type to compute in. Default: the checkpoint's.
    stored:     specs of weights that are stored in another type. They are cast when they are loaded.
    files:      the safetensors file of each weight.
    all_logits: return the logits of every row instead of the last one. For comparisons; the output is large for long prompts.
    """
    writer = _Writer(config, length, capacity, batch, dtype or config.dtype, stored or {}, files or {}, name)
    return writer.graph(all_logits)


class _Writer:
    """Builder of one graph; its methods are the model's parts."""

    def __init__(
        self,
        config: DecoderConfig,
        length: int,
        capacity: int,
        batch: int,
        dtype: DType,
        stored: Mapping[str, TensorSpec],
        files: Mapping[str, str],
        name: str,
    ) -> None:
        self.c, self.length, self.capacity, self.batch, self.dtype = config, length, capacity, batch, dtype
        self.stored, self.files = stored, files
        self.b = GraphBuilder(name)
        facts = {"family": config.family, "length": length, "capacity": capacity, "batch": batch}
        self.b.metadata["decoder"] = facts
        self.declared: dict[str, str] = {}
        self.shapes = config.shapes()

    def graph(self, all_logits: bool) -> Graph:
        b, c, n, s = self.b, self.c, self.batch, self.length
        tokens = b.input("tokens", f"int64[{n}, {s}]")
        self.positions = b.input("positions", f"int64[{n}, {s}]")
        self.tables = self.rotary()
        all_positions = b.arange(end=self.capacity, dtype=DType.INT64)
        positions_shape = [s, 1] if n == 1 else [n, 1, s, 1]  # one mask for all, or one for each sample
        self.mask = b.le(all_positions, b.view(self.positions, size=positions_shape), name="mask")
        x = b.embedding(self.weight("model.embed_tokens.weight"), tokens, name="embedded")
        for i in range(c.layers):
            with b.source(Source(name=f"layers.{i}", module=f"model.layers.{i}")):
                x = self.attention(i, x)
                x = self.feed_forward(i, x)
        head = "model.embed_tokens.weight" if c.tied else "lm_head.weight"
        last = b.input("last", f"int64[{n}]")
        x = b.view(x, size=[n * s, c.hidden])
        if s > 1 and not all_logits:
            x = b.index_select(x, last, dim=0, name="last_row")
        logits = b.linear(self.norm("model.norm", x), self.weight(head), name="scores")
        final = b.index_select(logits, last, dim=0) if s > 1 and all_logits else logits
        b.output("token", b.argmax(final, dim=1))
        b.output("logits", logits)
        return b.build()

    def rotary(self) -> tuple[str, str]:
        """Return cosines and sines of every position, [capacity, head size / 2]. They are constants, so they are computed when weights are
        loaded.
        """
        b = self.b
        frequencies = self.c.rotary.frequencies(self.c.head_dim)[None]
        positions = b.view(b.arange(end=self.capacity, dtype=DType.FLOAT32), size=[self.capacity, 1])
        angles = b.mul(positions, b.constant(frequencies, name="rotary.frequencies"))
        cos, sin = b.cos(angles, name="rotary.cos"), b.sin(angles, name="rotary.sin")
        if self.dtype is DType.FLOAT32:
            return cos, sin
        return b.cast(cos, dtype=self.dtype), b.cast(sin, dtype=self.dtype)

    def attention(self, i: int, x: str) -> str:
        b, c, n, s, where = self.b, self.c, self.batch, self.length, f"model.layers.{i}.self_attn"
        y = self.norm(f"model.layers.{i}.input_layernorm", x)
        q, k, v = (
            self.heads(self.linear(f"{where}.{projection}_proj", y), heads)
            for projection, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        )
        q, k = (b.rope(projection, *self.tables, self.positions) for projection in (q, k))
        cache = f"{self.dtype.value}[{n}, {c.kv_heads}, {self.capacity}, {c.head_dim}]"
        caches = []
        for projection, new in (("keys", k), ("values", v)):
            state = b.state(f"{projection}.{i}", cache)
            caches.append(self.written(state, new))
            b.set_state(state, caches[-1])
        y = b.attention(q, *caches, self.mask, scale=c.head_dim**-0.5)
        y = b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[n, s, c.heads * c.head_dim])
        return str(b.add(x, self.linear(f"{where}.o_proj", y)))

    def written(self, cache: str, rows: str) -> str:
        """Return the cache with new rows at their positions."""
        b, n, s = self.b, self.batch, self.length
        if n == 1:
            return str(b.index_copy(cache, b.view(self.positions, size=[s]), rows, dim=2))
        positions = b.view(self.positions, size=[n, 1, s, 1])
        positions = b.expand(positions, size=[n, self.c.kv_heads, s, self.c.head_dim])
        return str(b.scatter(cache, positions, rows, dim=2))

    def feed_forward(self, i: int, x: str) -> str:
        b, where = self.b, f"model.layers.{i}.mlp"
        y = self.norm(f"model.layers.{i}.post_attention_layernorm", x)
        gate, up = self.linear(f"{where}.gate_proj", y), self.linear(f"{where}.up_proj", y)
        y = b.mul(b.silu(gate), up)
        return str(b.add(x, self.linear(f"{where}.down_proj", y)))

    def heads(self, x: str, heads: int) -> str:
        """[batch, length, heads * size] -> [batch, heads, length, size]"""
        split = self.b.view(x, size=[self.batch, self.length, heads, self.c.head_dim])
        return str(self.b.permute(split, dims=[0, 2, 1, 3]))

    def norm(self, name: str, x: str) -> str:
        shape = [self.c.hidden]
        return str(self.b.rms_norm(x, self.weight(f"{name}.weight"), normalized_shape=shape, eps=self.c.eps))

    def linear(self, name: str, x: str) -> str:
        bias = [self.weight(f"{name}.bias")] if f"{name}.bias" in self.shapes else []
        return str(self.b.linear(x, self.weight(f"{name}.weight"), *bias))

    def weight(self, name: str) -> str:
        """Return the weight in ``self.dtype``. A cast is applied when the weight is loaded."""
        if name not in self.declared:
            spec = self.stored.get(name, TensorSpec(self.shapes[name], self.dtype))
            file = self.files.get(name, "")
            where = {"file": file, "format": "safetensors", "key": name} if file else {}
            value = self.b.weight(name, spec, **where)
            if spec.dtype is not self.dtype:
                value = self.b.cast(value, dtype=self.dtype)
            self.declared[name] = value
        return self.declared[name]
