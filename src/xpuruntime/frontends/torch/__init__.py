"""PyTorch models to the IR. ``importer`` has the functions; the package offers them by name and imports nothing by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .importer import TorchImport, extract_ir, import_torch, save_ir, weights_of

__all__ = ["TorchImport", "extract_ir", "import_torch", "save_ir", "weights_of"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "TorchImport": "xpuruntime.frontends.torch.importer",
        "extract_ir": "xpuruntime.frontends.torch.importer",
        "import_torch": "xpuruntime.frontends.torch.importer",
        "save_ir": "xpuruntime.frontends.torch.importer",
        "weights_of": "xpuruntime.frontends.torch.importer",
    },
)
