"""``xpu lint``: check a policy file, and with a model what its rules decide. Exit 1 if a finding is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.review.policy_review import PolicyReview
    from ..workbench.tune.prediction import Prediction

__all__ = ["lint"]


@command
def lint(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A policy file (YAML or JSON).")],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="An ONNX model (.onnx) or a saved graph (.json or .txt) to check it on."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="Compilation target such as cpu, cpu:x86-64-v3 or cuda:sm_90; no device is needed."
            " Default: the policy's device, else cpu.",
        ),
    ] = None,
    shape: options.Shape = None,
    phase: Annotated[
        str, typer.Option(help="Phase that rules test: inference, prefill, decode, ...")
    ] = "inference",
    nodes: Annotated[bool, typer.Option("--nodes", help="List the nodes of each rule.")] = False,
    times: options.Times = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Check a policy: contradictions, dead rules, and with a model the nodes that each rule decides."""
    from ..workbench.review.policy_review import review_policy

    sizes = options.parse_sizes(shape)
    if model is None and (sizes or target or nodes or times):
        raise typer.BadParameter("--target, --shape, --nodes and --times need a model")
    prediction: Prediction | None = None
    with progress(f"checking {policy}"):
        if times is not None and model is not None:
            from ..compiler.times import KernelTimes
            from ..workbench.tune import predict
            from ..workbench.tune.prediction import target_for

            measured = KernelTimes.load(times)
            target = target_for(target, measured)
        result = review_policy(policy, model, target=target, shapes=sizes, phase=phase)
        if times is not None and model is not None and result.ok:
            prediction = predict(model, measured, device=target, policy=policy, shapes=sizes)
    code = ExitCode.OK if result.ok else ExitCode.NO
    document = result.to_json() | {"prediction": None if prediction is None else prediction.to_json()}

    def show() -> None:
        _show(result, nodes)
        if prediction is not None:
            print_line(prediction.sentence)

    return CommandResult(document, show, code)


def _show(result: PolicyReview, nodes: bool) -> None:
    for finding, line in result.findings:
        at = result.policy if line is None else f"{result.policy}:{line}"
        print_line(f"{at}: {'error' if finding.is_error else 'warning'}: {finding} [{finding.code}]")
    errors = sum(f.is_error for f, _ in result.findings)
    print_line(f"{result.policy}: errors: {errors}, warnings: {len(result.findings) - errors}")
    if not result.nodes:
        return
    print_line()
    if result.rules:
        counts = ("matches", "chooses", "excludes")
        rows = [
            (r.to_json()["at"], r.label, len(r.matches), len(r.chooses), len(r.excludes))
            for r in result.rules
        ]
        title = f"Rules on {result.model} for {result.target}"
        print_table(title, ("rule", "conditions", *counts), rows, right=counts)
    print_line(
        f"{len(result.untouched)} of {len(result.nodes)} nodes that get a kernel are matched by no rule"
    )
    if nodes:
        for rule in result.rules:
            print_line(f"{rule.to_json()['at']}: {', '.join(rule.matches) or 'no node'}")
        print_line(f"no rule: {', '.join(result.untouched) or 'no node'}")
