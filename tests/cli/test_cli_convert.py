"""``xpu convert``."""

from __future__ import annotations

from pathlib import Path


def test_convert(xpu, tmp_path: Path, model: Path) -> None:
    args, policy, back = tmp_path / "args.txt", tmp_path / "p.yaml", tmp_path / "back.txt"
    args.write_text("--ir-op-priority.rms_norm=native\n")
    document = xpu("convert", f"vllm-ir:{args}", "-o", policy, "--json").json
    assert [i["outcome"] for i in document["items"]] == ["changed"]
    assert policy.read_text() == "version: 1\nkernel:\n  norm: generated\n"
    assert xpu("lint", policy).code == 0
    assert xpu("convert", policy, "-o", f"vllm-ir:{back}").code == 0
    assert args.read_text() in back.read_text()
    args.write_text("exps=CPU")
    shown = xpu("convert", f"llama-ot:{args}")
    assert shown.code == 1
    assert "0 carried, 0 changed, 1 not carried" in shown.stdout
    args.write_text("cpu(a")
    error = xpu("convert", f"onnxruntime-layers:{args}", "--model", model, "--json")
    assert (error.code, error.json["who"]) == (5, f"{args}:1:1")


def test_wrong_arguments(xpu, tmp_path: Path, model: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("version: 1\n")
    assert xpu("convert", policy).code == 2
    assert xpu("convert", "vllm-ir:a", "-o", "llama-ot:b").code == 2
    assert xpu("convert", policy, "-o", "llama-ot:b", "--model", model).code == 2
    assert xpu("convert", f"hf-kernels:{tmp_path}", "-o", policy).code == 2
    assert xpu("convert", "vllm-ir:a", "--annotated", "b.onnx").code == 2
    assert xpu("convert", "vllm_ir:a").code == 5
    assert xpu("convert", f"vllm-ir:{tmp_path / 'absent'}").code == 5
