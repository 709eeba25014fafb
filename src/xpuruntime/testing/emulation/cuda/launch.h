// launch.h: the blocks of a grid, one after the other (those of a cluster at once), and a kernel's arguments.
namespace host {

// Memory that is zero, and real once it is touched.
EMULATOR void *reserve(size_t bytes) {
    void *const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "emulation of CUDA: no memory\n");
        abort();
    }
    return at;
}

// What a thread may not leave undone when it returns.
EMULATOR void leave() {
    if (machine.thread->first_copy) FAULT("a thread returns while its asynchronous copies are under way");
    if (machine.thread->sums) FAULT("a thread returns while wgmma runs");
    if (machine.watched && machine.waits && !machine.thread->grid_ready) FAULT("a thread returns without griddep_wait");
}

EMULATOR void prepare() {
    if (!machine.ready) {
        machine.threads = (Thread *)reserve(MAX_THREADS * sizeof(Thread));
        machine.warps = (Warp *)reserve(MAX_THREADS / 32 * sizeof(Warp));
        machine.stacks = (char *)reserve(MAX_THREADS * STACK);
        machine.free_stacks = (void **)reserve(MAX_THREADS * sizeof(void *));
        machine.queue = (uint16_t *)reserve(MAX_THREADS * sizeof(uint16_t));
        shared.memory = (unsigned char *)reserve(SHARED_SPACE);
        shared.cells = (Cell *)reserve(SHARED_SPACE * sizeof(Cell));
        shared.static_cells = (Cell *)reserve(MAX_CLUSTER * statics() * sizeof(Cell) + 1);
        shared.saved = (unsigned char *)reserve(MAX_CLUSTER * statics() + 1);
        shared.dirty_begin = statics_begin, shared.dirty_end = statics_end;
        copies.at = (Copy *)reserve(MAX_COPIES * sizeof(Copy));
        machine.ready = true;
    }
    machine.failed = false;
    machine.message[0] = 0;
    machine.free_count = 0;
    for (unsigned i = MAX_THREADS; i-- > 0;) machine.free_stacks[machine.free_count++] = machine.stacks + i * STACK;
}

// Run the blocks of a cluster from blockIdx on.
EMULATOR bool run_cluster() {
    const unsigned all = machine.count * machine.cluster;
    clear_shared();
    machine.head = machine.tail = 0;
    machine.cluster_arrived = machine.cluster_phase = machine.sent = 0;
    copies.free = 0, copies.used = 1;
    machine.start_tick = machine.cluster_tick = ++machine.tick;
    machine.first_block = built_in.block.x;
    for (unsigned i = 0; i < machine.cluster; ++i) {
        machine.blocks[i] = {};
        machine.blocks[i].alive = machine.count, machine.blocks[i].tick = machine.tick;
    }
    for (unsigned i = 0; i < machine.cluster * warps_of_block(); ++i) {
        Warp &w = machine.warps[i];
        const unsigned left = machine.count - i % warps_of_block() * 32;
        w.alive = left < 32 ? (1u << left) - 1 : ~0u;
        w.tick = machine.tick, w.groups = 0;
    }
    for (unsigned i = 0; i < all; ++i) {
        Thread &t = machine.threads[i];
        const unsigned at = i % machine.count;
        t = {};
        t.index = {at % built_in.threads.x, at / built_in.threads.x % built_in.threads.y, at / built_in.threads.x / built_in.threads.y};
        t.rank = i / machine.count, t.lane = at % 32, t.warp = t.rank * warps_of_block() + at / 32;
    }
    for (unsigned i = 0, first = machine.seed >> 16; i < machine.cluster; ++i) release((first + i) % machine.cluster * machine.count, machine.count, RUNS);
    const bool ran = run_threads();
    built_in.block.x = machine.first_block;
    if (ran && machine.sent) {
        snprintf(machine.message, sizeof machine.message, "%s, block (%u, %u, %u): a cluster ends while %u pieces of data are under way", machine.kernel, built_in.block.x,
                 built_in.block.y, built_in.block.z, machine.sent);
        return false;
    }
    return ran;
}

// A matrix of a tensor map: its argument, and the sizes of `TensorMap` (tma.h).
struct MappedMatrix { int64_t argument, rows, columns, row_stride, tile_rows; };
template <class T> constexpr int is_map = 0;

