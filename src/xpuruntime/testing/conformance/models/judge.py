"""Check of one network in this process: PyTorch's float64 results and PyTorch's own error, then each case.

A case is right if its error is at most twice PyTorch's error in that precision, or within the tolerance table. The error is
rms(d) / rms(ref) of the worst output. In a network that amplifies rounding, errors differ between inputs by orders of magnitude. So a case
whose error is at most twice its limit is repeated on further inputs. It is right if the geometric mean of its errors is within the limit, and
no single error is ``_MAX_EXCESS`` times larger.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ....errors import XpuError
from ....numerics import tolerance_for
from ....types import DType
from ..finding import CaseFinding
from .cases import ModelCase, Task
from .sources import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = ["check_network", "fresh_inputs", "rms_error", "stir"]

Report = Callable[[str, Any], None]
"""A callback: ``("stage", text)`` before work that may hang or crash, ``("finding", CaseFinding)`` after it."""
_EXTRA_INPUTS = 7
"""Additional inputs for a case that exceeds its limit by less than twice."""
_MAX_EXCESS = 20
"""The highest error on one of these inputs, as a multiple of the limit."""
_OPEN_ROWS = 3
"""Batch size of the run of a model that was exported with a symbolic batch, from examples of batch 2."""


def check_network(task: Task, report: Report) -> None:
    """Report a finding for each case of the task, or one for the network if PyTorch cannot run it."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    network = None
    for case in task.cases:
        if network is None or network.batch != case.batch:
            try:
                network = _Network(task, case.batch, report)
            except _TorchFailure as error:
                title = task.title if network is None else task.batch(case.batch)
                report("finding", CaseFinding(title, "not run", str(error)))
                if network is None:
                    return
                break
        report("stage", task.name(case))
        report("finding", _finding(network, case))


class _TorchFailure(Exception):
    """A failure of PyTorch itself."""


@contextmanager
def _torch_stage(stage: str, report: Report) -> Iterator[None]:
    report("stage", stage)
    try:
        yield
    except Exception as error:  # any error of a foreign model
        raise _TorchFailure(f"{stage}: {type(error).__name__}: {error}"[:300]) from error


