// shared_memory.h: the shared memory of blocks, and who read and wrote each byte of it when: races, copies under way, bounds.
//
// Two accesses of different threads of which one writes must have a barrier between them: __syncthreads, or __syncwarp for lanes of one warp.
// Shuffles, votes and matrix instructions order no memory.
namespace host {

// Linker's names: shared variables are all that is in .bss.
extern "C" char statics_begin[] asm("__bss_start");
extern "C" char statics_end[] asm("_end");

constexpr uint16_t SEVERAL_LANES = 0x8000, SEVERAL_WARPS = 0xfffe, UNDER_WAY = 0xffff, ARRIVED = 0xfffd;

struct Cell {  // of one byte: times and threads of the last write and of the reads after the last barrier
    uint32_t written, read;
    uint16_t writer, reader;
};
struct Shared {
    unsigned char *memory;  // dynamic: of one block after the other
    Cell *cells, *static_cells;
    unsigned char *saved;  // static: of the blocks of a cluster whose turn it is not
    uint32_t bytes, apart;  // of a block, and from one block to the next
    char *dirty_begin, *dirty_end;  // static memory that the kernel has touched
};
EMULATOR_STATE(Shared, shared);

// cp.async: copies under way, in lists of their threads.
constexpr uint32_t MAX_COPIES = 1 << 16;
struct Copies { Copy *at; uint32_t free, used; };
EMULATOR_STATE(Copies, copies);

#define DYNAMIC_SMEM(name) unsigned char *const name = host::dynamic_memory()
EMULATOR unsigned char *dynamic_memory() { return shared.memory + machine.thread->rank * shared.apart; }
EMULATOR_INLINE size_t statics() { return (size_t)(statics_end - statics_begin); }

EMULATOR const char *describe(const Cell *cell, char *text, size_t size) {
    const bool dynamic = cell >= shared.cells && cell < shared.cells + SHARED_SPACE;
    const size_t at = dynamic ? (size_t)(cell - shared.cells) % shared.apart : (size_t)(cell - shared.static_cells) % statics();
    snprintf(text, size, "byte %zu of %s shared memory", at, dynamic ? "dynamic" : "static");
    return text;
}
EMULATOR void race(const Cell *cell, bool writes, bool wrote, unsigned other) {
    char name[64], who[48];
    if (other == SEVERAL_WARPS) snprintf(who, sizeof who, "threads of several warps");
    else if (other & SEVERAL_LANES) snprintf(who, sizeof who, "threads of warp %u", (other & ~SEVERAL_LANES) % warps_of_block());
    else snprintf(who, sizeof who, "thread %u", other % machine.count);
    FAULT("race on %s: thread %u %s what %s %s, with no barrier between", describe(cell, name, sizeof name), machine.current % machine.count,
          writes ? "writes" : "reads", who, wrote ? "wrote" : "read");
}
EMULATOR void under_way(const Cell *cell, bool writes) {
    char name[64];
    FAULT("%s is %s while an asynchronous copy to it is under way", describe(cell, name, sizeof name), writes ? "written" : "read");
}

// Warps are numbered over all blocks that run at once, threads, too.
EMULATOR_INLINE unsigned warp_of(unsigned thread) { return thread / machine.count * warps_of_block() + thread % machine.count / 32; }

EMULATOR void touch(Cell *cell, size_t bytes, bool writes) {
    const uint32_t me = machine.current, block_tick = machine.block->tick, now = machine.tick;
    for (Cell *const end = cell + bytes; cell < end; ++cell) {
        if (cell->written >= block_tick && cell->writer != me) {  // written after the last barrier, by another thread
            if (cell->writer == UNDER_WAY) under_way(cell, writes);
            else if (cell->writer == ARRIVED) {
                if (!machine.thread->mbarrier_ready) under_way(cell, writes);
            } else if (warp_of(cell->writer) != machine.thread->warp || cell->written >= machine.warp->tick) race(cell, writes, true, cell->writer);
        }
        if (writes) {
            if (cell->read >= block_tick && cell->reader != me) {
                const unsigned reader = cell->reader;
                const bool same = reader != SEVERAL_WARPS && (reader & SEVERAL_LANES ? reader & ~SEVERAL_LANES : warp_of(reader)) == machine.thread->warp;
                if (!same || cell->read >= machine.warp->tick) race(cell, true, false, reader);
            }
            cell->written = now, cell->writer = (uint16_t)me;
        } else if (cell->reader == me && cell->read == now) {
        } else if (cell->read < block_tick || cell->reader == me) {
            cell->read = now, cell->reader = (uint16_t)me;
        } else {
            const unsigned reader = cell->reader, own = machine.thread->warp;
            if (reader == SEVERAL_WARPS || (reader & SEVERAL_LANES ? reader & ~SEVERAL_LANES : warp_of(reader)) != own) cell->reader = SEVERAL_WARPS;
            else cell->reader = (uint16_t)(cell->read < machine.warp->tick ? me : SEVERAL_LANES | own);
            cell->read = now;
        }
    }
}

// Check an access by an offset into the block's dynamic shared memory, and return the cells of its bytes.
EMULATOR Cell *dynamic_cells(uint32_t at, uint32_t bytes) {
    if (at % bytes) FAULT("an access of %u bytes to shared memory at %u is not aligned", bytes, at);
    if ((uint64_t)at + bytes > shared.bytes) FAULT("an access of %u bytes to shared memory at %u, of which the block has %u", bytes, at, shared.bytes);
    return shared.cells + machine.thread->rank * shared.apart + at;
}
EMULATOR unsigned char *read_shared(uint32_t at, uint32_t bytes) {
    touch(dynamic_cells(at, bytes), bytes, false);
    return dynamic_memory() + at;
}

// Save one block's static shared memory and load another one's.
EMULATOR void enter_block(unsigned from, unsigned to) {
    const size_t size = statics();
    if (!size) return;
    memcpy(shared.saved + from * size, statics_begin, size);
    memcpy(statics_begin, shared.saved + to * size, size);
}

// What a block finds in shared memory is not a number.
EMULATOR void clear_shared() {
    memset(shared.memory, 0xff, machine.cluster * shared.apart);
    if (machine.cluster > 1) {
        memset(statics_begin, 0xff, statics());
        memset(shared.saved, 0xff, machine.cluster * statics());
    } else if (shared.dirty_begin < shared.dirty_end) memset(shared.dirty_begin, 0xff, (size_t)(shared.dirty_end - shared.dirty_begin));
    shared.dirty_begin = statics_end, shared.dirty_end = statics_begin;
}

}  // namespace host
