"""Check an environment with the core alone: only its dependencies are installed, it works, and its error names what to install."""

from __future__ import annotations

import importlib.metadata as metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def closure(names: set[str]) -> set[str]:
    """Return the named distributions and those that their metadata requires, without extras."""
    distributions: set[str] = set()
    while names:
        name = names.pop()
        distributions.add(name)
        for line in metadata.requires(name) or []:
            needed = re.match(r"[\w.-]+", line)
            if needed and "extra ==" not in line:
                normal = re.sub(r"[-_.]+", "-", needed[0]).lower()
                if normal not in distributions and any(normal == here for here in installed()):
                    names.add(normal)
    return distributions


def installed() -> set[str]:
    return {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() for d in metadata.distributions()}


def main(pyproject: str) -> None:
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    declared = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", d)[0]).lower() for d in project["dependencies"]}
    extra = installed() - closure({"xpuruntime"}) - {"pip", "setuptools", "wheel"}
    assert not extra, f"installed and not needed: {extra}"
    assert declared <= installed(), f"declared and not installed: {declared - installed()}"
    heavy = {"torch", "onnx", "onnxruntime", "openvino"} & installed()
    assert not heavy, f"the core pulls {heavy}"

    import xpuruntime as xrt
    from xpuruntime import _core  # noqa: F401

    assert xrt.KernelPolicy(matmul="cublasLt") == xrt.KernelPolicy(matmul="cublasLt")
    message = session_error(xrt)
    assert "pip install" in message, message
    print(f"test-core: {sys.version.split()[0]}: {len(installed())} distributions; {message}")


def session_error(xrt: Any) -> str:
    """Return the error of a session when no engine is installed."""
    try:
        xrt.InferenceSession(b"\x08\x0a")
    except xrt.XpuError as error:
        return str(error)
    raise AssertionError("a session without any engine")


if __name__ == "__main__":
    main(sys.argv[1])
