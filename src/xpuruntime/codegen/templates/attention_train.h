// needs: attention log
// Attention in training: the log-sum-exp of each query, and gradients that compute the weights again from it, so that memory grows with the
// sequence, not with its square (Dao, "FlashAttention-2", 2023). Gradients of queries have queries in the lanes, as attention.h:
//
//   scores [keys][queries] = K Q^T, slopes [keys][queries] = weights (V dY^T - delta), dQ^T [d][queries] += K^T [d][keys] slopes
//
// and those of keys and values have keys in the lanes:
//
//   scores [queries][keys] = Q K^T, slopes [queries][keys] = weights (dY V^T - delta),
//   dV^T [dv][keys] += dY^T [dv][queries] weights, dK^T [d][keys] += Q^T [d][queries] slopes
//
// Each task sums its gradients alone, so the bits do not depend on the number of threads. The log-sum-exp is rounded to the dtype of sums, an
// error that all weights of a query share. Gradients of queries therefore also sum the weights, and both directions divide by that sum. The result
// is rounded, too, and so is delta, its sum with the gradient. The slopes of a query sum to 0 but for that error, which both directions subtract.

// The log-sum-exp of a query from its row maximum and row sum; -inf for one that sees no key, whose sum is 0.
template <class V> INLINE V attention_log_sum(V row_max, V row_sum) {
    return log(row_sum) + select(row_max == splat<V>(MASKED_SCORE<elem<V>>), V{}, row_max);
}
template <class T, int NV, class OffsetOf>
INLINE void attention_store_lse(const AttentionState<T, NV> &state, T *lse, int64_t queries, OffsetOf offset_of) {
    constexpr int L = GEMM_LANES<T>;
    alignas(64) T sums[NV * L];
    for (int v = 0; v < NV; ++v) store<L>(sums + v * L, attention_log_sum(state.row_max[v], state.row_sum[v]));
    for (int64_t lane = 0; lane < queries; ++lane) lse[offset_of(lane)] = sums[lane];
}
template <class P> INLINE typename P::T attention_few_lse(const typename P::T *state) {
    return attention_log_sum(state[AttentionFew<P>::wide_dv], state[AttentionFew<P>::wide_dv + 1]);
}

// The sum of grad * y, in the order of gemm_tile's sums: where a query sees one key, it cancels the slope exactly.
template <class T, class S> static T attention_delta(const S *grad, int64_t grad_step, const S *y, int64_t y_step, int64_t size) {
    T total = 0;
    for (int64_t group = 0; group < size; group += GEMM_GROUP) {
        const int64_t end = size - group < GEMM_GROUP ? size : group + GEMM_GROUP;
        T together = 0;
        for (int64_t run = group; run < end; run += GEMM_RUN) {
            T sum = 0;
            for (int64_t e = run; e < end && e < run + GEMM_RUN; ++e) sum += raw<T>(load<1>(grad + e * grad_step)) * raw<T>(load<1>(y + e * y_step));
            together = run == group ? sum : sum + together;
        }
        total = group == 0 ? together : together + total;
    }
    return total;
}

// What a weight is computed from: inf instead of the log-sum-exp of a query that sees no key, which makes its weights 0.
template <class T> INLINE T attention_base(T lse) { return lse == MASKED_SCORE<T> ? -MASKED_SCORE<T> : lse; }

// scores -> weights, slopes -> weights * (slopes - delta); base, norm (the weights' factor) and delta are of the lane. Adds a row's weights and slopes
// to `sums`, NV vectors of each.
template <class T, int NV>
INLINE void attention_slope(T *scores, T *slopes, const vec<T, GEMM_LANES<T>> *base, const vec<T, GEMM_LANES<T>> *norm,
                            const vec<T, GEMM_LANES<T>> *delta, vec<T, GEMM_LANES<T>> *sums) {
    constexpr int L = GEMM_LANES<T>;
    GEMM_UNROLL for (int v = 0; v < NV; ++v) {
        auto weight = exp(load<L>(scores + v * L) - base[v]);
        if (norm) weight *= norm[v];
        const auto slope = weight * (load<L>(slopes + v * L) - delta[v]);
        if (sums) sums[v] += weight, sums[NV + v] += slope;
        store<L>(scores + v * L, weight);
        store<L>(slopes + v * L, slope);
    }
}

// The mask of rows of queries, with keys in the lanes; row(i): the mask of query i from the first lane on.
template <class T, int NV, class Row>
INLINE void attention_mask_rows(T *scores, int64_t rows, int64_t keys, int64_t stride, Row row) {
    constexpr int lanes = NV * GEMM_LANES<T>;
    for (int64_t i = 0; i < rows; ++i) {
        const auto *from = row(i);
        for (int64_t lane = 0; lane < keys; ++lane) scores[i * lanes + lane] = attention_masked(scores[i * lanes + lane], from + lane * stride);
    }
}

