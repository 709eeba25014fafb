// needs: attention tile turn
// attention_amx: attention.h's blocks of keys in bfloat16 by tiles, 32 queries in the lanes. K is read in place; queries and weights go
// in pairs, V's block is turned. Scores, their softmax and results stay in float; weights are rounded to bfloat16 for the second product.

// Queries [32][d] -> [d / 2][32][2], zeros beyond; d in whole steps of a tile.
template <class P, class Place> INLINE void attention_pair_queries(const bf16 *q, int64_t queries, bf16 *to, Place place) {
    for (int64_t lane = 0; lane < TILE_COLUMNS; lane += 16)
        for (int64_t e = 0; e < P::d; e += TILE_DEPTH) {
            TurnRow r[16];
            for (int i = 0; i < 16; i++) r[i] = lane + i < queries ? turn_words(q + place(lane + i) + e, P::d - e) : TurnRow{};
            turn(r);
            for (int i = 0; i < 16; i++) __builtin_memcpy(to + ((e / 2 + i) * TILE_COLUMNS + lane) * 2, &r[i], 64);
        }
}

// Values [keys][dv] -> [dv][block], zeros beyond the keys to a whole step of a tile.
template <class P> static __attribute__((noinline)) void attention_turn_values(const bf16 *v, int64_t keys, bf16 *to) {
    for (int64_t e = 0; e < P::dv; e += 16)
        for (int64_t j = 0; j < keys; j += TILE_DEPTH) {
            TurnRow r[16];
            for (int i = 0; i < 16; i++) {
                const int64_t at = j + 2 * i;
                r[i] = turn_pairs(at < keys ? turn_load(v + at * P::v_row + e, P::dv - e) : vec<uint16_t, 16>{},
                                  at + 1 < keys ? turn_load(v + (at + 1) * P::v_row + e, P::dv - e) : vec<uint16_t, 16>{});
            }
            turn(r);
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
            const TurnRow r = turn_pairs(row(j), row(j + 1));
            __builtin_memcpy(to + (j * TILE_COLUMNS / 2 + lane) * 2, &r, 64);
        }
}

// As attention_block. P's NV is 2, block a multiple of a tile's depth, and elements of q, k and v are contiguous.
// scratch: result [dv][32], scores [block][32], queries, weights, V's block, the end of d.
template <class P, class Place, class Seen, class Mask>
INLINE void attention_block_tiles(Tiles &tiles, const bf16 *q, const bf16 *k, const bf16 *v, float scale, int64_t queries, int64_t first,
                                  int64_t last, AttentionState<float, P::NV> &state, void *scratch, Place place, Seen seen, Mask mask) {
    constexpr int64_t L = 16, lanes = TILE_COLUMNS, steps = P::d / TILE_DEPTH, left = P::d % TILE_DEPTH;
    typedef vec<float, L> V;
    state.result = (float *)scratch;
    float *scores = state.result + P::dv * lanes;
    bf16 *pairs = (bf16 *)(scores + P::block * lanes), *weights = pairs + (steps + (left > 0)) * TILE_DEPTH * lanes;
    bf16 *turned = weights + P::block * lanes, *rest = turned + (P::dv + 15) / 16 * 16 * P::block;
    for (int v = 0; v < P::NV; ++v) {
        state.most[v] = splat<V>(ATTENTION_HIDDEN<float>);
        state.sum[v] = V{};
    }
    for (int64_t i = 0; i < P::dv * lanes; i += L) store<L>(state.result + i, V{});
    attention_pair_queries<P>(q, queries, pairs, place);
    const int64_t bound = last;
    if (P::causal) {  // keys that any of these queries sees
        int64_t sight = 0;
        for (int64_t lane = 0; lane < queries; ++lane)
            if (seen(lane) >= sight) sight = seen(lane) + 1;
        if (sight < last) last = sight;
    }
    for (int64_t at = first; at < last; at += P::block) {
        const int64_t keys = bound - at < P::block ? bound - at : P::block;
        const bf16 *kb = k + at * P::k_row;
        for (int64_t row = 0; row < keys; row += TILE_ROWS) {
            const int64_t n = keys - row < TILE_ROWS ? keys - row : TILE_ROWS;
            const bf16 *a = kb + row * P::k_row;
            if (left) tile_rest(a + steps * TILE_DEPTH, P::k_row, n, left, rest);
            tile_product(tiles, n, a, 2 * P::k_row, pairs, steps, left ? rest : nullptr, nullptr, 0, scores + row * lanes, pairs, 0);
        }
        for (int64_t i = 0; i < keys * lanes; i += L) {
            V score = load<L>(scores + i) * splat<V>(scale);
            if constexpr (P::softcap) score = tanh(score / splat<V>(P::cap())) * splat<V>(P::cap());
            store<L>(scores + i, score);
        }
        if constexpr (P::masked) mask(scores, at, keys);
        if constexpr (P::causal) {
            alignas(64) int32_t ends[lanes];  // the first key that a query does not see
            int64_t from = keys;
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const int64_t end = lane < queries ? seen(lane) + 1 - at : keys;
                ends[lane] = end < 0 ? 0 : end < keys ? end : keys;
                if (ends[lane] < from) from = ends[lane];
            }
            for (int64_t j = from; j < keys; ++j)
                for (int64_t lane = 0; lane < lanes; lane += L) {
                    float *score = scores + j * lanes + lane;
                    store<L>(score, select(load<L>(ends + lane) <= (int32_t)j, splat<V>(ATTENTION_HIDDEN<float>), load<L>(score)));
                }
        }
        attention_softmax<float, P::NV>(state, scores, keys, P::dv);
        attention_pair_weights(scores, keys, weights);
        attention_turn_values<P>(v + at * P::v_row, keys, turned);
        for (int64_t row = 0; row < P::dv; row += TILE_ROWS) {
            float *to = state.result + row * lanes;
            tile_product(tiles, P::dv - row < TILE_ROWS ? P::dv - row : TILE_ROWS, turned + row * P::block, 2 * P::block, weights,
                         (keys + TILE_DEPTH - 1) / TILE_DEPTH, nullptr, to, TILE_SUMS, to, weights, 0);
        }
    }
}

// As attention_finish, for results whose elements are contiguous.
template <class P, class Place>
INLINE void attention_finish_tiles(const AttentionState<float, P::NV> &state, bf16 *y, int64_t queries, Place place) {
    constexpr int64_t L = 16, lanes = TILE_COLUMNS;
    typedef vec<float, L> V;
    for (int v = 0; v < P::NV; ++v) {
        const V scale = select(state.sum[v] == 0, V{}, splat<V>(1) / state.sum[v]);
        for (int64_t e = 0; e < P::dv; e += 16) {
            TurnRow r[16];
            for (int i = 0; i < 16; i++)
                r[i] = e + i < P::dv ? bitcast<TurnRow>((V)(load<L>(state.result + (e + i) * lanes + v * L) * scale)) : TurnRow{};
            turn(r);
            for (int i = 0; i < 16 && v * L + i < queries; i++) {
                bf16 *to = y + place(v * L + i) + e;
                if (P::dv - e >= L) store<L>(to, bitcast<V>(r[i]));
                else store<L>(to, bitcast<V>(r[i]), P::dv - e);
            }
        }
    }
}
