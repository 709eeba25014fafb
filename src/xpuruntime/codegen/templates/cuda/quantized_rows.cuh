// needs: quantized tiles wgmma last_block
// quantized_rows.cuh: many rows times a weight of 8- or 4-bit codes with wgmma. The weight's tiles are those of quantized.cuh.
//
// A block computes WARPGROUPS * 64 outputs of ROWS rows of x, 64 inputs at a time: each warpgroup turns the codes of its outputs into 16-bit floats in
// shared memory while its product of the inputs before them runs. Codes are loaded into registers two steps ahead, x by cp.async; fence_proxy_async
// waits for the former. The scales of outputs are applied to the sums, those of groups to the codes. SPLIT blocks share the inputs of a tile; the last one to finish adds their sums.
//
// P: that of quantized.cuh with ROWS (64 or 128), SPLIT (blocks of a tile), STAGES (buffers of x), WARPGROUPS, and OUTPUT_TILES (tiles of outputs).
namespace quantized_rows {

using quantized::ScaleLow;
using quantized::Words;
using tensor::u16;
using tensor::u32;
using tensor::u64;

constexpr int BK = 64, W_STAGES = 3;  // inputs of a step; buffers of the weight as floats

// Sizes that follow from P. SUMS: rows of results in shared memory, which begin in other banks.
template <class P> struct Sizes {
    typedef quantized::Sizes<P> Z;
    static constexpr int THREADS = P::WARPGROUPS * 128, OUTPUTS = P::WARPGROUPS * 64, X_BYTES = P::ROWS * BK * 2, W_BYTES = OUTPUTS * BK * 2,
                         STEPS = (P::k + BK - 1) / BK, STEPS_PER_SPLIT = (STEPS + P::SPLIT - 1) / P::SPLIT, SUMS = OUTPUTS + 4,
                         WORDS = P::BITS / 2, STEPS_PER_TILE = Z::STEP / BK;
};

// A lane's codes of 64 inputs: those of outputs lane / 4 and lane / 4 + 8 of a tile, with the numbers of their groups.
template <class P> struct Codes {
    typedef Sizes<P> R;
    typedef quantized::Sizes<P> Z;
    typedef typename P::T T;
    static constexpr int N = Z::GROUPED ? R::WORDS * Z::NUMBER_WORDS : 1;
    u32 words[2][R::WORDS], numbers[2][N];

    __device__ __forceinline__ void load(const int8_t *w, int step) {
        const int lane = threadIdx.x % 32, in = step % R::STEPS_PER_TILE;
        const int8_t *const tile = w + (long long)(step / R::STEPS_PER_TILE) * Z::TILE;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int8_t *const from = tile + half * 512 + lane * 16 + in * R::WORDS * 4;
            if constexpr (R::WORDS == 4) {
                const tensor::Quad q = tensor::load16(from);
#pragma unroll
                for (int j = 0; j < 4; ++j) words[half][j] = q.x[j];
            } else {
                const typename quantized::Tile<P>::Two q = *(const typename quantized::Tile<P>::Two *)from;
                words[half][0] = q.x[0], words[half][1] = q.x[1];
            }
            if constexpr (Z::GROUPED)
#pragma unroll
                for (int j = 0; j < R::WORDS; ++j)
#pragma unroll
                    for (int i = 0; i < Z::NUMBER_WORDS; ++i)
                        numbers[half][j * Z::NUMBER_WORDS + i] =
                            ((const u32 *)(tile + 1024))[((lane / 4 + half * 8) * Z::GROUPS + (in * R::WORDS + j) * (128 / P::BITS) / P::GROUP) * Z::NUMBER_WORDS + i];
        }
    }
    // Write the codes as floats to the rows of a tile of 64 outputs.
    __device__ __forceinline__ void store(unsigned char *tile) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = threadIdx.x / 32 % 4 * 16 + g;
        if constexpr (!Z::GROUPED) {
            u32 a[4][4];
#pragma unroll
            for (int j = 0; j < 4; ++j) quantized::bytes_of<P>(a[j], words[0][j], words[1][j]);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    *(Words *)(tile + tiles::swizzle<8>(row + half * 8, t * 2 + i) * 16) =
                        Words{{a[i * 2][half], a[i * 2][half + 2], a[i * 2 + 1][half], a[i * 2 + 1][half + 2]}};
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < R::WORDS; ++i) {
                    // Odd rows write their words in the other order: neighboring rows use other banks.
                    const int odd = P::BITS == 4 ? g & 1 : 0, j = i ^ odd, other = P::BITS == 4 ? i ^ 1 : i;
                    const u32 word = odd ? words[half][other] : words[half][i];
                    u32 n[Z::NUMBER_WORDS];
#pragma unroll
                    for (int e = 0; e < Z::NUMBER_WORDS; ++e)
                        n[e] = odd ? numbers[half][other * Z::NUMBER_WORDS + e] : numbers[half][i * Z::NUMBER_WORDS + e];
                    put(tile, row + half * 8, j, t, word, quantized::numbers_of<P::NUMBERS>(n));
                }
        }
    }
    static __device__ __forceinline__ void put(unsigned char *tile, int row, int j, int t, u32 word, const ScaleLow &n) {
        if constexpr (P::BITS == 4) {
            typedef quantized::Codes<T> C;
            const u32 pairs[4] = {C::template four<0>(word), C::template four<1>(word), C::template four<2>(word), C::template four<3>(word)};
            const float low = n.low - 16 * n.scale;
            float x[8];
#pragma unroll
            for (int e = 0; e < 4; ++e) x[e] = low + n.scale * T::low(pairs[e]), x[e + 4] = low + n.scale * T::high(pairs[e]);
            *(Words *)(tile + tiles::swizzle<8>(row, j * 4 + t) * 16) = Words{{T::pack(x[0], x[1]), T::pack(x[2], x[3]), T::pack(x[4], x[5]), T::pack(x[6], x[7])}};
        } else {
            word ^= 0x80808080u;
            const float x[4] = {quantized::signed_byte<0>(word), quantized::signed_byte<1>(word), quantized::signed_byte<2>(word), quantized::signed_byte<3>(word)};
            typename quantized::Tile<P>::Two two;
#pragma unroll
            for (int e = 0; e < 2; ++e) two.x[e] = T::pack(n.low + n.scale * x[e * 2], n.low + n.scale * x[e * 2 + 1]);
            *(typename quantized::Tile<P>::Two *)(tile + tiles::swizzle<8>(row, j * 2 + t / 2) * 16 + t % 2 * 8) = two;
        }
    }
};

