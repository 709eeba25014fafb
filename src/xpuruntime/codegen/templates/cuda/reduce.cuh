// needs: math
// reduce: warp, block and column reductions in a fixed order, so that equal inputs give equal bits.

struct sum_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return (V)(a + b); } };
struct prod_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return (V)(a * b); } };
struct amax_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return maximum(a, b); } };
struct amin_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return minimum(a, b); } };
struct top_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return larger(a, b); } };  // does not propagate NaN
struct any_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return (V)(a | b); } };
struct all_of { template <class V> INLINE_MEMBER V operator()(V a, V b) const { return (V)(a & b); } };

template <class V> INLINE V shfl_xor(V v, int mask) {  // butterfly exchange, in 32-bit words
    if constexpr (sizeof(V) == 8) return bitcast<V>(__shfl_xor_sync(0xffffffffu, bitcast<uint64_t>(v), mask));
    else if constexpr (sizeof(V) == 4) return bitcast<V>(__shfl_xor_sync(0xffffffffu, bitcast<uint32_t>(v), mask));
    else return (V)__shfl_xor_sync(0xffffffffu, (int32_t)v, mask);
}

// All-reduce over SIZE consecutive lanes (up to 32) that share a row.
template <int SIZE, class V, class F> INLINE V warp_reduce(V v, F f) {
#pragma unroll
    for (int mask = SIZE < 32 ? SIZE / 2 : 16; mask > 0; mask /= 2) v = f(v, shfl_xor(v, mask));
    return v;
}
// All-reduce over the WARPS warps of a block. `smem` has one entry per warp.
template <int WARPS, class V, class F> INLINE V block_reduce(V v, F f, void *smem) {
    v = warp_reduce<32>(v, f);
    if constexpr (WARPS > 1) {
        V *const parts = (V *)smem;
        __syncthreads();  // earlier readers of smem are done
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
        __syncthreads();
        if constexpr (WARPS >= 8 && (WARPS & (WARPS - 1)) == 0) {  // each warp adds all parts, one per lane
            v = warp_reduce<WARPS>(parts[threadIdx.x % WARPS], f);
        } else {
            v = parts[0];
            for (int i = 1; i < WARPS; ++i) v = f(v, parts[i]);
        }
    }
    return v;
}
// Reduce over the Y threads of each of X columns. `smem` has one entry per thread.
template <int X, int Y, class V, class F> INLINE V column_reduce(V v, F f, void *smem) {
    if constexpr (Y > 1) {
        V *const parts = (V *)smem;
        __syncthreads();
        parts[threadIdx.y * X + threadIdx.x] = v;
#pragma unroll
        for (int half = Y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half) {
                v = f(v, parts[(threadIdx.y + half) * X + threadIdx.x]);
                parts[threadIdx.y * X + threadIdx.x] = v;
            }
        }
        __syncthreads();
        v = parts[threadIdx.x];
    }
    return v;
}
// The same for W values per thread. `smem` has one entry per value.
template <int X, int Y, int W, class V, class F> INLINE void column_reduce_n(V (&v)[W], F f, void *smem) {
    if constexpr (Y > 1) {
        V *const parts = (V *)smem + threadIdx.y * X + threadIdx.x;
        __syncthreads();
#pragma unroll
        for (int u = 0; u < W; ++u) parts[u * Y * X] = v[u];
#pragma unroll
        for (int half = Y / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.y < half) {
#pragma unroll
                for (int u = 0; u < W; ++u) parts[u * Y * X] = v[u] = f(v[u], parts[(u * Y + half) * X]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int u = 0; u < W; ++u) v[u] = ((V *)smem)[u * Y * X + threadIdx.x];
    }
}
