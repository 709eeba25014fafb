"""Fuzz targets of the files next to a model (GGUF, ``config.json``, safetensors, arrays) and of files about runs (plans, receipts, rules).

Mutations depend on their seed alone.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from xpuruntime.types import TensorSpec

from .program_mutants import change_json

__all__ = ["FILE_MUTATORS", "FILE_TARGETS", "file_seeds"]

_CONFIG: Mapping[str, Any] = {
    "model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0, "eos_token_id": [1, 2],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 32},
    "head_dim": 4, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
_SPECS = (TensorSpec.parse("float32[2, 3]", "x"), TensorSpec.parse("int64[n]", "n"))


# ── targets ──


def _read_as_file(name: str, data: bytes, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        read(path)


def _gguf(data: bytes) -> None:
    """Check the header. If the package gguf is installed, also read each array."""
    from xpuruntime.llm.checkpoint.gguf_check import check_gguf

    def read(path: Path) -> None:
        check_gguf(path, "model")
        if find_spec("gguf") is not None:
            from xpuruntime.llm import open_checkpoint

            checkpoint = open_checkpoint(path)
            for name in checkpoint.arrays:
                if checkpoint.arrays[name].shape != checkpoint.specs[name].shape:
                    raise AssertionError(f"{name} has a different shape than its spec")

    _read_as_file("m.gguf", data, read)


def _config(data: bytes) -> None:
    from xpuruntime.llm.checkpoint.reader import read_config

    _read_as_file("config.json", data, lambda path: read_config(path).shapes())


def _safetensors(data: bytes) -> None:
    from xpuruntime.storage.checkpoints import read_checkpoint

    _read_as_file("m.safetensors", data, lambda path: [a.sum() for a in read_checkpoint(path).values()])


def _npz(data: bytes) -> None:
    """Read an input file of ``xpu run --input``."""
    from xpuruntime.workbench.inputs import Inputs

    _read_as_file("x.npz", data, lambda path: Inputs((str(path),), seed=0).samples(_SPECS))


def _review(data: bytes) -> None:
    """Read a plan or receipt, compare it with itself, and apply a rule of every kind."""
    from xpuruntime.workbench.review.check import check
    from xpuruntime.workbench.review.check_reports import check_markdown, junit_xml
    from xpuruntime.workbench.review.diff import diff
    from xpuruntime.workbench.review.diff_text import diff_markdown, diff_text
    from xpuruntime.workbench.review.files import read_snapshot
    from xpuruntime.workbench.review.rules import parse_rules

    def read(path: Path) -> None:
        plain = _json(data)
        if isinstance(plain, dict) and plain.get("format") == "xpuruntime-lock":
            path.write_text(json.dumps(_signed(plain)))  # otherwise the digest would reject every mutation
        snapshot = read_snapshot(path)
        changes = diff(snapshot, snapshot)
        if not changes.empty:
            raise AssertionError("a file differs from itself")
        json.dumps(changes.to_json())
        diff_text(changes), diff_markdown(changes)
        report = check(snapshot, parse_rules(_RULES), snapshot)
        junit_xml(report), check_markdown(report), json.dumps(report.to_json())

    _read_as_file("f.json", data, read)


def _signed(lock: dict[str, Any]) -> dict[str, Any]:
    """Return a lock's data with the digest of its content."""
    from xpuruntime.program.lock import FORMAT, _digest

    plain = {k: v for k, v in lock.items() if k not in ("format", "format_version", "digest")}
    return {**lock, "format": FORMAT, "digest": _digest(plain)}


def _rules(data: bytes) -> None:
    from xpuruntime.workbench.review.rules import load_rules, parse_rules

    def read(path: Path) -> None:
        loaded = load_rules(path)
        if parse_rules(loaded.to_dict()).rules != loaded.rules:
            raise AssertionError("the written rules read as different rules")

    _read_as_file("r.yaml", data, read)


