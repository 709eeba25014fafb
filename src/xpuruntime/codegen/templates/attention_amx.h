// needs: attention tile transpose
// attention_amx: attention.h's blocks of keys in bfloat16 with AMX tiles, 32 queries in the lanes. K is read in offset_of; queries and weights
// are interleaved in pairs of k, and V's block is transposed. Scores, softmax and accumulators are float; weights are rounded to bfloat16
// for the second product.

// Queries [32][d] -> [d / 2][32][2], zeros beyond; d in whole steps of a tile.
template <class P, class OffsetOf> INLINE void attention_pair_queries(const bf16 *q, int64_t queries, bf16 *to, OffsetOf offset_of) {
    for (int64_t lane = 0; lane < TILE_COLUMNS; lane += 16)
        for (int64_t e = 0; e < P::d; e += TILE_DEPTH) {
            TransposeRow r[16];
            for (int i = 0; i < 16; i++) r[i] = lane + i < queries ? transpose_load_words(q + offset_of(lane + i) + e, P::d - e) : TransposeRow{};
            transpose_16x16(r);
            for (int i = 0; i < 16; i++) __builtin_memcpy(to + ((e / 2 + i) * TILE_COLUMNS + lane) * 2, &r[i], 64);
        }
}

// Values [keys][dv] -> [dv][block], zeros beyond the keys to a whole step of a tile.
template <class P> static __attribute__((noinline)) void attention_transpose_values(const bf16 *v, int64_t keys, bf16 *to) {
    for (int64_t e = 0; e < P::dv; e += 16)
        for (int64_t j = 0; j < keys; j += TILE_DEPTH) {
            TransposeRow r[16];
            for (int i = 0; i < 16; i++) {
                const int64_t at = j + 2 * i;
                r[i] = interleave_pairs(at < keys ? transpose_load(v + at * P::v_row + e, P::dv - e) : vec<uint16_t, 16>{},
                                  at + 1 < keys ? transpose_load(v + (at + 1) * P::v_row + e, P::dv - e) : vec<uint16_t, 16>{});
            }
            transpose_16x16(r);
            for (int i = 0; i < 16; i++) __builtin_memcpy(to + (e + i) * P::block + j, &r[i], 64);
        }
}

// Weights [keys][32] -> [keys / 2][32][2] in bfloat16, zeros beyond.
static __attribute__((noinline)) void attention_pair_weights(const float *weights, int64_t keys, bf16 *to) {
    for (int64_t j = 0; j < (keys + TILE_DEPTH - 1) / TILE_DEPTH * TILE_DEPTH; j += 2)
        for (int64_t lane = 0; lane < TILE_COLUMNS; lane += 16) {
            const auto row = [&](int64_t at) {
                return at < keys ? narrow_bf16<16>(load<16>(weights + at * TILE_COLUMNS + lane)) : vec<uint16_t, 16>{};
            };
            const TransposeRow r = interleave_pairs(row(j), row(j + 1));
            __builtin_memcpy(to + (j * TILE_COLUMNS / 2 + lane) * 2, &r, 64);
        }
}