template <class P, class Finish>
__device__ __forceinline__ void run(const typename P::S *x, const int8_t *w, const float *scales, float *partials, uint32_t *counters, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    typedef Sizes<P> R;
    typedef quantized::Sizes<P> Z;
    typedef typename P::T T;
    constexpr int ROWS = P::ROWS, LOADS = ROWS * 8 / R::THREADS, AHEAD = P::STAGES - 2;
    static_assert(ROWS * 8 % R::THREADS == 0 && AHEAD >= 1 && (P::SPLIT - 1) * R::STEPS_PER_SPLIT < R::STEPS, "");
    const int group = threadIdx.x / 128, tile_of_outputs = (int)blockIdx.x / P::SPLIT, split = (int)blockIdx.x % P::SPLIT;
    const int column0 = tile_of_outputs * R::OUTPUTS, row0 = (int)blockIdx.y * ROWS;
    const int first = split * R::STEPS_PER_SPLIT, rest = R::STEPS - first, steps = rest < R::STEPS_PER_SPLIT ? rest : R::STEPS_PER_SPLIT;

    const int tile = column0 / 16 + (int)threadIdx.x / 32;  // outputs beyond the last tile repeat it; nobody reads their sums
    const int8_t *const codes = w + (long long)(tile < P::TILES ? tile : P::TILES - 1) * P::STEPS * Z::TILE;
    unsigned char *const floats = shared + P::STAGES * R::X_BYTES + group * (64 * BK * 2);
    const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    const auto fetch = [&](int step) {
        if (step < steps) {
            unsigned char *const to = shared + step % P::STAGES * R::X_BYTES;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const int r = row + i * (R::THREADS / 8);
                const bool there = row0 + r < P::m;
                tiles::load_chunk_async<P::ALIGNED>(to + tiles::swizzle<8>(r, chunk) * 16, (const u16 *)x + (long long)(there ? row0 + r : 0) * P::k,
                                                    (first + step) * BK + chunk * 8, P::k, there);
            }
        }
        tensor::cp_async_commit();
    };

    Codes<P> held[2];
