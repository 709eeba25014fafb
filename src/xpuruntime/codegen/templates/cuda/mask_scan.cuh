// needs: tensor
// mask_scan.cuh: a scan of a boolean mask before attention. Blocks of keys that are masked for every query of the block are skipped; blocks without
// a masked key need no mask.
namespace mask_scan {

using tensor::u32;

struct alignas(16) Flags {
    u32 at[4];
};
static constexpr u32 ALL_VISIBLE = 0x8000;  // no key is masked for any query

// Write the indices of the blocks of BN keys that are visible to some query from row0 on to `order`, with ALL_VISIBLE set where no key is masked,
// and return their number; with SPLITS > 1 only those of this split, which are the same whatever the mask is. P: queries, keys, TILES (blocks of keys; `order` has TILES + 1 entries). keys and mask_row (bytes between the rows of the
// mask) are multiples of 16.
template <class P, int BM, int BN, int WARPS>
__device__ __forceinline__ int visible_blocks(const unsigned char *mask, int row0, int split, u32 *order) {
    constexpr int PIECES = BN / 16, ROWS = 32 / PIECES, IN_FLIGHT = 8, ROUNDS = BM / (ROWS * IN_FLIGHT);
    constexpr u32 SOME = 1, NOT_ALL = 2;
    static_assert(BM % (ROWS * IN_FLIGHT) == 0, "whole rounds of loads cover the rows of a block");
    const int lane = threadIdx.x % 32, last = P::queries - 1;
    const bool aligned = (unsigned long long)mask % 16 == 0;
    for (int block = threadIdx.x; block <= P::TILES; block += WARPS * 32) order[block] = 0;
    __syncthreads();
    for (int round = threadIdx.x / 32; round < P::TILES * ROUNDS; round += WARPS) {
        const int block = round / ROUNDS, key = block * BN + lane % PIECES * 16;
        bool some = !aligned, all = aligned && key < P::keys;
        if (all) {
            Flags read[IN_FLIGHT];  // all loads are issued before the first use
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i) {
                const int at = row0 + (round % ROUNDS * IN_FLIGHT + i) * ROWS + lane / PIECES;
                read[i] = *(const Flags *)(mask + (long long)(at < last ? at : last) * P::mask_row + key);
            }
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) some |= read[i].at[e] != 0, all &= read[i].at[e] == 0x01010101u;
        }
        some = __any_sync(0xffffffffu, some);
        all = !__any_sync(0xffffffffu, !all);
        if (lane == 0) atomicOr(order + block, (some ? SOME : 0u) | (all ? 0u : NOT_ALL));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int count = 0;
        for (int block = 0; block < P::TILES; ++block) {
            const u32 said = order[block];
            if ((said & SOME) && block % P::SPLITS == split) order[count++] = block | (said & NOT_ALL ? 0 : ALL_VISIBLE);
        }
        order[P::TILES] = count;
    }
    __syncthreads();
    return order[P::TILES];
}

}  // namespace mask_scan