// As attention_block. P's NV is 2, block a multiple of a tile's depth, and elements of q, k and v are contiguous.
// scratch: accumulator [dv][32], scores [block][32], queries, weights, V's block transposed, the tail of d.
template <class P, class OffsetOf, class LastVisible, class Mask>
INLINE void attention_block_tiles(Tiles &tiles, const bf16 *q, const bf16 *k, const bf16 *v, float scale, int64_t queries, int64_t first,
                                  int64_t last, AttentionState<float, P::NV> &state, void *scratch, OffsetOf offset_of, LastVisible last_visible, Mask mask) {
    constexpr int64_t L = 16, lanes = TILE_COLUMNS, steps = P::d / TILE_DEPTH, left = P::d % TILE_DEPTH;
    typedef vec<float, L> V;
    state.result = (float *)scratch;
    float *scores = state.result + P::dv * lanes;
    bf16 *pairs = (bf16 *)(scores + P::block * lanes), *weights = pairs + (steps + (left > 0)) * TILE_DEPTH * lanes;
    bf16 *v_trans = weights + P::block * lanes, *tail = v_trans + (P::dv + 15) / 16 * 16 * P::block;
    for (int v = 0; v < P::NV; ++v) {
        state.row_max[v] = splat<V>(MASKED_SCORE<float>);
        state.row_sum[v] = V{};
    }
    for (int64_t i = 0; i < P::dv * lanes; i += L) store<L>(state.result + i, V{});
    attention_pair_queries<P>(q, queries, pairs, offset_of);
    const int64_t bound = last;
    if (P::causal) {  // keys that are visible to any of these queries
        int64_t visible = 0;
        for (int64_t lane = 0; lane < queries; ++lane)
            if (last_visible(lane) >= visible) visible = last_visible(lane) + 1;
        if (visible < last) last = visible;
    }
    for (int64_t at = first; at < last; at += P::block) {
        const int64_t keys = bound - at < P::block ? bound - at : P::block;
        const bf16 *kb = k + at * P::k_row;
        for (int64_t row = 0; row < keys; row += TILE_ROWS) {
            const int64_t n = keys - row < TILE_ROWS ? keys - row : TILE_ROWS;
            const bf16 *a = kb + row * P::k_row;
            if (left) tile_tail(a + steps * TILE_DEPTH, P::k_row, n, left, tail);
            tile_product(tiles, n, a, 2 * P::k_row, pairs, steps, left ? tail : nullptr, nullptr, 0, scores + row * lanes, pairs, 0);
        }
        for (int64_t i = 0; i < keys * lanes; i += L) {
            V score = load<L>(scores + i) * splat<V>(scale);
            if constexpr (P::softcap) score = tanh(score / splat<V>(P::cap())) * splat<V>(P::cap());
            store<L>(scores + i, score);
        }
        if constexpr (P::masked) mask(scores, at, keys);
        if constexpr (P::causal) {
            alignas(64) int32_t ends[lanes];  // the first masked key of each query
            int64_t from = keys;
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const int64_t end = lane < queries ? last_visible(lane) + 1 - at : keys;
                ends[lane] = end < 0 ? 0 : end < keys ? end : keys;
                if (ends[lane] < from) from = ends[lane];
            }
            for (int64_t j = from; j < keys; ++j)
                for (int64_t lane = 0; lane < lanes; lane += L) {
                    float *score = scores + j * lanes + lane;
                    store<L>(score, select(load<L>(ends + lane) <= (int32_t)j, splat<V>(MASKED_SCORE<float>), load<L>(score)));
                }
        }
        attention_softmax<float, P::NV>(state, scores, keys, P::dv);
        attention_pair_weights(scores, keys, weights);
        attention_transpose_values<P>(v + at * P::v_row, keys, v_trans);
        for (int64_t row = 0; row < P::dv; row += TILE_ROWS) {
            float *to = state.result + row * lanes;
            tile_product(tiles, P::dv - row < TILE_ROWS ? P::dv - row : TILE_ROWS, v_trans + row * P::block, 2 * P::block, weights,
                         (keys + TILE_DEPTH - 1) / TILE_DEPTH, nullptr, to, TILE_SUMS, to, weights, 0);
        }
    }
}

// As attention_finish, for results whose elements are contiguous.
template <class P, class OffsetOf>
INLINE void attention_finish_tiles(const AttentionState<float, P::NV> &state, bf16 *y, int64_t queries, OffsetOf offset_of) {
    constexpr int64_t L = 16, lanes = TILE_COLUMNS;
    typedef vec<float, L> V;
    for (int v = 0; v < P::NV; ++v) {
        const V scale = select(state.row_sum[v] == 0, V{}, splat<V>(1) / state.row_sum[v]);
        for (int64_t e = 0; e < P::dv; e += 16) {
            TransposeRow r[16];
            for (int i = 0; i < 16; i++)
                r[i] = e + i < P::dv ? bitcast<TransposeRow>((V)(load<L>(state.result + (e + i) * lanes + v * L) * scale)) : TransposeRow{};
            transpose_16x16(r);
            for (int i = 0; i < 16 && v * L + i < queries; i++) {
                bf16 *to = y + offset_of(v * L + i) + e;
                if (P::dv - e >= L) store<L>(to, bitcast<V>(r[i]));
                else store<L>(to, bitcast<V>(r[i]), P::dv - e);
            }
        }
    }
}
