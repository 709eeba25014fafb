// barriers.h: where threads of a block and of a warp meet: barriers, votes and shuffles, and the wait for earlier launches.

#define XPURT_GRIDDEP_WAIT host::griddep_wait

namespace host {

// What earlier launches write is there for the calling thread, and for its block after the next barrier.
EMULATOR void griddep_wait() { machine.thread->grid_ready = true; }
EMULATOR unsigned syncthreads_count(bool x) {
    Block &b = *machine.block;
    const unsigned turn = b.turn;
    b.votes[turn] += x;
    b.waited |= machine.thread->grid_ready;
    meet_block();
    return b.votes[turn];
}
EMULATOR void syncwarp(uint32_t mask) { meet_warp(SYNCWARP, mask, Slot{}); }

// The value of another lane; a fault where that lane does not take part.
EMULATOR uint64_t exchange(uint32_t mask, uint64_t value, unsigned from) {
    const Slots &slots = meet_warp(SHUFFLE, mask, Slot{{(uint32_t)value, (uint32_t)(value >> 32)}});
    if (!(slots.there >> from & 1)) FAULT("a shuffle reads lane %u, which does not take part (mask %08x)", from, mask);
    return slots.of[from].word[0] | (uint64_t)slots.of[from].word[1] << 32;
}
EMULATOR uint32_t ballot(uint32_t mask, bool x) {
    const Slots &slots = meet_warp(VOTE, mask, Slot{{x}});
    uint32_t votes = 0;
    for (uint32_t i = 0, lanes = slots.there; i < 32; ++i) votes |= (lanes >> i & slots.of[i].word[0] & 1) << i;
    return votes;
}
template <class T> static __forceinline__ T shuffled(uint32_t mask, T v, unsigned from) {
    static_assert(sizeof(T) <= 8, "a lane exchanges at most eight bytes");
    uint64_t word = 0;
    memcpy(&word, &v, sizeof v);
    word = exchange(mask, word, from);
    memcpy(&v, &word, sizeof v);
    return v;
}
EMULATOR unsigned lane() { return machine.thread->lane; }

}  // namespace host

static __forceinline__ void __syncthreads() { host::syncthreads_count(false); }
static __forceinline__ int __syncthreads_count(int x) { return (int)host::syncthreads_count(x != 0); }
static __forceinline__ int __syncthreads_or(int x) { return host::syncthreads_count(x != 0) != 0; }
static __forceinline__ int __syncthreads_and(int x) { return host::syncthreads_count(x == 0) == 0; }
static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) { host::syncwarp(mask); }
static __forceinline__ unsigned __ballot_sync(unsigned mask, int x) { return host::ballot(mask, x != 0); }
static __forceinline__ int __any_sync(unsigned mask, int x) { return host::ballot(mask, x != 0) != 0; }
static __forceinline__ int __all_sync(unsigned mask, int x) { return host::ballot(mask, x == 0) == 0; }
static __forceinline__ int __ffs(unsigned x) { return __builtin_ffs((int)x); }
// Lanes exchange within groups of `width`; one that would read beyond its group keeps its own value.
template <class T> static __forceinline__ T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    return host::shuffled(mask, v, (host::lane() & ~(width - 1)) + (from & (width - 1)));
}
template <class T> static __forceinline__ T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
    const unsigned lane = host::lane(), from = lane ^ bits;
    return host::shuffled(mask, v, (from & ~(width - 1)) <= (lane & ~(width - 1)) ? from & 31 : lane);
}
template <class T> static __forceinline__ T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const unsigned lane = host::lane();
    return host::shuffled(mask, v, (lane & (width - 1)) + by < (unsigned)width ? lane + by : lane);
}
template <class T> static __forceinline__ T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
    const unsigned lane = host::lane();
    return host::shuffled(mask, v, (lane & (width - 1)) >= by ? lane - by : lane);
}
