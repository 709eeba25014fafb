// needs: prelude
// cluster.h: the part `cluster` in plain C++: data that blocks send into each other's shared memory. It is under way until the receiving block has
// waited for all of its bytes.
//
// A block sends only after it has waited for the start of all blocks, to memory that the receiver does not use, and none exits while data is
// under way to it.

struct __align__(8) ClusterBarrier { uint64_t word; };  // the emulator's Mbarrier

namespace host {

struct Mbarrier { uint32_t arrived; uint16_t ready, expects; };
constexpr uint16_t MBARRIER_READY = 0x5a5a;
struct Sent { uint32_t rank, at, bytes; };
constexpr uint32_t MAX_SENT = 1 << 16;
struct SentList { Sent *list; };
__attribute__((section(".data"))) static SentList sent = {};

EMULATOR_INLINE Mbarrier &mbarrier_of(ClusterBarrier *b, unsigned to) {
    return *(Mbarrier *)((char *)b + ((int64_t)to - (int64_t)machine.thread->rank) * (int64_t)shared.apart);
}
EMULATOR_HERE void mbarrier_init(ClusterBarrier *b) {
    if (machine.thread->cluster_phase) FAULT("an mbarrier is initialized after cluster_arrive: another block may already use it");
    mbarrier_of(b, machine.thread->rank) = {0, MBARRIER_READY, 0};
}
EMULATOR_HERE void cluster_arrives() {
    meet_warp(SYNCWARP, ~0u, Slot{});
    ++machine.thread->cluster_phase;
    if (++machine.cluster_arrived == machine.count * machine.cluster) pass_cluster();
}
EMULATOR_HERE void cluster_waits() {
    meet_warp(SYNCWARP, ~0u, Slot{});
    if (!machine.thread->cluster_phase) FAULT("cluster_wait without cluster_arrive");
    if (machine.cluster_phase < machine.thread->cluster_phase) {
        machine.thread->wait = AT_CLUSTER;
        to_scheduler();
    }
    machine.thread->in_cluster = true;
}
EMULATOR_HERE void send(void *to, const void *from, uint32_t bytes, ClusterBarrier *b, unsigned rank) {
    const uint32_t at = (uint32_t)((unsigned char *)to - dynamic_memory());
    if (rank >= machine.cluster) FAULT("data is sent to block %u of a cluster of %u", rank, machine.cluster);
    if (!machine.thread->in_cluster) FAULT("data is sent before cluster_wait: block %u may not have started", rank);
    if (!machine.blocks[rank].alive) FAULT("data is sent to block %u, which has returned", rank);
    Mbarrier &barrier = mbarrier_of(b, rank);
    if (barrier.ready != MBARRIER_READY) FAULT("block %u has not initialized its mbarrier", rank);
    Cell *const cells = dynamic_cells(at, bytes) + ((int64_t)rank - (int64_t)machine.thread->rank) * (int64_t)shared.apart;
    for (uint32_t i = 0; i < bytes; ++i) {
        char name[64];
        if (cells[i].written >= machine.start_tick && cells[i].writer == UNDER_WAY) under_way(cells + i, true);
        if (cells[i].written >= machine.cluster_tick || cells[i].read >= machine.cluster_tick)
            FAULT("data is sent to %s of block %u, which uses it", describe(cells + i, name, sizeof name), rank);
        cells[i].writer = UNDER_WAY, cells[i].written = machine.tick;
    }
    memcpy(dynamic_memory() + ((int64_t)rank - (int64_t)machine.thread->rank) * (int64_t)shared.apart + at, from, bytes);
    if (!sent.list) sent.list = (Sent *)reserve(MAX_SENT * sizeof(Sent));
    if (machine.sent == MAX_SENT) FAULT("more than %u pieces of data are under way", MAX_SENT);
    sent.list[machine.sent++] = {rank, at, bytes};
    barrier.arrived += bytes;
    release(rank * machine.count, machine.count, AT_MBARRIER);
}
EMULATOR_HERE void mbarrier_wait(ClusterBarrier *b, uint32_t bytes) {
    const unsigned me = machine.thread->rank;
    Mbarrier &barrier = mbarrier_of(b, me);
    if (barrier.ready != MBARRIER_READY) FAULT("a wait for an mbarrier that is not initialized");
    if (machine.current % machine.count == 0) {
        barrier.expects = 1;
        release(me * machine.count, machine.count, AT_MBARRIER);
        machine.thread->wait = RUNS;
    }
    while (!barrier.expects || barrier.arrived < bytes) {
        machine.thread->wait = AT_MBARRIER;
        to_scheduler();
    }
    if (barrier.arrived > bytes) FAULT("an mbarrier waits for %u bytes, and %u arrive", bytes, barrier.arrived);
    for (unsigned i = 0; i < machine.sent;) {
        const Sent s = sent.list[i];
        if (s.rank != me) {
            ++i;
            continue;
        }
        Cell *const cells = shared.cells + me * shared.apart + s.at;
        for (uint32_t e = 0; e < s.bytes; ++e) cells[e].writer = ARRIVED, cells[e].written = machine.tick;
        sent.list[i] = sent.list[--machine.sent];
    }
    machine.thread->mbarrier_ready = true;
}

}  // namespace host

static __forceinline__ void cluster_barrier_init(ClusterBarrier *b) { host::mbarrier_init(b); }
static __forceinline__ void cluster_arrive() { host::cluster_arrives(); }
static __forceinline__ void cluster_wait() { host::cluster_waits(); }
template <int N> static __forceinline__ void cluster_st_async(float *to, const float (&values)[N], ClusterBarrier *barrier, unsigned rank) {
    host::send(to, values, sizeof values, barrier, rank);
}
static __forceinline__ void cluster_barrier_wait(ClusterBarrier *barrier, uint32_t bytes) { host::mbarrier_wait(barrier, bytes); }
