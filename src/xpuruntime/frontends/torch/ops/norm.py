"""Lowerings of normalizations, each as one op."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _made(values: Any) -> Results:
    return values if isinstance(values, str) else list(values)


def _statistics(n: AtenLoweringContext) -> dict[str, bool]:
    """Return the attribute of a norm whose statistics have more bits than its operand, as on CUDA devices."""
    spec = n.results[1] if len(n.results) > 1 else None
    return {"wide_statistics": True} if spec is not None and spec.dtype is not n.spec().dtype else {}


def _layer_norm(n: AtenLoweringContext) -> Results:
    n.ignore("cudnn_enable")
    attrs = {"normalized_shape": n["normalized_shape"], "eps": n["eps"], **_statistics(n)}
    count = n.needed(len(n.results))
    return _made(n.b.layer_norm(n.x, n.opt("weight"), n.opt("bias"), outputs=count, **attrs))


def _rms_norm(n: AtenLoweringContext) -> Results:
    """Lower rms_norm; the default eps is the machine epsilon of the operand's type."""
    eps = n["eps"]
    if eps is None:
        eps = float(ml_dtypes.finfo(n.spec().dtype.numpy).eps)
    attrs = {"normalized_shape": n["normalized_shape"], "eps": eps, **_statistics(n)}
    return _made(n.b.rms_norm(n.x, n.opt("weight"), outputs=n.needed(len(n.results)), **attrs))


def _group_norm(groups: str) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("cudnn_enabled", "N", "C", "HxW")
        count = n.needed(len(n.results))
        attrs = {"groups": n[groups], "eps": n["eps"], "outputs": count}
        return _made(n.b.group_norm(n.x, n.opt("weight"), n.opt("bias"), **attrs))

    return lower


def _instance_norm(n: AtenLoweringContext) -> Results:
    if not n["use_input_stats"] or n.opt("running_mean") or n.opt("running_var"):
        raise NotLowered("running statistics are not supported")
    n.ignore("momentum", "cudnn_enabled")
    return str(n.b.instance_norm(n.x, n.opt("weight"), n.opt("bias"), eps=n["eps"]))


def _batch_norm(n: AtenLoweringContext) -> Results:
    """Lower batch_norm by running statistics. The other results are empty."""
    n.ignore("momentum")
    if n.has_readers(1) or n.has_readers(2):
        raise NotLowered("its statistics are read, which inference does not compute")
    operands = [n.opt("weight"), n.opt("bias"), n.t("running_mean"), n.t("running_var")]
    return [str(n.b.batch_norm(n.x, *operands, eps=n["eps"])), None, None]


def _batch_norm_train(n: AtenLoweringContext) -> Results:
    """Lower batch_norm by the batch's statistics; running ones are updated if present."""
    if not n["training"]:
        raise NotLowered("it is called with training=False")
    running = [n.opt(k) if k in n.args else None for k in ("running_mean", "running_var")]
    attrs = {"momentum": n["momentum"], "eps": n["eps"], "outputs": n.needed(len(n.results))}
    return _made(n.b.batch_norm_train(n.x, n.opt("weight"), n.opt("bias"), *running, **attrs))


LOWERINGS: dict[str, OpLowering] = {
    "_fused_rms_norm": _rms_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_train,
    "_native_batch_norm_legit_functional": _batch_norm_train,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "group_norm": _group_norm("num_groups"),
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "native_group_norm": _group_norm("group"),
    "native_layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
