// needs: gemm exp
// Attention with an online softmax over blocks of keys (Milakov and Gimelshein, 2018; Dao et al., "FlashAttention", 2022), so that
// memory grows with the sequence, not with its square. Lanes hold queries: scores, weights and results are kept transposed,
//
//   scores [keys][queries] = K [keys][d] x Q^T [d][queries]        result [dv][queries] = V^T [dv][keys] x weights [keys][queries]
//
// so both products read K and V in offset_of, and the softmax runs down the columns without any sum across lanes. All query heads
// that share a key head are adjacent in the lanes.

// Softmax state of NV * L queries: row maximum, row sum, accumulator. (Lanes are queries.)
template <class T, int NV> struct AttentionState {
    static constexpr int L = GEMM_LANES<T>, lanes = NV * L;
    vec<T, L> row_max[NV], row_sum[NV];
    T *result;  // [dv][lanes]
};

template <class T> constexpr T MASKED_SCORE = -__builtin_inff();

// scores -> exp(scores - row_max), in offset_of; rescales row sums and accumulators to the new maxima.
template <class T, int NV>
__attribute__((noinline)) static void attention_softmax(AttentionState<T, NV> &state, T *scores, int64_t keys, int64_t dv) {
    constexpr int L = GEMM_LANES<T>;
    typedef vec<T, L> V;
    const V masked_score = splat<V>(MASKED_SCORE<T>);
    for (int v = 0; v < NV; ++v) {
        V row_max = state.row_max[v];
        for (int64_t j = 0; j < keys; ++j) {
            const V s = load<L>(scores + (j * NV + v) * L);
            row_max = select(s > row_max, s, row_max);
        }
        // A query whose keys are all masked so far has no maximum to subtract.
        const V base = select(row_max == masked_score, V{}, row_max);
        const V rescale = exp(state.row_max[v] - base);
        V sum = state.row_sum[v] * rescale;
        for (int64_t j = 0; j < keys; ++j) {
            T *at = scores + (j * NV + v) * L;
            const V weight = exp(load<L>(at) - base);
            sum += weight;
            store<L>(at, weight);
        }
        state.row_max[v] = row_max;
        state.row_sum[v] = sum;
        for (int64_t e = 0; e < dv; ++e) {
            T *at = state.result + (e * NV + v) * L;
            store<L>(at, load<L>(at) * rescale);
        }
    }
}

template <class T, int R, int Tail, int NV>
INLINE void attention_product(const T *a, int64_t row_stride, int64_t k_stride, int64_t rows, const T *panel, int64_t k, T *to, bool more) {
    constexpr int lanes = NV * GEMM_LANES<T>;
    int64_t row = 0;
    for (; row + R <= rows; row += R)
        gemm_tile<T, T, R, NV, 1>(a + row * row_stride, row_stride, k_stride, panel, k, to + row * lanes, more);
    if constexpr (Tail > 0)
        if (row < rows) gemm_tile<T, T, Tail, NV, 1>(a + row * row_stride, row_stride, k_stride, panel, k, to + row * lanes, more);
}

