// needs: reduce math movement
// paged_attention: one query of GROUP heads over a split of the keys of its text, which are in blocks of a cache.
//
// Tiles of THREADS keys: each thread computes the scores of one key, in 16-byte loads of its row; warps compute the weights of the heads with an online
// softmax; then each thread adds weighted values of one column, over a part of the keys. Tiles begin at the split's first key, so a result does not
// depend on other queries.
//
// P: T (sums), S (storage), GROUP, d, dv, THREADS, WIDTH (threads of a row of values, a power of two), k_row, v_row, q_head, q_d, block_size, blocks, table_step,
// capped, biased, scale(), cap().
namespace paged {

template <class T> constexpr T NO_SCORE = -__builtin_inff();

template <class P> struct Shared {
    typename P::T q[P::GROUP * P::d], scores[P::GROUP * P::THREADS], rescale[P::GROUP], row_max[P::GROUP], row_sum[P::GROUP];
    int64_t rows[P::THREADS];
};

template <class P, class I> INLINE int64_t row_of(const I *table, int64_t key) {
    int64_t block = (int64_t)table[key / P::block_size * P::table_step];
    if ((uint64_t)block >= (uint64_t)P::blocks) {
        fail(nullptr, INDEX_OUTSIDE, block, P::blocks);
        block = 0;
    }
    return block * P::block_size + key % P::block_size;
}

// Scores of this thread's key.
template <class P> INLINE void scores_of(Shared<P> &s, const typename P::S *key, typename P::T (&score)[P::GROUP]) {
    typedef typename P::T T;
    constexpr int N = 16 / sizeof(typename P::S);
#pragma unroll
    for (int g = 0; g < P::GROUP; ++g) score[g] = 0;
    for (int e = 0; e < P::d; e += N) {
        __align__(16) typename P::S pack[N];
        const int n = P::d - e < N ? P::d - e : N;
        if (P::d % N == 0) copy_pack<N>(pack, key + e);
        else
            for (int i = 0; i < n; ++i) pack[i] = key[e + i];
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (P::d % N == 0 || i < n) {
                const T x = (T)load<1>(pack + i);
#pragma unroll
                for (int g = 0; g < P::GROUP; ++g) score[g] += s.q[g * P::d + e + i] * x;
            }
    }
#pragma unroll
    for (int g = 0; g < P::GROUP; ++g) {
        score[g] *= P::scale();
        if constexpr (P::capped) score[g] = tanh(score[g] / P::cap()) * P::cap();
    }
}

// Scores of a tile -> weights; a warp has every WARPS-th head.
template <class P> INLINE void weights_of(Shared<P> &s) {
    typedef typename P::T T;
    for (int g = threadIdx.x / 32; g < P::GROUP; g += P::THREADS / 32) {
        T *const scores = s.scores + g * P::THREADS;
        T top = s.row_max[g];
        const T before = top;
        for (int j = threadIdx.x % 32; j < P::THREADS; j += 32) top = scores[j] > top ? scores[j] : top;
        top = warp_reduce<32>(top, top_of());
        const T base = top == NO_SCORE<T> ? (T)0 : top;
        T sum = 0;
        for (int j = threadIdx.x % 32; j < P::THREADS; j += 32) {
            const T weight = exp(scores[j] - base);
            scores[j] = weight;
            sum += weight;
        }
        sum = warp_reduce<32>(sum, sum_of());
        __syncwarp();  // every lane has read the maximum
        if (threadIdx.x % 32 == 0) {
            const T rescale = exp(before - base);
            s.rescale[g] = rescale;
            s.row_sum[g] = s.row_sum[g] * rescale + sum;
            s.row_max[g] = top;
        }
    }
}

// q, k, v: the first head's. bias(head, key) is added to scores if P::biased. write(head, column, sum of weighted values, sum of weights) is called by one thread per column, last(head, maximum, sum) once.
template <class P, class I, class Bias, class Write, class Last>
INLINE void split_kernel(const typename P::S *q, const typename P::S *k, const typename P::S *v, const I *table, int64_t first, int64_t end, Bias bias,
                         Write write, Last last) {
    typedef typename P::T T;
    constexpr int COLUMNS = (P::dv + P::WIDTH - 1) / P::WIDTH, PARTS = P::THREADS / P::WIDTH;
    __shared__ Shared<P> s;
    for (int i = threadIdx.x; i < P::GROUP * P::d; i += P::THREADS) s.q[i] = (T)load<1>(q + i / P::d * P::q_head + i % P::d * P::q_d);
    if (threadIdx.x < P::GROUP) s.row_max[threadIdx.x] = NO_SCORE<T>, s.row_sum[threadIdx.x] = 0;
    const int column = threadIdx.x % P::WIDTH, part = threadIdx.x / P::WIDTH;
    T sums[COLUMNS][P::GROUP] = {};
    __syncthreads();
    for (int64_t at = first; at < end; at += P::THREADS) {
        const int keys = (int)(end - at < P::THREADS ? end - at : P::THREADS);
        T score[P::GROUP];
        if ((int)threadIdx.x < keys) {
            const int64_t row = row_of<P>(table, at + threadIdx.x);
            s.rows[threadIdx.x] = row;
            scores_of<P>(s, k + row * P::k_row, score);
            if constexpr (P::biased) {
#pragma unroll
                for (int g = 0; g < P::GROUP; ++g) score[g] += bias(g, at + threadIdx.x);
            }
        }
#pragma unroll
        for (int g = 0; g < P::GROUP; ++g) s.scores[g * P::THREADS + threadIdx.x] = (int)threadIdx.x < keys ? score[g] : NO_SCORE<T>;
        __syncthreads();
        weights_of<P>(s);
        __syncthreads();
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const int e = c * P::WIDTH + column;
            if (e >= P::dv) break;
#pragma unroll
            for (int g = 0; g < P::GROUP; ++g) sums[c][g] *= s.rescale[g];
            for (int j = part; j < keys; j += PARTS) {
                const T x = (T)load<1>(v + s.rows[j] * P::v_row + e);
#pragma unroll
                for (int g = 0; g < P::GROUP; ++g) sums[c][g] += s.scores[g * P::THREADS + j] * x;
            }
        }
        __syncthreads();  // the next tile overwrites rows and scores
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int g = 0; g < P::GROUP; ++g) {
            T sum = sums[c][g];
            if constexpr (PARTS > 1) {
                s.scores[threadIdx.x] = sum;
                __syncthreads();
                if (part == 0)
                    for (int p = 1; p < PARTS; ++p) sum += s.scores[p * P::WIDTH + column];
                __syncthreads();
            }
            if (part == 0 && c * P::WIDTH + column < P::dv) write(g, c * P::WIDTH + column, sum, s.row_sum[g]);
        }
    if (threadIdx.x < P::GROUP) last(threadIdx.x, s.row_max[threadIdx.x], s.row_sum[threadIdx.x]);
}

// Merge `count` splits of one head, [dv + 2] each with stride `step`; store(column, value) is called by one thread per column.
template <class P, class Store> INLINE void join_kernel(const typename P::T *parts, int64_t count, int64_t step, Store store) {
    typedef typename P::T T;
    T top = NO_SCORE<T>;
    for (int64_t p = 0; p < count; ++p) top = parts[p * step + P::dv] > top ? parts[p * step + P::dv] : top;
    const T base = top == NO_SCORE<T> ? (T)0 : top;
    for (int e = threadIdx.x; e < P::dv; e += P::THREADS) {
        T sum = 0, all = 0;
        for (int64_t p = 0; p < count; ++p) {
            const T weight = exp(parts[p * step + P::dv] - base);
            sum += parts[p * step + e] * weight;
            all += parts[p * step + P::dv + 1] * weight;
        }
        store(e, all == 0 ? (T)0 : sum / all);
    }
}

}  // namespace paged
