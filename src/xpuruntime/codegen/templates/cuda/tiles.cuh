// needs: tensor
// tiles.cuh: rows of 16-bit values in shared memory, as tensor cores read them.
namespace tiles {

using tensor::u16;
using tensor::u32;

// Where chunk c (16 bytes) of row r lies among a row's `CHUNKS`, so that eight rows of one column meet no bank twice.
template <int CHUNKS>
__device__ __forceinline__ int swizzle(int r, int c) {
    if (CHUNKS >= 8) return r * CHUNKS + (c ^ (r & 7));
    if (CHUNKS == 4) return r * CHUNKS + (c ^ (r >> 1 & 3));
    return r * CHUNKS + (c ^ (r >> 2 & 1));
}

// A chunk that does not start at 16 bytes, or that ends a row: element by element.
__device__ __forceinline__ void copy_scalar(unsigned char *to, const u16 *from, int count) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < count) words[i / 2] |= (u32)from[i] << (i % 2 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) ((u32 *)to)[i] = words[i];
}

// Eight values at column `at` of a row of `width`: a copy that lands later where rows are ALIGNED to 16 bytes and in eights.
template <bool ALIGNED>
__device__ __forceinline__ void load_chunk_async(unsigned char *to, const u16 *row, int at, int width, bool there) {
    if (ALIGNED)
        tensor::cp_async_16(tensor::smem_addr(to), row + at, there && at < width);
    else
        copy_scalar(to, row + at, there ? width - at : 0);
}

// Lanes' places for the loads below, of the tile's first row and chunk. Chunks are taken by pairs: another pair is another place by
// exclusive or, another 16 rows by addition, so one register serves a whole tile (which must start at a multiple of its rows' bytes).
template <int CHUNKS>
__device__ __forceinline__ u32 ldmatrix_rows_addr(u32 tile, int lane) {
    return tile + swizzle<CHUNKS>(lane % 16, lane / 16) * 16;
}
template <int CHUNKS>
__device__ __forceinline__ u32 ldmatrix_columns_addr(u32 tile, int lane) {
    return tile + swizzle<CHUNKS>(lane % 8 + lane / 16 * 8, lane / 8 % 2) * 16;
}
template <int CHUNKS>
__device__ __forceinline__ u32 tile_addr(u32 addr, int row, int chunk) {
    return (addr ^ (u32)(chunk * 16)) + (u32)(row * CHUNKS * 16);
}

// A fragment of 16 rows and 16 columns: `addr` by ldmatrix_rows_addr.
template <int CHUNKS>
__device__ __forceinline__ void load_a_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4(f, tile_addr<CHUNKS>(addr, row, chunk));
}
// Two right sides of 8 columns and 16 k. Columns are rows of the tile and k lies along them: by ldmatrix_columns_addr ...
template <int CHUNKS>
__device__ __forceinline__ void load_b_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4(f, tile_addr<CHUNKS>(addr, row, chunk));
}
// ... or k are rows of the tile: by ldmatrix_rows_addr.
template <int CHUNKS>
__device__ __forceinline__ void load_b_trans_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4_trans(f, tile_addr<CHUNKS>(addr, row, chunk));
}

}  // namespace tiles
