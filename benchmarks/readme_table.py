"""Write the measured table into README.md and README.ko.md, and all tables into docs/reference/performance.md, from benchmarks/results.

    python benchmarks/readme_table.py [--check]

Tables are between markers. `--check` writes nothing and exits with 1 where a page does not show what was measured; a test runs it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from machine import QUIET

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- measured: begin -->\n).*?(<!-- measured: end -->)", re.DOTALL)

WORDS = {
    "README.md": {
        "head": "| model | time of one run on {engines} | speed of native relative to the faster of the others |",
        "tie": "no difference shown",
        "times": "{ratio}x",
        "added": "`InferenceSession.run` adds {added} to the vendor's own run on a one-node model ({on}); "
        "`import xpuruntime` takes {ours} ms where `import numpy` takes {numpy} ms.",
        "seeded": "Geometric means of native on networks with seeded weights in their papers' sizes (ResNet-18 and -50, MobileNetV2, EfficientNet-B0, DenseNet-121; ViT and BERT):",
        "networks": "{group} ({precision}, {threads} threads): {geomean:.2f} times the speed of the best of ONNX Runtime, OpenVINO, PyTorch eager "
        "and compiled, at worst {worst_ratio:.2f}",
        "machine": "{cpu}, {threads} threads, float32, median of runs in alternation; {versions}. "
        "Commands and all figures: [benchmarks](benchmarks/README.md).",
        "gpu": "One {gpu}, milliseconds, in one run with PyTorch {torch} ([CUDA](docs/how-to/cuda.md)):",
        "gpu_head": "| | native | eager | CUDA graph | torch.compile |",
        "batch": "ResNet-50, float16, batch {batch}",
        "token": "model of Qwen2.5-1.5B's size, bfloat16: one token at a context of {context:,}",
        "prefill": "prefill of {context:,}",
        "us": "{value:.1f} us ({engine})",
        "and": " and ",
        "busy": ", with other load",
    },
    "README.ko.md": {
        "head": "| 모델 | 1회 실행 시간: {engines} | 나머지 중 빠른 쪽에 대한 native의 속도 |",
        "tie": "차이를 보일 수 없음",
        "times": "{ratio}배",
        "added": "노드 하나짜리 모델에서 `InferenceSession.run`이 벤더 자체 실행에 더하는 시간은 {added}이고({on}), "
        "`import xpuruntime`은 {ours} ms, `import numpy`는 {numpy} ms 걸립니다.",
        "seeded": "논문 크기의 네트워크(ResNet-18과 -50, MobileNetV2, EfficientNet-B0, DenseNet-121; ViT와 BERT)에서 native의 기하 평균:",
        "networks": "{group} ({precision}, 스레드 {threads}개): ONNX Runtime, OpenVINO, PyTorch eager와 compile 중 가장 빠른 것의 {geomean:.2f}배, "
        "가장 나쁜 경우 {worst_ratio:.2f}배",
        "machine": "{cpu}, 스레드 {threads}개, float32, 번갈아 실행한 중앙값; {versions}. "
        "명령과 모든 수치: [benchmarks](benchmarks/README.md).",
        "gpu": "{gpu} 한 장, 밀리초, PyTorch {torch}와 한 번의 실행에서([CUDA](docs/how-to/cuda.md)):",
        "gpu_head": "| | native | eager | CUDA graph | torch.compile |",
        "batch": "ResNet-50, float16, 배치 {batch}",
        "token": "Qwen2.5-1.5B 크기, bfloat16: 문맥 {context:,}에서 토큰 하나",
        "prefill": "{context:,} 토큰 prefill",
        "us": "{value:.1f} us({engine})",
        "and": ", ",
        "busy": ", 다른 작업과 함께",
    },
}
PERFORMANCE = "docs/reference/performance.md"
WORDS[PERFORMANCE] = WORDS["README.md"] | {
    "machine": WORDS["README.md"]["machine"].replace("benchmarks/", "../../benchmarks/"),
    "gpu": WORDS["README.md"]["gpu"].replace("docs/how-to/", "../how-to/"),
}
NAMES = {"native": "native", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.3g} us"


def on_gpu(words: dict[str, str]) -> list[str]:
    """The table of a GPU: native next to PyTorch's ways."""
    models, decoders = read("cuda_models"), read("cuda_decoders")["speed"]
    rows = {words["batch"].format(batch=n.split()[1]): r["ms"] for n, r in models["images"].items()}
    rows |= {
        words[n].format(**decoders): decoders[of]
        for n, of in (("token", "decode_ms"), ("prefill", "prefill_ms"))
    }
    rows[words["token"].format(**decoders)].pop(
        "torch.compile", None
    )  # without its graphs: slower than eager's, no fair word about it
    machine = models["machine"]
    head = words["gpu"].format(gpu=machine["gpu"], torch=machine["versions"]["torch"])
    lines = [head, "", words["gpu_head"], "|---|---|---|---|---|"]
    for name, ms in rows.items():
        shown = (
            f"{ms[k]:.3g}" if k in ms else "-" for k in ("native", "eager", "cuda graph", "torch.compile")
        )
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def table(words: dict[str, str]) -> str:
    """Return the table of trained models and the machine below it, in one language."""
    models = read("models")
    engines = list(NAMES)
    lines = [words["head"].format(engines=" / ".join(NAMES.values())), "|---|---|---|"]
    for row in models["rows"]:
        ranked = {s["engine"]: s for s in row["ranked"]}
        times = " / ".join(milliseconds(ranked[e]["median"]) if e in ranked else "-" for e in engines)
        best, second = row["ranked"][:2]
        ahead = best["engine"] == "native"
        judged = second if ahead else ranked["native"]
        verdict = words["tie"]
        if judged["verdict"] == "slower":
            ratio = judged["ratio_to_best"]["value"]
            verdict = words["times"].format(ratio=f"{ratio if ahead else 1 / ratio:.2f}")
        lines.append(f"| {row['title']} | {times} | {verdict} |")
    machine = models["machine"]
    versions = ", ".join(f"{NAMES[e]} {machine['versions'][e]}" for e in engines if e in machine["versions"])
    shown = words["machine"].format(
        cpu=machine["cpu"], threads=models["rows"][0]["threads"], versions=versions
    )
    return "\n".join([*lines, "", shown]) + "\n"


