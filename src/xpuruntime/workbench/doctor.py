"""The checks of ``xpu doctor``: versions, libraries, environment, store, and a small run on each engine.

An optional package that is not installed is ``absent``, which is no problem. An installed engine that fails, a broken core, a store
that cannot be written, and damaged entries are ``fail``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, env
from ..decisions import Reason
from ..engines import engine_names
from ..errors import PolicyError, StoreError, XpuError
from ..plugins.loader import package_version
from ..protocols import Array
from ..storage.store import Store
from .devices import engine_report, first_clause
from .session_options import SessionOptions

__all__ = ["Check", "Diagnosis", "diagnose", "smoke_model"]

_PACKAGES = (
    # distribution, extra or purpose
    ("numpy", "core"),
    ("ml_dtypes", "core"),
    ("pyyaml", "core"),
    ("typer", "core"),
    ("rich", "core"),
    ("safetensors", "core"),
    ("onnx", "xpuruntime[onnx]"),
    ("torch", "xpuruntime[torch]"),
    ("pillow", "image inputs"),
    ("matplotlib", "xpuruntime[report]"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. ``status`` is pass, fail, absent (an optional part is not installed) or info.

    brief: the result without paths, for output that is not verbose; "" if it is the same.
    """

    section: str
    name: str
    status: str
    text: str
    do: str = ""
    brief: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {k: getattr(self, k) for k in self.__slots__ if k != "brief"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks. ``healthy`` is False if one failed."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """True if no check failed."""
        return all(c.status != "fail" for c in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"healthy": self.healthy, "checks": [c.to_json() for c in self.checks]}


def diagnose(cache_dir: Path | None = None, progress: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Run every check. A failure is a Check, not an exception."""
    checks: list[Check] = []
    for part in (_versions, _core, _environment, lambda: _store(cache_dir), lambda: _engines(progress)):
        checks += part()
    return Diagnosis(tuple(checks))


def _versions() -> Iterator[Check]:
    folder = Path(__file__).resolve().parents[1]
    yield Check("versions", "xpuruntime", "info", f"{__version__} in {folder}", brief=__version__)
    supported = sys.version_info >= (3, 11)
    status, do = ("info", "") if supported else ("fail", "Use Python 3.11 or newer.")
    version = platform.python_version()
    yield Check("versions", "python", status, f"{version} at {sys.executable}", do, brief=version)
    yield Check("versions", "platform", "info", platform.platform())
    for name, extra in _PACKAGES:
        installed = package_version(name)
        if installed is not None:
            yield Check("versions", name, "info", installed)
        elif extra == "core":
            yield Check(
                "versions", name, "fail", "a required package is not installed", f"Run: pip install {name}"
            )
        else:
            yield Check(
                "versions",
                name,
                "absent",
                f"not installed ({extra})",
                f"Run: pip install {_install(name, extra)}",
            )


def _install(name: str, extra: str) -> str:
    return f"'{extra}'" if extra.startswith("xpuruntime[") else name


def _core() -> Iterator[Check]:
    if importlib.util.find_spec("xpuruntime._core") is None:
        yield Check(
            "core",
            "xpuruntime._core",
            "fail",
            "the C++ core was not built",
            "Install the package: pip install .",
        )
        return
    from ..runtime.device import cpu, cuda, libraries

    facts = cpu()
    yield Check(
        "core",
        "processor",
        "pass",
        f"{facts.model}, {facts.level or facts.architecture}, {facts.usable_cores} usable cores",
    )
    statuses = libraries()
    for library in statuses:
        if library.loaded:
            text = f"{library.path} {library.version}".rstrip()
            if library.absent:
                text += f"; without {', '.join(library.absent)}"
            brief = f"version {library.version}" if library.version else "loaded"
            yield Check("core", library.title, "pass", text, brief=brief)
        else:
            message = library.status.message
            brief = first_clause(message.removeprefix(f"{library.title}: "))
            yield Check("core", library.title, "absent", message, library.status.advice, brief)
    report = cuda()
    if report.devices:
        names = ", ".join(f"cuda:{d.index} {d.name}" for d in report.devices)
        yield Check("core", "CUDA devices", "pass", names)
    else:
        no_driver = any(x.name == "cuda" and not x.loaded for x in statuses)
        text, do = (
            ("none without the driver", "") if no_driver else (report.status.message, report.status.advice)
        )
        yield Check("core", "CUDA devices", "absent", text, do)


def _environment() -> Iterator[Check]:
    """Check the value of every variable in the table, and report unknown names that start with XPU_."""
    readers: dict[str, Callable[[str], object]] = {
        "XPU_CACHE_BYTES": env.get_bytes,
        "XPU_NUM_THREADS": env.get_int,
    }
    for name, variable in env.VARIABLES.items():
        value = os.environ.get(name, "").strip()
        setting = f"{value!r}" if value else f"unset ({variable.default or 'empty'})"
        try:
            readers.get(name, env.get)(name)
        except PolicyError as error:
            yield Check("environment", name, "fail", f"{error.what}; got {error.got}", error.do)
            continue
        yield Check("environment", name, "info", f"{setting}: {variable.meaning}", brief=setting)
    for name in sorted(os.environ):
        if name.startswith("XPU_") and name not in env.VARIABLES:
            yield Check(
                "environment", name, "info", "unknown variable", "Check its spelling against this table."
            )


def _store(cache_dir: Path | None) -> Iterator[Check]:
    try:
        store = Store(cache_dir)
        entries = store.entries()
        damaged = store.verify()
    except (PolicyError, StoreError, OSError) as error:
        yield Check("store", "store", "fail", str(error), getattr(error, "do", ""))
        return
    if why := store.distrust():
        yield Check("store", "trust", "fail", why, f"Run: chmod -R go-w {store.root}")
    size = sum(e.bytes_ for e in entries) / 2**20
    yield Check(
        "store",
        "contents",
        "info",
        f"{len(entries)} entries, {size:.1f} MiB in {store.root} (mode {store.mode})",
    )
    if damaged:
        do = "Run: xpu cache clear. Otherwise a damaged entry is rebuilt when it is used."
        yield Check("store", "integrity", "fail", f"{len(damaged)} damaged entries, first: {damaged[0]}", do)
    else:
        yield Check("store", "integrity", "pass", "every entry matches its checksum")
    yield _writable(store)


def _writable(store: Store) -> Check:
    if store.mode != "rw":
        return Check("store", "writing", "info", f"mode {store.mode}: the store is not written")
    try:
        store.root.parent.mkdir(parents=True, exist_ok=True)
        store.root.mkdir(0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.root) as file:
            file.write(b"x")
    except OSError as error:
        do = "Set XPU_CACHE_DIR to a writable folder, or XPU_CACHE_MODE to ro or off."
        return Check("store", "writing", "fail", f"{store.root}: {error.strerror}", do)
    return Check("store", "writing", "pass", f"{store.root} can be written")


def smoke_model() -> tuple[bytes, dict[str, Array], Array]:
    """Return a tiny ONNX model, its inputs, and its expected output as NumPy computes it: ``relu(x @ w + b)``.

    x float32[2, 3], w float32[3, 4]; result float32[2, 4]. Raise ImportError without the onnx package.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    b = np.array([0.5, -0.5, 0.25, 0.0], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="sum"),
        helper.make_node("Relu", ["sum"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "smoke",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    x = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -0.125]], np.float32)
    return model.SerializeToString(), {"x": x}, np.maximum(x @ w + b, 0)


def _engines(progress: Callable[[str], None]) -> Iterator[Check]:
    for name in engine_names():
        progress(f"smoke run of {name}")
        yield from _smoke(name)


def _smoke(name: str) -> Iterator[Check]:
    report = engine_report(name)
    if not report.installed:
        # An unsupported version, or a plug-in that cannot be imported, is a problem; an engine that is not installed is not.
        status = (
            "absent" if report.installed.code in (Reason.NOT_INSTALLED, Reason.NOT_IMPLEMENTED) else "fail"
        )
        yield Check("engines", name, status, report.installed.reason, report.installed.do)
        return
    if importlib.util.find_spec("onnx") is None:
        do = "Run: pip install 'xpuruntime[onnx]'"
        yield Check(
            "engines", f"{name} {report.version}", "absent", "no smoke run without the onnx package", do
        )
        return
    for fact in report.devices:
        if fact.support:
            yield _run_smoke(name, str(report.version), str(fact.device))
        else:
            yield Check("engines", f"{name} on {fact.device}", "absent", fact.support.reason, fact.support.do)


def _run_smoke(name: str, version: str, device: str) -> Check:
    title = f"{name} on {device}"
    model, feeds, expected = smoke_model()
    try:
        with tempfile.TemporaryDirectory(prefix="xpu-doctor-") as folder:
            options = SessionOptions(engine=name, device=device, cache_dir=Path(folder))
            with options.open(model) as session:
                output = session.run(feeds)["y"]
                evidence = session.receipt(times=False).evidence
    except XpuError as error:
        return Check("engines", title, "fail", str(error).removesuffix(error.do or "").rstrip(), error.do)
    except (
        Exception
    ) as error:  # A vendor's exception that its engine does not handle is what this check looks for.
        return Check(
            "engines", title, "fail", f"{type(error).__name__}: {error}", "Report it with this text."
        )
    error_max = float(np.abs(output - expected).max())
    if error_max > 1e-5 * float(np.abs(expected).max()):
        return Check(
            "engines",
            title,
            "fail",
            f"{version}: wrong result, off by {error_max:.3g}",
            "Do not use this engine on this machine.",
        )
    steps = sum(len(e.rows) for e in evidence.values())
    return Check(
        "engines",
        title,
        "pass",
        f"{version}: the smoke model is right within {error_max:.1g}; {steps} steps ran",
    )
