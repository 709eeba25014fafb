"""Judgement of one network in this process: PyTorch's float64 results and its own error, then each case.

A case is right if its error is at most twice PyTorch's own in that precision, or within the tolerance table. Errors are rms(d) / rms(ref)
of the worst output. The errors of a network that amplifies rounding differ between inputs by orders of magnitude. A case that exceeds its limit by
less than twice is therefore checked by geometric means over several inputs, none of which may exceed the limit by far.
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

__all__ = ["fresh_inputs", "judge", "rms_error", "stir"]

Told = Callable[[str, Any], None]
"""``("stage", text)`` before work that may not return, ``("finding", CaseFinding)`` after it."""
_AGAIN = 7
"""Additional inputs for a case that exceeds its limit by less than twice."""
_FAR = 20
"""The highest error on one of these inputs, as a multiple of the limit."""
_OPEN = 3
"""Rows of the run of a model exported with an open batch of two."""


def judge(task: Task, told: Told) -> None:
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
                network = _Network(task, case.batch, told)
            except _Impossible as error:
                title = task.title if network is None else task.batch(case.batch)
                told("finding", CaseFinding(title, "not run", str(error)))
                if network is None:
                    return
                break
        told("stage", task.name(case))
        told("finding", _finding(network, case))


class _Impossible(Exception):
    """A failure of PyTorch itself."""


@contextmanager
def _by_torch(stage: str, told: Told) -> Iterator[None]:
    told("stage", stage)
    try:
        yield
    except Exception as error:  # any error of a foreign model
        raise _Impossible(f"{stage}: {type(error).__name__}: {error}"[:300]) from error


class _Network:
    """A module, its export, inputs, and PyTorch's results."""

    def __init__(self, task: Task, batch: str, told: Told) -> None:
        import torch

        self.task, self.batch = task, batch
        self.errors: dict[tuple[str, str], float] = {}
        count = 2 if batch == "open" else int(batch)
        with _by_torch("build", told):
            self.module, self.examples = build(task.source, task.network, count)
            stir(self.module)
        with _by_torch("run", told):
            self.inputs = build(task.source, task.network, _OPEN)[1] if batch == "open" else self.examples
            self.exact = self._answers(torch.float64, "cpu")
            if not all(bool(t.isfinite().all()) for t in self.exact):
                raise RuntimeError("float64 results are not finite")
        with _by_torch("export", told):
            dims: Any = None
            if batch == "open":
                row = torch.export.Dim("batch", min=1, max=64)
                dims = tuple({0: row} for _ in self.examples)
                if task.source == "transformers":  # its module takes *args
                    dims = (dims,)
            self.program = torch.export.export(self.module, self.examples, strict=False, dynamic_shapes=dims)
            with torch.no_grad():
                exported = [t.double() for t in _floats(self.program.module()(*self.inputs))]
            if not rms_error(exported, self.exact) <= max(1e-3, 4 * self.own_error("float32", "cpu")):
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

        other = copy.copy(self)
        other.inputs, other.errors = fresh_inputs(self.inputs, seed), {}
        other.exact = other._answers(torch.float64, "cpu")
        return other

    def own_errors(self, case: ModelCase) -> list[float]:
        """Return PyTorch's own errors on the processor and on the case's device, if it has a result there."""
        errors = (self.own_error(case.precision, device) for device in dict.fromkeys(("cpu", case.device)))
        return [e for e in errors if e == e]

    def own_error(self, precision: str, device: str) -> float:
        """Return PyTorch's own error, or nan if it has no result."""
        import torch

        key = (precision, device)
        if key not in self.errors:
            try:
                self.errors[key] = rms_error(self._answers(getattr(torch, precision), device), self.exact)
            except Exception:  # some ops have no half precision on a CPU
                self.errors[key] = float("nan")
        return self.errors[key]


def _finding(network: _Network, case: ModelCase) -> CaseFinding:
    name = network.task.name(case)
    try:
        error = _ours(network, case)
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
    own = network.own_errors(case)
    theirs = max(own, default=float("nan"))
    limit = max(tolerance, 2 * theirs if theirs == theirs else 0.0)
    said = f"error {error:.3g}, PyTorch {theirs:.3g}, limit {limit:.3g}"
    if error <= limit:
        return CaseFinding(name, "right", said)
    if len(own) < len({"cpu", case.device}) or not theirs < 0.5:
        return CaseFinding(name, "excused", f"{said}: PyTorch has no usable answer in {case.precision}")
    if error <= 2 * limit:
        ours, torchs = _over_inputs(network, case, error, theirs)
        far = any(a > _FAR * max(tolerance, 2 * b) for a, b in zip(ours, torchs, strict=True))
        said += f"; over {len(ours)} inputs {_mean(ours):.3g}, PyTorch {_mean(torchs):.3g}"
        if _mean(ours) <= max(tolerance, 2 * _mean(torchs)) and not far:
            return CaseFinding(name, "right", said)
    return CaseFinding(name, "wrong", said)


def _over_inputs(
    network: _Network, case: ModelCase, error: float, theirs: float
) -> tuple[Sequence[float], Sequence[float]]:
    """Return our errors and PyTorch's on several inputs; infinite if a session refuses other inputs."""
    ours, own = [error], [theirs]
    for seed in range(_AGAIN):
        other = network.again(seed)
        try:
            ours.append(_ours(other, case))
        except Exception:  # it ran on the first inputs, so this counts as wrong
            ours.append(math.inf)
        own.append(max(other.own_errors(case), default=float("nan")))
    return ours, own


def _mean(errors: Sequence[float]) -> float:
    """Return the geometric mean, or nan if any value is nan."""
    return math.exp(sum(math.log(max(e, 1e-30)) if e == e else e for e in errors) / len(errors))


def _ours(network: _Network, case: ModelCase) -> float:
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


def rms_error(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """Return rms(d) / rms(ref) of the worst output, or nan if any is not finite."""
    if [t.shape for t in found] != [t.shape for t in exact]:
        raise ValueError(
            f"outputs of shapes {[tuple(t.shape) for t in found]}, wanted {[tuple(t.shape) for t in exact]}"
        )
    worst = 0.0
    for a, b in zip(found, exact, strict=True):
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
