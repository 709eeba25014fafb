"""Python packages that parts of xpuruntime need: the error for one that is not installed, with the command that installs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from ..errors import UnavailableError

__all__ = ["EXTRAS", "importable", "missing_package", "require_package"]

EXTRAS: Mapping[str, str] = {
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "onnxruntime_qnn": "qnn",
    "torch": "torch",
    "gguf": "llm",
    "tokenizers": "llm",
    "jinja2": "llm",
    "llguidance": "grammar",
    "matplotlib": "report",
}
"""The extra that installs a package, by its import name."""
_DISTRIBUTIONS: Mapping[str, str] = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "onnx_ir": "onnx-ir",
    "onnxscript": "onnxscript",
    "polygraphy": "polygraphy",
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""The distribution of other packages that xpuruntime imports, by the import name."""


def importable(module: str) -> bool:
    """Return True if a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a parent package is missing, or the module has no spec
        return False


def missing_package(error: Exception, who: str) -> UnavailableError | None:
    """Return the error to raise if a package that is not installed was imported, else None."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not name or name == __package__.partition(".")[0] or importable(name):
        return None
    return _not_installed(name, who)


def require_package(name: str, who: str) -> None:
    """Raise UnavailableError if a package is not installed. The package is not imported."""
    if not importable(name):
        raise _not_installed(name, who)


def _not_installed(name: str, who: str) -> UnavailableError:
    """Return the error for a package, by its import name, with the command that installs it."""
    extra = EXTRAS.get(name)
    package = f"'xpuruntime[{extra}]'" if extra else _DISTRIBUTIONS.get(name)
    do = (
        f"Run: pip install {package}" if package else "Install the package that provides it."
    )  # its name may be another
    return UnavailableError(who, f"needs the Python package {name!r}, which is not installed", do=do)
