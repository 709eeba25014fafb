// accesses.h: what a kernel loads and stores. The compiler reports each access, under the names of the thread sanitizer's runtime.
//
// Shared memory: races and bounds (shared_memory.h), alignment. Global memory: the arrays of a watched launch, alignment, and no access to what
// earlier launches write before griddep_wait. A thread's own memory is on its stack and free.
namespace host {

struct Report { unsigned long long words[3], *at; };  // what kernels report errors to
EMULATOR_STATE(Report, report);

// Check an access to an array of a watched launch.
EMULATOR void check_global(uintptr_t at, size_t bytes, bool writes) {
    const Range *r = machine.last_range;
    if (!r || at < (uintptr_t)r->begin || at + bytes > (uintptr_t)r->begin + r->bytes) {
        r = nullptr;
        for (int i = 0; i < machine.range_count && !r; ++i)
            if (at >= (uintptr_t)machine.ranges[i].begin && at + bytes <= (uintptr_t)machine.ranges[i].begin + machine.ranges[i].bytes) r = &machine.ranges[i];
    }
    if (!r) {
        if (at - (uintptr_t)report.words < sizeof report.words || (report.at && at - (uintptr_t)report.at < 16)) return;
        const Range *near = nullptr;
        uintptr_t least = UINTPTR_MAX;
        for (int i = 0; i < machine.range_count; ++i) {
            const uintptr_t begin = (uintptr_t)machine.ranges[i].begin, end = begin + machine.ranges[i].bytes;
            const uintptr_t distance = at < begin ? begin - at : at < end ? 0 : at - end;
            if (distance < least) least = distance, near = &machine.ranges[i];
        }
        FAULT("%s %zu bytes outside all arrays; the nearest, %s, has %lld bytes, and they begin at its byte %lld", writes ? "writes" : "reads", bytes,
              near ? near->name : "none", near ? (long long)near->bytes : 0ll, near ? (long long)(at - (uintptr_t)near->begin) : 0ll);
    }
    machine.last_range = r;
    if (!r->early && !machine.block->grid_ready && !machine.thread->grid_ready)
        FAULT("%s %s before griddep_wait: an earlier launch may still use it", writes ? "writes" : "reads", r->name);
}

EMULATOR void access_shared(uintptr_t in_static, uintptr_t in_dynamic, size_t bytes, bool writes) {
    if (in_dynamic < SHARED_SPACE) {
        const uintptr_t own = in_dynamic - machine.thread->rank * shared.apart;  // another block's is far beyond the end
        if (own + bytes > shared.bytes) FAULT("an access of %zu bytes to shared memory at %lld, of which the block has %u", bytes, (long long)own, shared.bytes);
        touch(shared.cells + in_dynamic, bytes, writes);
    } else {
        if (statics_begin + in_static < shared.dirty_begin) shared.dirty_begin = statics_begin + in_static;
        if (statics_begin + in_static + bytes > shared.dirty_end) shared.dirty_end = statics_begin + in_static + bytes;
        touch(shared.static_cells + machine.thread->rank * statics() + in_static, bytes, writes);
    }
}
EMULATOR void misaligned(size_t bytes) { FAULT("an access of %zu bytes at an address that is no multiple of %zu", bytes, bytes); }
EMULATOR_INLINE void access(const void *p, size_t bytes, bool writes) {
    const uintptr_t at = (uintptr_t)p, in_dynamic = at - (uintptr_t)shared.memory, in_static = at - (uintptr_t)statics_begin;
    if (in_dynamic < SHARED_SPACE || in_static < statics()) access_shared(in_static, in_dynamic, bytes, writes);
    else if (machine.watched && at - (uintptr_t)machine.stacks >= MAX_THREADS * STACK) check_global(at, bytes, writes);
}
EMULATOR void access_any(const void *p, size_t bytes, bool writes) { access(p, bytes, writes); }
EMULATOR_INLINE void aligned(const void *p, size_t bytes, bool writes) {
    if ((uintptr_t)p % bytes) misaligned(bytes);
    access(p, bytes, writes);
}

}  // namespace host

#ifdef EMULATOR_ITSELF
#define REPORT extern "C" EMULATOR_HIDDEN void
#define REPORTS(BYTES)                                                                   \
    REPORT __tsan_read##BYTES(void *p) { host::aligned(p, BYTES, false); }               \
    REPORT __tsan_write##BYTES(void *p) { host::aligned(p, BYTES, true); }               \
    REPORT __tsan_unaligned_read##BYTES(void *p) { host::access_any(p, BYTES, false); }  \
    REPORT __tsan_unaligned_write##BYTES(void *p) { host::access_any(p, BYTES, true); }
REPORTS(1) REPORTS(2) REPORTS(4) REPORTS(8) REPORTS(16)
REPORT __tsan_read_range(void *p, size_t bytes) { host::access_any(p, bytes, false); }
REPORT __tsan_write_range(void *p, size_t bytes) { host::access_any(p, bytes, true); }
REPORT __tsan_vptr_update(void **, void *) {}
REPORT __tsan_init() {}
REPORT __tsan_func_entry(void *) {}
REPORT __tsan_func_exit() {}
#undef REPORTS
#undef REPORT
#endif

// Atomic functions of any address. Those of different threads are no race.
template <class T> EMULATOR_HERE T atomicAdd(T *p, T more) { const T old = *p; *p = old + more; return old; }
template <class T> EMULATOR_HERE T atomicCAS(T *p, T have, T want) { const T old = *p; if (old == have) *p = want; return old; }
template <class T> EMULATOR_HERE T atomicExch(T *p, T want) { const T old = *p; *p = want; return old; }
template <class T> EMULATOR_HERE T atomicMax(T *p, T other) { const T old = *p; if (old < other) *p = other; return old; }
template <class T> EMULATOR_HERE T atomicOr(T *p, T bits) { const T old = *p; *p = old | bits; return old; }
template <class T> EMULATOR_HERE T atomicMin(T *p, T other) { const T old = *p; if (other < old) *p = other; return old; }
