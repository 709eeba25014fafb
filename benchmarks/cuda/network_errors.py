"""Errors of a network's outputs against float64 over several inputs: ours under several kernel policies, and PyTorch's.

    python benchmarks/cuda/network_errors.py timm/visformer_tiny --batch 1 --inputs 6 --out network_errors.json

Several inputs are needed: if a network amplifies rounding, errors of the same kernels differ by orders of magnitude between inputs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_report import machine, write

from xpuruntime import InferenceSession, KernelPolicy
from xpuruntime.testing.conformance.models.judge import fresh_inputs, rms_error, stir
from xpuruntime.testing.conformance.models.sources import SOURCES, build, names_of

POLICIES: dict[str, dict[str, str]] = {
    "default": {},
    "conv: implicit_gemm": {"conv": "implicit_gemm"},
    "conv: cudnn": {"conv": "cudnn"},
    "conv: naive": {"conv": "naive"},
    "matmul: naive": {"matmul": "naive"},
    "norm: naive": {"norm": "naive"},
    "attention: naive": {"attention": "naive"},
}


def main() -> None:
    """Print a row per input and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", help="LIBRARY/NAME, as xpu conformance names it")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=6)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", default="network_errors.json")
    args = parser.parse_args()
    library, _, name = args.network.partition("/")
    if library not in SOURCES or name not in names_of(library):
        parser.error(
            f"no network {args.network!r}; name one as LIBRARY/NAME, such as timm/visformer_tiny; libraries are {', '.join(SOURCES)}"
        )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    module, example = build(library, name, args.batch)
    stir(module)
    inputs = [example, *(fresh_inputs(example, seed) for seed in range(1, args.inputs))]
    program = torch.export.export(module, example, strict=False)
    exact = [answers(module, x, torch.float64, "cpu") for x in inputs]
    rows: dict[str, list[float]] = {}
    for device in ("cpu", args.device):
        rows[f"PyTorch {device}"] = [
            rms_error(answers(module, x, torch.float32, device), e)
            for x, e in zip(inputs, exact, strict=True)
        ]
        show(f"PyTorch {device}", rows[f"PyTorch {device}"])
    for name, kernels in POLICIES.items():
        policy = KernelPolicy(**kernels) if kernels else None
        try:
            with InferenceSession(
                program, device=args.device, engine="native", kernel_policy=policy
            ) as session:
                outputs = [
                    [torch.as_tensor(o).double().cpu() for o in session.run([t.numpy() for t in x]).values()]
                    for x in inputs
                ]
        except Exception as error:  # no kernel of this policy supports the network
            print(f"{name:24} {type(error).__name__}: {str(error)[:120]}")
            continue
        rows[name] = [rms_error(m, e) for m, e in zip(outputs, exact, strict=True)]
        show(name, rows[name])
    write(
        Path(args.out),
        {
            "machine": machine(torch.cuda.get_device_name()),
            "network": args.network,
            "batch": args.batch,
            "errors": rows,
        },
    )


def answers(module: Any, inputs: tuple[Any, ...], dtype: torch.dtype, device: str) -> list[Any]:
    """Return PyTorch's outputs in a precision, as float64."""
    whole = copy.deepcopy(module).to(device=device, dtype=dtype)
    with torch.no_grad():
        outputs = whole(*(t.to(device, dtype) if t.is_floating_point() else t.to(device) for t in inputs))
    return [t.double().cpu() for t in (outputs if isinstance(outputs, list | tuple) else [outputs])]


def show(name: str, errors: list[float]) -> None:
    """Print the error of each input, and their geometric mean."""
    print(
        f"{name:24} mean {statistics.geometric_mean(errors):.3g}   " + " ".join(f"{e:.3g}" for e in errors),
        flush=True,
    )


if __name__ == "__main__":
    main()
