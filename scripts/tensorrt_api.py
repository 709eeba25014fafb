#!/usr/bin/env python3
"""Write the API of TensorRT's Python bindings, version by version, to tests/engines/tensorrt_api: classes with their members, enums with their values.

    python scripts/tensorrt_api.py 8.6.1 10.0.1 10.16.1.11 11.4.0.106

The binding modules are real (small wheels); the libraries that they link are not needed to read an API. So stand-ins with the few imported
symbols are compiled, and the module is imported in a child process. Needs pip, gcc, nm, and a Python that the wheels were built for (3.11).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "tests" / "engines" / "tensorrt_api"
CLASSES = (
    "Builder", "IBuilderConfig", "INetworkDefinition", "OnnxParser", "ParserError", "Runtime", "ICudaEngine", "IExecutionContext",
    "IOptimizationProfile", "ITimingCache", "EngineInspector", "IProfiler", "ILogger", "IHostMemory", "IPluginRegistry", "BuilderFlag",
    "NetworkDefinitionCreationFlag", "TacticSource", "MemoryPoolType", "DataType", "LayerInformationFormat", "ProfilingVerbosity",
    "TensorIOMode", "TensorLocation", "PreviewFeature",
)  # fmt: skip
FUNCTIONS = ("init_libnvinfer_plugins", "get_plugin_registry")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
READ = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("tensorrt", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
api = {}
for name in json.loads(sys.argv[2]):
    value = getattr(module, name)
    members = getattr(value, "__members__", None)
    if members is not None:
        api[name] = {n: int(getattr(m, "value", m)) for n, m in members.items()}
    else:
        api[name] = sorted(n for n in dir(value) if not n.startswith("_"))
api["functions"] = [n for n in json.loads(sys.argv[3]) if hasattr(module, n)]
print(json.dumps(api))
"""


def main() -> None:
    """Write one file per version."""
    for version in sys.argv[1:]:
        major = int(version.partition(".")[0])
        package = "tensorrt-bindings" if major < 10 else f"tensorrt-cu{12 if major < 11 else 13}-bindings"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            platforms = [f"--platform={p}" for p in PLATFORMS]
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                *platforms,
            ]
            subprocess.run(
                [*command, "--python-version=3.11", "-d", name, f"{package}=={version}"], check=True
            )
            with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
                wheel.extract("tensorrt_bindings/tensorrt.so", folder)
            module = folder / "tensorrt_bindings" / "tensorrt.so"
            _stand_ins(module, folder, major)
            environment = {**os.environ, "LD_LIBRARY_PATH": name}
            wanted = [json.dumps(CLASSES), json.dumps(FUNCTIONS)]
            done = subprocess.run(
                [sys.executable, "-c", READ, str(module), *wanted],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
            )
        text = json.dumps(json.loads(done.stdout), indent=1, sort_keys=True)
        (OUT / f"{version}.json").write_text(text + "\n", encoding="utf-8")
        print("wrote", version)


def _stand_ins(module: Path, folder: Path, major: int) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(module)], capture_output=True, text=True, check=True
    )
    symbols = [line.split()[-1] for line in listing.stdout.splitlines() if line.split()[0] == "U"]
    own = [s for s in symbols if "@" not in s and not s.startswith(("Py", "_Py"))]
    source = folder / "stand_in.c"
    source.write_text("".join(f"void *{s}(void) {{ return 0; }}\n" for s in own))
    for name in ("nvinfer", "nvonnxparser", "nvinfer_plugin", "nvparsers"):
        library = f"lib{name}.so.{major}"
        flags = ["-shared", "-fPIC", "-w", "-o", str(folder / library), f"-Wl,-soname,{library}"]
        subprocess.run(["gcc", str(source), *flags], check=True)


if __name__ == "__main__":
    main()
