"""Every entrance as a function: a policy in, what it became out."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.ir import Graph
from xpuruntime.policies import ExecutionPolicy, KernelPolicy, Policy

WEIGHTS = {
    "w": np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8),
    "v": np.linspace(1, -1, 64, dtype=np.float32).reshape(4, 16),
}
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


def graph(*, batch: str | int = 2) -> Graph:
    """Two linear layers and a softmax."""
    b = ir.GraphBuilder("net")
    w, v = b.weight("w", "float32[16, 8]"), b.weight("v", "float32[4, 16]")
    x = b.input("x", f"float32[{batch}, 8]")
    b.output("y", b.softmax(b.linear(b.relu(b.linear(x, w)), v), dim=-1))
    return b.build()


def onnx_bytes(*, batch: str | int = 2) -> bytes:
    """The same as an ONNX file's content."""
    from xpuruntime.frontends.onnx_writer import to_onnx

    model = to_onnx(graph(batch=batch), WEIGHTS)
    return bytes(model if isinstance(model, bytes) else model.SerializeToString())


@dataclass(frozen=True)
class Seen:
    """What an entrance made of a policy: devices, engines, element types between the borders, kernels by family, open dims, calls."""

    devices: frozenset[str]
    engines: frozenset[str]
    types: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    open_dims: bool = False
    options: str = ""


class Refused(xrt.XpuError):
    """An error of the command line."""


def kind_of(device: str) -> str:
    return xrt.DeviceId.parse(device).kind


def program_of(program: xrt.CompiledProgram) -> Seen:
    plan = program.entries[0].plans[0]
    inner = {b.spec.dtype.value for b in plan.buffers if b.kind.value == "scratch" and b.spec.dtype.is_float}
    return Seen(
        frozenset({plan.target.partition(":")[0]}),
        frozenset({"native"}),
        frozenset(inner),
        frozenset(c.kernel for c in plan.calls),
    )


# ── in Python ──


def by_compile(policy: Any, batch: str | int = 2) -> Seen:
    return program_of(xrt.compile(graph(batch=batch), policy=policy))


def by_ops(policy: Any, batch: str | int = 2) -> Seen:
    found = xrt.ops.explain("matmul", X, WEIGHTS["w"].T.copy(), policy=policy)
    kernels = frozenset(k.partition(":")[0] for k in found.kernels)
    return Seen(
        frozenset({found.target.partition(":")[0]}), frozenset({"native"}), frozenset({"float32"}), kernels
    )


def dag_of(dag: xrt.DAGExecutor, open_dims: bool) -> Seen:
    dag.load_weights(WEIGHTS)
    dag.execute({"x": X})
    rows = [r for e in dag.evidence().values() for r in e.rows]
    regions = dag.plan.regions
    options = " ".join(f"{k}={v}" for e in dag.evidence().values() for k, v in e.options.items())
    return Seen(
        frozenset(kind_of(r.device) for r in regions),
        frozenset(r.engine for r in regions),
        frozenset(r.precision for r in regions),
        frozenset(r.kernel.partition(":")[0] for r in rows),
        open_dims,
        options,
    )


def by_partition(policy: Any, batch: str | int = 2) -> Seen:
    plan = xrt.partition(graph(batch=batch), policy)
    with xrt.DAGExecutor(plan) as dag:
        return dag_of(dag, bool(plan.graph.symbols))


def by_dag_executor(policy: Any, batch: str | int = 2) -> Seen:
    """The policy comes after partition."""
    plan = without_surroundings(lambda: xrt.partition(graph(batch=batch)))
    with xrt.DAGExecutor(plan, policy=policy) as dag:
        return dag_of(dag, bool(plan.graph.symbols))


@functools.cache
def plain_program(batch: str | int) -> xrt.CompiledProgram:
    return without_surroundings(lambda: xrt.compile(graph(batch=batch), shapes={"n": 2}))


def by_executor(policy: Any, batch: str | int = 2) -> Seen:
    """The policy comes after compile."""
    program = plain_program(batch)
    with xrt.Executor(program, policy=policy) as executor:
        executor.run({"x": X}, WEIGHTS)
        seen = program_of(program)
        return Seen(frozenset({executor.device.kind}), seen.engines, seen.types, seen.kernels)


