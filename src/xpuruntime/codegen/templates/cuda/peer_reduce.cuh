// needs: prelude
// peer_reduce: the sum of a vector over GPUs that write to each other's memory, in one launch.
//
// Each rank has a box in its own memory. A rank writes its words to the boxes of all others and waits for theirs in its own. A word is sent with
// the number of the exchange in one 8-byte store, so data needs no fence (NCCL's LL protocol has the same layout). Exchange e uses half e % 2 of a
// box: a rank that writes exchange e + 2 has received all of e + 1, which the others send after the launch that read e is complete.
//
// P: S (elements), N (number of elements), RANKS, WORDS (4-byte words that a box has for each rank), BLOCKS, THREADS, RESIDUAL.
namespace peers {

constexpr int HEADER = 256;  // bytes: whether the group has ended, then the number of the last exchange, once for each of MAX_BLOCKS blocks
constexpr int MAX_BLOCKS = 32;
constexpr uint32_t LONGEST_WAIT = 1u << 28, LOOKS = 1u << 12;
typedef unsigned long long u64;

INLINE void give_up() {
#if defined(__CUDACC_RTC__)
    asm volatile("trap;");
#else
    __builtin_trap();
#endif
}

// Wait for a word of an exchange. After the group has ended its value is undefined.
INLINE uint32_t received(const volatile u64 *word, uint32_t exchange, const volatile uint32_t *ended) {
    for (uint32_t polls = 0;; ++polls) {
        const u64 value = *word;
        if ((uint32_t)(value >> 32) == exchange) return (uint32_t)value;
        if (polls % LOOKS == LOOKS - 1 && *ended != 0) return 0;
        if (polls == LONGEST_WAIT) give_up();
    }
}

template <class P> struct Reduce {
    typedef typename P::S S;
    static constexpr int PER_WORD = 4 / sizeof(S);
    static constexpr int COUNT = (P::N + PER_WORD - 1) / PER_WORD;

    // The slot of a rank's words in a box.
    static INLINE_MEMBER u64 *slot(int64_t box, uint32_t exchange, int rank) {
        return (u64 *)(box + HEADER) + ((int64_t)(exchange % 2) * P::RANKS + rank) * P::WORDS;
    }
    static INLINE_MEMBER uint32_t word_at(const S *x, int w) {
        uint32_t bits = 0;
        if ((w + 1) * PER_WORD <= P::N) __builtin_memcpy(&bits, x + (int64_t)w * PER_WORD, 4);
        else __builtin_memcpy(&bits, x + (int64_t)w * PER_WORD, sizeof(S));
        return bits;
    }
    static INLINE_MEMBER void add(float *sum, uint32_t bits) {
        S parts[PER_WORD];
        __builtin_memcpy(parts, &bits, 4);
        for (int i = 0; i < PER_WORD; ++i) sum[i] += load<1>(parts + i);
    }

    // y = the sum of all ranks' x, plus the residual. `table`: the rank, then the address of each rank's box. No launch writes the table.
    // A block has a number of its own to read and write, so that no block waits for the others. All are equal after a launch.
    static INLINE_MEMBER void run(const S *x, const S *residual, const int64_t *table, S *y) {
        constexpr bool ALONE = P::RANKS == 1;  // then there is no box
        static_assert(P::BLOCKS <= MAX_BLOCKS, "a number for each block");
        const int rank = ALONE ? 0 : (int)table[0];
        int64_t boxes[P::RANKS];
        for (int r = 0; r < P::RANKS; ++r) boxes[r] = ALONE ? 0 : table[1 + r];
        uint32_t *const own = ALONE ? nullptr : (uint32_t *)table[1 + rank];
        griddep_wait();
        const uint32_t exchange = ALONE ? 0 : ((volatile uint32_t *)own)[1 + blockIdx.x] + 1;
        const int first = blockIdx.x * P::THREADS + threadIdx.x;
        for (int w = first; w < COUNT; w += P::BLOCKS * P::THREADS) {
            const u64 message = (u64)exchange << 32 | word_at(x, w);
#pragma unroll
            for (int to = 0; to < P::RANKS; ++to)
                if (to != rank) ((volatile u64 *)slot(boxes[to], exchange, rank))[w] = message;
        }
        for (int w = first; w < COUNT; w += P::BLOCKS * P::THREADS) {
            float sum[PER_WORD] = {};
            for (int r = 0; r < P::RANKS; ++r)  // by rank, so that all ranks get the same bits
                add(sum, r == rank ? word_at(x, w) : received(slot((int64_t)own, exchange, r) + w, exchange, own));
            for (int i = 0; i < PER_WORD; ++i) {
                const int64_t at = (int64_t)w * PER_WORD + i;
                if (at >= P::N) break;
                store<1>(y + at, P::RESIDUAL ? sum[i] + load<1>(residual + at) : sum[i]);
            }
        }
        if (ALONE) return;
        __syncthreads();  // all threads have read the number
        if (threadIdx.x == 0) own[1 + blockIdx.x] = exchange;
        if (blockIdx.x == 0 && threadIdx.x >= P::BLOCKS && threadIdx.x < MAX_BLOCKS) own[1 + threadIdx.x] = exchange;
    }
};

}  // namespace peers
