// needs: tiles last_block
// decode_append.cuh: the KV-cache append of flash_decode: rotary embedding of the queries and new keys, and the write of new keys and values.
//
// Each cache position belongs to one split, and each block computes the new rows of its split into shared memory, where they replace what the
// block loads at their positions. Of the blocks that share a split, those of the first rows write them to the cache; the others may load the
// old or the new value and use neither.
//
// P: the members that flash_decode.cuh lists, and NEW_TOKENS, HALF (rotary pairs of a row: elements i and HALF + i), WIDE (vectors of eight pairs are
//    allowed), TABLE (rows of the cosine and sine tables, 0: one row per position of the call), TILES (shared-memory offset of the new rows),
//    token(row), cache_position(batch, t), table_row(batch, t), checked_position(position) and checked_row(row) (bounds-checked),
//    cosines_at(batch, t, row), sines_at(...), key_of(batch, head, t), value_of(batch, head, t), keys_of(batch, head), values_of(batch, head),
//    writes().
namespace flash_decode {

using tensor::u16;
using tensor::u32;

// One value of a row, or eight 16-byte aligned ones.
template <int N> struct Vec;
template <> struct Vec<1> { u16 at[1]; };
template <> struct __align__(16) Vec<8> { u16 at[8]; };
template <int N> __device__ __forceinline__ Vec<N> load_vec(const u16 *from) { return *(const Vec<N> *)from; }
// Load data that the previous launch wrote: from L2.
template <int N> __device__ __forceinline__ Vec<N> ld_cg_vec(const u16 *from) {
#if defined(__CUDACC_RTC__)
    if constexpr (N == 8) return bitcast<Vec<8>>(__ldcg((const uint4 *)from));
    else return {{__ldcg(from)}};
#else
    return load_vec<N>(from);
#endif
}

template <class P, bool ANY> struct KvAppend {};
template <class P> struct KvAppend<P, true> {
    typedef typename P::T T;
    static constexpr int W = P::WIDE && P::ALIGNED ? 8 : 1, CH = P::D / 8, PAIRS = P::HALF / W, UNITS = PAIRS + (P::D - 2 * P::HALF) / W,
                         THREADS = P::WARPS * 32;
    typedef Vec<W> Part;
    struct Positions {
        int position[P::NEW_TOKENS], row[P::NEW_TOKENS];
    };
    long long position, row;
    int first, last;
    bool has_new_rows;

    __device__ __forceinline__ static Positions &positions() {
        __shared__ Positions smem;
        return smem;
    }
    __device__ __forceinline__ static void store(unsigned char *row, int chunk, int e, const Part &v) {
        *(Part *)(row + chunk * 16 + e % 8 * 2) = v;
    }
    // Shared-memory rows of each new position: 0, its key; 1, its value; 2, its cosines, then its sines.
    __device__ __forceinline__ static unsigned char *row_at(unsigned char *shared, int which, int t) {
        return shared + P::TILES + (which * P::NEW_TOKENS + t) * P::D * 2;
    }

    // Issue the loads whose values `prologue` uses. begin, end: the keys of the block's split.
    __device__ __forceinline__ void load_positions(int batch, int begin, int end, const P &p) {
        first = begin, last = end;
        if (threadIdx.x < P::NEW_TOKENS) {
            position = p.cache_position(batch, threadIdx.x);
            if (P::TABLE > 0) row = p.table_row(batch, threadIdx.x);
        }
    }

    // Do the work that needs no griddep_wait: cache positions, cosines and sines, zeros of missing queries.
    __device__ __forceinline__ void prologue(unsigned char *shared, int batch, const P &p) {
        Positions &k = positions();
        if (threadIdx.x < P::NEW_TOKENS) {
            k.position[threadIdx.x] = p.checked_position(position);
            k.row[threadIdx.x] = P::TABLE > 0 ? p.checked_row(row) : 0;
        }
        for (int i = P::rows * CH + threadIdx.x; i < 16 * CH; i += THREADS)
            *(Vec<8> *)(shared + tiles::swizzle<CH>(i / CH, i % CH) * 16) = Vec<8>{};
        __syncthreads();
        has_new_rows = false;
#pragma unroll
        for (int t = 0; t < P::NEW_TOKENS; ++t) has_new_rows |= k.position[t] >= first && k.position[t] < last;
        for (int i = threadIdx.x; i < P::NEW_TOKENS * 2 * PAIRS; i += THREADS) {
            const int t = i / (2 * PAIRS), u = i % (2 * PAIRS);
            const u16 *const from = u < PAIRS ? p.cosines_at(batch, t, k.row[t]) : p.sines_at(batch, t, k.row[t]) - P::HALF;
            *(Part *)(row_at(shared, 2, t) + u * W * 2) = load_vec<W>(from + u * W);
        }
        __syncthreads();
    }

    // Compute unit u of a row at position t: W rotated pairs, or W elements behind them; zeros beyond the row.
    template <class Put>
    __device__ __forceinline__ static void rotate_pairs(const u16 *x, unsigned char *shared, int t, int u, const Put &put) {
        if (u < PAIRS) {
            const u16 *const angles = (const u16 *)row_at(shared, 2, t) + u * W;
            const Part low = ld_cg_vec<W>(x + u * W), high = ld_cg_vec<W>(x + P::HALF + u * W), c = load_vec<W>(angles), s = load_vec<W>(angles + P::HALF);
            Part a, b;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                const float l = T::wide(low.at[i]), h = T::wide(high.at[i]), co = T::wide(c.at[i]), si = T::wide(s.at[i]);
                const u32 pair = T::pack(l * co - h * si, h * co + l * si);
                a.at[i] = (u16)pair, b.at[i] = (u16)(pair >> 16);
            }
            put(u * W, a);
            put(P::HALF + u * W, b);
        } else {
            const int e = 2 * P::HALF + (u - PAIRS) * W;
            put(e, e < P::d ? ld_cg_vec<W>(x + e) : Part{});
        }
    }

