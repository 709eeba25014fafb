// needs: tiles last_block
// decode_append.cuh: attention that turns its own queries by their positions and puts the new keys and values into the caches.
//
// Every place of the caches belongs to the blocks of one split, so whoever needs a new row makes it: it waits in shared memory and replaces
// what the block reads at its place. Of the blocks that share a split, those of the first rows write it to the cache; the others may read
// old or new there and use neither.
//
// P: what flash_decode.cuh says, and NEW, HALF (pairs of a row that are turned: of element i and HALF + i), WIDE (eight pairs at a time
//    may be read), TABLE (rows of the tables of cosines and sines, 0: a row for each position of the call), TILES (bytes of shared memory
//    before the new rows), token(row), place_of(batch, t), spot_of(batch, t) (the row of the tables), placed(place) and spotted(spot)
//    (checked), cosines_at(batch, t, spot), sines_at(...), key_of(batch, head, t), value_of(batch, head, t), keys_of(batch, head),
//    values_of(batch, head), writes().
namespace flash_decode {

using tensor::u16;
using tensor::u32;

// One value of a row, or eight that lie at a multiple of 16 bytes.
template <int N> struct Few;
template <> struct Few<1> { u16 at[1]; };
template <> struct __align__(16) Few<8> { u16 at[8]; };
template <int N> __device__ __forceinline__ Few<N> few(const u16 *from) { return *(const Few<N> *)from; }
// What the launch before wrote: from the second-level cache, where it is.
template <int N> __device__ __forceinline__ Few<N> ld_cg_few(const u16 *from) {
#if defined(__CUDACC_RTC__)
    if constexpr (N == 8) return bitcast<Few<8>>(__ldcg((const uint4 *)from));
    else return {{__ldcg(from)}};
#else
    return few<N>(from);
#endif
}

template <class P, bool ANY> struct KvAppend {};
template <class P> struct KvAppend<P, true> {
    typedef typename P::T T;
    static constexpr int W = P::WIDE && P::ALIGNED ? 8 : 1, CH = P::D / 8, PAIRS = P::HALF / W, UNITS = PAIRS + (P::D - 2 * P::HALF) / W,
                         THREADS = P::WARPS * 32;
    typedef Few<W> Part;
    struct Known {
        int place[P::NEW_TOKENS], spot[P::NEW_TOKENS];
    };
    long long place, spot;
    int first, last;
    bool has_new_rows;

    __device__ __forceinline__ static Known &known() {
        __shared__ Known room;
        return room;
    }
    __device__ __forceinline__ static void store(unsigned char *row, int chunk, int e, const Part &v) {
        *(Part *)(row + chunk * 16 + e % 8 * 2) = v;
    }
    // What waits in shared memory for each new position: 0, its key; 1, its value; 2, its cosines, then its sines.
    __device__ __forceinline__ static unsigned char *row_at(unsigned char *shared, int which, int t) {
        return shared + P::TILES + (which * P::NEW_TOKENS + t) * P::D * 2;
    }

    // Reads go out whose values `prepare` takes. begin, end: keys of the block's split.
    __device__ __forceinline__ void load_positions(int batch, int begin, int end, const P &p) {
        first = begin, last = end;
        if (threadIdx.x < P::NEW_TOKENS) {
            place = p.place_of(batch, threadIdx.x);
            if (P::TABLE > 0) spot = p.spot_of(batch, threadIdx.x);
        }
    }

    // All that can be done before the launch's turn: where new rows go, their cosines and sines, and queries that there are not.
    __device__ __forceinline__ void prologue(unsigned char *shared, int batch, const P &p) {
        Known &k = known();
        if (threadIdx.x < P::NEW_TOKENS) {
            k.place[threadIdx.x] = p.placed(place);
            k.spot[threadIdx.x] = P::TABLE > 0 ? p.spotted(spot) : 0;
        }
        for (int i = P::rows * CH + threadIdx.x; i < 16 * CH; i += THREADS)
            *(Few<8> *)(shared + tiles::swizzle<CH>(i / CH, i % CH) * 16) = Few<8>{};
        __syncthreads();
        has_new_rows = false;
#pragma unroll
        for (int t = 0; t < P::NEW_TOKENS; ++t) has_new_rows |= k.place[t] >= first && k.place[t] < last;
        for (int i = threadIdx.x; i < P::NEW_TOKENS * 2 * PAIRS; i += THREADS) {
            const int t = i / (2 * PAIRS), u = i % (2 * PAIRS);
            const u16 *const from = u < PAIRS ? p.cosines_at(batch, t, k.spot[t]) : p.sines_at(batch, t, k.spot[t]) - P::HALF;
            *(Part *)(row_at(shared, 2, t) + u * W * 2) = few<W>(from + u * W);
        }
        __syncthreads();
    }

    // Unit u of a row of position t: W pairs, turned, or W elements behind them; zeros beyond the row.
    template <class Put>
    __device__ __forceinline__ static void rotate_pairs(const u16 *x, unsigned char *shared, int t, int u, const Put &put) {
        if (u < PAIRS) {
            const u16 *const angles = (const u16 *)row_at(shared, 2, t) + u * W;
            const Part low = ld_cg_few<W>(x + u * W), high = ld_cg_few<W>(x + P::HALF + u * W), c = few<W>(angles), s = few<W>(angles + P::HALF);
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
            put(e, e < P::d ? ld_cg_few<W>(x + e) : Part{});
        }
    }

    __device__ __forceinline__ bool in_split(int at) const { return at >= first && at < last; }
    // Whether new row t goes to the cache: of several for one place, the last does.
    __device__ __forceinline__ bool writes_cache(int t, const P &p) const {
        bool last = p.writes();
#pragma unroll
        for (int other = 0; other < P::NEW_TOKENS; ++other) last &= other <= t || known().place[other] != known().place[t];
        return last;
    }

    // The queries' tile, and the new rows that this block's split has; they are there after the next barrier. Queries and keys are turned alike
    // and at once; values have other warps.
    __device__ __forceinline__ void rotate_and_append(const u16 *q, unsigned char *shared, int batch, int head, const P &p) const {
        constexpr int ROTATED = (P::rows + P::NEW_TOKENS) * UNITS, ROTATED_PADDED = (ROTATED + 31) / 32 * 32, VALUES = P::D / W;
        for (int i = threadIdx.x; i < ROTATED_PADDED + P::NEW_TOKENS * VALUES; i += THREADS) {
            const int r = i < ROTATED ? i / UNITS : P::rows + (i - ROTATED_PADDED) / VALUES;
            const bool query = i < ROTATED && r < P::rows;
            const int t = query ? p.token(r) : r - P::rows, at = query ? 0 : known().place[t < 0 ? 0 : t];
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
                const Part v = e < P::dv ? ld_cg_few<W>(p.value_of(batch, head, t) + e) : Part{};
                store(row_at(shared, 1, t), e / 8, e, v);
                if (stores && e < P::dv) *(Part *)(p.values_of(batch, head) + (long long)at * P::v_row + e) = v;
            }
        }
    }

    // A warp's KEYS keys from key0 on and their values, which have landed: new rows in the place of old ones.
    template <int KEYS>
    __device__ __forceinline__ void patch_tile(unsigned char *tile, unsigned char *shared, int key0, int end) const {
        if (!has_new_rows) return;
        const Known &k = known();
        const int lane = threadIdx.x % 32;
        for (int t = 0; t < P::NEW_TOKENS; ++t) {
            const int r = k.place[t] - key0;
            if (r < 0 || r >= KEYS || k.place[t] >= end) continue;
            for (int i = lane; i < 2 * CH; i += 32)
                *(Few<8> *)(tile + i / CH * KEYS * P::D * 2 + tiles::swizzle<CH>(r, i % CH) * 16) =
                    *(const Few<8> *)(row_at(shared, i / CH, t) + i % CH * 16);
        }
        __syncwarp();
    }
};

}  // namespace flash_decode