// `queries` queries against keys first .. last. P says how (see kernels/cpu/attention/text.py, which writes it):
//   T, S                    types of the sums and of q, k, v in storage
//   NV, R, block            vectors of queries, rows of a tile, keys of a block (a multiple of R)
//   key_tail, dv_tail       rows of the last tile of the last block of keys, and of a result
//   d, dv                   sizes of a key and of a value
//   q_d, k_row, k_d, v_row, v_d   strides
//   masked                  there is a mask;  causal, softcap
// offset_of(lane): offset of a query in q; last_visible(lane): its last visible key; mask(scores, first, keys) applies the mask.
// scratch: Q^T [d][lanes], result [dv][lanes], scores [block][lanes], then K and V of a block where they must be widened.
template <class P, class OffsetOf, class LastVisible, class Mask>
INLINE void attention_block(const typename P::S *q, const typename P::S *k, const typename P::S *v, typename P::T scale, int64_t queries,
                            int64_t first, int64_t last, AttentionState<typename P::T, P::NV> &state, void *scratch, OffsetOf offset_of,
                            LastVisible last_visible, Mask mask) {
    typedef typename P::T T;
    typedef typename P::S S;
    constexpr int L = GEMM_LANES<T>, lanes = P::NV * L;
    typedef vec<T, L> V;
    constexpr bool widen = !same<T, S>;
    T *q_trans = (T *)scratch, *scores = q_trans + (P::d + P::dv) * lanes;
    T *wide_k = scores + P::block * lanes, *wide_v = wide_k + (widen ? P::block * P::d : 0);
    state.result = q_trans + P::d * lanes;
    for (int v = 0; v < P::NV; ++v) {
        state.row_max[v] = splat<V>(MASKED_SCORE<T>);
        state.row_sum[v] = V{};
    }
    for (int64_t i = 0; i < P::dv * lanes; i += L) store<L>(state.result + i, V{});
    const int64_t bound = last;
    int64_t visible = 0;  // keys that are visible to any of these queries
    for (int64_t lane = 0; lane < lanes; ++lane) {
        const S *from = q + offset_of(lane < queries ? lane : 0);
        for (int64_t e = 0; e < P::d; ++e) q_trans[e * lanes + lane] = lane < queries ? raw<T>(load<1>(from + e * P::q_d)) * scale : 0;
        if (P::causal && lane < queries && last_visible(lane) >= visible) visible = last_visible(lane) + 1;
    }
    if (P::causal && visible < last) last = visible;
    for (int64_t at = first; at < last; at += P::block) {
        const int64_t keys = bound - at < P::block ? bound - at : P::block;
        const S *kb = k + at * P::k_row, *vb = v + at * P::v_row;
        if constexpr (widen) {
            gemm_widen(kb, P::k_row, P::k_d, keys, P::d, wide_k);
            attention_product<T, P::R, P::key_tail, P::NV>(wide_k, P::d, 1, keys, q_trans, P::d, scores, false);
        } else
            attention_product<T, P::R, P::key_tail, P::NV>((const T *)kb, P::k_row, P::k_d, keys, q_trans, P::d, scores, false);
        if constexpr (P::softcap)
            for (int64_t i = 0; i < keys * lanes; i += L)
                store<L>(scores + i, tanh(load<L>(scores + i) / splat<V>(P::cap())) * splat<V>(P::cap()));
        if constexpr (P::masked) mask(scores, at, keys);
        if constexpr (P::causal)
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const int64_t end = lane < queries ? last_visible(lane) + 1 - at : keys;
                for (int64_t j = end < 0 ? 0 : end; j < keys; ++j) scores[j * lanes + lane] = MASKED_SCORE<T>;
            }
        attention_softmax<T, P::NV>(state, scores, keys, P::dv);
        if constexpr (widen) {
            gemm_widen(vb, P::v_row, P::v_d, keys, P::dv, wide_v);
            attention_product<T, P::R, P::dv_tail, P::NV>(wide_v, 1, P::dv, P::dv, scores, keys, state.result, true);
        } else
            attention_product<T, P::R, P::dv_tail, P::NV>((const T *)vb, P::v_d, P::v_row, P::dv, scores, keys, state.result, true);
    }
}

// Apply a mask to a score: false masks it, a number is added.
template <class T, class M> INLINE T attention_masked(T score, const M *mask) {
    if constexpr (same<M, bool>) return load<1>(mask) ? score : MASKED_SCORE<T>;
    else return score + raw<T>(load<1>(mask));
}
// The mask is one row for all queries.
template <class T, int NV, class M>
INLINE void attention_mask_keys(T *scores, int64_t keys, const M *mask, int64_t stride) {
    constexpr int L = GEMM_LANES<T>;
    for (int64_t j = 0; j < keys; ++j) {
        T *row = scores + j * NV * L;
        if constexpr (same<M, bool>) {
            if (load<1>(mask + j * stride)) continue;
            for (int v = 0; v < NV; ++v) store<L>(row + v * L, splat<vec<T, L>>(MASKED_SCORE<T>));
        } else {
            const auto m = splat<vec<T, L>>(raw<T>(load<1>(mask + j * stride)));
            for (int v = 0; v < NV; ++v) store<L>(row + v * L, load<L>(row + v * L) + m);
        }
    }
}
// The mask has a row for each query: row(lane).
template <class T, int NV, class Row>
INLINE void attention_mask_lanes(T *scores, int64_t keys, int64_t queries, int64_t stride, Row row) {
    constexpr int lanes = NV * GEMM_LANES<T>;
    for (int64_t lane = 0; lane < queries; ++lane) {
        const auto *from = row(lane);
        for (int64_t j = 0; j < keys; ++j) scores[j * lanes + lane] = attention_masked(scores[j * lanes + lane], from + j * stride);
    }
}