// Columns of an operand in the lanes: to [size][lanes] = from [lanes][size] * factor, zeros beyond `count`.
template <class T, class S, class OffsetOf>
INLINE void attention_to_lanes(const S *from, int64_t step, int64_t size, int64_t count, int64_t lanes, T factor, T *to, OffsetOf offset_of) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
        const S *line = from + offset_of(lane < count ? lane : 0);
        for (int64_t e = 0; e < size; ++e) to[e * lanes + lane] = lane < count ? raw<T>(load<1>(line + e * step)) * factor : 0;
    }
}
// And back, times the factor of each lane.
template <class T, class S, class Factor, class OffsetOf>
INLINE void attention_from_lanes(const T *from, int64_t size, int64_t count, int64_t lanes, Factor factor, S *to, int64_t step, OffsetOf offset_of) {
    for (int64_t lane = 0; lane < count; ++lane) {
        S *line = to + offset_of(lane);
        for (int64_t e = 0; e < size; ++e) store<1>(line + e * step, raw<typename storage_<S>::compute>(from[e * lanes + lane] * factor(lane)));
    }
}

// a [rows][k] in storage, widened where needed, times a panel; and its transpose times a panel.
template <class P, int Tail>
INLINE void attention_rows_times(const typename P::S *a, int64_t row, int64_t step, const typename P::T *wide, int64_t rows, int64_t k,
                                 const typename P::T *panel, typename P::T *to) {
    typedef typename P::T T;
    if constexpr (same<T, typename P::S>) attention_product<T, P::R, Tail, P::NV>((const T *)a, row, step, rows, panel, k, to, false);
    else attention_product<T, P::R, Tail, P::NV>(wide, k, 1, rows, panel, k, to, false);
}
template <class P, int Tail>
INLINE void attention_columns_times(const typename P::S *a, int64_t row, int64_t step, const typename P::T *wide, int64_t columns, int64_t rows,
                                    const typename P::T *panel, typename P::T *to) {
    typedef typename P::T T;
    if constexpr (same<T, typename P::S>) attention_product<T, P::R, Tail, P::NV>((const T *)a, step, row, columns, panel, rows, to, true);
    else attention_product<T, P::R, Tail, P::NV>(wide, 1, columns, columns, panel, rows, to, true);
}

// Gradients of `queries` queries. P as attention_block's, and d_tail (rows of the last tile of d), g_d (stride of the gradient of y).
// base and delta [lanes]: of each query; norm [lanes] gets the factor of its weights, and delta is corrected. scratch: the result, the sum of weights
// times keys, q and grad [d or dv][lanes], scores and slopes [block][lanes], k and v widened.
template <class P, class OffsetOf, class GradOf, class LastVisible, class Mask>
INLINE typename P::T *attention_grad_queries(const typename P::S *q, const typename P::S *k, const typename P::S *v, const typename P::S *grad,
                                             typename P::T scale, int64_t queries, int64_t keys, const typename P::T *base, typename P::T *delta,
                                             typename P::T *norm, void *scratch, OffsetOf offset_of, GradOf grad_of, LastVisible last_visible, Mask mask) {
    typedef typename P::T T;
    constexpr int L = GEMM_LANES<T>, lanes = P::NV * L;
    constexpr bool widen = !same<T, typename P::S>;
    T *result = (T *)scratch, *weighted_keys = result + P::d * lanes, *q_trans = weighted_keys + P::d * lanes, *grad_trans = q_trans + P::d * lanes, *scores = grad_trans + P::dv * lanes;
    T *slopes = scores + P::block * lanes, *wide_k = slopes + P::block * lanes, *wide_v = wide_k + (widen ? P::block * P::d : 0);
    for (int64_t i = 0; i < 2 * P::d * lanes; i += L) store<L>(result + i, vec<T, L>{});
    attention_to_lanes<T>(q, P::q_d, P::d, queries, lanes, scale, q_trans, offset_of);
    attention_to_lanes<T>(grad, P::g_d, P::dv, queries, lanes, (T)1, grad_trans, grad_of);
    vec<T, L> bases[P::NV], deltas[P::NV], sums[2 * P::NV] = {};
    for (int i = 0; i < P::NV; ++i) bases[i] = load<L>(base + i * L), deltas[i] = load<L>(delta + i * L);
    int64_t last = keys;
    if constexpr (P::causal) {
        int64_t visible = 0;
        for (int64_t lane = 0; lane < queries; ++lane)
            if (last_visible(lane) >= visible) visible = last_visible(lane) + 1;
        if (visible < last) last = visible;
    }
    for (int64_t at = 0; at < last; at += P::block) {
        const int64_t count = keys - at < P::block ? keys - at : P::block;
        const typename P::S *kb = k + at * P::k_row, *vb = v + at * P::v_row;
        if constexpr (widen) {
            gemm_widen(kb, P::k_row, P::k_d, count, P::d, wide_k);
            gemm_widen(vb, P::v_row, P::v_d, count, P::dv, wide_v);
        }
        attention_rows_times<P, P::row_tail>(kb, P::k_row, P::k_d, wide_k, count, P::d, q_trans, scores);
        attention_rows_times<P, P::row_tail>(vb, P::v_row, P::v_d, wide_v, count, P::dv, grad_trans, slopes);
        if constexpr (P::masked) mask(scores, at, count);
        if constexpr (P::causal)
            for (int64_t lane = 0; lane < queries; ++lane) {
                const int64_t end = last_visible(lane) + 1 - at;
                for (int64_t j = end < 0 ? 0 : end; j < count; ++j) scores[j * lanes + lane] = MASKED_SCORE<T>;
            }
        for (int64_t j = 0; j < count; ++j) attention_slope<T, P::NV>(scores + j * lanes, slopes + j * lanes, bases, nullptr, deltas, sums);
        attention_columns_times<P, P::d_tail>(kb, P::k_row, P::k_d, wide_k, P::d, count, slopes, result);
        attention_columns_times<P, P::d_tail>(kb, P::k_row, P::k_d, wide_k, P::d, count, scores, weighted_keys);
    }
    for (int i = 0; i < P::NV; ++i) {  // a query that sees no key has the sum 0
        const auto factor = select(sums[i] == 0, vec<T, L>{}, splat<vec<T, L>>(1) / sums[i]), error = sums[P::NV + i] * factor;
        store<L>(norm + i * L, factor);
        store<L>(delta + i * L, deltas[i] + error);
        for (int64_t e = 0; e < P::d; ++e) {
            T *at = result + e * lanes + i * L;
            store<L>(at, load<L>(at) - error * load<L>(weighted_keys + e * lanes + i * L));
        }
    }
    return result;
}

