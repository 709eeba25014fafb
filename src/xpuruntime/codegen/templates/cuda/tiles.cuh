// needs: tensor
// tiles.cuh: swizzled tiles of 16-bit values in shared memory, as ldmatrix reads them.
namespace tiles {

using tensor::u16;
using tensor::u32;

// The index of chunk c (16 bytes) of row r, XOR-swizzled so that eight rows of one chunk column have no bank conflict.
template <int CHUNKS>
__device__ __forceinline__ int swizzle(int r, int c) {
    if (CHUNKS >= 8) return r * CHUNKS + (c ^ (r & 7));
    if (CHUNKS == 4) return r * CHUNKS + (c ^ (r >> 1 & 3));
    return r * CHUNKS + (c ^ (r >> 2 & 1));
}

// Copy an unaligned or partial chunk element by element.
__device__ __forceinline__ void copy_scalar(unsigned char *to, const u16 *from, int count) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i < count) words[i / 2] |= (u32)from[i] << (i % 2 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) ((u32 *)to)[i] = words[i];
}

// Copy eight values from column `at` of a row of `width`: asynchronously where rows are ALIGNED to 16 bytes and multiples of eight.
template <bool ALIGNED>
__device__ __forceinline__ void load_chunk_async(unsigned char *to, const u16 *row, int at, int width, bool there) {
    if (ALIGNED)
        tensor::cp_async_16(tensor::smem_addr(to), row + at, there && at < width);
    else
        copy_scalar(to, row + at, there ? width - at : 0);
}

// A lane's ldmatrix address for the tile's first row and chunk. Other chunk pairs are reached by XOR and other groups of 16 rows by addition,
// so that one register addresses the whole tile (which must start at a multiple of its row size).
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

// A 16x16 fragment of A: `addr` from ldmatrix_rows_addr.
template <int CHUNKS>
__device__ __forceinline__ void load_a_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4(f, tile_addr<CHUNKS>(addr, row, chunk));
}
// Two 16x8 fragments of B from a tile [n, k]: `addr` from ldmatrix_columns_addr ...
template <int CHUNKS>
__device__ __forceinline__ void load_b_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4(f, tile_addr<CHUNKS>(addr, row, chunk));
}
// ... or from a tile [k, n]: `addr` from ldmatrix_rows_addr.
template <int CHUNKS>
__device__ __forceinline__ void load_b_trans_16x16(u32 (&f)[4], u32 addr, int row, int chunk) {
    tensor::ldmatrix_x4_trans(f, tile_addr<CHUNKS>(addr, row, chunk));
}

}  // namespace tiles
