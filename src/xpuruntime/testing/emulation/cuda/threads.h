// threads.h: the threads of a block, or of all blocks of a cluster: fibers that take turns, each until it waits for others or returns.
namespace host {

enum Wait : uint8_t { RUNS, AT_WARP, AT_BLOCK, AT_CLUSTER, AT_MBARRIER, DONE };
// The instructions that a warp executes together. Lanes that wait at different ones never meet.
enum WarpOp : uint8_t { SYNCWARP, SHUFFLE, VOTE, LDMATRIX, MOVMATRIX, MMA, WGMMA, WGMMA_FENCE, WGMMA_WAIT };
static const char *const warp_ops[] = {"__syncwarp", "a shuffle", "a vote", "ldmatrix", "movmatrix", "mma", "wgmma", "wgmma.fence", "wgmma.wait_group"};

constexpr unsigned MAX_THREADS = 4096, MAX_CLUSTER = 8, MAX_GROUPS = 8;  // a cluster has eight blocks of at most 1,024 threads, of which half fit here
constexpr size_t STACK = 128 << 10, SHARED_SPACE = MAX_CLUSTER * (232 << 10);

struct Copy {  // cp.async
    uint32_t to, group, next, bytes;
    bool reads;
    const void *from;
};
struct Thread {
    void *sp, *stack;
    Wait wait;
    WarpOp op;
    bool grid_ready, mbarrier_ready, has_fence;
    three index;
    unsigned rank, warp, lane;  // its block in the cluster, its warp among all of the cluster
    uint32_t first_copy, last_copy, copy_groups;            // copies under way, oldest first; groups committed
    uint32_t fence_tick, old_fence_tick;                    // the last fence.proxy.async, and the last one before a barrier
    uint32_t product_groups;                                // wgmma groups committed
    unsigned sums, operands;                                // accumulators and register operands of products that run
    uint32_t cluster_phase;                                 // how often it arrived at the cluster's barrier
    bool in_cluster;                                        // it waited there
};
struct Slot { uint32_t word[8]; };  // what a lane shows the others
struct Slots { uint32_t there; Slot of[32]; };  // of the lanes that met
struct Group { uint32_t mask, there, slots; WarpOp op; };
// Slots of whole warps alternate, since a lane reads before it shows again. Those of a part are used again after 32 others: by then its lanes,
// which wait for their turn in one queue, have read.
constexpr unsigned SLOTS = 2 + 33;
struct Warp {
    uint32_t alive, tick, groups, whole_slots, part_slots;
    bool loaded;  // wgmma.h: the tile has been read for all lanes
    Group group[MAX_GROUPS];
    Slots slots[SLOTS];
};
struct Block {
    uint32_t alive, arrived, tick;
    bool grid_ready, waited;  // whether a thread called griddep_wait before the last barrier, or before the next
    unsigned turn, votes[2];
};
struct Range { const char *name; char *begin; int64_t bytes; int64_t early; };

// All state of the emulator. Launches take turns, as many threads as may call them.
struct Machine {
    bool ready, failed, watched, waits;  // waits: earlier launches may still write or read an array
    char message[512];
    const char *kernel;
    Thread *threads;
    Warp *warps;
    Block blocks[MAX_CLUSTER];
    char *stacks;
    void **free_stacks;
    unsigned free_count;
    uint16_t *queue;
    unsigned head, tail;  // of the ring of threads that can run
    unsigned count, cluster, current, first_block;
    Thread *thread;  // the current one, its block and its warp
    Block *block;
    Warp *warp;
    uint32_t tick, start_tick, cluster_tick, cluster_arrived, cluster_phase, seed;
    unsigned sent;  // pieces of data under way in a cluster
    void *scheduler;
    void (*run)(void *);
    void *with;
    const Range *ranges;
    int range_count;
    const Range *last_range;
};
EMULATOR_STATE(Machine, machine);

EMULATOR void *reserve(size_t bytes);  // memory: launch.h

// Switch stacks: save what a call must preserve on this stack, and load it from the other one.
#ifdef EMULATOR_ITSELF
asm(".pushsection .text\n.globl xpurt_switch_stack\n.hidden xpurt_switch_stack\nxpurt_switch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\nmovq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.popsection");
#endif
extern "C" EMULATOR_HIDDEN void switch_stack(void **keep, void *other) asm("xpurt_switch_stack");
EMULATOR void to_scheduler() { switch_stack(&machine.thread->sp, machine.scheduler); }

// End the launch with a message.
#define FAULT(...) (snprintf(host::fault_text, sizeof host::fault_text, __VA_ARGS__), host::fault())
EMULATOR_STATE(char, fault_text[384]);
EMULATOR void fault() {
    if (!machine.failed) {
        const three &b = built_in.block, &t = built_in.thread;
        snprintf(machine.message, sizeof machine.message, "%s, block (%u, %u, %u), thread (%u, %u, %u): %s", machine.kernel, b.x, b.y, b.z, t.x, t.y, t.z, fault_text);
    }
    machine.failed = true;
    to_scheduler();
    __builtin_trap();
}

EMULATOR void make_ready(unsigned thread) {
    machine.threads[thread].wait = RUNS;
    machine.queue[machine.tail++ % MAX_THREADS] = (uint16_t)thread;
}
// Let those of a range of threads run that wait for the same, from a drawn one on.
EMULATOR void release(unsigned from, unsigned count, Wait wait) {
    machine.seed = machine.seed * 1664525u + 1013904223u;
    for (unsigned i = 0, first = (machine.seed >> 16) % count; i < count; ++i) {
        const unsigned at = from + (first + i) % count;
        if (machine.threads[at].wait == wait) make_ready(at);
    }
}
EMULATOR_INLINE unsigned warps_of_block() { return (machine.count + 31) / 32; }
EMULATOR_INLINE unsigned first_lane() { return machine.current - machine.thread->lane; }

// Every barrier begins a new time for its threads: accesses before it are ordered with those after it.
EMULATOR void pass_block(Block &b) {
    const unsigned first = (unsigned)(&b - machine.blocks) * machine.count;
    b.arrived = 0;
    b.tick = ++machine.tick;
    b.votes[b.turn ^= 1] = 0;
    b.grid_ready = b.waited;
    release(first, machine.count, AT_BLOCK);
}
EMULATOR void pass_cluster() {
    machine.cluster_arrived = 0;
    ++machine.cluster_phase;
    machine.cluster_tick = ++machine.tick;
    release(0, machine.count * machine.cluster, AT_CLUSTER);
}
EMULATOR bool pass_group(Warp &w, unsigned g, unsigned first) {
    if (w.group[g].there != (w.group[g].mask & w.alive)) return false;
    const Group group = w.group[g];
    w.group[g] = w.group[--w.groups];
    w.loaded = false;
    w.slots[group.slots].there = group.there;
    if (group.op == SYNCWARP) w.tick = ++machine.tick;
    machine.seed = machine.seed * 1664525u + 1013904223u;
    for (unsigned i = 0, from = machine.seed >> 16; i < 32; ++i)
        if (group.there >> (from + i) % 32 & 1) make_ready(first + (from + i) % 32);
    return true;
}

// __syncwarp and all that a warp executes together. The slots that lanes filled before are theirs to read until the next time.
EMULATOR const Slots &meet_warp(WarpOp op, uint32_t mask, Slot mine) {
    Warp &w = *machine.warp;
    Thread &t = *machine.thread;
    const uint32_t bit = 1u << t.lane;
    if (!(mask & bit)) FAULT("the mask %08x of %s leaves out the calling lane", mask, warp_ops[op]);
    unsigned g = 0;
    while (g < w.groups && (w.group[g].op != op || w.group[g].mask != mask)) ++g;
    if (g == MAX_GROUPS) FAULT("lanes of a warp wait at more than %u places", MAX_GROUPS);
    if (g == w.groups) {
        const uint32_t slots = mask == ~0u ? w.whole_slots ^= 1 : 2 + w.part_slots++ % (SLOTS - 2);
        w.group[w.groups++] = {mask, 0, slots, op};
    }
    Slots &slots = w.slots[w.group[g].slots];
    slots.of[t.lane] = mine;
    w.group[g].there |= bit;
    t.wait = AT_WARP, t.op = op;
    pass_group(w, g, first_lane());
    to_scheduler();
    return slots;
}
EMULATOR void meet_block() {
    Block &b = *machine.block;
    machine.thread->wait = AT_BLOCK;
    if (++b.arrived == b.alive) pass_block(b);
    to_scheduler();
}

EMULATOR void leave();  // what a thread may not leave undone: launch.h
EMULATOR void enter() {
    machine.run(machine.with);
    leave();
    machine.thread->wait = DONE;
    Block &b = *machine.block;
    Warp &w = *machine.warp;
    w.alive &= ~(1u << machine.thread->lane);
    for (unsigned g = 0; g < w.groups;) g += !pass_group(w, g, first_lane());
    if (--b.alive && b.arrived == b.alive) pass_block(b);
    to_scheduler();
}
EMULATOR void start(Thread &t) {
    t.stack = machine.free_stacks[--machine.free_count];
    void **sp = (void **)((char *)t.stack + STACK - 56);
    *--sp = (void *)enter;  // the stack is as after a call: 8 bytes off a multiple of 16
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    t.sp = sp;
}

// How many threads wait where, for the message about a launch that cannot go on.
EMULATOR void describe_waits() {
    unsigned at[DONE + 1] = {}, ops[16] = {};
    for (unsigned i = 0; i < machine.count * machine.cluster; ++i) {
        const Thread &t = machine.threads[i];
        ++at[t.wait];
        if (t.wait == AT_WARP) ++ops[t.op];
    }
    int n = snprintf(machine.message, sizeof machine.message, "%s, block (%u, %u, %u): threads wait for others that do not come:", machine.kernel, built_in.block.x,
                     built_in.block.y, built_in.block.z);
    const auto add = [&](unsigned count, const char *where) __attribute__((no_sanitize("thread"))) {
        if (count && n < (int)sizeof machine.message) n += snprintf(machine.message + n, sizeof machine.message - n, " %u at %s,", count, where);
    };
    add(at[AT_BLOCK], "__syncthreads");
    for (unsigned op = SYNCWARP; op <= WGMMA_WAIT; ++op) add(ops[op], warp_ops[op]);
    add(at[AT_CLUSTER], "the cluster's barrier");
    add(at[AT_MBARRIER], "an mbarrier that misses bytes");
    if (n < (int)sizeof machine.message) snprintf(machine.message + n, sizeof machine.message - n, " %u have returned", at[DONE]);
}

EMULATOR void enter_block(unsigned from, unsigned to);  // the static shared memory of another block: shared_memory.h

// Run all threads to their ends. Returns false after a fault.
EMULATOR bool run_threads() {
    const unsigned all = machine.count * machine.cluster;
    unsigned rank_before = 0;
    for (unsigned done = 0; done < all;) {
        if (machine.head == machine.tail) {
            describe_waits();
            return false;
        }
        const unsigned i = machine.queue[machine.head++ % MAX_THREADS];
        Thread &t = machine.threads[i];
        machine.current = i, machine.thread = &t, machine.block = &machine.blocks[t.rank], machine.warp = &machine.warps[t.warp];
        built_in.thread = t.index;
        if (machine.cluster > 1 && t.rank != rank_before) {
            enter_block(rank_before, t.rank);
            rank_before = t.rank;
            built_in.block.x = machine.first_block + rank_before;
        }
        if (!t.sp) start(t);
        switch_stack(&machine.scheduler, t.sp);
        if (machine.failed) return false;
        if (t.wait == DONE) {
            ++done;
            machine.free_stacks[machine.free_count++] = t.stack;
        }
    }
    return true;
}

}  // namespace host