class _Network:
    """A module, its export, inputs, and PyTorch's results."""

    def __init__(self, task: Task, batch: str, report: Report) -> None:
        import torch

        self.task, self.batch = task, batch
        self.errors: dict[tuple[str, str], float] = {}
        count = 2 if batch == "open" else int(batch)
        with _torch_stage("build", report):
            self.module, self.examples = build(task.source, task.network, count)
            stir(self.module)
        with _torch_stage("run", report):
            self.inputs = (
                build(task.source, task.network, _OPEN_ROWS)[1] if batch == "open" else self.examples
            )
            self.exact = self._answers(torch.float64, "cpu")
            if not all(bool(t.isfinite().all()) for t in self.exact):
                raise RuntimeError("float64 results are not finite")
        with _torch_stage("export", report):
            dims: Any = None
            if batch == "open":
                row = torch.export.Dim("batch", min=1, max=64)
                dims = tuple({0: row} for _ in self.examples)
                if task.source == "transformers":  # the wrapper's forward has the parameter *args
                    dims = (dims,)
            self.program = torch.export.export(self.module, self.examples, strict=False, dynamic_shapes=dims)
            with torch.no_grad():
                exported = [t.double() for t in _floats(self.program.module()(*self.inputs))]
            if not rms_error(exported, self.exact) <= max(1e-3, 4 * self.torch_error("float32", "cpu")):
                raise RuntimeError("torch.export changes the result")

    def _answers(self, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        """Return outputs in a precision, as float64 on the CPU."""
        import copy

        import torch

        module = copy.deepcopy(self.module).to(device=device, dtype=dtype)
        if dtype is torch.float64 and hasattr(module, "exact"):
            module.exact()
        inputs = (x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in self.inputs)
        with torch.no_grad():
            return [t.double().cpu() for t in _floats(module(*inputs))]

    def again(self, seed: int) -> _Network:
        """Return the network with other inputs."""
        import copy

        import torch

        network = copy.copy(self)
        network.inputs, network.errors = fresh_inputs(self.inputs, seed), {}
        network.exact = network._answers(torch.float64, "cpu")
        return network

    def torch_errors(self, case: ModelCase) -> list[float]:
        """Return PyTorch's errors on the CPU and on the case's device, without those where PyTorch fails."""
        errors = (self.torch_error(case.precision, device) for device in dict.fromkeys(("cpu", case.device)))
        return [e for e in errors if e == e]

    def torch_error(self, precision: str, device: str) -> float:
        """Return PyTorch's error in a precision on a device, or nan if PyTorch fails."""
        import torch

        key = (precision, device)
        if key not in self.errors:
            try:
                self.errors[key] = rms_error(self._answers(getattr(torch, precision), device), self.exact)
            except Exception:  # some ops do not support half precision on a CPU
                self.errors[key] = float("nan")
        return self.errors[key]


def _finding(network: _Network, case: ModelCase) -> CaseFinding:
    name = network.task.name(case)
    try:
        error = _session_error(network, case)
    except XpuError as failure:
        return CaseFinding(
            name, "refused", str(failure)[:1000], f"{type(failure).__name__}: {failure.what}"[:160]
        )
    except Exception as failure:  # failures are what this suite looks for
        import traceback

        last = traceback.extract_tb(failure.__traceback__)[-1]
        return CaseFinding(
            name, "raw error", f"{type(failure).__name__}: {failure} ({last.filename}:{last.lineno})"[:1000]
        )
    tolerance = tolerance_for(DType(case.precision))
    if error <= tolerance:
        return CaseFinding(name, "right", f"error {error:.3g}, tolerance {tolerance:.3g}")
    torch_errors = network.torch_errors(case)
    torch_error = max(torch_errors, default=float("nan"))
    limit = max(tolerance, 2 * torch_error if torch_error == torch_error else 0.0)
    text = f"error {error:.3g}, PyTorch {torch_error:.3g}, limit {limit:.3g}"
    if error <= limit:
        return CaseFinding(name, "right", text)
    if len(torch_errors) < len({"cpu", case.device}) or not torch_error < 0.5:
        return CaseFinding(name, "excused", f"{text}: PyTorch has no usable answer in {case.precision}")
    if error <= 2 * limit:
        errors, torch_over_inputs = _over_inputs(network, case, error, torch_error)
        outlier = any(
            a > _MAX_EXCESS * max(tolerance, 2 * b) for a, b in zip(errors, torch_over_inputs, strict=True)
        )
        text += f"; over {len(errors)} inputs {_mean(errors):.3g}, PyTorch {_mean(torch_over_inputs):.3g}"
        if _mean(errors) <= max(tolerance, 2 * _mean(torch_over_inputs)) and not outlier:
            return CaseFinding(name, "right", text)
    return CaseFinding(name, "wrong", text)


def _over_inputs(
    network: _Network, case: ModelCase, error: float, torch_error: float
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the session's errors and PyTorch's on several inputs. An input on which the session fails counts as infinite."""
    errors, torch_errors = [error], [torch_error]
    for seed in range(_EXTRA_INPUTS):
        fresh_network = network.again(seed)
        try:
            errors.append(_session_error(fresh_network, case))
        except Exception:  # the first inputs did run, so an error on others counts as wrong
            errors.append(math.inf)
        torch_errors.append(max(fresh_network.torch_errors(case), default=float("nan")))
    return errors, torch_errors


def _mean(errors: Sequence[float]) -> float:
    """Return the geometric mean, or nan if any value is nan."""
    return math.exp(sum(math.log(max(e, 1e-30)) if e == e else e for e in errors) / len(errors))


def _session_error(network: _Network, case: ModelCase) -> float:
    """Return the error of a session's outputs."""
    import torch

    from ....inference.session import InferenceSession
    from ....policies import ExecutionPolicy

    policy = None if case.precision == "float32" else ExecutionPolicy(precision=case.precision)
    with InferenceSession(
        network.program, device=case.device, engine=network.task.engine, exec_policy=policy
    ) as session:
        outputs = session.run([x.numpy() for x in network.inputs])
        tensors = [torch.as_tensor(o) for o in outputs.values()]
    return rms_error([t.double().cpu() for t in tensors if t.is_floating_point()], network.exact)


def fresh_inputs(inputs: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Return inputs with the same shapes, means and deviations; integers and masks stay."""
    import torch

    random = torch.Generator().manual_seed(100 + seed)
    return tuple(
        torch.randn(t.shape, generator=random) * t.std() + t.mean()
        if t.dtype is torch.float32 and t.numel() > 1
        else t
        for t in inputs
    )


def _floats(outputs: Any) -> list[Any]:
    from torch.utils import _pytree as pytree

    return [
        t for t in pytree.tree_leaves(outputs) if hasattr(t, "is_floating_point") and t.is_floating_point()
    ]


def rms_error(outputs: Sequence[Any], exact: Sequence[Any]) -> float:
    """Return rms(d) / rms(ref) of the worst output, or nan if any is not finite."""
    if [t.shape for t in outputs] != [t.shape for t in exact]:
        raise ValueError(
            f"outputs of shapes {[tuple(t.shape) for t in outputs]}, expected {[tuple(t.shape) for t in exact]}"
        )
    worst = 0.0
    for a, b in zip(outputs, exact, strict=True):
        if not b.numel():
            continue
        error = float(((a - b).square().mean() / b.square().mean().clamp_min(1e-60)).sqrt())
        if error != error:
            return error
        worst = max(worst, error)
    return worst


def stir(module: Any) -> None:
    """Change every weight slightly, so that zeros hide no error, and set running statistics."""
    import torch

    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, p in module.named_parameters():
            if p.is_floating_point():
                p.add_(torch.randn(p.shape, generator=random) * 0.01)
        for name, b in module.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(torch.randn(b.shape, generator=random) * 0.1)
            elif name.endswith("running_var"):
                b.copy_(torch.rand(b.shape, generator=random) + 0.5)