    __device__ __forceinline__ bool in_split(int at) const { return at >= first && at < last; }
    // Return whether this block writes new row t to the cache. Of several rows for one position the last wins.
    __device__ __forceinline__ bool writes_cache(int t, const P &p) const {
        bool last = p.writes();
#pragma unroll
        for (int other = 0; other < P::NEW_TOKENS; ++other) last &= other <= t || positions().position[other] != positions().position[t];
        return last;
    }

    // Write the queries' tile and the split's new rows to shared memory; the next barrier makes them visible. Queries and keys are rotated together;
    // other warps copy the values.
    __device__ __forceinline__ void rotate_and_append(const u16 *q, unsigned char *shared, int batch, int head, const P &p) const {
        constexpr int ROTATED = (P::rows + P::NEW_TOKENS) * UNITS, ROTATED_PADDED = (ROTATED + 31) / 32 * 32, VALUES = P::D / W;
        for (int i = threadIdx.x; i < ROTATED_PADDED + P::NEW_TOKENS * VALUES; i += THREADS) {
            const int r = i < ROTATED ? i / UNITS : P::rows + (i - ROTATED_PADDED) / VALUES;
            const bool query = i < ROTATED && r < P::rows;
            const int t = query ? p.token(r) : r - P::rows, at = query ? 0 : positions().position[t < 0 ? 0 : t];
            if ((i >= ROTATED && i < ROTATED_PADDED) || (!query && !in_split(at))) continue;
            const bool stores = !query && writes_cache(t, p);
            if (i < ROTATED) {
                unsigned char *const to = query ? shared : row_at(shared, 0, t);
                u16 *const cache = p.keys_of(batch, head) + (long long)at * P::k_row;
                rotate_pairs(query ? q + p.q_at(r) : p.key_of(batch, head, t), shared, t, i % UNITS, [&](int e, const Part &v) {
                    store(to, query ? tiles::swizzle<CH>(r, e / 8) : e / 8, e, v);
                    if (stores && e < P::d) *(Part *)(cache + e) = v;
                });
            } else {
                const int e = (i - ROTATED_PADDED) % VALUES * W;
                const Part v = e < P::dv ? ld_cg_vec<W>(p.value_of(batch, head, t) + e) : Part{};
                store(row_at(shared, 1, t), e / 8, e, v);
                if (stores && e < P::dv) *(Part *)(p.values_of(batch, head) + (long long)at * P::v_row + e) = v;
            }
        }
    }

    // Replace old rows by new ones in a warp's tile of KEYS keys from key0 on and in their values.
    template <int KEYS>
    __device__ __forceinline__ void patch_tile(unsigned char *tile, unsigned char *shared, int key0, int end) const {
        if (!has_new_rows) return;
        const Positions &k = positions();
        const int lane = threadIdx.x % 32;
        for (int t = 0; t < P::NEW_TOKENS; ++t) {
            const int r = k.position[t] - key0;
            if (r < 0 || r >= KEYS || k.position[t] >= end) continue;
            for (int i = lane; i < 2 * CH; i += 32)
                *(Vec<8> *)(tile + i / CH * KEYS * P::D * 2 + tiles::swizzle<CH>(r, i % CH) * 16) =
                    *(const Vec<8> *)(row_at(shared, i / CH, t) + i % CH * 16);
        }
        __syncwarp();
    }
};

}  // namespace flash_decode
