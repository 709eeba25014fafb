"""Write the schema pages of docs/reference from docs/schema: `python scripts/schema_pages.py`. A test fails when one is stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {
    "policy": (
        "Policy schema",
        "The fields of a policy file, in YAML or JSON. [Policies](policies.md) explains what they mean.",
    ),
    "program": (
        "Program schema",
        "The fields of a program's manifest. [Program file](program-file.md) describes the bytes around it.",
    ),
}
LONGEST = 30  # names of an enumeration that a table shows
LARGE = 2**31  # a limit beyond it only keeps a reader from overflowing


def page(name: str) -> str:
    """Return the page of one schema."""
    title, summary = PAGES[name]
    schema = json.loads((DOCS / "schema" / f"{name}.schema.json").read_text(encoding="utf-8"))
    parts = [
        f"# {title}\n\n<!-- Written by scripts/schema_pages.py from docs/schema/{name}.schema.json. -->\n\n{summary}\n\n"
        f"[{name}.schema.json](../schema/{name}.schema.json) is the JSON Schema itself. {_sentence(schema['description'])}\n"
    ]
    parts += _sections(schema, name)
    for word, definition in schema.get("$defs", {}).items():
        twin = next((f for f, v in schema["properties"].items() if _within(definition, v)), None)
        if twin is None:
            parts += _sections(definition, word)
        else:
            fields = definition["properties"]
            missing = ", ".join(f"`{f}`" for f in schema["properties"][twin]["properties"] if f not in fields)
            link = f"[{name}.{twin}](#{name}{twin})"
            parts.append(f"\n## {word}\n\nThe fields of {link} without {missing}.\n")
    return "".join(parts)


def _within(definition: dict[str, Any], value: dict[str, Any]) -> bool:
    """Return True if every field of a definition is also one of the value, with the same schema."""
    fields = value.get("properties", {})
    return all(fields.get(field) == schema for field, schema in definition["properties"].items())


def _sections(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the table of an object, then those of the objects within it."""
    required = schema.get("required", ())
    rows, inner = [], []
    for field, value in schema["properties"].items():
        child = _object(value)
        if child is not None:
            inner.append((child, f"{path}.{field}"))
        kind = _kind(value, f"{path}.{field}")
        text = _sentence(value.get("description") or value.get("items", {}).get("description") or "")
        rows.append(f"| `{field}` | {kind} | {'yes' if field in required else ''} | {text} |\n")
    yield (
        f"\n## {path.replace('program.program.', '')}\n\n| field | value | required | meaning |\n|---|---|---|---|\n"
        + "".join(rows)
    )
    for child, name in inner:
        yield from _sections(child, name)


def _object(value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the object with fields that a value is, or that each item of a list is."""
    item = value.get("items", value)
    return item if isinstance(item, dict) and "properties" in item else None


def _kind(value: dict[str, Any], path: str = "") -> str:
    """Return what a value may be, as one cell of a table."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name})"
    if "const" in value:
        return _code(value["const"])
    if "enum" in value:
        shown = ", ".join(f"`{item}`" for item in value["enum"][:LONGEST])
        return shown + (" ..." if len(value["enum"]) > LONGEST else "")
    if "anyOf" in value or "oneOf" in value:
        kinds = dict.fromkeys(_kind(v) for v in value.get("anyOf") or value["oneOf"])
        lists = {f"list of {kind}": "list of these" for kind in kinds}
        return "; or ".join(lists.get(kind, kind) for kind in kinds)
    if value.get("type") == "array":
        return f"list of {_kind(value['items'], path)}" if isinstance(value.get("items"), dict) else "list"
    if "properties" in value:
        if path and "anyOf" not in value and "kernel" not in value.get("required", ()):
            name = path.replace("program.program.", "")
            return f"[{name}](#{name.replace('.', '').lower()})"
        return "mapping with " + ", ".join(f"`{field}`" for field in value["properties"])
    if isinstance(value.get("additionalProperties"), dict):
        return f"mapping of names to {_kind(value['additionalProperties'], path)}"
    kinds = value.get("type", "any value")
    text = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return f"{text} such as {_code(value['examples'][0])}" if value.get("examples") else _limited(text, value)


def _limited(text: str, value: dict[str, Any]) -> str:
    if text == "string" and value.get("pattern"):
        custom = value["pattern"].endswith("{1,7}$")
        return (
            "dotted name of a custom kernel" if custom else f"string that matches {_code(value['pattern'])}"
        )
    low = value.get("minimum", value.get("exclusiveMinimum"))
    return (
        f"{text}, {'at least' if 'minimum' in value else 'above'} {low}"
        if low not in (None, 0) and abs(low) < LARGE
        else text
    )


def _code(text: Any) -> str:
    return "`" + str(text).replace("|", "\\|") + "`"


def _sentence(text: str) -> str:
    text = text.replace("|", "\\|")
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", ")")) else ".")


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / "reference" / f"{name}-schema.md").write_text(page(name), encoding="utf-8")
    print(f"wrote {len(PAGES)} pages")
