"""How near float64 the native engine's results are on networks of their papers' sizes, compared with PyTorch's in the same precision.

    python benchmarks/accuracy.py [--models vit ...] [--precisions float32 ...] [--count 20] [--size full] [--keep]

Each seeded network (``xpuruntime.testing.conformance.seeded.networks``) answers the same inputs: PyTorch in float64, PyTorch in the precision, native in the precision. Errors are
max|d| / max|ref| over all inputs. `--keep` writes benchmarks/results/accuracy.json; rows of an earlier run that were not measured again stay in it.
`tests/native/test_native_models.py` holds the same to its bounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import RESULTS, facts, keep

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", "vit", "bert")
PRECISIONS = ("float32", "bfloat16", "float16")
BOUND = 1.25  # of PyTorch's own error, in a lower precision
FLOAT32 = 1e-5  # from float64


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows += _judge(name, Path(folder), options)
            if options.keep:
                _keep(rows)
    return 0 if all(r["ok"] for r in rows) else 1


def _judge(name: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from xpuruntime.testing.conformance.seeded import networks as models
    from xpuruntime.testing.conformance.seeded.export import export_onnx

    feeds = models.inputs(name, options.count, size=options.size, seed=3)
    path = export_onnx(name, folder / f"{name}.onnx", size=options.size)
    exact = _by_torch(models.build(name, options.size)[0], feeds, torch.float64)
    rows = []
    for precision in options.precisions:
        torch_outputs = _by_torch(models.build(name, options.size)[0], feeds, getattr(torch, precision))
        native_outputs = _native(path, feeds, precision)
        row = {
            "model": name,
            "size": options.size,
            "precision": precision,
            "inputs": options.count,
            "native": _error(native_outputs, exact),
            "torch": _error(torch_outputs, exact),
            "apart": _error(native_outputs, torch_outputs),
            "same_top5": bool((_best(native_outputs) == _best(torch_outputs)).all()),
        }
        limit = max(FLOAT32, BOUND * row["torch"]) if precision == "float32" else BOUND * row["torch"]
        row |= {"ratio": row["native"] / row["torch"], "ok": row["native"] <= limit}
        rows.append(row)
        print(
            f"{name:16} {precision:9} native {row['native']:.2e}, torch {row['torch']:.2e}: {row['ratio']:.2f}"
            f", apart {row['apart']:.2e}" + ("" if row["ok"] else " MISSED"),
            flush=True,
        )
    path.unlink()
    return rows


def _by_torch(module: Any, feeds: dict[str, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """PyTorch's scores, one example after the other, computed in a dtype."""
    import torch

    module, rows = module.to(dtype), []
    with torch.inference_mode():
        for i in range(len(next(iter(feeds.values())))):
            tensors = (torch.from_numpy(v[i : i + 1]) for v in feeds.values())
            out = module(*(t.to(dtype) if t.is_floating_point() else t for t in tensors))
            rows.append(out.double().numpy())
    return np.concatenate(rows)


def _native(path: Path, feeds: dict[str, Any], precision: str) -> np.ndarray[Any, Any]:
    """Scores of the native engine, one example after the other."""
    import xpuruntime as xrt

    policy = None if precision == "float32" else xrt.ExecutionPolicy(precision=precision)
    with xrt.InferenceSession(path, engine="native", device="cpu", exec_policy=policy) as session:
        count = len(next(iter(feeds.values())))
        runs = (session.run({k: v[i : i + 1] for k, v in feeds.items()}) for i in range(count))
        return np.concatenate([np.asarray(next(iter(r.values())), np.float64) for r in runs])


def _error(values: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    return float(np.abs(values - reference).max() / np.abs(reference).max())


def _best(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.argsort(-scores, -1)[..., :5])


def _keep(rows: list[dict[str, Any]]) -> None:
    """These rows, and those of the kept file that they do not measure again."""
    key = ("model", "size", "precision")
    new = {tuple(r[k] for k in key) for r in rows}
    path = RESULTS / "accuracy.json"
    old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    unchanged = [r for r in old if tuple(r[k] for k in key) not in new]
    order = {(m, p): i for i, (m, p) in enumerate((m, p) for m in MODELS for p in PRECISIONS)}
    table = sorted([*unchanged, *rows], key=lambda r: order[r["model"], r["precision"]])
    about = facts("torch", "numpy")
    print("wrote", keep("accuracy", {"machine": about, "rows": table}, timed=False))


if __name__ == "__main__":
    raise SystemExit(main())