// y[query][dv] = result / sum; a query whose keys are all masked gives 0.
template <class P, class OffsetOf>
INLINE void attention_finish(const AttentionState<typename P::T, P::NV> &state, typename P::S *y, int64_t queries, OffsetOf offset_of) {
    typedef typename P::T T;
    constexpr int L = GEMM_LANES<T>, lanes = P::NV * L;
    alignas(64) T scale[lanes];
    for (int v = 0; v < P::NV; ++v)
        store<L>(scale + v * L, select(state.row_sum[v] == 0, vec<T, L>{}, splat<vec<T, L>>(1) / state.row_sum[v]));
    for (int64_t lane = 0; lane < queries; ++lane) {
        typename P::S *to = y + offset_of(lane);
        for (int64_t e = 0; e < P::dv; ++e)
            store<1>(to + e * P::y_d, raw<typename storage_<typename P::S>::compute>(state.result[e * lanes + lane] * scale[lane]));
    }
}

// Store and merge states ([dv + 2][lanes] in memory): partial results of queries whose keys are split over tasks.
template <class T, int NV> INLINE void attention_keep(const AttentionState<T, NV> &state, int64_t dv, T *to) {
    constexpr int L = GEMM_LANES<T>, lanes = NV * L;
    for (int64_t i = 0; i < dv * lanes; i += L) store<L>(to + i, load<L>(state.result + i));
    for (int v = 0; v < NV; ++v) {
        store<L>(to + dv * lanes + v * L, state.row_max[v]);
        store<L>(to + (dv + 1) * lanes + v * L, state.row_sum[v]);
    }
}
template <class T, int NV>
INLINE void attention_join(AttentionState<T, NV> &state, const T *parts, int64_t count, int64_t dv, T *result) {
    constexpr int L = GEMM_LANES<T>, lanes = NV * L;
    typedef vec<T, L> V;
    const V masked_score = splat<V>(MASKED_SCORE<T>);
    const int64_t size = (dv + 2) * lanes;
    state.result = result;
    for (int v = 0; v < NV; ++v) {
        V row_max = masked_score, sum = V{};
        for (int64_t i = 0; i < count; ++i) {
            const V m = load<L>(parts + i * size + dv * lanes + v * L);
            row_max = select(m > row_max, m, row_max);
        }
        const V base = select(row_max == masked_score, V{}, row_max);
        for (int64_t e = 0; e < dv; ++e) store<L>(result + e * lanes + v * L, V{});
        for (int64_t i = 0; i < count; ++i) {
            const T *part = parts + i * size;
            const V weight = exp(load<L>(part + dv * lanes + v * L) - base);
            sum += load<L>(part + (dv + 1) * lanes + v * L) * weight;
            for (int64_t e = 0; e < dv; ++e) {
                T *at = result + e * lanes + v * L;
                store<L>(at, load<L>(at) + load<L>(part + e * lanes + v * L) * weight);
            }
        }
        state.row_max[v] = row_max;
        state.row_sum[v] = sum;
    }
}

// ── few queries ──
//
// Decoding is bandwidth-bound, so K and V are read in offset_of, row by row: scores are reductions across lanes, results sums of rows.
// State of a query: accumulator [dv rounded up to L], row maximum, row sum.

template <class P> struct AttentionFew {
    typedef typename P::T T;
    static constexpr int L = GEMM_LANES<T>, wide_d = (P::d + L - 1) / L * L, wide_dv = (P::dv + L - 1) / L * L;
    static constexpr int size = wide_dv + L;  // of a query's state: maximum and sum follow the result
};

