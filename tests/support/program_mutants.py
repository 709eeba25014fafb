"""Mutated program files. Fields are changed, then digests and offsets are recomputed, so that readers get as far as validation."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from typing import Any

__all__ = ["change_json", "mutate_program", "opened", "sealed"]

_BEGIN = 64


def opened(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the manifest's program and the segments of a valid file."""
    manifest = json.loads(data[_BEGIN : _BEGIN + int.from_bytes(data[16:24], "little")])
    blobs = [data[s["offset"] : s["offset"] + s["bytes"]] for s in manifest["segments"]]
    return manifest["program"], blobs


def sealed(program: Any, blobs: list[bytes], *, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return a file with any JSON as its program. Offsets and digests are correct."""
    facts = [{"offset": 0, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for b in blobs]
    text, body = b"", bytearray()
    for _ in range(9):  # offsets depend on the length of the text, which contains them
        body = bytearray()
        for fact, blob in zip(facts, blobs, strict=True):
            body += bytes(-(_BEGIN + len(text) + len(body)) % 64)
            fact["offset"] = _BEGIN + len(text) + len(body)
            body += blob
        new_text = json.dumps(
            {"format": "xpuruntime.program", "segments": facts, "program": program}
        ).encode()
        if len(new_text) == len(text):
            text = new_text
            break
        text = new_text
    head = struct.pack("<8sHHIQQ", b"XPUPROG\n", *version, 0, len(text), _BEGIN + len(text) + len(body))
    return head + hashlib.sha256(head + text).digest() + text + bytes(body)


def mutate_program(data: bytes, seed: int) -> bytes:
    """Return a program with a few fields of the manifest changed, removed, duplicated or moved. An invalid file stays unchanged."""
    draw = random.Random(seed)
    try:
        program, blobs = opened(data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return data
    program = copy.deepcopy(program)
    for _ in range(draw.randint(1, 3)):
        change_json(program, draw)
    if blobs and draw.random() < 0.1:
        blobs[draw.randrange(len(blobs))] = draw.randbytes(draw.randrange(80))
    try:
        return sealed(program, blobs, version=(1, int(draw.random() < 0.1)))
    except (ValueError, RecursionError):
        return data


def change_json(node: Any, draw: random.Random) -> None:
    """Change, remove, duplicate or move a random value of a JSON document."""
    for _ in range(12):
        keys = (
            list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        )
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.85:
            node = node[key]
            continue
        match draw.randrange(8):
            case 0:
                del node[key]
            case 1 if isinstance(node, list):
                node.append(copy.deepcopy(node[key]))
            case 2:
                node[key] = copy.deepcopy(node[draw.choice(keys)])
            case 3 if isinstance(node, list):
                draw.shuffle(node)
            case _:
                node[key] = _other(node[key], draw)
        return


_NUMBERS = (0, 1, -1, 2, 3, 4, 16, 63, 64, 128, 2**31, 2**48, 2**48 + 1, 2**63, -(2**63), 2**80)
_WORDS = ("", "x", "%in", "%0", "%1", "%%", "in0.in", "out0.out", "t0", "t1", "r0", "s0", "w0", "../w", "raw", "f", "input", "output",
          "weight", "state", "scratch", "float32", "int4", "i64", "f64", "cast", "reshape", "permute", "pad", "slice", "concat", "stack", "add",
          "div", "sum", "expand", "flip", "quantize_int8", "scale_int8", "constant", "\ud800", "elf-x86-64")  # fmt: skip


def _other(value: Any, draw: random.Random) -> Any:
    if draw.random() < 0.1:
        return draw.choice((None, True, 1.5, 1e300, [], {}, [0], {"float": "nan"}, "x", 7))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return (
            draw.choice(_NUMBERS)
            if draw.random() < 0.5
            else value + draw.randint(-2, 2) * draw.choice((1, 64))
        )
    if isinstance(value, float):
        return draw.choice((0.0, -1.0, 1e308, 5e-324))
    if isinstance(value, str):
        return draw.choice(_WORDS)
    if isinstance(value, list):
        return [draw.choice((0, 1, 2, 3)) for _ in range(draw.randint(0, 4))]
    if isinstance(value, dict):
        steps = {
            "shape": [2],
            "dtype": "float32",
            "order": [0],
            "dim": 0,
            "begin": [0],
            "end": [0],
            "keepdim": True,
            "value": 3,
        }
        return {k: steps[k] for k in draw.sample(sorted(steps), 2)}
    return draw.choice(_NUMBERS)