def _times(data: bytes) -> None:
    """Read a file of kernel times, or a journal of a tuning."""
    from xpuruntime.compiler.times import KernelTimes
    from xpuruntime.workbench.tune.journal import read_records

    def read(path: Path) -> None:
        times = KernelTimes.load(path)
        if KernelTimes.load(times.to_json()) != times:
            raise AssertionError("the written times read as different times")
        str(times.origin), str(times.calibration), str(times.digest)

    if b"journal" in data[:200]:
        read_records(data)
    else:
        _read_as_file("t.json", data, read)


def _foreign(data: bytes) -> None:
    """Read a policy of another tool, whose name is the first line, and write it again."""
    from xpuruntime.workbench.interchange import FORMATS, read_foreign, write_foreign

    head, _, body = data.partition(b"\n")
    name = head.decode("utf-8", "replace")
    if name not in FORMATS or FORMATS[name].read is None:
        name = "tunableop"

    def read(path: Path) -> None:
        result = read_foreign(name, path)
        json.dumps(result.to_json())
        write_foreign(name, result.policy)

    _read_as_file("f.txt", body, read)


_RULES: Mapping[str, Any] = {
    "version": 1,
    "rules": [
        {"rule": "stays_on"}, {"rule": "stays_on", "device": "cpu"}, {"rule": "engines", "allow": "native"}, {"rule": "no_new_host_copy"},
        {"rule": "no_precision_loss"}, {"rule": "time_within", "percent": 5}, {"rule": "coverage", "percent": 90},
        {"rule": "kernels", "op": "matmul", "forbid": "naive"}, {"rule": "confirmed"}, {"rule": "memory", "bytes": "1 MiB"},
    ],
}  # fmt: skip

FILE_TARGETS: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
    {
        "gguf": _gguf,
        "config": _config,
        "safetensors": _safetensors,
        "npz": _npz,
        "review": _review,
        "rules": _rules,
        "times": _times,
        "foreign": _foreign,
    }
)


# ── seeds ──


def file_seeds(target: str) -> list[bytes]:
    """Return small valid inputs of one of these targets."""
    if target == "gguf":
        return [_gguf_of("llama"), _gguf_of("qwen2")]
    if target == "config":
        plain = {k: v for k, v in _CONFIG.items() if k not in ("rope_scaling", "head_dim")}
        return [json.dumps(c).encode() for c in (_CONFIG, {**plain, "model_type": "qwen2"})]
    if target == "safetensors":
        facts = {"w": ("F32", [2, 2], [0, 16]), "b": ("BF16", [0], [16, 16]), "i": ("I8", [3], [16, 19])}
        header = {k: dict(zip(("dtype", "shape", "data_offsets"), f, strict=True)) for k, f in facts.items()}
        return [_safetensors_of(h, bytes(19)) for h in (header, {"__metadata__": {"a": "b"}, **header})]
    if target == "review":
        return _plans_and_receipts()
    if target == "rules":
        from xpuruntime.policies.files.document import to_yaml_text

        return [json.dumps(_RULES).encode(), to_yaml_text(_RULES).encode()]
    if target == "times":
        row = {"op": "linear", "nodes": ["fc"], "times_us": {"gemv": 1.5, "generated": 2}, "rounds": 7,
               "intervals_us": {"gemv": [1.25, 1.75]}}  # fmt: skip
        run = {"shapes": {"n": 2}, "predicted_us": 1.5, "tuned_us": 2.5, "default_us": 3.0, "rounds": 7}
        file = {"format": "xpuruntime kernel times", "version": 1, "target": "cpu:x86-64-v3", "threads": 2,
                "calls": {"0" * 16: row}, "facts": {"device": "d"}, "runs": [run]}  # fmt: skip
        head = {"format": "xpuruntime tuning journal", "version": 1, "subject": {"model": "m"}}
        done = {
            "bucket": 0,
            "stage": "calls",
            "round": 0,
            "seconds": 0.5,
            "times_us": {"0" * 16: {"gemv": 1.5}},
        }
        lines = b"".join(json.dumps(r).encode() + b"\n" for r in (head, done))
        return [json.dumps(file).encode(), lines, json.dumps(head).encode() + b"\n"]
    if target == "foreign":
        return [
            b"onnxruntime-layers\nsession.layer_assignment_settings=cpu(a, =b); cuda(c)",
            b"llama-ot\n-ot .*=CPU,exps=CUDA0",
            b"vllm-ir\n--ir-op-priority.rms_norm=native,vllm_c\n",
            b'vllm-ir\n{"rms_norm": ["native"], "fused_add_rms_norm": "native"}',
            b"tunableop\nValidator,PT_VERSION,2.13.0\nGemmTunableOp_float_TN,tn_8_2_4_ld_4_4_8,Default,0.5\n",
        ]
    arrays: dict[str, Any] = {"x": np.ones((2, 3), np.float32), "n": np.arange(4)}
    seeds = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, **arrays)
        seeds.append(file.getvalue())
    return seeds


