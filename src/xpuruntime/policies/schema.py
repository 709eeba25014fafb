"""The JSON Schema of policy files, generated from the policy classes. ``python -m xpuruntime.policies.schema`` prints it.

The committed copy is ``docs/schema/policy.schema.json``. Only the reader checks what a schema cannot express: that conditions
parse, that regular expressions compile, that a rule does not contradict itself, and that third-party names are registered.
"""

from __future__ import annotations

from typing import Any

from .execution_policy import ExecutionPolicy
from .fields.record import schema_of
from .files.document import to_json_text
from .files.file_form import VERSION
from .kernel_policy import layer_schema, rule_schema

__all__ = ["policy_schema"]


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a policy document."""
    layer = layer_schema()
    kernel = {**layer, "properties": dict(layer["properties"])}
    layer["properties"].pop("under")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:xpuruntime:policy:1",
        "title": "xpuruntime policy",
        "description": "The user's demands: kernels by op, engines, devices, precision. JSON or YAML.",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "version": {"description": "version of this format", "type": "integer", "enum": [VERSION]},
            "kernel": {"description": "KernelPolicy: which kernel computes an op", **kernel},
            "execution": {
                "description": "ExecutionPolicy: where and how a model runs",
                **schema_of(ExecutionPolicy),
            },
        },
        "$defs": {"rule": rule_schema(), "kernel_layer": layer},
    }


if __name__ == "__main__":
    print(to_json_text(policy_schema()), end="")
