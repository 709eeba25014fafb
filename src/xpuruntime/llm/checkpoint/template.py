"""Chat templates. They are untrusted programs, so they are rendered in a separate process with limits on time, memory and output.

They have what transformers gives them: ``break`` and ``continue``, the tag ``generation``, ``raise_exception``, ``strftime_now``, and ``tojson`` without
the escapes of HTML.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ...errors import InputError, UnavailableError

__all__ = ["MAX_BYTES", "MAX_SECONDS", "render"]

MAX_BYTES = 4_000_000
"""Maximum size of a rendered text in bytes."""
MAX_SECONDS = 5
"""Limit of the processor time of one rendering, in seconds. Real templates take milliseconds."""
_MAX_MEMORY = 1 << 30
_MAX_WAIT_S = 60.0  # wall-clock limit, which also covers a busy machine
_MAX_TEMPLATE = 1_000_000  # characters; real templates have some thousand

# The child runs isolated (-I), so neither the current folder nor the environment adds modules. It imports from the parent's sys.path.
_CHILD = """
import json, sys
sys.stdin.reconfigure(encoding="utf-8"), sys.stdout.reconfigure(encoding="utf-8")
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from datetime import datetime
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
try:
    import resource
    for what, limit in ((resource.RLIMIT_AS, request["memory"]), (resource.RLIMIT_CPU, request["seconds"])):
        resource.setrlimit(what, (limit, limit))
except (ImportError, ValueError):
    pass
def refuse(message):
    raise TemplateError(message)
def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
class Generation(Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)
world = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
world.globals["raise_exception"] = refuse
world.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
world.filters["tojson"] = to_json
pieces, size = [], 0
try:
    for piece in world.from_string(request["template"]).generate(**request["values"]):
        size += len(piece.encode("utf-8", "surrogatepass"))
        if size > request["bytes"]:
            raise TemplateError(f"produces more than {request['bytes']} bytes")
        pieces.append(piece)
    answer = {"text": "".join(pieces)}
except MemoryError:
    answer = {"error": "takes more memory than a template may"}
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
json.dump(answer, sys.stdout)
"""


def render(template: str, messages: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Return the text of a conversation. Raises InputError if the template fails or exceeds a limit, UnavailableError."""
    if find_spec("jinja2") is None:
        raise UnavailableError("chat template", "needs Jinja2", do="pip install jinja2")
    if len(template) > _MAX_TEMPLATE:
        raise _unfit(f"has {len(template)} characters, more than {_MAX_TEMPLATE}")
    values = {
        "messages": [dict(m) for m in messages],
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
        **facts,
    }
    request = {
        "path": [p for p in sys.path if p],
        "template": template,
        "values": values,
        "bytes": MAX_BYTES,
        "seconds": MAX_SECONDS,
        "memory": _MAX_MEMORY,
    }
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=_MAX_WAIT_S,
            check=False,
        )
    except (TypeError, ValueError) as error:
        raise InputError(
            "chat", "needs messages of plain data", got=error, do="Give dicts with 'role' and 'content'."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise _unfit(f"takes more than {_MAX_WAIT_S:.0f} s") from error
    except OSError as error:
        raise UnavailableError(
            "chat template", "cannot start a Python process", do="Set sys.executable to a Python interpreter."
        ) from error
    if process.returncode < 0:
        raise _unfit(f"takes more than {MAX_SECONDS} s or {_MAX_MEMORY >> 20} MiB")
    try:
        answer = json.loads(process.stdout)
    except ValueError as error:
        raise _unfit(process.stderr.decode(errors="replace")[-300:]) from error
    if "text" not in answer:
        raise _unfit(str(answer.get("error")))
    return str(answer["text"])


def _unfit(why: str) -> InputError:
    return InputError(
        "chat", "does not fit the model's template", got=why, do="Give a plain prompt, or another template."
    )