// A kernel's arguments: pointers, then numbers of eight bytes or tensor maps.
template <class A> EMULATOR_HERE A argument(void *const *args, const uint64_t *params, const MappedMatrix *maps, int at, int pointers) {
    A a;
    if constexpr (is_map<A>) {
        const MappedMatrix &m = maps[at - pointers];
        const char *const from = (const char *)args[m.argument];
        a = A{(uintptr_t)from % 16 ? nullptr : from, m.rows, m.columns, m.row_stride, m.tile_rows};
    } else if (at < pointers) memcpy(&a, &args[at], sizeof a);
    else memcpy(&a, &params[at - pointers], sizeof a);
    return a;
}
template <class T> constexpr int is_pointer = 0;
template <class T> constexpr int is_pointer<T *> = 1;
template <int... I> struct indices {};
template <int N, int... I> struct up_to : up_to<N - 1, N - 1, I...> {};
template <int... I> struct up_to<0, I...> { typedef indices<I...> type; };
template <class... A> struct Call {
    void (*f)(A...);
    void *const *args;
    const uint64_t *params;
    const MappedMatrix *maps;
    template <int... I> __attribute__((no_sanitize("thread"))) void go(indices<I...>) const {
        constexpr int pointers = (0 + ... + is_pointer<A>);
        f(argument<A>(args, params, maps, I, pointers)...);
    }
    __attribute__((no_sanitize("thread"))) static void one(void *self) { ((const Call *)self)->go(typename up_to<sizeof...(A)>::type()); }
};

EMULATOR bool run_blocks(int64_t begin, int64_t end) {
    const three grid = built_in.grid;
    for (int64_t at = begin; at < end; ++at) {
        built_in.block = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
        if (at % machine.cluster == 0 && !run_cluster()) return false;  // run_cluster also runs the other blocks of a cluster
    }
    return true;
}

// Run blocks begin to end of a launch; after a fault end the process, or keep the message of a watched launch.
template <class... A>
EMULATOR_HERE void launch(const char *name, void (*f)(A...), three grid, three threads, uint32_t bytes, unsigned cluster, void *const *args,
                     const void *params, const MappedMatrix *maps, int64_t begin, int64_t end) {
    Call<A...> call = {f, args, (const uint64_t *)params, maps};
    prepare();
    machine.kernel = name;
    machine.count = threads.x * threads.y * threads.z, machine.cluster = cluster;
    machine.run = Call<A...>::one, machine.with = &call;
    built_in.grid = grid, built_in.threads = threads;
    shared.bytes = bytes, shared.apart = (bytes + 2047) / 1024 * 1024;
    bool ran = false;
    if (machine.count * cluster > MAX_THREADS || cluster > MAX_CLUSTER || (size_t)cluster * shared.apart > SHARED_SPACE || (cluster > 1 && grid.x % cluster))
        snprintf(machine.message, sizeof machine.message, "%s: no device runs %u blocks of %u threads at once with %u bytes of shared memory each", name, cluster, machine.count, bytes);
    else ran = run_blocks(begin, end);
    if (ran || machine.watched) return;
    fprintf(stderr, "emulation of CUDA: %s\n", machine.message);
    abort();
}

// What a kernel reports about its inputs (part `movement`) is written to the core's status words, below `scratch`.
EMULATOR void begin_report(unsigned long long *at) {
    report.at = at;
    at[0] = 0, at[1] = (unsigned long long)report.words;
}
EMULATOR void end_report(int64_t *scratch) {
    if (report.words[0] && scratch)
        for (int i = 0; i < 3; ++i) scratch[-1 - i] = (int64_t)report.words[i];
    report.at[0] = report.words[0] = 0;
}

// Launches of one library take turns.
EMULATOR_STATE(int, busy);
EMULATOR void lock() { while (__sync_lock_test_and_set(&busy, 1)) sched_yield(); }
EMULATOR void unlock() { __sync_lock_release(&busy); }

}  // namespace host

// Watch the next launch: check accesses against these arrays, draw the order of threads by a seed, and keep the message of a fault.
#ifdef EMULATOR_ITSELF
extern "C" void xpurt_watch(const host::Range *ranges, int count, unsigned seed) {
    using namespace host;
    machine.watched = true, machine.waits = false;
    machine.ranges = ranges, machine.range_count = count, machine.last_range = nullptr, machine.seed = seed;
    for (int i = 0; i < count; ++i) machine.waits |= !ranges[i].early;
}
extern "C" const char *xpurt_fault() { return host::machine.message; }
#endif
