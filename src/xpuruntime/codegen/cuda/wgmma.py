"""The CUDA part ``wgmma``: Hopper's warpgroup matrix products (PTX ISA, "wgmma.mma_async") for each dtype and tile width.

The instruction names every accumulator register, 32 to 128 of them, so its text is generated.
"""

from __future__ import annotations

__all__ = ["wgmma_part"]

_DTYPES = (("tensor::Bf16", "bf16"), ("tensor::F16", "f16"))
_REGISTERS = (128, 112, 96, 80, 64, 48, 32)
"""Accumulators of a thread: tiles of 64 rows and twice as many columns."""
_LEFT_IN_REGISTERS = (64, 32)
"""Those of products whose left operand may be in registers."""
_PER_LINE = 8
"""Registers per line of the generated text."""

_HEAD = """// needs: hopper
// wgmma: d[64 x 2N] = or += a b of one warpgroup, left to run until hopper::wgmma_wait. Accumulator j * 4 + e of a thread is row
// (warp % 4) * 16 + e / 2 * 8 + lane / 4 and column j * 8 + lane % 4 * 2 + e % 2 of the tile.
namespace hopper {

template <class T, int N>
struct Wgmma;
"""

_STRUCT = """
template <>
struct Wgmma<{tag}, {n}> {{
    // Both operands in shared memory with k contiguous; `accumulate` adds to d.
    static __device__ __forceinline__ void ss(float (&d)[{n}], u64 a, u64 b, bool accumulate) {{
        asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{flag}, 0;\\n{name} {{"
{registers}
                     "}}, %{n}, %{b}, p, 1, 1, 0, 0;\\n}}"
                     : {accumulators}
                     : "l"(a), "l"(b), "r"((int)accumulate));
    }}
"""

_REGISTERS_LEFT = """    // a in registers, b in shared memory with n contiguous; always adds to d.
    static __device__ __forceinline__ void rs(float (&d)[{n}], const u32 (&a)[4], u64 b) {{
        asm volatile("{name} {{"
{registers}
                     "}}, {{%{n}, %{b}, %{flag}, %{a3}}}, %{desc}, 1, 1, 1, 1;"
                     : {accumulators}
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }}
"""


def wgmma_part() -> str:
    """Return the text of the part: one struct per dtype and number of accumulators."""
    structs = [_struct(tag, dtype, n) for tag, dtype in _DTYPES for n in _REGISTERS]
    return "".join([_HEAD, *structs, "\n}  // namespace hopper\n"])


def _struct(tag: str, dtype: str, n: int) -> str:
    starts = range(0, n, _PER_LINE)
    names = [", ".join(f"%{i}" for i in range(s, s + _PER_LINE)) for s in starts]
    outputs = [", ".join(f'"+f"(d[{i}])' for i in range(s, s + _PER_LINE)) for s in starts]
    quoted = [f'                     "{line}, "' for line in names[:-1]]
    text = _STRUCT + (_REGISTERS_LEFT if n in _LEFT_IN_REGISTERS else "") + "}};\n"
    return text.format(
        tag=tag,
        n=n,
        b=n + 1,
        flag=n + 2,
        a3=n + 3,
        desc=n + 4,
        name=f"wgmma.mma_async.sync.aligned.m64n{2 * n}k16.f32.{dtype}.{dtype}",
        registers="\n".join([*quoted, f'                     "{names[-1]}"']),
        accumulators=",\n                       ".join(outputs),
    )
