// needs: tensor
// sight.cuh: which keys the queries of a block see by a mask of flags, so that keys that none of them sees are never fetched, and the mask is not
// asked again where all see all. Looking through a mask once takes a tenth of the products that a causal one spares.
namespace sight {

using tensor::u16;
using tensor::u32;

struct alignas(16) Flags {
    u32 at[4];
};
static constexpr int OPEN = 0x8000;  // every query sees every key

// The blocks of BN keys of which some query from row0 on sees a key, one after the other in `order`, with OPEN where that is so; gives their number.
// P: queries, keys, and TILES blocks of keys, for which `order` has room and one more; mask_row, from one query's flags to the next's, is a multiple of 16.
template <class P, int BM, int BN, int WARPS>
__device__ __forceinline__ int blocks_seen(const unsigned char *mask, int row0, u16 *order) {
    constexpr int PIECES = BN / 16;
    const int lane = threadIdx.x % 32, rows = P::queries - row0 < BM ? P::queries - row0 : BM;
    const bool aligned = (unsigned long long)mask % 16 == 0;
    for (int block = threadIdx.x / 32; block < P::TILES; block += WARPS) {
        bool some = !aligned, all = aligned;
#pragma unroll 8
        for (int i = aligned ? lane : rows * PIECES; i < rows * PIECES; i += 32) {
            const int key = block * BN + i % PIECES * 16;
            const unsigned char *const flags = mask + (long long)(row0 + i / PIECES) * P::mask_row + key;
            if (key + 16 <= P::keys) {
                const Flags four = *(const Flags *)flags;
#pragma unroll
                for (int e = 0; e < 4; ++e) some |= four.at[e] != 0, all &= four.at[e] == 0x01010101u;
            } else {
                all = false;
                for (int e = 0; key + e < P::keys; ++e) some |= flags[e] != 0;
            }
        }
        some = __any_sync(0xffffffffu, some);
        all = !__any_sync(0xffffffffu, !all);
        if (lane == 0) order[block] = some ? all ? OPEN : 1 : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int count = 0;
        for (int block = 0; block < P::TILES; ++block) {
            const int said = order[block];
            if (said) order[count++] = block | (said & OPEN);
        }
        order[P::TILES] = count;
    }
    __syncthreads();
    return order[P::TILES];
}

}  // namespace sight
