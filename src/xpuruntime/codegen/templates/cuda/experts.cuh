// needs: movement
// experts.cuh: rows of a product grouped by the expert that multiplies them, in tiles of rows of one expert.
//
// The table has TILES * ROWS pairs (row, slot), those of one expert in order and -1 as padding of its last tile; then the expert of each tile, -1
// for tiles after the last one.
namespace experts {

constexpr int THREADS = 256;

// Write the table of `ids`, PAIRS experts from 0 to EXPERTS - 1, by one block.
template <int PAIRS, int EXPERTS, int ROWS, int TILES, class I>
__device__ __forceinline__ void group(const I *ids, int32_t *table) {
    __shared__ int first[EXPERTS + 1];  // the number of tiles of an expert, then its first tile
    for (int e = threadIdx.x; e < EXPERTS; e += THREADS) {
        int count = 0;
        for (int i = 0; i < PAIRS; ++i) count += (int)index_in(ids[i], EXPERTS) == e;
        first[e] = (count + ROWS - 1) / ROWS;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int tiles = 0;
        for (int e = 0; e < EXPERTS; ++e) {
            const int of_expert = first[e];
            first[e] = tiles;
            tiles += of_expert;
        }
        first[EXPERTS] = tiles;
    }
    __syncthreads();
    int32_t *const expert_of = table + TILES * ROWS;
    for (int e = threadIdx.x; e < EXPERTS; e += THREADS) {
        int at = first[e] * ROWS;
        for (int i = 0; i < PAIRS; ++i)
            if ((int)index_in(ids[i], EXPERTS) == e) table[at++] = i;
        for (; at < first[e + 1] * ROWS; ++at) table[at] = -1;
        for (int tile = first[e]; tile < first[e + 1]; ++tile) expert_of[tile] = e;
    }
    for (int tile = first[EXPERTS] + threadIdx.x; tile < TILES; tile += THREADS) expert_of[tile] = -1;
}

}  // namespace experts