#pragma unroll
    for (int s = 0; s < 2; ++s)
        if (s < steps) held[s].load(codes, first + s);
    griddep_wait();
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) fetch(s);
    held[0].store(floats);
    if (2 < steps) held[0].load(codes, first + 2);

    float sums[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) sums[i] = 0;
    const u64 x_tile = hopper::matrix_desc(tensor::smem_addr(shared), 0), w_tile = hopper::matrix_desc(tensor::smem_addr(floats), 0);
    int x_stage = 0, w_stage = 0;
    const auto multiply = [&](int step, Codes<P> &next) {
        tensor::cp_async_wait<AHEAD - 1>();
        hopper::fence_proxy_async();
        __syncthreads();  // x and the floats of this step have arrived, and all products but the last one are complete
        hopper::reg_fence(sums);
        hopper::wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < BK / 16; ++kk)
            hopper::Wgmma<T, ROWS / 2>::ss(sums, hopper::advance_desc(w_tile, w_stage * R::W_BYTES + kk * 32),
                                           hopper::advance_desc(x_tile, x_stage * R::X_BYTES + kk * 32), true);
        hopper::wgmma_commit();
        fetch(step + AHEAD);
        x_stage = x_stage + 1 == P::STAGES ? 0 : x_stage + 1;
        w_stage = w_stage + 1 == W_STAGES ? 0 : w_stage + 1;
        if (step + 1 < steps) next.store(floats + w_stage * R::W_BYTES);
        if (step + 3 < steps) next.load(codes, first + step + 3);
        hopper::wgmma_wait<1>();
    };
    int step = 0;
#pragma unroll 1
    do {
        multiply(step, held[1]);
        if (step + 1 < steps) multiply(step + 1, held[0]);
        step += 2;
    } while (step < steps);
    hopper::wgmma_wait<0>();
    hopper::reg_fence(sums);
    tensor::cp_async_wait<0>();
    __syncthreads();

    // The sums in shared memory, so that neighboring threads have neighboring outputs.
    float *const all = (float *)shared;
    const int lane = threadIdx.x % 32, output = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) all[(j * 8 + lane % 4 * 2 + e % 2) * R::SUMS + output + e / 2 * 8] = sums[j * 4 + e];
    __syncthreads();
    const int column = column0 + (int)threadIdx.x % R::OUTPUTS, begin = (int)threadIdx.x / R::OUTPUTS;
    constexpr int STEP = R::THREADS / R::OUTPUTS;
    const int task = (int)blockIdx.y * P::OUTPUT_TILES + tile_of_outputs;
    float *const parts = partials + (long long)task * P::SPLIT * ROWS * R::OUTPUTS;
    if constexpr (P::SPLIT > 1) {
        for (int r = begin; r < ROWS && row0 + r < P::m; r += STEP)
            parts[(split * ROWS + r) * R::OUTPUTS + column - column0] = all[r * R::SUMS + column - column0];
        if (!is_last_block(counters + task, P::SPLIT)) return;
    }
    if (column >= P::n) return;
    const float scale = Z::GROUPED ? 1 : scales[column] * Z::UNIT;
#pragma unroll 4
    for (int r = begin; r < ROWS; r += STEP) {
        if (row0 + r >= P::m) break;
        const auto terms = finish.terms(row0 + r, column);
        float sum = 0;
        if constexpr (P::SPLIT > 1) {
#pragma unroll
            for (int i = 0; i < P::SPLIT; ++i) sum += ld_cg(parts + (i * ROWS + r) * R::OUTPUTS + column - column0);
        } else sum = all[r * R::SUMS + column - column0];
        finish.write(row0 + r, column, sum * scale, 0, terms);
    }
}

}  // namespace quantized_rows