def _plans_and_receipts() -> list[bytes]:
    """Return a plan of two regions with a transfer and a decision, a receipt of it, and a lock."""
    from xpuruntime.decisions import Candidate, Decision, Reason, Support
    from xpuruntime.evidence import Evidence, EvidenceRow
    from xpuruntime.profiler.receipt import Receipt
    from xpuruntime.program.lock import Lock, LockedCall, LockedProgram
    from xpuruntime.program.plan import Plan, PlanNode, Region, Transfer
    from xpuruntime.workbench.review.receipt_file import receipt_document

    no = Candidate.rejected("openvino on cpu", Support.no(Reason.NOT_INSTALLED, "absent"))
    decision = Decision("engine", "m", Candidate("native on cpu", Reason.DEFAULT, "the first"), (no,))
    plan = Plan(
        {"name": "m", "digest": "0" * 64, "format": "onnx"}, {"engine": "native"}, _SPECS, _SPECS,
        (Region("r0", "native", "1", "cpu", "float32", 2), Region("r1", "openvino", "2", "gpu", "float16")),
        (PlanNode("a", "Conv", "conv", "r0", kernel="conv/generated"), PlanNode("b", "Relu", "activation", "r1")),
        (Transfer("v", "r0", "r1", 64), Transfer("w", "r1", "caller", None)), (decision,), ("a warning",),
    )  # fmt: skip
    rows = (EvidenceRow(("a",), "conv", "cpu", "conv/generated: f", "float32", 1.5, spread_us=0.5),)
    evidence = {
        "r0": Evidence("native", "1", rows, "session", "timed", timed_runs=5),
        "r1": Evidence("openvino", "2", (), "session"),
    }
    outputs = {"y": np.arange(3.0), "s": np.array(["text"])}
    receipt = receipt_document(Receipt.write(plan, evidence, 3), {"x": np.ones(2)}, outputs)
    call = LockedCall(("a",), ("conv",), "conv/generated", "conv_0", config={"tasks": "3"})
    program = LockedProgram(
        {"n": 2}, "cpu:x86-64-v3", "0" * 64, ("cc",), (call,), 64, 32, {"key a": "generated"}
    )
    nodes = ({"name": "a", "op": "Conv", "kernel": "conv/generated"}, {"name": "b"})
    facts = {"name": "m", "digest": "0" * 64, "format": "onnx"}
    policy = {"version": 1, "execution": {"engine": "native", "target": "cpu"}}
    lock = Lock(facts, "0" * 64, policy, {"version": 1}, 2, {"native": "1"}, (program,), nodes)
    return [json.dumps(d).encode() for d in (plan.to_json(), receipt, lock.to_json())]


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf_of(family: str) -> bytes:
    """Return a GGUF file with a decoder of one layer and a tokenizer."""
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 16, "attention.head_count": 2,
             "attention.head_count_kv": 1, "attention.key_length": 4}  # fmt: skip
    texts = {"general.architecture": family, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    layer = {"attn_norm": (8,), "attn_q": (8, 8), "attn_k": (8, 4), "attn_v": (8, 4), "attn_output": (8, 8), "ffn_norm": (8,),
             "ffn_gate": (8, 16), "ffn_up": (8, 16), "ffn_down": (16, 8)}  # fmt: skip
    tensors = {"token_embd.weight": (8, 8), "output_norm.weight": (8,)}
    tensors |= {f"blk.0.{name}.weight": shape for name, shape in layer.items()}
    if family == "qwen2":
        tensors |= {f"blk.0.{n}.bias": (d,) for n, d in {"attn_q": 8, "attn_k": 4, "attn_v": 4}.items()}
    pairs = [_string(f"{family}.{k}") + struct.pack("<II", 4, v) for k, v in sizes.items()]
    pairs += [_string(k) + struct.pack("<I", 8) + _string(v) for k, v in texts.items()]
    tokens = b"".join(_string(t) for t in "abcdefgh")
    pairs.append(_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 8) + tokens)
    pairs.append(_string("tokenizer.ggml.token_type") + struct.pack("<IIQ8i", 9, 5, 8, *[1] * 7, 3))
    pairs.append(_string("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 0))
    pairs.append(_string("tokenizer.ggml.eos_token_id") + struct.pack("<II", 4, 7))
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, shape in tensors.items():
        data += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += -(-4 * int(np.prod(shape)) // 32) * 32
    return data + bytes(-len(data) % 32) + bytes(offset)


def _safetensors_of(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ── mutations ──


_NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    16,
    31,
    32,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
)


def _mutate_gguf(data: bytes, seed: int) -> bytes:
    """Overwrite a few numbers at random offsets, and sometimes truncate the file."""
    draw, mutated = random.Random(seed), bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at, size = draw.randrange(max(len(mutated) - 8, 1)), draw.choice((1, 4, 8))
        mutated[at : at + size] = (draw.choice(_NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if draw.random() < 0.1:
        del mutated[draw.randrange(len(mutated)) :]
    return bytes(mutated)


def _mutate_config(data: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    config = _json(data)
    for _ in range(draw.randint(1, 3)):
        change_json(config, draw)
    return data if config is None else json.dumps(config).encode()


def _mutate_safetensors(data: bytes, seed: int) -> bytes:
    draw, length = random.Random(seed), int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + length])
    for _ in range(draw.randint(1, 3)):
        change_json(header, draw)
    return data if header is None else _safetensors_of(header, data[8 + length :])


def _json(data: bytes) -> Any:
    try:
        return copy.deepcopy(json.loads(data))
    except (ValueError, RecursionError):
        return None


_TEXTS = (b"'<f4'", b"'|O'", b"'>i8'", b"'<U9'", b"'<f'", b"'|V0'", b"[('a', '<f4')]", b"(2, 3)", b"(-2, 3)", b"(4,)", b"(99999999999, 3)",
          b"()", b"(2.5,)", b"True", b"None", b"[" * 20, b"{'a': 1}", b"x" * 5)  # fmt: skip


def _mutate_npz(data: bytes, seed: int) -> bytes:
    """Change the header of an array in the archive, or bytes of the archive itself."""
    draw = random.Random(seed)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {m.filename: archive.read(m) for m in archive.infolist()}
    except Exception:  # the archive is damaged
        members = {}
    mutated = bytearray(data)
    if members and draw.random() < 0.7:
        name = draw.choice(sorted(members))
        array = bytearray(members[name])
        at = draw.randrange(min(len(array), 80) + 1)
        text = draw.choice(_TEXTS) if draw.random() < 0.7 else draw.randbytes(4)
        array[at : at + (len(text) if draw.random() < 0.5 else draw.randrange(9))] = text
        members[name] = bytes(array)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for key, content in members.items():
                archive.writestr(draw.choice((key, key, key, f"y{key}", f"{key}x")), content)
        return file.getvalue()
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(mutated))
        mutated[at : at + draw.choice((1, 2, 4))] = draw.choice(_NUMBERS).to_bytes(8, "little")[
            : draw.choice((1, 2, 4))
        ]
    return bytes(mutated)


FILE_MUTATORS: Mapping[str, Callable[[bytes, int], bytes]] = MappingProxyType(
    {
        "gguf": _mutate_gguf,
        "config": _mutate_config,
        "safetensors": _mutate_safetensors,
        "npz": _mutate_npz,
        "review": _mutate_config,
        "rules": _mutate_config,
        "times": _mutate_config,
    }
)
