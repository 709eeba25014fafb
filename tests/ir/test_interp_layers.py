"""Recurrent layers, attention, rotary embedding, fused ops: against PyTorch's layers, or their own definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.ir import interp
from xpuruntime.testing.conformance.opinfo import disagreement, to_numpy

torch = pytest.importorskip("torch")
F = torch.nn.functional

LENGTH, BATCH, INPUT, HIDDEN = 5, 3, 4, 6


def onnx_order(weight: Any, gates: str, wanted: str) -> Any:
    """PyTorch's gates in ONNX's order."""
    parts = dict(zip(gates, weight.chunk(len(gates)), strict=True))
    return torch.cat([parts[g] for g in wanted])


def operands(layer: Any, gates: str, wanted: str, directions: int) -> list[Any]:
    def stacked(name: str) -> Any:
        suffixes = ("", "_reverse")[:directions]
        return torch.stack([onnx_order(getattr(layer, f"{name}_l0{s}"), gates, wanted) for s in suffixes])

    bias = torch.cat([stacked("bias_ih"), stacked("bias_hh")], dim=1)
    return [to_numpy(t) for t in (stacked("weight_ih"), stacked("weight_hh"), bias)]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_as_torch(kind: str, directions: int, batch_first: bool) -> None:
    torch.manual_seed(0)
    make = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind]
    layer = make(INPUT, HIDDEN, bidirectional=directions == 2)
    gates, wanted = {"rnn": ("h", "h"), "gru": ("rzn", "zrn"), "lstm": ("ifgo", "iofg")}[kind]
    x, h, c = torch.randn(LENGTH, BATCH, INPUT), *torch.randn(2, directions, BATCH, HIDDEN)
    with torch.no_grad():
        y, state = layer(x, (h, c) if kind == "lstm" else h)
    state = list(state) if kind == "lstm" else [state]
    y = y.reshape(LENGTH, BATCH, directions, HIDDEN).transpose(1, 2)
    start = [to_numpy(h), to_numpy(c)] if kind == "lstm" else [to_numpy(h)]
    sequence = to_numpy(x)
    if batch_first:
        sequence, start = sequence.swapaxes(0, 1), [s.swapaxes(0, 1) for s in start]
        y, state = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in state]
    attrs: dict[str, Any] = {"hidden_size": HIDDEN, "batch_first": batch_first}
    attrs["direction"] = "bidirectional" if directions == 2 else "forward"
    if kind == "gru":
        attrs["linear_before_reset"] = True
    got = interp.apply(
        kind,
        sequence,
        *operands(layer, gates, wanted, directions),
        None,
        *start,
        outputs=1 + len(state),
        **attrs,
    )
    for mine, theirs in zip(got, [y, *state], strict=True):
        assert not disagreement(mine, to_numpy(theirs))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_sequences_of_different_lengths_are_runs_of_their_own(direction: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((LENGTH, BATCH, INPUT)).astype(np.float32)
    w, r = (rng.standard_normal((1, 4 * HIDDEN, n)).astype(np.float32) for n in (INPUT, HIDDEN))
    lengths = np.array([5, 2, 3], np.int32)
    attrs: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction, "clip": 2.0}
    y, h, c = interp.apply("lstm", x, w, r, None, lengths, outputs=3, **attrs)
    for i, length in enumerate(lengths):
        alone = interp.apply("lstm", x[:length, i : i + 1], w, r, outputs=3, **attrs)
        np.testing.assert_array_equal(y[:length, :, i : i + 1], alone[0])
        np.testing.assert_array_equal(h[:, i : i + 1], alone[1])
        np.testing.assert_array_equal(c[:, i : i + 1], alone[2])
        assert not y[length:, :, i].any()


def test_activations_take_their_numbers_in_order() -> None:
    x = np.array([[[0.5, -2.0]]], np.float32)
    w, r = np.eye(2, dtype=np.float32)[None], np.zeros((1, 2, 2), np.float32)
    for names, alpha, beta, want in (
        (["Affine"], [2.0], [1.0], [2.0, -3.0]),
        (["LeakyRelu"], [0.1], [], [0.5, -0.2]),
        (["HardSigmoid"], [0.5], [0.25], [0.5, 0.0]),
        (["HardSigmoid"], [2.0], [0.25], [1.0, 0.0]),
        (["Relu"], [], [], [0.5, 0.0]),
    ):
        (y,) = interp.apply("rnn", x, w, r, hidden_size=2, activations=names, alpha=alpha, beta=beta)
        np.testing.assert_allclose(y.ravel(), want, rtol=1e-6)


def qkv(heads: int, kv_heads: int, queries: int, keys: int) -> list[Any]:
    torch.manual_seed(1)
    shapes = ((2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 8))
    return [torch.randn(*shape) for shape in shapes]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_grouped_heads(kv_heads: int) -> None:
    q, k, v = qkv(4, kv_heads, 5, 7)
    (got,) = interp.apply("attention", *map(to_numpy, (q, k, v)))
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert not disagreement(got, to_numpy(want))


def test_masks() -> None:
    q, k, v = qkv(4, 4, 5, 7)
    arrays = [to_numpy(t) for t in (q, k, v)]
    keep = torch.rand(2, 1, 5, 7) > 0.4
    keep[0, 0, 2] = False  # sees nothing: 0
    (got,) = interp.apply("attention", *arrays, to_numpy(keep))
    assert not disagreement(got, to_numpy(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))
    assert not got[0, :, 2].any()
    added = torch.randn(5, 7)
    (got,) = interp.apply("attention", *arrays, to_numpy(added), scale=0.3)
    assert not disagreement(
        got, to_numpy(F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=0.3))
    )


@pytest.mark.parametrize("offset", [0, 2])
def test_causal_from_an_offset(offset: int) -> None:
    q, k, v = qkv(2, 2, 5, 7)
    seen = torch.arange(7) <= torch.arange(5)[:, None] + offset
    (got,) = interp.apply("attention", *map(to_numpy, (q, k, v)), causal=True, causal_offset=offset)
    assert not disagreement(got, to_numpy(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


def test_the_cap_comes_before_the_mask() -> None:
    q, k, v = qkv(2, 2, 5, 7)
    keep = torch.ones(5, 7, dtype=torch.bool).tril()
    scores = 3.0 * torch.tanh(q @ k.transpose(2, 3) / 8**0.5 / 3.0)
    want = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1) @ v
    (got,) = interp.apply("attention", *map(to_numpy, (q, k, v)), to_numpy(keep), softcap=3.0)
    assert not disagreement(got, to_numpy(want))


def angles(length: int, half: int) -> tuple[Any, Any]:
    turn = np.arange(length)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 4])
def test_rope_turns_pairs_as_complex_numbers(interleaved: bool, size: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)
    n = size or 8
    cos, sin = angles(5, n // 2)
    turned = x[..., :n].astype(np.float64)
    a, b = (
        (turned[..., 0::2], turned[..., 1::2])
        if interleaved
        else (turned[..., : n // 2], turned[..., n // 2 :])
    )
    z = (a + 1j * b) * (cos + 1j * sin)
    want = x.astype(np.float64)
    want[..., :n] = (
        np.stack([z.real, z.imag], -1).reshape(turned.shape)
        if interleaved
        else np.concatenate([z.real, z.imag], -1)
    )
    (got,) = interp.apply("rope", x, cos, sin, interleaved=interleaved, size=size)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_rope_by_positions_and_per_sample() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)
    cos, sin = angles(16, 4)
    positions = np.array([[0, 1, 2, 3, 4], [9, 3, 3, 15, 0]])
    (got,) = interp.apply("rope", x, cos, sin, positions)
    (per_sample,) = interp.apply("rope", x, cos[positions], sin[positions])
    np.testing.assert_array_equal(got, per_sample)
    for i in range(2):
        (alone,) = interp.apply("rope", x[i : i + 1], cos[positions[i]], sin[positions[i]])
        np.testing.assert_array_equal(got[i : i + 1], alone)


@pytest.mark.parametrize(
    ("act", "function"),
    [
        ("none", lambda t: t),
        ("relu", F.relu),
        ("relu6", F.relu6),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda t: F.gelu(t, approximate="tanh")),
        ("silu", F.silu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("hardswish", F.hardswish),
        ("leaky_relu", F.leaky_relu),
    ],
)
def test_fused(act: str, function: Any) -> None:
    torch.manual_seed(0)
    x, w, b, r = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5), torch.randn(3, 5)
    (got,) = interp.apply("fused_linear", *map(to_numpy, (x, w, b, r)), act=act)
    assert not disagreement(got, to_numpy(function(F.linear(x, w, b) + r)))
    x, w, b = torch.randn(2, 4, 6, 6), torch.randn(6, 2, 3, 3), torch.randn(6)
    plain = F.conv2d(x, w, b, padding=1, groups=2)
    r = torch.randn(plain.shape)
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 2}
    (got,) = interp.apply("fused_convolution", *map(to_numpy, (x, w, b, r)), act=act, **attrs)
    assert not disagreement(got, to_numpy(function(plain + r)))


def test_silu_mul() -> None:
    gate, up = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    (got,) = interp.apply("silu_mul", to_numpy(gate), to_numpy(up))
    assert not disagreement(got, to_numpy(F.silu(gate) * up))


def test_blocked_quantization_of_int4() -> None:
    """Each block of two along axis 1 has its own scale; the last block is cut."""
    x = np.array([[0.5, -3.5, 7.4, 100.0, -1.0]], np.float32)
    scale = np.array([[0.5, 1.0, 0.25]], np.float32)
    (q,) = interp.apply("quantize_linear", x, scale, dtype="int4", axis=1, block_size=2)
    assert q.astype(int).tolist() == [[1, -7, 7, 7, -4]]
    (back,) = interp.apply("dequantize_linear", q, scale, axis=1, block_size=2)
    assert back.tolist() == [[0.5, -3.5, 7.0, 7.0, -1.0]]


def test_integer_products_are_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (3, 50), np.uint8), rng.integers(-128, 128, (50, 4), np.int8)
    za, zb = np.array([1, 2, 250], np.uint8), np.array([3, -4, 5, 6], np.int8)
    (got,) = interp.apply("matmul_integer", a, b, za, zb)
    want = (a.astype(int) - za[:, None].astype(int)) @ (b.astype(int) - zb.astype(int))
    np.testing.assert_array_equal(got, want)
    x, w = rng.integers(0, 256, (1, 2, 5, 5), np.uint8), rng.integers(-128, 128, (3, 2, 3, 3), np.int8)
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    (got,) = interp.apply("convolution_integer", x, w, np.array(7, np.uint8), **attrs)
    shifted = F.conv2d(
        torch.from_numpy(x.astype(np.float64) - 7), torch.from_numpy(w.astype(np.float64)), padding=1
    )
    np.testing.assert_array_equal(got, shifted.numpy())
    zw = np.array([3, -128, 127], np.int8)  # of each filter
    (got,) = interp.apply("convolution_integer", x, w, np.array(7, np.uint8), zw, **attrs)
    filters = torch.from_numpy(w.astype(np.float64) - zw.reshape(3, 1, 1, 1))
    shifted = F.conv2d(torch.from_numpy(x.astype(np.float64) - 7), filters, padding=1)
    np.testing.assert_array_equal(got, shifted.numpy())
