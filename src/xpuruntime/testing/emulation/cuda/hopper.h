// needs: tensor
// hopper.h: the part `hopper` in plain C++: the fences of a warpgroup's products, and what holds until they are waited for (wgmma.h runs them).
//
// Until wgmma_wait covers a product its accumulators are not numbers, its tiles may not be written, and its registers may not change. What
// threads wrote to a tile needs their fence_proxy_async and then a barrier. A product whose accumulators were used needs a wgmma_fence.
namespace hopper {

using tensor::u16;
using tensor::u32;
using tensor::u64;

static __forceinline__ u64 matrix_desc(u32 addr, u32 across) { return (u64)(addr >> 4) | (u64)(across >> 4) << 16; }
static __forceinline__ u64 advance_desc(u64 desc, int bytes) { return desc + (u64)(bytes >> 4); }
template <int N> static __forceinline__ void reg_fence(float (&)[N]) {}

// A product that runs: the rows of 16 bytes that it reads, and when it began.
constexpr u32 MAX_RUNNING = 64, MAX_ROWS = 544, MAX_SUMS = 4, MAX_OPERANDS = 64;
struct Running { u32 group, began, rows; u16 row[MAX_ROWS]; };
struct Sums { float *at; u32 group, n; float value[128]; };     // accumulators that a thread sees after the wait
struct Operand { const u32 *at; u32 group, value[4]; };         // registers that a product reads
struct Products {                                               // of a warp: what runs, and the tiles of the last product as numbers
    u32 count;
    Running running[MAX_RUNNING];
    float a[16][16], b[16][256];
};
struct State { Products *of_warp; Sums (*sums)[MAX_SUMS]; Operand (*operands)[MAX_OPERANDS]; };
__attribute__((section(".data"))) static State state = {};

EMULATOR_HERE void fence_proxy_async() {
    host::Thread &t = *host::machine.thread;
    if (t.fence_tick < host::machine.block->tick) t.old_fence_tick = t.fence_tick;  // a barrier has come since
    t.fence_tick = ++host::machine.tick;
}
EMULATOR_HERE void wgmma_fence() {
    host::meet_warp(host::WGMMA_FENCE, ~0u, host::Slot{});
    host::machine.thread->has_fence = true;
}
EMULATOR_HERE void wgmma_commit() { ++host::machine.thread->product_groups; }

// Check that nothing has touched the tiles of a product since it began.
EMULATOR_HERE void check_tiles(const Running &r) {
    using namespace host;
    for (u32 i = 0; i < r.rows; ++i) {
        const Cell *const cells = shared.cells + machine.thread->rank * shared.apart + r.row[i] * 16;
        for (int e = 0; e < 16; ++e)
            if (cells[e].written >= r.began) {
                char name[64];
                FAULT("%s is written while wgmma reads it", describe(cells + e, name, sizeof name));
            }
    }
}
EMULATOR_HERE void land(u32 pending) {
    using namespace host;
    meet_warp(WGMMA_WAIT, ~0u, Slot{});
    if (!state.of_warp) return;
    Thread &t = *machine.thread;
    Products &p = state.of_warp[t.warp];
    if (!machine.warp->loaded) {
        machine.warp->loaded = true;
        u32 left = 0;
        for (u32 i = 0; i < p.count; ++i) {
            if (p.running[i].group + pending < t.product_groups) check_tiles(p.running[i]);
            else if (left++ != i) p.running[left - 1] = p.running[i];
        }
        p.count = left;
    }
    Operand *const operands = state.operands[machine.current];
    u32 left = 0;
    for (u32 i = 0; i < t.operands; ++i) {
        if (operands[i].group + pending >= t.product_groups) operands[left++] = operands[i];
        else if (memcmp(operands[i].at, operands[i].value, 16)) FAULT("registers that wgmma reads have changed before wgmma_wait");
    }
    t.operands = left, left = 0;
    Sums *const sums = state.sums[machine.current];
    for (u32 i = 0; i < t.sums; ++i) {
        if (sums[i].group + pending >= t.product_groups) {
            if (left++ != i) sums[left - 1] = sums[i];
            continue;
        }
        memcpy(sums[i].at, sums[i].value, sums[i].n * sizeof(float));
        t.has_fence = false;
    }
    t.sums = left;
}
template <int pending> static __forceinline__ void wgmma_wait() { land(pending); }

}  // namespace hopper