// Gradients of `keys` keys and their values, over the queries of one head: adds to the transposed results. first: the first key.
// last_visible(query), base(query), norm(query), delta(query); mask(scores, query, rows). Queries are scaled here as for their own gradients, so
// that the scores have the same bits. scratch: k and v [d or dv][lanes], which the caller has written, scores and slopes [block][lanes], q scaled,
// grad widened.
template <class P, class Base, class Norm, class Delta, class LastVisible, class Mask>
INLINE void attention_grad_keys(const typename P::S *q, const typename P::S *grad, typename P::T scale, int64_t first, int64_t keys, int64_t queries,
                                typename P::T *grad_k, typename P::T *grad_v, void *scratch, Base base, Norm norm, Delta delta,
                                LastVisible last_visible, Mask mask) {
    typedef typename P::T T;
    constexpr int L = GEMM_LANES<T>, lanes = P::NV * L;
    constexpr bool widen = !same<T, typename P::S>;
    T *k_trans = (T *)scratch, *v_trans = k_trans + P::d * lanes, *scores = v_trans + P::dv * lanes, *slopes = scores + P::block * lanes;
    T *scaled_q = slopes + P::block * lanes, *wide_grad = scaled_q + P::block * P::d;
    for (int64_t at = 0; at < queries; at += P::block) {
        const int64_t count = queries - at < P::block ? queries - at : P::block;
        if (P::causal && last_visible(at + count - 1) < first) continue;  // no query of the block sees a key
        const typename P::S *gb = grad + at * P::g_row;
        gemm_widen(q + at * P::q_row, P::q_row, P::q_d, count, P::d, scaled_q);
        for (int64_t i = 0; i < count * P::d; ++i) scaled_q[i] *= scale;
        if constexpr (widen) gemm_widen(gb, P::g_row, P::g_d, count, P::dv, wide_grad);
        attention_product<T, P::R, P::row_tail, P::NV>(scaled_q, P::d, 1, count, k_trans, P::d, scores, false);
        attention_rows_times<P, P::row_tail>(gb, P::g_row, P::g_d, wide_grad, count, P::dv, v_trans, slopes);
        if constexpr (P::masked) mask(scores, at, count);
        for (int64_t i = 0; i < count; ++i) {
            if constexpr (P::causal) {
                const int64_t end = last_visible(at + i) + 1 - first;
                for (int64_t lane = end < 0 ? 0 : end; lane < keys; ++lane) scores[i * lanes + lane] = MASKED_SCORE<T>;
            }
            vec<T, L> bases[P::NV], norms[P::NV], deltas[P::NV];
            GEMM_UNROLL for (int n = 0; n < P::NV; ++n) {
                bases[n] = splat<vec<T, L>>(base(at + i));
                norms[n] = splat<vec<T, L>>(norm(at + i));
                deltas[n] = splat<vec<T, L>>(delta(at + i));
            }
            attention_slope<T, P::NV>(scores + i * lanes, slopes + i * lanes, bases, norms, deltas, nullptr);
        }
        attention_columns_times<P, P::dv_tail>(gb, P::g_row, P::g_d, wide_grad, P::dv, count, scores, grad_v);
        attention_product<T, P::R, P::d_tail, P::NV>(scaled_q, 1, P::d, P::d, slopes, count, grad_k, true);
    }
}