// N keys against one query.
template <class P, int N>
INLINE void attention_dots(const typename P::T *query, const typename P::S *keys, typename P::T *scores) {
    typedef typename P::T T;
    constexpr int L = GEMM_LANES<T>, whole = P::d / L * L, rest = P::d - whole;
    vec<T, L> sum[N] = {};
    for (int e = 0; e < whole; e += L) {
        const auto x = load<L>(query + e);
        GEMM_UNROLL for (int n = 0; n < N; ++n) sum[n] += x * raw<T>(load<L>(keys + n * P::k_row + e));
    }
    if constexpr (rest > 0) {
        const auto x = load<L>(query + whole);
        GEMM_UNROLL for (int n = 0; n < N; ++n) sum[n] += x * raw<T>(load<L>(keys + n * P::k_row + whole, rest));
    }
    GEMM_UNROLL for (int n = 0; n < N; ++n) scores[n] = sum_across(sum[n]);
}

// C vectors of one accumulator: result * rescale + weights x values.
template <class P, int C>
INLINE void attention_rows(const typename P::T *weights, const typename P::S *values, int64_t keys, typename P::T rescale,
                           typename P::T *result, int last) {
    typedef typename P::T T;
    constexpr int L = GEMM_LANES<T>;
    vec<T, L> sum[C];
    GEMM_UNROLL for (int c = 0; c < C; ++c) sum[c] = load<L>(result + c * L) * splat<vec<T, L>>(rescale);
    for (int64_t j = 0; j < keys; ++j) {
        const auto w = splat<vec<T, L>>(weights[j]);
        const auto *row = values + j * P::v_row;
        GEMM_UNROLL for (int c = 0; c < C - 1; ++c) sum[c] += w * raw<T>(load<L>(row + c * L));
        sum[C - 1] += w * raw<T>(last == L ? load<L>(row + (C - 1) * L) : load<L>(row + (C - 1) * L, last));
    }
    GEMM_UNROLL for (int c = 0; c < C; ++c) store<L>(result + c * L, sum[c]);
}

// Scale queries into `q_scaled`, [queries][wide_d], and clear their states.
template <class P, class OffsetOf>
INLINE void attention_few_start(const typename P::S *q, typename P::T scale, typename P::T *state, typename P::T *q_scaled, OffsetOf offset_of) {
    typedef typename P::T T;
    typedef AttentionFew<P> F;
    for (int i = 0; i < P::queries; ++i) {
        for (int e = 0; e < F::wide_d; ++e)
            q_scaled[i * F::wide_d + e] = e < P::d ? raw<T>(load<1>(q + offset_of(i) + e * P::q_d)) * scale : 0;
        T *query_state = state + i * F::size;
        for (int e = 0; e < F::size; e += F::L) store<F::L>(query_state + e, vec<T, F::L>{});
        query_state[F::wide_dv] = MASKED_SCORE<T>;
    }
}

// The next `keys` keys, those from `at` on, at most P::block: kb and vb are the first one's rows. scores: [block + L].
template <class P, class LastVisible, class Mask>
INLINE void attention_few_keys(const typename P::T *q_scaled, const typename P::S *kb, const typename P::S *vb, int64_t at, int64_t keys,
                               typename P::T *state, typename P::T *scores, LastVisible last_visible, Mask mask) {
    typedef typename P::T T;
    typedef AttentionFew<P> F;
    constexpr int L = F::L;
    typedef vec<T, L> V;
    for (int i = 0; i < P::queries; ++i) {
        const T *query = q_scaled + i * F::wide_d;
        int64_t j = 0;
        if constexpr (P::masked) {  // skip keys that are masked for this query: a mostly empty KV cache costs only its filled part
            while (j < keys && mask((T)0, i, at + j) == MASKED_SCORE<T>) ++j;
            if (j == keys) continue;
            j = 0;
        }
        for (; j + 4 <= keys; j += 4) attention_dots<P, 4>(query, kb + j * P::k_row, scores + j);
        for (; j < keys; ++j) attention_dots<P, 1>(query, kb + j * P::k_row, scores + j);
        if constexpr (P::softcap)
            for (j = 0; j < keys; ++j) scores[j] = tanh(scores[j] / P::cap()) * P::cap();
        if constexpr (P::masked)
            for (j = 0; j < keys; ++j) scores[j] = mask(scores[j], i, at + j);
        for (j = P::causal && last_visible(i) + 1 - at < keys ? (last_visible(i) + 1 < at ? 0 : last_visible(i) + 1 - at) : keys; j < keys; ++j)
            scores[j] = MASKED_SCORE<T>;
        store<L>(scores + keys, splat<V>(MASKED_SCORE<T>));
        T *query_state = state + i * F::size;
        V lane_max = splat<V>(query_state[F::wide_dv]);
        for (j = 0; j < keys; j += L) {
            const V s = load<L>(scores + j);
            lane_max = select(s > lane_max, s, lane_max);
        }
        const T row_max = across(lane_max, [](auto a, auto b) { return select(a > b, a, b); });
        const T base = row_max == MASKED_SCORE<T> ? 0 : row_max, rescale = exp(query_state[F::wide_dv] - base);
        V sum{};
        for (j = 0; j < keys; j += L) {
            const V weight = exp(load<L>(scores + j) - splat<V>(base));
            sum += weight;
            store<L>(scores + j, weight);
        }
        query_state[F::wide_dv] = row_max;
        query_state[F::wide_dv + 1] = query_state[F::wide_dv + 1] * rescale + sum_across(sum);
        constexpr int C = 8, vectors = F::wide_dv / L, tail = P::dv - (vectors - 1) * L;
        int c = 0;
        for (; c + C <= vectors; c += C)
            attention_rows<P, C>(scores, vb + c * L, keys, rescale, query_state + c * L, c + C == vectors ? tail : L);
        if constexpr (vectors % C > 0)
            attention_rows<P, vectors % C>(scores, vb + c * L, keys, rescale, query_state + c * L, tail);
    }
}

