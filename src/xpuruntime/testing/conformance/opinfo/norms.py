"""Bridges of normalizations."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, named

__all__ = ["BRIDGES"]

_F = "nn.functional."


def layer_norm(s: Any) -> Adapted:
    kwargs = named(s, "normalized_shape", "weight", "bias", "eps")
    attrs = {"normalized_shape": list(kwargs["normalized_shape"]), "eps": kwargs.get("eps", 1e-5)}
    return [s.input, kwargs.get("weight"), kwargs.get("bias")], attrs


def rms_norm(s: Any) -> Adapted:
    import torch

    kwargs = named(s, "normalized_shape", "weight", "eps")
    wide = torch.float32 if s.input.dtype in (torch.bfloat16, torch.float16) else s.input.dtype
    eps = torch.finfo(wide).eps if kwargs.get("eps") is None else kwargs["eps"]
    return [s.input, kwargs.get("weight")], {"normalized_shape": list(kwargs["normalized_shape"]), "eps": eps}


def group_norm(s: Any) -> Adapted:
    kwargs = named(s, "num_groups", "weight", "bias", "eps")
    attrs = {"groups": kwargs["num_groups"], "eps": kwargs.get("eps", 1e-5)}
    return [s.input, kwargs.get("weight"), kwargs.get("bias")], attrs


def native_group_norm(s: Any) -> Adapted:
    weight, bias, _, _, _, groups, eps = s.args
    return [s.input, weight, bias], {"groups": groups, "eps": eps}


def instance_norm(s: Any) -> Adapted:
    kwargs = named(s, "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    if not kwargs.get("use_input_stats", True):
        raise NotComparable("running statistics")
    return [s.input, kwargs.get("weight"), kwargs.get("bias")], {"eps": kwargs.get("eps", 1e-5)}


def batch_norm(training: bool) -> Adapt:
    names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        if bool(kwargs.get("training", False)) is not training:
            raise NotComparable("the other op")
        if s.input.dim() < 2:
            raise NotComparable("no channels")
        affine = [kwargs.get("weight"), kwargs.get("bias")]
        statistics = [kwargs["running_mean"], kwargs["running_var"]]
        attrs: dict[str, Any] = {"eps": kwargs.get("eps", 1e-5)}
        if training:
            attrs["momentum"] = kwargs.get("momentum", 0.1)
        return [s.input, *affine, *statistics], attrs

    return adapt


def clone_first(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Return the answer from copies, since batch norm in training overwrites its statistics."""
    import torch

    x, weight, bias, mean, var = operands
    copies = [t if t is None else t.clone() for t in (mean, var)]
    return torch.nn.functional.batch_norm(
        x, *copies, weight, bias, training=True, momentum=attrs["momentum"], eps=attrs["eps"]
    )


BRIDGES: dict[str, Bridge] = {
    f"{_F}layer_norm": Bridge("layer_norm", layer_norm),
    "native_layer_norm": Bridge("layer_norm", layer_norm),
    f"{_F}rms_norm": Bridge("rms_norm", rms_norm),
    f"{_F}group_norm": Bridge("group_norm", group_norm),
    "native_group_norm": Bridge("group_norm", native_group_norm),
    f"{_F}instance_norm": Bridge("instance_norm", instance_norm),
    f"{_F}batch_norm": Bridge("batch_norm", batch_norm(False)),
    "batch_norm.train": Bridge("batch_norm_train", batch_norm(True), clone_first, info=f"{_F}batch_norm"),
}
