"""``xpu certify``: whether a PyTorch model computes in training what it computes in a session. Exit 1 if it does not."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_text, progress
from .exit_codes import ExitCode

__all__ = ["certify"]


@command
def certify(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Python function that returns a module in eval mode and its example inputs. Its file is executed.",
        ),
    ],
    policy: options.Policy = None,
    device: Annotated[str, typer.Option("--device", "-d", help="Device: cpu or cuda:0.")] = "cpu",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Number of inputs.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of generated inputs.")] = 0,
    ulp: Annotated[
        int,
        typer.Option(
            "--ulp", min=0, help="Largest accepted difference of an output, in units in the last place."
        ),
    ] = 0,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Compare the forward pass in training with an inference session under one policy, bit by bit."""
    from ..pytorch.certificate import certify as certify_module
    from ..pytorch.model_function import call_model_function

    with progress(f"comparing training and inference of {model}"):
        module, inputs = call_model_function(model)
        certificate = certify_module(
            module, inputs, policy, device=device, samples=samples, seed=seed, name=model
        )
    accepted = all(o.ulp <= ulp for o in certificate.outputs)
    code = ExitCode.OK if accepted else ExitCode.NO
    return CommandResult(certificate.to_json(), lambda: print_text(str(certificate)), code)
