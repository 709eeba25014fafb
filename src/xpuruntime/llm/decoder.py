"""decoder_graph: a decoder of any family of ``FAMILIES`` as a graph, built from its config alone.

    graph = decoder_graph(config, length=1, capacity=2048)           # decode: one token
    graph = decoder_graph(config, length=128, capacity=2048)         # prefill of up to 128 tokens

Both read and write two states per layer, ``keys.0``, ``values.0`` ...: [batch, kv heads, capacity, head size]; with latent attention one,
``latent.0``: [batch, 1, capacity, compressed size]. Rows are written in place
at the given positions, which each sample of a batch has its own. Weights have the names of a checkpoint. Ops are not fused here; passes
fuse them.

| input | | |
|---|---|---|
| tokens | int64[batch, length] | |
| positions | int64[batch, length] | position of each token in its sample, below ``capacity`` |
| source_lengths | int64[batch] | of an encoder-decoder: number of rows of the encoder's output of each sample |
| last | int64[batch] | index of each sample's last row among all batch * length rows; its logits give the next token |

| output | | |
|---|---|---|
| token | int64[batch] | the most likely next tokens, the first of equal ones |
| logits | dtype[batch, vocab], or dtype[batch * length, vocab] with ``all_logits``; not with ``sampling`` | |

With ``sampling`` the tokens are those of the op ``sample_token``. Its ``settings`` and ``numbers`` are further inputs, and its counts a state.

With ``paged``, many texts share each state, [rows, kv heads, head size], in blocks. A sample is then one token of any text, and ``last`` may name
fewer rows than there are samples. Two more inputs follow ``positions``:

| input | | |
|---|---|---|
| places | int64[batch] | row of the cache that each token is written to |
| tables | int32[batch, blocks] | blocks of the text of each token, as for ``paged_attention`` |

The states of an encoder's output are blocks, too, one for each source. Instead of ``source_lengths`` there are:

| input | | |
|---|---|---|
| source_ends | int64[batch, 1] | last row of the source of each token; -1 without one |
| source_tables | int32[batch, 1] | its block |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..ir import Graph, GraphBuilder
from ..ir.graph import Source
from ..ir.ops.collective import PEER_BYTES
from ..storage.blocks import BLOCK_FORMATS
from ..types import DType, TensorSpec
from .checkpoint.config import DecoderConfig
from .checkpoint.data import blocks_name
from .families.family import ACTIVATIONS
from .latent import latent_attention
from .mixture import mixture
from .paged import PagedCache
from .rotary import Rotary

__all__ = ["COUNTS", "RANK_TABLE", "SOURCE", "GraphWriter", "decoder_graph"]

COUNTS = "token_counts"
"""The state with the counts of ``sample_token``, int32[batch, vocab]."""

RANK_TABLE = "rank_table"
"""The state with the addresses by which the ranks of a divided decoder reach each other's memory."""

SOURCE = ("source_keys", "source_values")
"""The states of an encoder's output, one of each per layer."""


def decoder_graph(
    config: DecoderConfig,
    *,
    length: int,
    capacity: int,
    batch: int = 1,
    dtype: DType | None = None,
    stored: Mapping[str, TensorSpec] | None = None,
    files: Mapping[str, str] | None = None,
    blocks: Mapping[str, str] | None = None,
    cache: DType | None = None,
    all_logits: bool = False,
    sampling: bool = False,
    first: bool = False,
    paged: PagedCache | None = None,
    texts: int = 0,
    name: str = "decoder",
) -> Graph:
    """Return the graph for ``length`` tokens of each of ``batch`` samples over a cache of ``capacity`` positions each.

    dtype:      type to compute in. Default: the checkpoint's.
    stored:     specs of weights that are stored in another type. They are cast when they are loaded.
    files:      the safetensors file of each weight.
    blocks:     the format of the blocks that a weight is read from (``Checkpoint.blocks``), for those that are.
    cache:      type that keys and values are stored in. Default: ``dtype``. They are rounded to it, and saturate.
    all_logits: return the logits of every row instead of the last one. For comparisons; the output is large for long prompts.
    sampling:   sample the tokens, and return no logits.
    first:      the tokens are the first of each sample: ``positions`` are 0 to length - 1, and each token sees those up to itself.
    paged:      the layout of a cache in blocks. ``length`` must be 1. texts: rows of ``last``, and so of the results.
    """
    writer = GraphWriter(
        config, length, capacity, batch, dtype or config.dtype, stored or {}, files or {}, paged, texts, name
    )
    writer.blocks, writer.cache, writer.first = blocks or {}, cache or writer.dtype, first
    return writer.graph(all_logits, sampling)


