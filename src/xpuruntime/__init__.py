"""xpuruntime: run a model on the engine of your choice, see exactly what ran, and pin it in a file.

Importing this package opens no library, reads no device and imports no vendor's package. Public names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Public name -> module that defines it. `__all__` and `dir()` are derived from this table.
_PUBLIC: dict[str, str] = {
    # running
    "InferenceSession": "inference.session",
    "extract_ir": "frontends.torch.importer",
    "export_onnx": "frontends.export_onnx",
    "Receipt": "profiler.receipt",
    "profile": "profiler.trace",
    "ops": "inference",
    # language models
    "Completion": "llm.generate",
    "BatchGenerator": "llm.batching.generate",
    "Generator": "llm.generate",
    "generate": "llm.generate",
    # programs and devices
    "compile": "compiler.pipeline",
    "load_onnx": "frontends.onnx.importer",
    "CompiledProgram": "program.program",
    "CpuBackend": "runtime.backends",
    "CudaBackend": "runtime.backends",
    "DAGExecutor": "inference.partitioned.dag_executor",
    "Device": "runtime.device",
    "DeviceBuffer": "runtime.memory.buffer",
    "Executor": "runtime.execution.executor",
    "NPUBuffer": "runtime.memory.buffer",
    "NullBackend": "runtime.backends",
    "PartitionPlan": "compiler.partition.plan",
    "PythonBackend": "runtime.backends",
    "Weights": "runtime.weights.load",
    "is_op_supported": "compiler.partition.support",
    "empty_pinned": "runtime.memory.pool",
    "load_weights": "runtime.weights.load",
    "partition": "compiler.partition.partitioner",
    # porting: interfaces of compiler and runtime
    "Backend": "protocols",
    "BufferAllocation": "program.program",
    "CodegenTarget": "codegen.target",
    "DispatchStrategy": "protocols",
    "ExecutionPlan": "program.program",
    "KernelCall": "program.program",
    "WeightTransformRecipe": "program.program",
    # user kernels
    "Launch": "kernels.user.kernel",
    "Tasks": "kernels.user.kernel",
    "kernel": "inference.user_kernels",
    "register_kernel": "inference.user_kernels",
    "verify_kernel": "inference.verify_kernel",
    # policies
    "KernelPolicy": "policies",
    "ExecutionPolicy": "policies",
    "Policy": "policies",
    "Rule": "policies",
    "load_policy": "policies",
    "with_policy": "policies",
    # values
    "DType": "types",
    "Dim": "types",
    "TensorSpec": "types",
    "DeviceId": "targets",
    "TargetConfig": "targets",
    "Plan": "program.plan",
    "Lock": "program.lock",
    "Decision": "decisions",
    "Candidate": "decisions",
    "Reason": "decisions",
    "Support": "decisions",
    "Store": "storage.store",
    # errors
    "XpuError": "errors",
    "ModelError": "errors",
    "IrError": "errors",
    "InputError": "errors",
    "PolicyError": "errors",
    "UnavailableError": "errors",
    "EngineUnavailable": "errors",
    "DeviceUnavailable": "errors",
    "PrecisionUnavailable": "errors",
    "KernelUnavailable": "errors",
    "LockError": "errors",
    "StrictError": "errors",
    "BuildError": "errors",
    "BuildTimeout": "errors",
    "InternalError": "errors",
    "KernelRefused": "errors",
    "PluginError": "errors",
    "WrongResult": "errors",
    "RunError": "errors",
    "OutOfMemory": "errors",
    "RunCancelled": "errors",
    "RankLost": "errors",
    "RunTimeout": "errors",
    "StoreError": "errors",
    "FormatError": "errors",
}

_MODULES = frozenset({"ops"})  # public names that are modules

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from .codegen.target import CodegenTarget as CodegenTarget
    from .compiler.partition.partitioner import PartitionPlan as PartitionPlan
    from .compiler.partition.partitioner import is_op_supported as is_op_supported
    from .compiler.partition.partitioner import partition as partition
    from .compiler.pipeline import compile as compile  # noqa: A004
    from .decisions import Candidate as Candidate
    from .decisions import Decision as Decision
    from .decisions import Reason as Reason
    from .decisions import Support as Support
    from .errors import BuildError as BuildError
    from .errors import BuildTimeout as BuildTimeout
    from .errors import DeviceUnavailable as DeviceUnavailable
    from .errors import EngineUnavailable as EngineUnavailable
    from .errors import FormatError as FormatError
    from .errors import InputError as InputError
    from .errors import InternalError as InternalError
    from .errors import IrError as IrError
    from .errors import KernelRefused as KernelRefused
    from .errors import KernelUnavailable as KernelUnavailable
    from .errors import LockError as LockError
    from .errors import ModelError as ModelError
    from .errors import OutOfMemory as OutOfMemory
    from .errors import PluginError as PluginError
    from .errors import PolicyError as PolicyError
    from .errors import PrecisionUnavailable as PrecisionUnavailable
    from .errors import RankLost as RankLost
    from .errors import RunCancelled as RunCancelled
    from .errors import RunError as RunError
    from .errors import RunTimeout as RunTimeout
    from .errors import StoreError as StoreError
    from .errors import StrictError as StrictError
    from .errors import UnavailableError as UnavailableError
    from .errors import WrongResult as WrongResult
    from .errors import XpuError as XpuError
    from .frontends.export_onnx import export_onnx as export_onnx
    from .frontends.onnx.importer import load_onnx as load_onnx
    from .frontends.torch.importer import extract_ir as extract_ir
    from .inference import ops as ops
    from .inference.partitioned.dag_executor import DAGExecutor as DAGExecutor
    from .inference.session import InferenceSession as InferenceSession
    from .inference.user_kernels import kernel as kernel
    from .inference.user_kernels import register_kernel as register_kernel
    from .inference.verify_kernel import verify_kernel as verify_kernel
    from .kernels.user.kernel import Launch as Launch
    from .kernels.user.kernel import Tasks as Tasks
    from .llm.batching.generate import BatchGenerator as BatchGenerator
    from .llm.generate import Completion as Completion
    from .llm.generate import Generator as Generator
    from .llm.generate import generate as generate
    from .policies import ExecutionPolicy as ExecutionPolicy
    from .policies import KernelPolicy as KernelPolicy
    from .policies import Policy as Policy
    from .policies import Rule as Rule
    from .policies import load_policy as load_policy
    from .policies import with_policy as with_policy
    from .profiler.receipt import Receipt as Receipt
    from .profiler.trace import profile as profile
    from .program.lock import Lock as Lock
    from .program.plan import Plan as Plan
    from .program.program import BufferAllocation as BufferAllocation
    from .program.program import CompiledProgram as CompiledProgram
    from .program.program import ExecutionPlan as ExecutionPlan
    from .program.program import KernelCall as KernelCall
    from .program.program import WeightTransformRecipe as WeightTransformRecipe
    from .protocols import Backend as Backend
    from .protocols import DispatchStrategy as DispatchStrategy
    from .runtime.backends import CpuBackend as CpuBackend
    from .runtime.backends import CudaBackend as CudaBackend
    from .runtime.backends import NullBackend as NullBackend
    from .runtime.backends import PythonBackend as PythonBackend
    from .runtime.device import Device as Device
    from .runtime.execution.executor import Executor as Executor
    from .runtime.memory.buffer import DeviceBuffer as DeviceBuffer
    from .runtime.memory.buffer import NPUBuffer as NPUBuffer
    from .runtime.memory.pool import empty_pinned as empty_pinned
    from .runtime.weights.load import Weights as Weights
    from .runtime.weights.load import load_weights as load_weights
    from .storage.store import Store as Store
    from .targets import DeviceId as DeviceId
    from .targets import TargetConfig as TargetConfig
    from .types import Dim as Dim
    from .types import DType as DType
    from .types import TensorSpec as TensorSpec


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'xpuruntime' has no attribute {name!r}")
    if name in _MODULES:
        importlib.import_module(f".{module}.{name}", __name__)
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
