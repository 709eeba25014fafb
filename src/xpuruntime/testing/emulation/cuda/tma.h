// needs: hopper cluster
// tma.h: the part `tma` in plain C++. A tile is under way until the phase of its mbarrier is complete; then a thread that has waited for an mbarrier
// may read it. A kernel with these mbarriers sends nothing by st.async: both lists of what is under way have one count.
//
// A copy checks the bounds of the matrix like any access of its block, and that its place in shared memory has no other copy under way. wgmma.h
// checks that no product reads that place.
struct TensorMap {  // made by the launch from its comment: the matrix, or null where it is not aligned
    const char *at;
    int64_t rows, columns, row_stride, tile_rows;
};
template <> constexpr int host::is_map<TensorMap> = 1;

namespace tma {

using tensor::u32;

struct __align__(8) Barrier {
    int32_t bytes;  // expected, less those that have come
    uint8_t arrivals, left, phase, ready;
};
constexpr uint8_t READY = 0x5a;
struct Flying { Barrier *barrier; uint32_t rank, at, bytes; };  // a row of a tile that is under way
struct FlyingList { Flying *list; };
constexpr uint32_t MAX_FLYING = 1 << 16;
__attribute__((section(".data"))) static FlyingList flying = {};

EMULATOR_INLINE Barrier &of_block(Barrier &b, unsigned rank) {
    return *(Barrier *)((char *)&b + ((int64_t)rank - (int64_t)host::machine.thread->rank) * (int64_t)host::shared.apart);
}
EMULATOR_HERE void check_ready(const Barrier &b, unsigned rank) {
    using namespace host;
    if (b.ready != READY) FAULT("block %u has not initialized its mbarrier", rank);
    if (rank != machine.thread->rank && !machine.thread->in_cluster) FAULT("an mbarrier of block %u is used before cluster_wait", rank);
    if (!machine.blocks[rank].alive) FAULT("an mbarrier of block %u is used, which has returned", rank);
}
// Begin the next phase if this one is complete: its tiles have landed.
EMULATOR_HERE void settle(Barrier &b, unsigned rank) {
    using namespace host;
    if (b.left || b.bytes) return;
    b.phase ^= 1, b.left = b.arrivals;
    for (unsigned i = 0; i < machine.sent;) {
        const Flying f = flying.list[i];
        if (f.barrier != &b) {
            ++i;
            continue;
        }
        Cell *const cells = shared.cells + f.rank * shared.apart + f.at;
        for (uint32_t e = 0; e < f.bytes; ++e) cells[e].writer = ARRIVED, cells[e].written = machine.tick;
        flying.list[i] = flying.list[--machine.sent];
    }
    release(rank * machine.count, machine.count, AT_MBARRIER);
}

EMULATOR_HERE void init(Barrier &b, u32 arrivals) {
    if (host::machine.thread->cluster_phase) FAULT("an mbarrier is initialized after cluster_arrive: another block may already use it");
    b = {0, (uint8_t)arrivals, (uint8_t)arrivals, 0, READY};
}
EMULATOR_HERE void arrive(Barrier &b, unsigned rank, int32_t bytes) {
    check_ready(b, rank);
    if (!b.left) FAULT("more arrivals at an mbarrier of block %u than it was initialized with", rank);
    b.bytes += bytes, --b.left;
    settle(b, rank);
}
EMULATOR_HERE void arrive_expecting(Barrier &b, u32 bytes) { arrive(b, host::machine.thread->rank, (int32_t)bytes); }
EMULATOR_HERE void arrive_at(Barrier &b, u32 rank) {
    if (rank >= host::machine.cluster) FAULT("an arrival at block %u of a cluster of %u", rank, host::machine.cluster);
    arrive(of_block(b, rank), rank, 0);
}
EMULATOR_HERE void wait(Barrier &b, u32 parity) {
    check_ready(b, host::machine.thread->rank);
    while (b.phase == parity) {
        host::machine.thread->wait = host::AT_MBARRIER;
        host::to_scheduler();
    }
    host::machine.thread->mbarrier_ready = true;
}

EMULATOR_HERE void copy_row(Barrier &b, unsigned rank, uint32_t at, const char *from, uint32_t bytes) {
    using namespace host;
    const int64_t apart = ((int64_t)rank - (int64_t)machine.thread->rank) * (int64_t)shared.apart;
    for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        const uint32_t to = at + ((chunk ^ (at / 128 & 7)) * 16), count = chunk * 16 < bytes ? (bytes - chunk * 16 < 16 ? bytes - chunk * 16 : 16) : 0;
        Cell *const cells = dynamic_cells(to, 16) + apart;
        for (int e = 0; e < 16; ++e) {
            if (cells[e].written >= machine.start_tick && cells[e].writer == UNDER_WAY) under_way(cells + e, true);
            cells[e].writer = UNDER_WAY, cells[e].written = machine.tick;
        }
        unsigned char *const place = dynamic_memory() + apart + to;
        memset(place, 0, 16);
        if (count) memcpy(place, from + chunk * 16, count);
    }
    if (!flying.list) flying.list = (Flying *)reserve(MAX_FLYING * sizeof(Flying));
    if (machine.sent == MAX_FLYING) FAULT("more than %u rows of tiles are under way", MAX_FLYING);
    flying.list[machine.sent++] = {&b, rank, at, 128};
}
EMULATOR_HERE void copy_to_all(unsigned char *to, const TensorMap &map, int row, int column, Barrier &b, u32 blocks) {
    using namespace host;
    if (!map.at) FAULT("a tile of a matrix that does not start at a multiple of 16 bytes is copied");
    const uint32_t at = (uint32_t)(to - dynamic_memory());
    if (at % 1024) FAULT("a tile is copied to shared memory at %u, which is no multiple of 1024", at);
    ++machine.tick;
    for (unsigned rank = 0; rank < machine.cluster; ++rank) {
        if (!(blocks >> rank & 1)) continue;
        Barrier &there = of_block(b, rank);
        check_ready(there, rank);
        for (int64_t r = 0; r < map.tile_rows; ++r) {
            const int64_t left = row + r < map.rows ? map.columns - column : 0, bytes = left <= 0 ? 0 : left < 64 ? left * 2 : 128;
            const char *const from = map.at + ((row + r) * map.row_stride + column) * 2;
            if (bytes && machine.watched) check_global((uintptr_t)from, (size_t)bytes, false);
            copy_row(there, rank, at + (uint32_t)r * 128, from, (uint32_t)bytes);
        }
        there.bytes -= (int32_t)map.tile_rows * 128;
        settle(there, rank);
    }
}
EMULATOR_HERE void copy(unsigned char *to, const TensorMap &map, int row, int column, Barrier &b) {
    copy_to_all(to, map, row, column, b, 1u << host::machine.thread->rank);
}

template <int registers> static __forceinline__ void give_registers() {}
template <int registers> static __forceinline__ void take_registers() {}

}  // namespace tma