class GraphWriter:
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
        paged: PagedCache | None,
        texts: int,
        name: str,
        builder: GraphBuilder | None = None,
    ) -> None:
        self.c, self.length, self.capacity, self.batch, self.dtype = config, length, capacity, batch, dtype
        self.stored, self.files, self.paged = stored, files, paged
        self.blocks: Mapping[str, str] = {}
        self.cache = dtype
        self.first = False
        self.results = texts if paged else batch
        self.b = builder or GraphBuilder(name)
        facts = {"family": config.family, "length": length, "capacity": capacity, "batch": batch}
        self.b.metadata["decoder"] = facts
        self.declared: dict[str, str] = {}
        self.shapes = config.shapes()
        self.tables: dict[Rotary, tuple[str, str]] = {}
        self.masks: dict[int, str] = {}

    def graph(self, all_logits: bool, sampling: bool) -> Graph:
        b, c, n, s = self.b, self.c, self.batch, self.length
        tokens = b.input("tokens", f"int64[{n}, {s}]")
        self.positions = b.input("positions", f"int64[{n}, {s}]")
        if c.encoder is not None and self.paged:
            self.source_ends = b.input("source_ends", f"int64[{n}, 1]")
            self.source_tables = b.input("source_tables", f"int32[{n}, 1]")
        elif c.encoder is not None:
            self.source_mask = self.lengths_mask(
                b.input("source_lengths", f"int64[{n}]"), c.encoder.max_positions
            )
        for rotary in dict.fromkeys(c.local_rotary if w else c.rotary for w in c.windows):
            if c.rotary_dim:
                self.tables[rotary] = self.rotary(rotary, "rotary" if not self.tables else "rotary.local")
        if self.paged:
            self.places = b.input("places", f"int64[{n}]")
            self.table = b.input("tables", f"int32[{n}, {self.paged.listed}]")
            self.biases = [self.paged_biases()] if c.slopes or c.buckets else []
        elif not self.first:
            for window in c.windows:
                self.mask(window)
        if c.direct:
            self.rank_table = b.state(RANK_TABLE, f"int64[{1 + c.ranks}]")
        x = self.embedded(tokens)
        for i in range(c.layers):
            with b.source(Source(name=f"layers.{i}", module=c.layer(i))):
                x = self.layer(i, x)
        head = c.end("embed" if c.tied and not c.splits_vocab else "head")
        last = b.input("last", f"int64[{self.results}]")
        x = b.view(x, size=[n * s, c.hidden])
        if (s > 1 or self.paged) and not all_logits:
            x = b.index_select(x, last, dim=0, name="last_row")
        x = self.norm(c.end("final_norm"), x) if "final_norm" in c.row.ends else x
        if c.projects:
            x = b.linear(x, self.weight(f"{c.end('project_out')}.weight"))
        if c.row.output_scale:
            x = b.mul(x, c.hidden**-0.5)
        bias = [self.weight(f"{c.end('head')}.bias")] if c.head_bias else []
        if "logits_bias" in c.row.ends:
            bias = [b.view(self.weight(c.end("logits_bias")), size=[c.vocab])]
        logits = self.of_all_words(b.linear(x, self.weight(f"{head}.weight"), *bias, name="scores"))
        if c.logits_softcap:
            logits = b.mul(b.tanh(b.div(logits, c.logits_softcap)), c.logits_softcap)
        final = b.index_select(logits, last, dim=0) if s > 1 and all_logits else logits
        if sampling:
            b.output("token", self.sampled(final))
        else:
            b.output("token", b.argmax(final, dim=1))
            b.output("logits", logits)
        return b.build()

    def of_all_words(self, logits: str) -> str:
        """Return the logits of the whole vocabulary, from those of each rank's words."""
        b, c = self.b, self.c
        if not c.splits_vocab:
            return logits
        rows, words = (int(d) for d in b.spec(logits).shape if isinstance(d, int))
        gathered = b.view(b.all_gather(logits, ranks=c.ranks), size=[c.ranks, rows, words])
        return str(b.view(b.permute(gathered, dims=[1, 0, 2]), size=[rows, c.vocab]))

    def summed(self, y: str, residual: str | None) -> str:
        """Return the sum of all ranks' results of a layer that is divided by its inputs, plus the residual."""
        b, ranks = self.b, self.c.ranks
        if ranks > 1:
            if self.c.direct and (b.spec(y).size_bytes or 0) <= PEER_BYTES:
                rest = [] if residual is None else [residual]
                return str(b.peer_all_reduce(y, self.rank_table, *rest, ranks=ranks))
            y = str(b.all_reduce(y, ranks=ranks))
        return y if residual is None else str(b.add(residual, y))

    def sampled(self, logits: str) -> str:
        """Return the sampled tokens, and count them."""
        b, n = self.b, self.results
        # Steps of several sizes have counts of their own.
        state = b.state(f"{COUNTS}.{n}" if self.paged else COUNTS, f"int32[{n}, {self.c.vocab}]")
        settings, numbers = b.input("settings", f"float32[{n}, 6]"), b.input("numbers", f"int64[{n}, 5]")
        token, counts = b.call("sample_token", logits, state, settings, numbers)
        b.set_state(state, counts)
        return str(token)

    def embedded(self, tokens: str) -> str:
        """Return the first layer's input."""
        b, c = self.b, self.c
        x = b.embedding(self.weight(f"{c.end('embed')}.weight"), tokens, name="embedded")
        if c.projects:
            x = b.linear(x, self.weight(f"{c.end('project_in')}.weight"))
        if c.row.embed_scale:
            # Rounded to the type that is computed in, as in the reference.
            x = b.mul(x, float(np.asarray(c.hidden**0.5, self.dtype.numpy)))
        x = self.positioned(x)
        return self.norm(c.end("embed_norm"), x) if "embed_norm" in c.row.ends else x

    def positioned(self, x: str) -> str:
        """Return x plus the rows of the table of positions, if there is one."""
        b, c = self.b, self.c
        if "positions" in c.row.ends:
            rows = b.add(self.positions, c.row.position_offset) if c.row.position_offset else self.positions
            x = b.add(x, b.embedding(self.weight(f"{c.end('positions')}.weight"), rows))
        return str(x)

    def window(self, window: int) -> int:
        """Return a layer's window; 0 if it hides nothing of a full cache."""
        return window if window < self.capacity else 0

    def mask(self, window: int) -> str:
        """Return which keys each query sees: those up to its position, and at most ``window`` of them unless that is 0.

        With ALiBi it is the bias of each score, -inf for keys that are not seen.
        """
        b, c, n, s = self.b, self.c, self.batch, self.length
        window = self.window(window)
        if window not in self.masks:
            size = [s, 1] if n == 1 else [n, 1, s, 1]  # one mask for all, or one for each sample
            keys, queries = b.arange(end=self.capacity, dtype=DType.INT64), b.view(self.positions, size=size)
            seen = b.le(keys, queries, name="mask_all" if window else "mask")
            if window:
                seen = b.logical_and(seen, b.gt(keys, b.sub(queries, window)), name="mask_window")
            if c.slopes or c.buckets:
                biases = self.alibi(keys, queries) if c.slopes else self.learned_biases(keys, queries)
                seen = b.where(seen, biases, -math.inf, name="mask_bias")
            self.masks[window] = seen
        return self.masks[window]

    @property
    def biased_by_key(self) -> bool:
        """Return True if the biases of scores depend on a key's position, not on its distance."""
        return self.c.row.alibi is not None and self.c.row.alibi.rounded

    def paged_biases(self) -> str:
        """Return the biases of scores by distance or by key, float32[heads, places], as ``paged_attention`` takes them."""
        b, c = self.b, self.c
        places = self.capacity if c.buckets is None else c.buckets.longest + 1
        each = b.view(b.arange(end=places, dtype=DType.INT64), size=[1, places])
        zero = b.constant(np.zeros((1, 1), np.int64), name="zero")
        pair = (each, zero) if self.biased_by_key else (zero, each)
        biases = self.learned_biases(*pair) if c.buckets else self.alibi(*pair)
        if b.spec(biases).dtype is not DType.FLOAT32:
            biases = b.cast(biases, dtype=DType.FLOAT32)
        return str(b.view(biases, size=[c.heads, places]))

    def lengths_mask(self, lengths: str, capacity: int) -> str:
        """Return which of ``capacity`` keys each text has: the first ones."""
        b, n = self.b, self.batch
        size = [1, 1] if n == 1 else [n, 1, 1, 1]
        return str(b.lt(b.arange(end=capacity, dtype=DType.INT64), b.view(lengths, size=size)))

    def learned_biases(self, keys: str, queries: str) -> str:
        """Return the learned biases of scores by their distance, dtype[heads, length, keys], with a batch before them where texts differ."""
        b, c, buckets = self.b, self.c, self.c.buckets
        assert buckets is not None
        table = self.weight(f"{c.layer(0)}.{c.row.parts['relative_bias']}.weight")
        of_distances = b.embedding(table, b.constant(buckets.of_distances(), name="buckets"))
        longest = buckets.longest
        distances = b.clamp(b.sub(keys, queries), -longest, longest if buckets.both else 0)
        shape = b.spec(distances).shape
        rows = b.view(b.add(distances, longest), size=[-1])
        biases = b.index_select(b.permute(of_distances, dims=[1, 0]), rows, dim=1)
        if len(shape) == 2:
            return str(b.view(biases, size=[c.heads, *shape]))
        biases = b.view(biases, size=[c.heads, shape[0], *shape[2:]])
        return str(b.permute(biases, dims=[1, 0, 2, 3]))

    def alibi(self, keys: str, queries: str) -> str:
        """Return the biases of scores, float32[heads, length or 1, capacity], with a batch before them where texts differ."""
        b, c, row = self.b, self.c, self.c.row.alibi
        assert row is not None
        slopes = b.constant(np.array(c.slopes, np.float32)[:, None, None], name="slopes")
        if not row.rounded:
            # Distances are exact, so that the biases of long texts are, too.
            biases = b.mul(b.cast(b.sub(keys, queries), dtype=DType.FLOAT32), slopes)
        else:
            slopes, keys = (b.cast(x, dtype=DType.BFLOAT16) for x in (slopes, keys))
            biases = b.cast(b.mul(slopes, keys), dtype=DType.FLOAT32)
        return str(b.mul(biases, c.scale) if row.scaled else biases)

    def rotary(self, rotary: Rotary, name: str) -> tuple[str, str]:
        """Return cosines and sines of every position, [capacity, rotated size / 2]. They are constants, so they are computed when weights
        are loaded.
        """
        b = self.b
        frequencies = rotary.frequencies(self.c.rotary_dim, self.capacity)[None]
        positions = b.view(b.arange(end=self.capacity, dtype=DType.FLOAT32), size=[self.capacity, 1])
        angles = b.mul(positions, b.constant(frequencies, name=f"{name}.frequencies"))
        cos, sin = b.cos(angles, name=f"{name}.cos"), b.sin(angles, name=f"{name}.sin")
        if rotary.attention != 1:
            cos, sin = b.mul(cos, rotary.attention), b.mul(sin, rotary.attention)
        if self.dtype is DType.FLOAT32:
            return cos, sin
        return b.cast(cos, dtype=self.dtype), b.cast(sin, dtype=self.dtype)

    def layer(self, i: int, x: str) -> str:
        """Return the output of a layer. Norms that the family does not have return their input."""
        b, row = self.b, self.c.row
        y = self.part_norm(i, "input_norm", x)
        if "post_attention_norm" in row.parts:
            attended = self.part_norm(i, "post_attention_norm", self.attention(i, y))
            attended_sum = b.add(x, attended)
        else:
            attended_sum = self.attention(i, y, x)
        if row.parallel:
            y = self.part_norm(i, "mlp_norm", x) if "mlp_norm" in row.parts else y
            x = attended_sum
        else:
            x = self.part_norm(i, "attention_sum_norm", attended_sum)
            x = self.crossed(i, x) if "cross_q" in row.parts else x
            y = self.part_norm(i, "mlp_norm", x)
        if "post_mlp_norm" in row.parts:
            x = b.add(x, self.part_norm(i, "post_mlp_norm", self.feed_forward(i, y)))
        else:
            x = self.feed_forward(i, y, x)
        return self.part_norm(i, "mlp_sum_norm", x)

    def attention(self, i: int, x: str, residual: str | None = None) -> str:
        """Return the attention of a layer, plus the residual."""
        b, c = self.b, self.c
        if c.latent is not None:
            expand = self.weight(f"{c.layer(i)}.{c.row.parts['kv_b']}.weight")
            y = latent_attention(
                b, c.latent, _LatentLayer(self, i), x, expand, partial(self.attended, i), c.heads
            )
            return self.summed(self.linear(i, "o", y), residual)
        q, k, v = self.projections(i, x)
        if c.rotary_dim:
            q, k = (self.rotated(i, projection) for projection in (q, k))
        y = self.attended(i, q, *self.kept(i, k, v))
        return self.summed(self.linear(i, "o", self.merged(y)), residual)

    def kept(self, i: int, keys: str, values: str) -> tuple[str, str]:
        """Return the caches of a layer with new keys and values."""
        return self.cached(f"keys.{i}", keys), self.cached(f"values.{i}", values)

    def merged(self, y: str) -> str:
        """[batch, heads, length, size] -> [batch, length, heads * size]"""
        b, c = self.b, self.c
        return str(
            b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[self.batch, self.length, c.heads * c.head_dim])
        )

    def crossed(self, i: int, x: str) -> str:
        """Return x with attention over the encoder's output, whose keys and values are states."""
        b, c = self.b, self.c
        assert c.encoder is not None
        y = self.part_norm(i, "cross_norm", x)
        q = self.heads(i, "cross_q", self.linear(i, "cross_q", y), c.heads)
        caches = [self.source_state(name, i, self.batch) for name in SOURCE]
        if self.paged:
            places, size = (self.source_tables, self.source_ends), c.encoder.max_positions
            y = b.paged_attention(q, *caches, *places, block_size=size, scale=c.scale)
        else:
            y = b.attention(q, *caches, self.source_mask, scale=c.scale)
        y = self.merged(str(y))
        return self.part_norm(i, "cross_sum_norm", b.add(x, self.linear(i, "cross_o", y)))

    def source_state(self, name: str, i: int, texts: int) -> str:
        """Return the state of a layer's keys or values of the encoder's output."""
        c = self.c
        assert c.encoder is not None
        longest = c.encoder.max_positions
        size = f"[{texts}, {c.kv_heads}, {longest}, {c.head_dim}]"
        if self.paged:
            size = f"[{self.paged.sources * longest}, {c.kv_heads}, {c.head_dim}]"
        return str(self.b.state(f"{name}.{i}", f"{self.dtype.value}{size}"))

    def attended(self, i: int, q: str, keys: str, values: str) -> str:
        """Return the attention of a layer's queries over its cache."""
        c = self.c
        if self.paged:
            return str(
                self.b.paged_attention(
                    q, keys, values, self.table, self.positions, *self.biases, block_size=self.paged.block_size,
                    window=self.window(c.windows[i]), scale=c.scale, softcap=c.attention_softcap, by_key=self.biased_by_key,
                )
            )  # fmt: skip
        if self.first:
            keys, values = (self.b.slice(x, dim=2, start=0, end=self.length) for x in (keys, values))
            return str(
                self.b.attention(q, keys, values, causal=True, scale=c.scale, softcap=c.attention_softcap)
            )
        mask = self.mask(c.windows[i])
        return str(self.b.attention(q, keys, values, mask, scale=c.scale, softcap=c.attention_softcap))

    def rotated(self, i: int, x: str) -> str:
        """Return heads at their positions."""
        c = self.c
        tables = self.tables[c.local_rotary if c.windows[i] else c.rotary]
        size = 0 if self.b.spec(x).shape[3] == c.rotary_dim else c.rotary_dim
        interleaved = {"interleaved": True} if c.row.interleaved else {}
        return str(self.b.rope(x, *tables, self.positions, size=size, **interleaved))

    def cached(self, name: str, rows: str) -> str:
        """Return a cache with new rows at their positions, in the type that is computed in. It is its state after the run."""
        n, heads, _, size = self.b.spec(rows).shape
        if self.cache is not self.dtype:
            rows = self.b.cast(rows, dtype=self.cache)
        if self.paged:
            state = self.b.state(name, f"{self.cache.value}[{self.paged.rows}, {heads}, {size}]")
            rows = self.b.view(rows, size=[n, heads, size])
            written = str(self.b.index_copy(state, self.places, rows, dim=0))
            self.b.set_state(state, written)
            return written
        state = self.b.state(name, f"{self.cache.value}[{n}, {heads}, {self.capacity}, {size}]")
        written = self.written(state, rows)
        self.b.set_state(state, written)
        return written if self.cache is self.dtype else str(self.b.cast(written, dtype=self.dtype))

    def projections(self, i: int, x: str) -> tuple[str, str, str]:
        """Return queries, keys and values, [batch, heads, length, size] each, with their norms."""
        c = self.c
        counts = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}
        if "qkv" in c.row.parts:
            sizes = [heads * c.head_dim for heads in counts.values()]
            parts = self.b.split(self.linear(i, "qkv", x), sizes=sizes, dim=2)
        else:
            parts = [self.linear(i, part, x) for part in counts]
        if c.clip:
            parts = [self.b.clamp(part, -c.clip, c.clip) for part in parts]
        q, k, v = (
            self.heads(i, part, projection, heads)
            for (part, heads), projection in zip(counts.items(), parts, strict=True)
        )
        return q, k, v

    def heads(self, i: int, part: str, x: str, heads: int) -> str:
        """[batch, length, heads * size] -> [batch, heads, length, size], after the norm of queries or keys."""
        norm, kind = f"{part}_norm", self.c.row.qk_norm
        if kind == "whole":
            x = self.part_norm(i, norm, x)
        x = self.b.view(x, size=[self.batch, self.length, heads, self.c.head_dim])
        if kind == "head":
            x = self.part_norm(i, norm, x)
        elif kind == "each" and norm in self.c.row.parts:
            x = self.norms(f"{self.c.layer(i)}.{self.c.row.parts[norm]}", x, heads)
        return str(self.b.permute(x, dims=[0, 2, 1, 3]))

    def written(self, cache: str, rows: str) -> str:
        """Return the cache with new rows at their positions."""
        b, n, s = self.b, self.batch, self.length
        if n == 1:
            return str(b.index_copy(cache, b.view(self.positions, size=[s]), rows, dim=2))
        positions = b.view(self.positions, size=[n, 1, s, 1])
        positions = b.expand(positions, size=b.spec(rows).shape)
        return str(b.scatter(cache, positions, rows, dim=2))

    def feed_forward(self, i: int, x: str, residual: str | None = None) -> str:
        """Return the feed-forward layer's result, plus the residual."""
        b, c = self.b, self.c
        if c.experts is not None and c.sparse(i):
            rows = b.view(x, size=[self.batch * self.length, c.hidden])
            y = mixture(b, c.experts, rows, lambda name: self.weight(f"{c.layer(i)}.{name}"), c.activation)
            return self.summed(str(b.view(y, size=[self.batch, self.length, c.hidden])), residual)
        op, attrs = ACTIVATIONS[c.activation]
        if "gate_up" in c.row.parts:
            gate, up = b.split(self.linear(i, "gate_up", x), sizes=[c.inner, c.inner], dim=2)
        elif c.row.gated:
            gate, up = self.linear(i, "gate", x), self.linear(i, "up", x)
        else:
            gate, up = self.linear(i, "up", x), None
        y = b.call(op, gate, **attrs)
        return self.summed(self.linear(i, "down", y if up is None else b.mul(y, up)), residual)

    def part_norm(self, i: int, part: str, x: str) -> str:
        """Return the norm of a layer; x itself if the family does not have it."""
        return self.norm(f"{self.c.layer(i)}.{self.c.row.parts[part]}", x) if part in self.c.row.parts else x

    def norm(self, name: str, x: str, eps: float | None = None) -> str:
        b, row = self.b, self.c.row
        operands = [self.weight(f"{name}.weight", offset=row.norm_offset)]
        if row.norms_have_bias:
            operands.append(self.weight(f"{name}.bias"))
        shape = self.shapes[f"{name}.weight"]
        return str(
            b.call(
                row.norm, x, *operands, normalized_shape=list(shape), eps=self.c.eps if eps is None else eps
            )
        )

    def norms(self, name: str, x: str, heads: int) -> str:
        """Return the norm of each head with its own weight. ``x``: [batch, length, heads, size]."""
        b, size = self.b, self.c.head_dim
        weights = [self.weight(f"{name}.{head}.weight") for head in range(heads)]
        stacked = b.view(b.cat(*weights, dim=0) if heads > 1 else weights[0], size=[heads, size])
        return str(b.mul(b.call(self.c.row.norm, x, normalized_shape=[size], eps=self.c.eps), stacked))

    def linear(self, i: int, part: str, x: str) -> str:
        name = f"{self.c.layer(i)}.{self.c.row.parts[part]}"
        order = self.c.row.qkv_order if part == "qkv" else "parts"
        operands = [self.weight(f"{name}.weight", transposed=self.c.row.transposed, order=order)]
        if f"{name}.bias" in self.shapes:
            operands.append(self.weight(f"{name}.bias", order=order))
        return str(self.b.linear(x, *operands))

    def weight(
        self, name: str, *, offset: float = 0.0, transposed: bool = False, order: str = "parts"
    ) -> str:
        """Return the weight in ``self.dtype``. All changes are applied when the weight is loaded."""
        if name not in self.declared:
            b, spec = self.b, self.stored.get(name, TensorSpec(self.shapes[name], self.dtype))
            file = self.files.get(name, "")
            where = {"file": file, "format": "safetensors", "key": name} if file else {}
            value = self.in_blocks(name) if name in self.blocks else b.weight(name, spec, **where)
            if offset:
                value = value if spec.dtype is DType.FLOAT32 else b.cast(value, dtype=DType.FLOAT32)
                value = b.add(value, offset)
            if b.spec(value).dtype is not self.dtype:
                value = b.cast(value, dtype=self.dtype)
            if transposed:
                value = b.permute(value, dims=[1, 0])
            self.declared[name] = self.regrouped(value) if order == "groups" else value
        return self.declared[name]

    def in_blocks(self, name: str) -> str:
        """Return the values of a weight that is read as rows of blocks."""
        form, shape = BLOCK_FORMATS[self.blocks[name]], self.shapes[name]
        spec = TensorSpec((*shape[:-1], shape[-1] // form.values * form.bytes), DType.UINT8)
        return str(self.b.dequantize_blocks(self.b.weight(blocks_name(name), spec), blocks=self.blocks[name]))

    def regrouped(self, weight: str) -> str:
        """Return the rows of a fused projection as all queries, all keys, all values; they are stored by groups of one key head."""
        b, c = self.b, self.c
        count, columns = c.heads // c.kv_heads, b.spec(weight).shape[1:]
        grouped = b.view(weight, size=[c.kv_heads, count + 2, c.head_dim, *columns])
        ends = ((0, count), (count, count + 1), (count + 1, count + 2))
        parts = [b.slice(grouped, dim=1, start=start, end=end) for start, end in ends]
        sizes = [heads * c.head_dim for heads in (c.heads, c.kv_heads, c.kv_heads)]
        return str(b.cat(*(b.view(p, size=[n, *columns]) for p, n in zip(parts, sizes, strict=True)), dim=0))


@dataclass(frozen=True, slots=True)
class _LatentLayer:
    """The parts of one layer with latent attention."""

    writer: GraphWriter
    index: int

    def linear(self, part: str, x: str) -> str:
        return self.writer.linear(self.index, part, x)

    def norm(self, part: str, x: str) -> str:
        c = self.writer.c
        return self.writer.norm(f"{c.layer(self.index)}.{c.row.parts[part]}", x, c.row.latent_eps)

    def rotated(self, x: str) -> str:
        return self.writer.rotated(self.index, x)

    def cached(self, rows: str) -> str:
        return self.writer.cached(f"latent.{self.index}", rows)