def by_session(policy: Any, batch: str | int = 2) -> Seen:
    with xrt.InferenceSession(onnx_bytes(batch=batch), policy=policy) as session:
        session.run({"x": X})
        receipt = session.receipt(times=False)
        regions = session.plan.regions
        rows = [r for e in receipt.evidence.values() for r in e.rows]
        options = " ".join(f"{k}={v}" for e in receipt.evidence.values() for k, v in e.options.items())
        return Seen(
            frozenset(kind_of(r.device) for r in regions),
            frozenset(r.engine for r in regions),
            frozenset(r.precision for r in regions),
            frozenset(r.kernel.partition(":")[0] for r in rows),
            any(not isinstance(d, int) for s in session.input_info for d in s.shape),
            options,
        )


@functools.cache
def checkpoint() -> Path:
    """A decoder's folder with a tokenizer of bytes."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from xpuruntime.testing.conformance.seeded.decoders import reference

    folder = Path(tempfile.mkdtemp(prefix="xpu-entrances-"))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    text = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    text.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = tokenizers.decoders.ByteLevel()
    text.save(str(folder / "tokenizer.json"))
    reference("qwen2", vocab_size=257, num_hidden_layers=1).save_pretrained(folder)
    return folder


def by_generator(policy: Any, batch: str | int = 2) -> Seen:
    with xrt.Generator(checkpoint(), capacity=32, buckets=(8,), policy=policy) as model:
        model.generate([1, 2, 3], max_new_tokens=2)
        seen = program_of(model.program)
        device = frozenset({model.decode.device.kind})
        return Seen(device, seen.engines, frozenset({model.dtype.value}), seen.kernels)


# ── on the command line ──


def told(*words: object) -> Any:
    """The document of a verb. Raises Refused."""
    from typer.testing import CliRunner

    from xpuruntime.cli.app import app

    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    document = json.loads(done.stdout)
    if done.exit_code:
        raise Refused(document["who"], document["what"], got=document["got"], do=document["do"])
    return document


def option(policy: Any, folder: Path) -> tuple[object, ...]:
    """``--policy FILE``, or nothing where the surroundings have the policy."""
    if policy is None:
        return ()
    if isinstance(policy, ExecutionPolicy):
        policy = Policy(execution=policy)
    elif isinstance(policy, KernelPolicy):
        policy = Policy(kernel=policy)
    policy.save(folder / "policy.yaml")
    return "--policy", folder / "policy.yaml"


def by_xpu_run(policy: Any, batch: str | int = 2) -> Seen:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.onnx").write_bytes(onnx_bytes(batch=batch))
        document = told("run", folder / "net.onnx", "--receipt", *option(policy, folder))
    regions = document["receipt"]["plan"]["regions"]
    evidence = document["receipt"]["evidence"].values()
    kernels = frozenset(r["kernel"].partition(":")[0] for e in evidence for r in e["rows"])
    options = " ".join(f"{k}={v}" for e in evidence for k, v in e["options"].items())
    open_dims = any("n" in s["spec"] for s in document["receipt"]["plan"]["inputs"] if "[n" in s["spec"])
    return Seen(
        frozenset(kind_of(r["device"]) for r in regions),
        frozenset(r["engine"] for r in regions),
        frozenset(r["precision"] for r in regions),
        kernels,
        open_dims,
        options,
    )


def by_xpu_compile(policy: Any, batch: str | int = 2) -> Seen:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.onnx").write_bytes(onnx_bytes(batch=batch))
        told("compile", folder / "net.onnx", "-o", folder / "net.npubin", *option(policy, folder))
        return program_of(xrt.CompiledProgram.load(folder / "net.npubin"))


def by_xpu_generate(policy: Any, batch: str | int = 2) -> Seen:
    with tempfile.TemporaryDirectory() as name:
        words = ("-p", "ab", "-n", 2, "--capacity", 32, *option(policy, Path(name)))
        document = told("generate", checkpoint(), *words)
    types = frozenset({document["precision"]})
    return Seen(frozenset({"cpu"}), frozenset({"native"}), types)


ENTER: Mapping[str, Callable[..., Seen]] = {
    "compile": by_compile,
    "ops": by_ops,
    "partition": by_partition,
    "DAGExecutor": by_dag_executor,
    "Executor": by_executor,
    "session": by_session,
    "Generator": by_generator,
    "xpu run": by_xpu_run,
    "xpu compile": by_xpu_compile,
    "xpu generate": by_xpu_generate,
}

TABLE = {"xpu run": "session", "xpu compile": "compile", "xpu generate": "Generator"}
"""The row of the table of entrances that a verb reads; others have their own."""


def without_surroundings(make: Callable[[], Any]) -> Any:
    """What is made where no policy is set around."""
    import contextvars

    with pytest.MonkeyPatch.context() as patch:
        for name in ("XPU_POLICY", "XPU_ENGINE", "XPU_DEVICE"):
            patch.delenv(name, raising=False)
        return contextvars.Context().run(make)
