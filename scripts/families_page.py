"""Write the table of families in docs/how-to/language-models.md from FAMILIES: `python scripts/families_page.py`. A test fails when it is stale."""

from __future__ import annotations

import re
from pathlib import Path

from xpuruntime.llm.families import FAMILIES, DecoderFamily

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "language-models.md"
_TABLE = re.compile(r"(?<=a test compares\. -->\n)(TABLE|(?:\|.*\n)+)")
_NORMS = {"rms_norm": "RMS", "layer_norm": "layer"}
_PLACES = {"before": "input_norm", "after": "post_attention_norm", "after sums": "attention_sum_norm"}
_QK = {
    "head": "norms of queries and keys per head",
    "each": "norms of queries and keys per head",
    "whole": "norms of whole queries and keys",
}
_WINDOWS = {
    "none": "",
    "all": "all layers",
    "alternate": "every second layer",
    "alternate first": "every second of the first layers, if the config says so",
    "periodic": "five of six layers",
    "last": "the last layers, if the config says so",
}
_SHARED = {"": "", "shared_gate": " with a shared one", "shared_scale": " with a gated shared one"}


def table() -> str:
    """Return a line per family."""
    rows = [
        f"| `{name}` | {f.models} | {_norms(f)} | {_positions(f)} | {_WINDOWS[f.windows]} | {_others(f)} |"
        for name, f in FAMILIES.items()
    ]
    head = [
        "| `model_type` | models | norms | positions | window | other parts |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _norms(family: DecoderFamily) -> str:
    places = [word for word, part in _PLACES.items() if part in family.parts]
    scale = f", weight + {family.norm_offset:g}" if family.norm_offset else ""
    return f"{_NORMS[family.norm]}, {' and '.join(places)}{scale}"


def _positions(family: DecoderFamily) -> str:
    if "relative_bias" in family.parts:
        return "learned biases of distances"
    if family.sinusoidal:
        return "sines"
    if family.alibi:
        return "linear biases (ALiBi)"
    if not family.rotary:
        return "learned"
    share = family.defaults.get(family.key("partial_rotary_factor"), 1.0)
    alibi = ", or linear biases (ALiBi)" if any("alibi" in v.changes for v in family.variants) else ""
    return ("rotary" if share == 1 else f"rotary, {share:g} of a head by default") + alibi


def _others(family: DecoderFamily) -> str:
    optional = "" if "q_norm" in family.parts else ", if the config says so"
    words = [_QK[family.qk_norm] + optional] if family.qk_norm else []
    words += ["latent attention with a compressed cache"] if family.latent else []
    encoder = family.encoder
    words += [f"encoder of {'audio' if encoder.features else 'tokens'}"] if encoder else []
    words += ["parallel blocks"] if family.parallel else []
    words += ["one product for QKV"] if "qkv" in family.parts else []
    words += ["one product for gate and up"] if "gate_up" in family.parts else []
    optional_gate = any("gate" in v.parts for v in family.variants)
    words += [] if family.gated else ["a gate, if the config says so" if optional_gate else "no gate"]
    words += ["experts" + _SHARED[_shared(family)]] if family.experts else []
    words += ["norm of embeddings"] if "embed_norm" in family.ends else []
    words += ["scaled embeddings"] if family.embed_scale else []
    words += ["soft caps"] if "attn_logit_softcapping" in family.reads else []
    return ", ".join(words)


def _shared(family: DecoderFamily) -> str:
    names = family.experts.layouts[-1] if family.experts else {}
    return next((part for part in ("shared_scale", "shared_gate") if part in names), "")


def page(text: str) -> str:
    """Return the page with the current table."""
    return _TABLE.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(FAMILIES)} families")
