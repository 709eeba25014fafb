// needs: hopper
// wgmma.h: the part `wgmma` in plain C++: a warp computes its 16 rows of a product at once, and hopper.h lets a thread see them after the wait.
// Tiles are found as the PTX ISA's matrix descriptors say (128-byte swizzle).
namespace hopper {

// Read 16 bytes of a tile, `at` bytes from its start as if nothing were swizzled.
template <class T> EMULATOR_HERE void read_row(float *to, u64 tile, u32 at, Running &r) {
    using namespace host;
    const u32 plain = (u32)(tile & 0x3fff) * 16 + at, from = plain ^ (plain >> 7 & 7) << 4;
    const Cell *const cells = dynamic_cells(from, 16);
    u16 values[8];
    memcpy(values, read_shared(from, 16), 16);
    for (int e = 0; e < 16; ++e) {
        const Cell &c = cells[e];
        if (c.written < machine.start_tick || c.writer >= MAX_THREADS) continue;
        const Thread &w = machine.threads[c.writer];
        if (w.old_fence_tick > c.written || (w.fence_tick > c.written && w.fence_tick < machine.block->tick)) continue;
        char name[64];
        FAULT("wgmma reads %s, which thread %u wrote without fence_proxy_async and a barrier after it", describe(&c, name, sizeof name), c.writer % machine.count);
    }
    if (r.rows == MAX_ROWS) FAULT("wgmma reads more than %u rows", MAX_ROWS);
    r.row[r.rows++] = (u16)(from / 16);
    for (int e = 0; e < 8; ++e) to[e] = T::wide(values[e]);
}
// Read the tiles of a product for all lanes of a warp. b has the columns of `a b`: 2n of them.
template <class T> EMULATOR_HERE void load_tiles(Products &p, u64 a, u64 b, u32 n, bool from_registers) {
    if (p.count == MAX_RUNNING) FAULT("more than %u products of a warp run", MAX_RUNNING);
    Running &r = p.running[p.count++];
    r.rows = 0, r.group = host::machine.thread->product_groups;
    const u32 first = host::machine.thread->warp % 4 * 16;
    float row[8];
    for (u32 i = 0; !from_registers && i < 16; ++i)
        for (u32 k = 0; k < 16; k += 8) read_row<T>(&p.a[i][k], a, (first + i) / 8 * 1024 + i % 8 * 128 + k * 2, r);
    for (u32 j = 0; !from_registers && j < 2 * n; ++j)  // k contiguous
        for (u32 k = 0; k < 16; k += 8) {
            read_row<T>(row, b, j / 8 * 1024 + j % 8 * 128 + k * 2, r);
            for (u32 e = 0; e < 8; ++e) p.b[k + e][j] = row[e];
        }
    for (u32 k = 0; from_registers && k < 16; ++k)  // columns contiguous
        for (u32 j = 0; j < 2 * n; j += 8)
            read_row<T>(&p.b[k][j], b, j / 64 * (u32)(b >> 16 & 0x3fff) * 16 + k / 8 * 1024 + k % 8 * 128 + j % 64 * 2, r);
    r.began = ++host::machine.tick;
}

EMULATOR_HERE Sums &sums_at(float *d, u32 n) {
    using namespace host;
    Thread &t = *machine.thread;
    Sums *const sums = state.sums[machine.current];
    for (u32 i = 0; i < t.sums; ++i)
        if (sums[i].at == d) return sums[i];
    if (!t.has_fence) FAULT("wgmma without a wgmma_fence since its accumulators were used");
    if (t.sums == MAX_SUMS) FAULT("more than %u accumulators under way", MAX_SUMS);
    Sums &s = sums[t.sums++];
    s.at = d, s.n = n;
    memcpy(s.value, d, n * sizeof(float));
    memset(d, 0xff, n * sizeof(float));
    return s;
}

template <class T> EMULATOR_HERE void issue(float *d, u32 n, u64 a, u64 b, const u32 *registers, bool accumulate) {
    using namespace host;
    Slot mine = {};
    if (registers) memcpy(&mine, registers, 16);
    const Slots &slots = meet_warp(WGMMA, ~0u, mine);
    if (!state.of_warp) {
        state.of_warp = (Products *)reserve(MAX_THREADS / 32 * sizeof(Products));
        state.sums = (Sums(*)[MAX_SUMS])reserve(MAX_THREADS * sizeof *state.sums);
        state.operands = (Operand(*)[MAX_OPERANDS])reserve(MAX_THREADS * sizeof *state.operands);
    }
    Thread &t = *machine.thread;
    Products &p = state.of_warp[t.warp];
    Sums &sums = sums_at(d, n);
    if (!machine.warp->loaded) {
        machine.warp->loaded = true;
        load_tiles<T>(p, a, b, n, registers != nullptr);
    }
    float rows[2][16];
    for (u32 half = 0; half < 2; ++half)
        for (u32 k = 0; k < 16; ++k) {
            const u32 pair = slots.of[t.lane / 4 * 4 + k % 8 / 2].word[half + k / 8 * 2];
            rows[half][k] = !registers ? p.a[half * 8 + t.lane / 4][k] : k % 2 ? T::high(pair) : T::low(pair);
        }
    for (u32 i = 0; i < n; ++i) {
        const u32 half = i % 4 / 2, column = i / 4 * 8 + t.lane % 4 * 2 + i % 2;
        float sum = accumulate ? sums.value[i] : 0;
        for (u32 k = 0; k < 16; ++k) sum += rows[half][k] * p.b[k][column];
        sums.value[i] = sum;
    }
    sums.group = t.product_groups;
    if (!registers) return;
    if (t.operands == MAX_OPERANDS) FAULT("more than %u products of a thread run", MAX_OPERANDS);
    Operand &o = state.operands[machine.current][t.operands++];
    o.at = registers, o.group = t.product_groups;
    memcpy(o.value, registers, 16);
}

template <class T, int N> struct Wgmma {
    static __forceinline__ void ss(float (&d)[N], u64 a, u64 b, bool accumulate) { issue<T>(d, N, a, b, nullptr, accumulate); }
    static __forceinline__ void rs(float (&d)[N], const u32 (&a)[4], u64 b) { issue<T>(d, N, 0, b, a, true); }
};

}  // namespace hopper
