"""Inferred specs against what PyTorch computes, on the samples of its own OpInfo database."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from xpuruntime import ir
from xpuruntime.types import DType, TensorSpec

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

DTYPES = ("float32", "bfloat16", "int64", "bool")
MAX_SAMPLES = 60
pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


class Skip(Exception):
    """The sample uses something that the frontend, not the op table, takes care of."""


def spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), DType(str(value.dtype).removeprefix("torch.")))
    if isinstance(value, complex):
        raise Skip
    return value


def ints(value: Any, n: int) -> list[int]:
    return [value] * n if isinstance(value, int) else list(value) * (n if len(value) == 1 else 1)


def unary(s):
    if s.args or s.kwargs:
        raise Skip
    return [s.input], {}


def binary(s):
    if s.kwargs or len(s.args) != 1:
        raise Skip
    return [s.input, s.args[0]], {}


def div(s):
    return [s.input, *s.args], dict(s.kwargs)


def reduction(*names: str):
    def adapt(s):
        given = dict(zip(("dim", "keepdim"), s.args, strict=False)) | s.kwargs
        if set(given) - {"dim", "keepdim", *names}:
            raise Skip
        if "dtype" in given and given["dtype"] is not None:
            given["dtype"] = str(given["dtype"]).removeprefix("torch.")
        dim = given.get("dim")
        if not isinstance(dim, int) and dim is not None and not len(dim):
            given["dim"] = None  # PyTorch reduces over everything
        elif dim is not None and not isinstance(dim, int):
            given["dim"] = list(dim)
        return [s.input], given

    return adapt


def along(s):
    given = dict(zip(("dim", "keepdim"), s.args, strict=False)) | s.kwargs
    if given.get("dim") is None:
        raise Skip
    return [s.input], given


def running(s):
    dtype = s.kwargs.get("dtype")
    return [s.input], {"dim": s.args[0], "dtype": dtype and str(dtype).removeprefix("torch.")}


def arg(s):
    return [s.input], dict(zip(("dim", "keepdim"), s.args, strict=False)) | s.kwargs


def softmax(s):
    dtype = s.kwargs.get("dtype")
    return [s.input], {"dim": s.args[0], "dtype": dtype and str(dtype).removeprefix("torch.")}


def var(s):
    given = dict(s.kwargs)
    if s.args or "unbiased" in given:
        raise Skip
    if given.get("correction") is None:
        given["correction"] = 1
    if given.get("dim") == ():
        given["dim"] = None
    return [s.input], given


def dims(name: str):
    def adapt(s):
        value = s.args if s.args and isinstance(s.args[0], int) else (s.args or tuple(s.kwargs.values()))[0]
        return [s.input], {name: list(value)}

    return adapt


def squeeze(s):
    dim = (s.args or (s.kwargs.get("dim"),))[0]
    wanted = range(s.input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return [s.input], {"dims": [d for d in wanted if s.input.dim() and s.input.shape[d] == 1]}


def cat(s):
    tensors = [t for t in s.input if t.shape != (0,)]  # PyTorch lets an empty vector pass
    if len({t.dtype for t in tensors}) != 1 or len(tensors) != len(s.input):
        raise Skip
    return tensors, {"dim": s.kwargs.get("dim", s.args[0] if s.args else 0)}


def convolution(transposed: bool):
    names = (
        ("stride", "padding", "output_padding", "groups", "dilation")
        if transposed
        else ("stride", "padding", "dilation", "groups")
    )

    def adapt(s):
        weight, *rest = s.args
        bias = rest.pop(0) if rest else s.kwargs.get("bias")
        given = {k: v for k, v in s.kwargs.items() if k != "bias"} | dict(zip(names, rest, strict=False))
        n = weight.dim() - 2
        if isinstance(given.get("padding"), str) or s.input.dim() != weight.dim():
            raise Skip
        attrs: dict[str, Any] = {"groups": given.get("groups", 1), "transposed": transposed}
        for key, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            attrs[key] = ints(given.get(key, default), n)
        if transposed:
            attrs["output_padding"] = ints(given.get("output_padding", 0), n)
        return [s.input, weight, bias], attrs

    return adapt


def pool(n: int, dilated: bool):
    names = ("kernel_size", "stride", "padding", *(("dilation",) if dilated else ()), "ceil_mode")

    def adapt(s):
        given = dict(zip(names, s.args, strict=False)) | s.kwargs
        attrs: dict[str, Any] = {"ceil_mode": given.get("ceil_mode", False)}
        attrs["kernel_size"] = ints(given["kernel_size"], n)
        stride = given.get("stride")
        attrs["stride"] = attrs["kernel_size"] if stride in (None, [], ()) else ints(stride, n)
        attrs["padding"] = ints(given.get("padding", 0), n)
        attrs["dilation"] = ints(given.get("dilation", 1), n)
        return [s.input], attrs

    return adapt


def layer_norm(s):
    shape, *rest = s.args
    weight, bias = [*rest, None, None][:2]
    return [s.input, weight, bias], {"normalized_shape": list(shape)}


def group_norm(s):
    return [s.input, s.kwargs.get("weight"), s.kwargs.get("bias")], {"groups": s.args[0]}


def gather(s):
    return [s.input, s.args[1]], {"dim": s.args[0]}


def scatter(reduce: str):
    def adapt(s):
        if "reduce" in s.kwargs or len(s.args) != 3:
            raise Skip
        dim, index, src = s.args
        return [s.input, index, src], {"dim": dim, "reduce": reduce}

    return adapt


def index_copy(s):
    return [s.input, s.args[1], s.args[2]], {"dim": s.args[0]}


def topk(s):
    given = dict(zip(("k", "dim", "largest", "sorted"), s.args, strict=False)) | s.kwargs
    return [s.input], given


def sort(s):
    given = dict(zip(("dim", "descending"), s.args, strict=False)) | s.kwargs
    given["stable"] = bool(given.get("stable"))
    return [s.input], given


def pad(mode: str):
    def adapt(s):
        amounts, value = s.args[0] if s.args else s.kwargs["pad"], s.kwargs.get("value") or 0
        n = s.input.dim()
        begins, ends = [0] * n, [0] * n
        for i in range(len(amounts) // 2):
            begins[n - 1 - i], ends[n - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
        return [s.input], {"pads": begins + ends, "mode": mode, "value": value}

    return adapt


def diagonal(s):
    return [s.input], dict(zip(("offset", "dim1", "dim2"), s.args, strict=False)) | s.kwargs


def where(s):
    if s.kwargs or len(s.args) != 2:
        raise Skip
    if s.args[0].dtype != torch.bool:
        raise Skip
    return [s.args[0], s.input, s.args[1]], {}


def clamp(s):
    low, high = [*s.args, None, None][:2]
    return [s.input, s.kwargs.get("min", low), s.kwargs.get("max", high)], {}


def einsum(s):
    return list(s.input), {"equation": s.args[0]}


def sdpa(s):
    q, k, v = s.input, *s.args[:2]
    if q.dim() != 4 or s.kwargs.get("dropout_p"):
        raise Skip
    return [q, k, v, s.kwargs.get("attn_mask")], {"causal": s.kwargs.get("is_causal", False)}


def embedding(s):
    if set(s.kwargs) - {"padding_idx"}:
        raise Skip
    return [s.input, s.args[0]], {}


def select(s):
    return [s.input], dict(zip(("dim", "index"), s.args, strict=True))


def split_sizes(s):
    sizes = s.args[0]
    dim = s.args[1] if len(s.args) > 1 else s.kwargs.get("dim", 0)
    return [s.input], {"sizes": list(sizes), "dim": dim}


def flip(s):
    return [s.input], {"dims": list(s.args[0] if s.args else s.kwargs["dims"])}


UNARY = [
    "abs",
    "neg",
    "sign",
    "ceil",
    "floor",
    "trunc",
    "round",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "isnan",
    "isinf",
    "logical_not",
    "bitwise_not",
    "sigmoid",
    "tanh",
    "clone",
    "tril",
    "triu",
]
BINARY = [
    "mul",
    "pow",
    "maximum",
    "minimum",
    "fmod",
    "remainder",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "add",
    "sub",
]

# OpInfo name -> (our op, sample to operands and attributes)
CASES: dict[str, tuple[str, Any]] = (
    {n: (n, unary) for n in UNARY}
    | {n: (n, binary) for n in BINARY}
    | {f"nn.functional.{n}": (n, unary) for n in ("relu", "silu", "mish", "softsign", "hardswish")}
    | {
        "nn.functional.gelu": ("gelu", div),
        "div": ("div", div),
        "where": ("where", where),
        "clamp": ("clamp", clamp),
        "softmax": ("softmax", softmax),
        "log_softmax": ("log_softmax", softmax),
        "sum": ("sum", reduction("dtype")),
        "prod": ("prod", reduction("dtype")),
        "mean": ("mean", reduction("dtype")),
        "amax": ("amax", reduction()),
        "amin": ("amin", reduction()),
        "any": ("any", reduction()),
        "all": ("all", reduction()),
        "logsumexp": ("logsumexp", reduction()),
        "var": ("var", var),
        "argmax": ("argmax", arg),
        "argmin": ("argmin", arg),
        "max": ("max", along),
        "min": ("min", along),
        "cumsum": ("cumsum", running),
        "cumprod": ("cumprod", running),
        "mm": ("mm", binary),
        "bmm": ("bmm", binary),
        "matmul": ("matmul", binary),
        "nn.functional.linear": ("linear", lambda s: ([s.input, *s.args], {})),
        "addmm": ("addmm", lambda s: ([s.input, *s.args], {k: v for k, v in s.kwargs.items() if not isinstance(v, complex)})),
        "einsum": ("einsum", einsum),
        "linalg.det": ("det", unary),
        "nn.functional.scaled_dot_product_attention": ("attention", sdpa),
        "nn.functional.conv1d": ("convolution", convolution(False)),
        "nn.functional.conv2d": ("convolution", convolution(False)),
        "nn.functional.conv3d": ("convolution", convolution(False)),
        "nn.functional.conv_transpose1d": ("convolution", convolution(True)),
        "nn.functional.conv_transpose2d": ("convolution", convolution(True)),
        "nn.functional.avg_pool1d": ("avg_pool", pool(1, False)),
        "nn.functional.avg_pool2d": ("avg_pool", pool(2, False)),
        "nn.functional.max_pool1d": ("max_pool", pool(1, True)),
        "nn.functional.max_pool2d": ("max_pool", pool(2, True)),
        "nn.functional.layer_norm": ("layer_norm", layer_norm),
        "nn.functional.group_norm": ("group_norm", group_norm),
        "nn.functional.embedding": ("embedding", embedding),
        "nn.functional.pad": ("pad", pad("constant")),
        "gather": ("gather", gather),
        "scatter": ("scatter", scatter("none")),
        "scatter_add": ("scatter", scatter("add")),
        "index_select": ("index_select", gather),
        "index_copy": ("index_copy", index_copy),
        "topk": ("topk", topk),
        "sort": ("sort", sort),
        "diagonal": ("diagonal", diagonal),
        "permute": ("permute", dims("dims")),
        "view": ("view", dims("size")),
        "expand": ("expand", dims("size")),
        "repeat": ("repeat", dims("repeats")),
        "squeeze": ("squeeze", squeeze),
        "unsqueeze": ("unsqueeze", lambda s: ([s.input], {"dims": s.args[0]})),
        "cat": ("cat", cat),
        "select": ("select", select),
        "split_with_sizes": ("split", split_sizes),
        "flip": ("flip", flip),
    }
)  # fmt: skip
VARIANTS = ("", "no_rounding_mode", "trunc_rounding", "floor_rounding", "constant", "reduction_with_dim")
FOUND = {}
for _info in invocations.op_db:
    if _info.name in CASES and _info.variant_test_name in VARIANTS:
        FOUND.setdefault((_info.name, _info.variant_test_name), _info)


def test_the_samples_exist() -> None:
    assert {name for name, _ in FOUND} == set(CASES)


@pytest.mark.parametrize("key", FOUND, ids=lambda k: ".".join(filter(None, k)))
def test_specs_as_torch(key: tuple[str, str]) -> None:
    info, (op, adapt) = FOUND[key], CASES[key[0]]
    checked = 0
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        if not info.supports_dtype(kind, "cpu"):
            continue
        for count, sample in enumerate(info.sample_inputs("cpu", kind, requires_grad=False)):
            if count >= MAX_SAMPLES:
                break
            try:
                operands, attrs = adapt(sample)
                specs = [spec(o) for o in operands]
            except (Skip, ValueError):
                continue
            got = ir.infer(op, specs, attrs)
            want = info.op(sample.input, *sample.args, **sample.kwargs)
            want = [want] if isinstance(want, torch.Tensor) else list(want)
            assert [g for g, _ in zip(got, want, strict=False)] == [spec(w) for w in want], (sample, attrs)
            checked += 1
    assert checked, "no sample fits the adapter"
