"""Imports of the process server, each if installed. No device is touched."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

for name in (
    "torch",
    "torch.export",
    "timm",
    "torchvision",
    "transformers.models.auto.modeling_auto",
    "xpuruntime.inference.session",
    "xpuruntime.compiler",
    "xpuruntime.frontends.torch.importer",
):
    with suppress(Exception):  # a library that cannot be imported counts as not installed
        import_module(name)
