"""TunableOp results of PyTorch: a CSV file with validators and, by product, the fastest solution that PyTorch measured.

A product is keyed by type and transposition (``GemmTunableOp_float_TN``) and by sizes and leading dimensions in the column-major order of
BLAS (``tn_4096_1_4096_ld_4096_4096_4096``): there, M and N are swapped. Of two lines with one key, PyTorch keeps the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...policies.kernel_policy import MAX_RULES, KernelPolicy
from ...policies.policy import Policy
from ...policies.rule import Rule
from .leftovers import leftovers
from .report import Conversion, ConvertedItem, ItemOutcome
from .source_text import MAX_ITEMS, SourceText

__all__ = ["read_results", "write_results"]

NAME = "tunableop"
_DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
}
_OP = re.compile(r"(Gemm|GemmStridedBatched|GemmAndBias)TunableOp_(\w{1,40})_([NT]{2})")
_KEY = re.compile(
    r"[nt]{2}_(\d{1,12})_(\d{1,12})_(\d{1,12})(?:_B_(\d{1,12}))?((?:_ld)?_\d{1,12}_\d{1,12}_\d{1,12})?"
)
_ROCM = ("ROCM_VERSION", "HIPBLASLT_VERSION", "ROCBLAS_VERSION", "GCN_ARCH_NAME")
_MARK = "TunableOp "


def read_results(source: SourceText) -> Conversion:
    """Convert solutions to rules of ``matmul``. Raises PolicyError with line and column."""
    rows = _rows(source)
    rocm = any(fields[0] == "Validator" and fields[1] in _ROCM for _, fields in rows)
    items: list[ConvertedItem] = []
    rules: list[Rule] = []
    seen: set[tuple[str, str]] = set()
    for offset, fields in rows:
        line, column = source.at(offset)
        outcome, becomes, reason, remedy = ItemOutcome.NOT_CARRIED, "", "", ""
        if fields[0] == "Validator":
            reason = "a policy holds on every machine, so it has no validators"
            remedy = "xpu lock writes validators of this machine, among them the versions of its libraries."
        elif (fields[0], fields[1]) in seen:
            reason = "PyTorch keeps the first line of a key, and this is a later one"
        else:
            seen.add((fields[0], fields[1]))
            rule, reason, remedy = _rule(fields, rocm)
            if rule is not None and len(rules) >= MAX_RULES:
                rule, reason, remedy = None, f"a policy has at most {MAX_RULES} rules", "Split the file."
            if rule is not None:
                rules.append(rule)
                outcome, becomes = (
                    ItemOutcome.CHANGED,
                    f"rule: {rule.label()}, prefer {'|'.join(rule.prefer)}",
                )
        items.append(ConvertedItem(",".join(fields), outcome, becomes, reason, remedy, line, column))
    return Conversion(NAME, source.name, tuple(items), Policy(kernel=KernelPolicy(rules=rules)))


def write_results(policy: Policy, name: str) -> Conversion:
    """Convert the rules that ``read_results`` wrote back to lines. The validator is the installed PyTorch's."""
    items: list[ConvertedItem] = []
    lines: list[str] = []
    for i, rule in enumerate(policy.kernel.rules):
        text = f"kernel.rules[{i}]: {rule.label()}"
        key = (rule.reason or "").removeprefix(_MARK).split(",")
        again = _rule([*key, "Default"], False)[0] if len(key) == 2 else None
        if again is not None and again == rule:
            lines.append(f"{key[0]},{key[1]},Default")
            items.append(ConvertedItem(text, ItemOutcome.CARRIED, lines[-1]))
        else:
            reason = (
                "TunableOp keys a product by transposition and leading dimensions, which a rule does not have"
            )
            items.append(
                ConvertedItem(
                    text, ItemOutcome.NOT_CARRIED, reason=reason, remedy="Tune with PyTorch on the device."
                )
            )
    version = _torch_version()
    if lines and version:
        lines.insert(0, f"Validator,PT_VERSION,{version}")
    items += leftovers(policy, "TunableOp chooses solutions of products, nothing else", kernel=("rules",))
    return Conversion(NAME, name, tuple(items), policy, "".join(f"{text}\n" for text in lines))


def _rows(source: SourceText) -> list[tuple[int, list[str]]]:
    rows: list[tuple[int, list[str]]] = []
    start = 0
    for row in source.text.split("\n"):
        text = row.rstrip("\r")
        if text.strip():
            fields = text.split(",")
            if len(fields) < 3 or not all(fields[:3]):
                do = "Write OPERATOR,PARAMETERS,SOLUTION,TIME or Validator,NAME,VALUE."
                raise source.error(start + len(text), "has fewer than three fields", got=text, do=do)
            if fields[0] != "Validator":
                _check_time(source, start, fields)
            rows.append((start, fields))
            if len(rows) > MAX_ITEMS:
                raise source.error(start, f"holds more than {MAX_ITEMS} lines")
        start += len(row) + 1
    return rows


def _check_time(source: SourceText, start: int, fields: list[str]) -> None:
    if len(fields) > 3 and not re.fullmatch(
        r"[0-9]{1,20}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fields[3].strip()
    ):
        at = start + sum(len(f) + 1 for f in fields[:3])
        raise source.error(at, "must be a time in milliseconds", got=fields[3])


def _rule(fields: list[str], rocm: bool) -> tuple[Rule | None, str, str]:
    """Return the rule of a line, or None; and the reason and the remedy."""
    op, key = _OP.fullmatch(fields[0]), _KEY.fullmatch(fields[1])
    if op is None:
        return None, f"no op is known for {fields[0]!r}", "Supported: Gemm, GemmStridedBatched, GemmAndBias."
    if key is None:
        return None, f"{fields[1]!r} has no sizes M, N and K", ""
    dtype = _DTYPES.get(op[2])
    if dtype is None:
        return None, f"a rule has no word for products in {op[2]}", f"Supported: {', '.join(_DTYPES)}."
    if fields[2] != "Default":
        return (
            None,
            f"{fields[2]} is no kernel of xpuruntime",
            "Measure the kernels of this device with xpu tune.",
        )
    if rocm:
        return None, "Default is rocBLAS or hipBLASLt in this file, and there are no AMD kernels", ""
    columns, rows, length = int(key[1]), int(key[2]), int(key[3])
    shape = f"M == {rows} and N == {columns} and K == {length} and batch == {int(key[4] or 1)}"
    rule = Rule(
        op="matmul", dtype=dtype, shape=shape, prefer="cublas", reason=f"{_MARK}{fields[0]},{fields[1]}"
    )
    reason = (
        "Default is cuBLAS with the algorithm that PyTorch takes; cublas takes its own, for any transposition"
    )
    return rule, reason, "xpu tune compares cublas with the other kernels of the device."


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""
