// The caching allocator of host memory.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "xpurt/memory.h"

using xpurt::MemoryPool;

TEST_CASE("blocks are aligned, usable and counted") {
    MemoryPool pool;
    std::vector<void*> blocks;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{100'000}}) {
        void* const block = pool.allocate(bytes);
        REQUIRE(block != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(block) % xpurt::alignment == 0);
        std::memset(block, 0xab, bytes);
        blocks.push_back(block);
    }
    CHECK(pool.statistics().live_bytes == 4 * 64 + 128 + 100'032);
    CHECK(pool.statistics().allocations == 6);
    for (void* const block : blocks) pool.release(block);
    CHECK(pool.statistics().live_bytes == 0);
    CHECK(pool.statistics().peak_bytes == 4 * 64 + 128 + 100'032);
    CHECK(pool.statistics().cached_bytes == pool.statistics().peak_bytes);
    CHECK(pool.trim() == pool.statistics().peak_bytes);
    CHECK(pool.statistics().cached_bytes == 0);
}

TEST_CASE("a block is reused for about the same size but not for a much smaller one") {
    MemoryPool pool;
    void* const first = pool.allocate(64 * 100);
    pool.release(first);
    CHECK(pool.allocate(64 * 95) == first);
    CHECK(pool.statistics().reuses == 1);
    pool.release(first);
    void* const small = pool.allocate(64 * 50);
    CHECK(small != first);
    pool.release(small);
}

TEST_CASE("blocks beyond the cache's limit are freed, and unknown blocks are ignored") {
    MemoryPool pool(1000);
    pool.release(pool.allocate(4096));
    CHECK(pool.statistics().cached_bytes == 0);
    int not_from_pool = 0;
    pool.release(&not_from_pool);
    pool.release(nullptr);
    CHECK(pool.allocate(SIZE_MAX) == nullptr);
    CHECK(pool.allocate(SIZE_MAX / 4) == nullptr);
    CHECK(pool.statistics().live_bytes == 0);
}

TEST_CASE("cached blocks are returned to the system before memory counts as exhausted") {
    struct Limited {  // a system with room for 1000 lines
        size_t room = 64 * 1000;
        int requests = 0;
        std::map<void*, size_t> blocks;
    } system;
    const xpurt::MemorySource source{[](void* context, size_t bytes) -> void* {
                                         auto& limited = *static_cast<Limited*>(context);
                                         ++limited.requests;
                                         if (bytes > limited.room) return nullptr;
                                         void* const block = std::aligned_alloc(xpurt::alignment, bytes);
                                         limited.room -= bytes;
                                         limited.blocks.emplace(block, bytes);
                                         return block;
                                     },
                                     [](void* context, void* block) {
                                         auto& limited = *static_cast<Limited*>(context);
                                         limited.room += limited.blocks.at(block);
                                         limited.blocks.erase(block);
                                         std::free(block);
                                     },
                                     &system};
    MemoryPool pool(size_t{1} << 20, source);
    void* const used = pool.allocate(64 * 100);
    for (const size_t lines : {size_t{300}, size_t{400}}) pool.release(pool.allocate(64 * lines));
    CHECK(pool.statistics().cached_bytes == 64 * 700);

    void* const large = pool.allocate(64 * 900);  // fits only without the cached blocks
    REQUIRE(large != nullptr);
    CHECK(pool.statistics().cached_bytes == 0);
    CHECK(pool.statistics().live_bytes == 64 * 1000);
    CHECK(pool.statistics().allocations == 4);
    CHECK(pool.owns(used, 64 * 100));
    CHECK(system.blocks.size() == 2);
    CHECK(system.requests == 5);

    CHECK(pool.allocate(64) == nullptr);  // nothing is cached: no second request
    CHECK(system.requests == 6);
    pool.release(used);
    CHECK(pool.allocate(64 * 200) == nullptr);  // too much even without the cached block
    CHECK(system.requests == 8);
    CHECK(pool.statistics().cached_bytes == 0);
    CHECK(pool.statistics().live_bytes == 64 * 900);
    pool.release(large);
}

TEST_CASE("threads can allocate and release concurrently") {
    MemoryPool pool;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (size_t i = 1; i < 500; ++i) {
                void* const block = pool.allocate(i * 8);
                std::memset(block, 1, i * 8);
                pool.release(block);
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(pool.statistics().live_bytes == 0);
}
