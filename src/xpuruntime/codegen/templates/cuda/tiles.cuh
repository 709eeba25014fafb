// needs: tensor
// tiles.cuh: rows of 16-bit values in shared memory, as tensor cores read them.
namespace tiles {

using tensor::u16;
using tensor::u32;

// Where chunk c (16 bytes) of row r lies among a row's `CHUNKS`, so that eight rows of one column meet no bank twice.
template <int CHUNKS>
__device__ __forceinline__ int swizzled(int r, int c) {
    if (CHUNKS >= 8) return r * CHUNKS + (c ^ (r & 7));
    if (CHUNKS == 4) return r * CHUNKS + (c ^ (r >> 1 & 3));
    return r * CHUNKS + (c ^ (r >> 2 & 1));
}

// A chunk that does not start at 16 bytes, or that ends a row: element by element.
__device__ __forceinline__ void gather(unsigned char *to, const u16 *from, int count) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < count) words[i / 2] |= (u32)from[i] << (i % 2 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) ((u32 *)to)[i] = words[i];
}

// Eight values at column `at` of a row of `width`: a copy that lands later where rows are ALIGNED to 16 bytes and in eights.
template <bool ALIGNED>
__device__ __forceinline__ void fetch(unsigned char *to, const u16 *row, int at, int width, bool there) {
    if (ALIGNED)
        tensor::copy16(tensor::place(to), row + at, there && at < width);
    else
        gather(to, row + at, there ? width - at : 0);
}

// Lanes' places for the loads below, of the tile's first row and chunk. Chunks are taken by pairs: another pair is another place by
// exclusive or, another 16 rows by addition, so one register serves a whole tile (which must start at a multiple of its rows' bytes).
template <int CHUNKS>
__device__ __forceinline__ u32 rows_place(u32 tile, int lane) {
    return tile + swizzled<CHUNKS>(lane % 16, lane / 16) * 16;
}
template <int CHUNKS>
__device__ __forceinline__ u32 columns_place(u32 tile, int lane) {
    return tile + swizzled<CHUNKS>(lane % 8 + lane / 16 * 8, lane / 8 % 2) * 16;
}
template <int CHUNKS>
__device__ __forceinline__ u32 moved(u32 place, int row, int chunk) {
    return (place ^ (u32)(chunk * 16)) + (u32)(row * CHUNKS * 16);
}

// A fragment of 16 rows and 16 columns: `place` by rows_place.
template <int CHUNKS>
__device__ __forceinline__ void rows16(u32 (&f)[4], u32 place, int row, int chunk) {
    tensor::load_matrices(f, moved<CHUNKS>(place, row, chunk));
}
// Two right sides of 8 columns and 16 k. Columns are rows of the tile and k lies along them: by columns_place ...
template <int CHUNKS>
__device__ __forceinline__ void columns16(u32 (&f)[4], u32 place, int row, int chunk) {
    tensor::load_matrices(f, moved<CHUNKS>(place, row, chunk));
}
// ... or k are rows of the tile: by rows_place.
template <int CHUNKS>
__device__ __forceinline__ void across16(u32 (&f)[4], u32 place, int row, int chunk) {
    tensor::load_matrices_transposed(f, moved<CHUNKS>(place, row, chunk));
}

}  // namespace tiles