// P: as for attention_block, and queries (count). offset_of(query), last_visible(query) and mask(score, query, key) are for one query.
// scratch: queries [queries][wide_d], scores [block + L]; state: [queries][size].
template <class P, class OffsetOf, class LastVisible, class Mask>
INLINE void attention_few(const typename P::S *q, const typename P::S *k, const typename P::S *v, typename P::T scale, int64_t first,
                          int64_t last, typename P::T *state, void *scratch, OffsetOf offset_of, LastVisible last_visible, Mask mask) {
    typedef typename P::T T;
    T *q_scaled = (T *)scratch, *scores = q_scaled + P::queries * AttentionFew<P>::wide_d;
    attention_few_start<P>(q, scale, state, q_scaled, offset_of);
    int64_t visible = 0;
    for (int i = 0; i < P::queries; ++i)
        if (last_visible(i) >= visible) visible = last_visible(i) + 1;
    if (P::causal && visible < last) last = visible;
    for (int64_t at = first; at < last; at += P::block) {
        const int64_t keys = last - at < P::block ? last - at : P::block;
        attention_few_keys<P>(q_scaled, k + at * P::k_row, v + at * P::v_row, at, keys, state, scores, last_visible, mask);
    }
}

// Merge the partial states of one query (stride `step`) into the first.
template <class P> INLINE void attention_few_join(typename P::T *state, int64_t parts, int64_t step) {
    typedef typename P::T T;
    typedef AttentionFew<P> F;
    T row_max = MASKED_SCORE<T>;
    for (int64_t p = 0; p < parts; ++p) row_max = state[p * step + F::wide_dv] > row_max ? state[p * step + F::wide_dv] : row_max;
    const T base = row_max == MASKED_SCORE<T> ? 0 : row_max;
    T row_sum = 0;
    for (int64_t p = 0; p < parts; ++p) {
        const T *part = state + p * step;
        const T weight = exp(part[F::wide_dv] - base);
        row_sum += part[F::wide_dv + 1] * weight;
        for (int e = 0; e < F::wide_dv; e += F::L) {
            const auto scaled = load<F::L>(part + e) * splat<vec<T, F::L>>(weight);
            store<F::L>(state + e, p == 0 ? scaled : load<F::L>(state + e) + scaled);
        }
    }
    state[F::wide_dv] = row_max;
    state[F::wide_dv + 1] = row_sum;
}

template <class P> INLINE void attention_few_finish(const typename P::T *state, typename P::S *y) {
    typedef typename P::T T;
    typedef AttentionFew<P> F;
    const T row_sum = state[F::wide_dv + 1], scale = row_sum == 0 ? 0 : 1 / row_sum;
    for (int e = 0; e < P::dv; ++e)
        store<1>(y + e * P::y_d, raw<typename storage_<typename P::S>::compute>(state[e] * scale));
}