def others(words: dict[str, str]) -> str:
    """Return the seeded networks, the GPU's table and what sessions and imports cost."""
    overhead, imports = read("overhead"), read("import_time")
    added = words["and"].join(
        words["us"].format(value=max(0.0, r["added_us"]), engine=NAMES[r["engine"]]) for r in overhead["rows"]
    )
    on = ", ".join(overhead["machine"][k] for k in ("cpu", "level") if k in overhead["machine"])
    on += words["busy"] if overhead["machine"]["busy"] > QUIET else ""
    median = imports["median_ms"]
    summary = read("cpu_models")["summary"]["table"]
    many = max(r["threads"] for r in summary)
    lines = ["", words["seeded"], ""]
    lines += ["- " + words["networks"].format(**r) for r in summary if r["threads"] == many]
    lines += ["", *on_gpu(words), ""]
    lines.append(
        words["added"].format(
            added=added, on=on, ours=round(median["xpuruntime"]), numpy=round(median["numpy"])
        )
    )
    return "\n".join(lines) + "\n"


def main(check: bool) -> int:
    stale = []
    for name, words in WORDS.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if not MARKED.search(text):
            raise SystemExit(f"{name} has no markers for the measured table")
        shown = table(words) + (others(words) if name == PERFORMANCE else "")
        fresh = MARKED.sub(lambda m, shown=shown: m[1] + shown + m[2], text)  # type: ignore[misc]
        if fresh != text:
            stale.append(name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("does not show what was measured: " if check else "wrote ") + ", ".join(stale))
    return 1 if stale and check else 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
