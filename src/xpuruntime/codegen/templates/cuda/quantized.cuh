// needs: gemv
// quantized.cuh: few rows times a weight of 8- or 4-bit codes, bound by the bandwidth of reading the codes once; and the weight as floats.
//
// The weight is stored in tiles of 16 outputs: 1,024 bytes of codes (16 per thread: lane / 4 is the output, then those of eight outputs further on), and
// the numbers of each output and group, if there are groups. A tile has STEP inputs: 64 of 8 bits, 128 of 4. Warps of a block split the steps
// between them. Each warp copies its tiles by cp.async to a ring of its own, the first ones before griddep_wait.
//
// 16-bit floats: the codes are one operand of mma.m16n8k16, up to ROWS rows of x the other one (in shared memory, normalized). A 4-bit code c becomes
// the float 16 + c by bit operations. The result of a group is scale sum((16 + c) a) + (low - 16 scale) sum(a); the second part is one more mma per
// tile, whose inputs are the groups, if both numbers are bfloat16: it has the sum of a as two bfloat16 numbers. Otherwise it is an FMA in float.
// Codes of float8_e4m3fn (E4M3) become float16 or bfloat16 by bit operations, too; none is NaN, since the scale of an output with one is NaN.
// Other floats of x use FMAs.
//
// P: S (storage), T (tensor::Bf16 or F16; void: FMAs), m, n, k, ROWS (rows of x of a block), COLUMN_TILES (ROWS / 8, rounded up), BITS (8, 4), E4M3 (whether codes of 8
// bits are float8_e4m3fn), GROUP
// (inputs of a scale; 0: all), NUMBERS (of a group, below), MATRICES (of `dequantize`), STEPS, TILES (of outputs, per half), SPLIT (warps), STAGES (tiles in flight per warp and half), TILES_PER_BLOCK, GATED, NORM,
// CONSTANT_SCALE (of the norm), ALIGNED, eps(). `finish` is that of gemv.cuh.
namespace quantized {

using tensor::Quad;
using tensor::u32;

// The numbers of a group: scale and low, in bfloat16 (their low bytes, then their high ones), float16 or float32; or float16 factors of the scale.
enum { NONE, BFLOAT16, FLOAT16, PRODUCT, FLOAT32 };

// Sizes that follow from P, and the block's shared memory.
template <class P> struct Sizes {
    static constexpr bool MMA = !same<typename P::T, void>, GROUPED = P::GROUP > 0;
    static constexpr float UNIT = P::E4M3 && same<typename P::T, tensor::F16> ? 256 : 1;  // of the operands that codes become
    static constexpr int STEP = P::BITS == 4 ? 128 : 64, GROUPS = GROUPED ? STEP / (GROUPED ? P::GROUP : 1) : 0, NUMBER_WORDS = P::NUMBERS == FLOAT32 ? 2 : 1,
                         TILE = 1024 + 64 * GROUPS * NUMBER_WORDS, HALVES = P::GATED ? 2 : 1,
                         K = P::STEPS * STEP, THREADS = P::SPLIT * 32, ITEM = MMA ? 2 : 4, CHUNKS = K / 8,
                         // Bytes of a row of x: neighboring rows begin in other banks.
                         ROW = K * ITEM + (P::BITS == 4 ? 64 : GROUPED ? 32 : 16), OUTPUTS = 16 * HALVES,
                         RING = P::SPLIT * P::STAGES * HALVES * TILE, X = P::ROWS * ROW, SUMS = MMA ? P::STEPS * GROUPS * P::ROWS * 8 : 0,
                         NORMS = P::NORM ? (P::ROWS + P::ROWS * ((CHUNKS + 31) / 32)) * 4 : 0, SPLITS = 2 * P::SPLIT * OUTPUTS * P::ROWS * 4,
                         PARTS = SPLITS > NORMS ? SPLITS : NORMS, BYTES = RING + X + (SUMS + 15) / 16 * 16 + PARTS;
};

// Bytes 2 I and 2 I + 1 of a word as the high bytes of two halves.
template <int I> __device__ __forceinline__ u32 high_bytes(u32 w) { return __byte_perm(w, 0, I == 0 ? 0x1404 : 0x3424); }

// Codes as operands of T: two codes of a word as 16 + c, pair I being nibbles I and I + 4; or two signed bytes, pair 0 or 1; or two numbers of
// float8_e4m3fn, over 256 in float16.
template <class T> struct Codes;
template <> struct Codes<tensor::Bf16> {
    template <int I> static __device__ __forceinline__ u32 four(u32 w) {
        return tensor::and_or(I == 0 ? w << 3 : w >> (I == 0 ? 0 : 4 * I - 3), 0x00780078u, 0x41804180u);
    }
    static __device__ __forceinline__ u32 two(float a, float b) { return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632); }
    template <int I> static __device__ __forceinline__ u32 two_e4m3(u32 w) {
        const u32 high = high_bytes<I>(w);  // the exponents' bias differs by 120
        return tensor::mul_bf16x2(tensor::and_or(high >> 4, 0x07f007f0u, high & 0x80008000u), 0x7b807b80u);
    }
};
template <> struct Codes<tensor::F16> {
    template <int I> static __device__ __forceinline__ u32 four(u32 w) {
        return tensor::and_or(I < 2 ? w << (I < 2 ? 6 - 4 * I : 0) : w >> (I < 2 ? 0 : 4 * I - 6), 0x03c003c0u, 0x4c004c00u);
    }
    static __device__ __forceinline__ u32 two(float a, float b) { return tensor::F16::pack(a, b); }
    template <int I> static __device__ __forceinline__ u32 two_e4m3(u32 w) {
        const u32 high = high_bytes<I>(w);  // the exponents' bias differs by 8
        return tensor::and_or(high >> 1, 0x3f803f80u, high & 0x80008000u);
    }
};
// Signed byte I of a word whose sign bits are flipped: 2**23 + 128 + c is a float with the byte in its last bits.
template <int I> __device__ __forceinline__ float signed_byte(u32 flipped) {
    return __uint_as_float(__byte_perm(flipped, 0x4b000000u, 0x7540 + I)) - 8388736.0f;
}
struct ScaleLow { float scale, low; };
// Scale and low from the words of a group.
template <int NUMBERS> __device__ __forceinline__ ScaleLow numbers_of(const u32 *words) {
    typedef tensor::F16 Half;
    const u32 word = words[0];
    if constexpr (NUMBERS == BFLOAT16) return {__uint_as_float(__byte_perm(word, 0, 0x2044)), __uint_as_float(__byte_perm(word, 0, 0x3144))};
    else if constexpr (NUMBERS == FLOAT16) return {Half::low(word), Half::high(word)};
    else if constexpr (NUMBERS == PRODUCT) return {Half::low(word) * Half::high(word), 0};
    else return {__uint_as_float(word), __uint_as_float(words[1])};
}

// Code i of a word in the order of the inputs, as a float: 2**23 and the code are exact.
template <int BITS, bool E4M3> __device__ __forceinline__ float code(u32 word, int i) {
    if constexpr (E4M3) {
        const u32 high = word >> 8 * i << 8;
        return 256 * tensor::F16::low((high & 0x8000u) | (high >> 1 & 0x3f80u));
    }
    if (BITS == 4) return __uint_as_float((word >> 4 * i & 15) | 0x4b000000u) - 8388608.0f;
    return __uint_as_float((word >> 8 * i & 255 ^ 128) | 0x4b000000u) - 8388736.0f;
}

// The rows of an mma's left operand from the codes of 8 bits of two outputs.
template <class P> __device__ __forceinline__ void bytes_of(u32 (&a)[4], u32 u, u32 l) {
    typedef Codes<typename P::T> C;
    if constexpr (P::E4M3) {
        a[0] = C::template two_e4m3<0>(u), a[1] = C::template two_e4m3<0>(l), a[2] = C::template two_e4m3<1>(u), a[3] = C::template two_e4m3<1>(l);
    } else {
        u ^= 0x80808080u, l ^= 0x80808080u;
        a[0] = C::two(signed_byte<0>(u), signed_byte<1>(u)), a[1] = C::two(signed_byte<0>(l), signed_byte<1>(l));
        a[2] = C::two(signed_byte<2>(u), signed_byte<3>(u)), a[3] = C::two(signed_byte<2>(l), signed_byte<3>(l));
    }
}

struct alignas(16) Words { u32 x[4]; };
// The sum of a group of x as two bfloat16 numbers, and -16 times it.
struct alignas(8) Pairs { u32 x[2]; };
__device__ __forceinline__ Pairs pairs_of(float sum) {
    typedef tensor::Bf16 T;
    const float rest = sum - T::low(T::pack(sum, 0));
    return Pairs{{T::pack(sum, rest), T::pack(-16 * sum, -16 * rest)}};
}

// The rows of x in shared memory.
template <class P> struct Rows {
    typedef typename P::S S;
    typedef Sizes<P> Z;
    const S *x, *scale;
    unsigned char *rows;
    Pairs *sums;

    // Rows are read by pieces of 32 chunks of eight inputs, a piece per warp; a warp has UNROLL loads in flight.
    static constexpr int E = gemv::Chunk<S>::size, LOADS = 8 / E, SEGMENTS = (Z::CHUNKS + 31) / 32, PIECES = P::ROWS * SEGMENTS,
                         PER_WARP = (PIECES + P::SPLIT - 1) / P::SPLIT, UNROLL = PER_WARP < 8 ? PER_WARP : 8;
    struct Chunk { Quad q[LOADS]; };

    __device__ __forceinline__ static Chunk read(const S *row, int at) {
        Chunk c;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) c.q[i] = gemv::read<P::ALIGNED, false>(row, at + i * E, P::k);
        return c;
    }
    __device__ __forceinline__ static void open(float (&a)[8], const Chunk &c) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            float part[E];
            gemv::Chunk<S>::open(part, c.q[i]);
#pragma unroll
            for (int e = 0; e < E; ++e) a[i * E + e] = part[e];
        }
    }
    // The chunks of the warp's pieces from `begin` on; zeros past the ends.
    __device__ __forceinline__ void fetch(Chunk (&c)[UNROLL], int first, int begin) const {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int piece = (begin + u) * P::SPLIT + (int)threadIdx.x / 32, r = piece / SEGMENTS, chunk = piece % SEGMENTS * 32 + (int)threadIdx.x % 32;
            c[u] = Chunk{};
            if (piece < PIECES && chunk < Z::CHUNKS && first + r < P::m) c[u] = read(x + (long long)(first + r) * P::k, chunk * 8);
        }
    }
    // Over the root of the mean square of each row, in `parts`, which has room for the pieces and the rows. `c` keeps the last chunks.
    __device__ __forceinline__ void norms(Chunk (&c)[UNROLL], int first, float *parts) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int begin = 0; begin < PER_WARP; begin += UNROLL) {
            fetch(c, first, begin);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int piece = (begin + u) * P::SPLIT + warp;
                float a[8], squares = 0;
                open(a, c[u]);
#pragma unroll
                for (int e = 0; e < 8; ++e) squares += a[e] * a[e];
#pragma unroll
                for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
                if (lane == 0 && piece < PIECES) parts[P::ROWS + piece] = squares;
            }
        }
        __syncthreads();
        for (int r = warp; r < P::ROWS; r += P::SPLIT) {
            float squares = 0;
            for (int i = lane; i < SEGMENTS; i += 32) squares += parts[P::ROWS + r * SEGMENTS + i];
#pragma unroll
            for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
            if (lane == 0) parts[r] = gemv::reciprocal_sqrt(squares / P::k + P::eps());
        }
        __syncthreads();
    }
    // Write the sum of a group to shared memory.
    __device__ __forceinline__ void keep(float sum, int r, int chunk, bool there) const {
        if (!there || chunk % (P::GROUP / 8) != 0) return;
        const int at = chunk / (P::GROUP / 8) * P::ROWS + r;
        if constexpr (P::NUMBERS == BFLOAT16) sums[at] = pairs_of(sum);
        else ((float *)sums)[at] = sum;
    }
    // Write a chunk to shared memory: as operands, in the order of the codes' pairs, with the sums of its groups.
    __device__ __forceinline__ void put(const float (&a)[8], int r, int chunk, bool there) const {
        unsigned char *const to = rows + r * Z::ROW + chunk * 8 * Z::ITEM;
        if constexpr (Z::MMA) {
            typedef typename P::T T;
            u32 words[4];
            if constexpr (P::BITS == 4) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = T::pack(a[i], a[i + 4]), sum += T::low(words[i]) + T::high(words[i]);
#pragma unroll
                for (int mask = 1; mask < P::GROUP / 8; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
                keep(sum, r, chunk, there);
            } else {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = T::pack(a[2 * i], a[2 * i + 1]), sum += T::low(words[i]) + T::high(words[i]);
                if constexpr (Z::GROUPED && P::NUMBERS != PRODUCT) {
#pragma unroll
                    for (int mask = 1; mask < P::GROUP / 8; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
                    keep(sum, r, chunk, there);
                }
            }
            if (there) *(Words *)to = Words{{words[0], words[1], words[2], words[3]}};
        } else if (there) {
#pragma unroll
            for (int e = 0; e < 8; ++e) ((float *)to)[e] = a[e];
        }
    }
    // Whether the norm's scale of a warp's pieces is kept in registers: it is constant, and is read before griddep_wait.
    static constexpr bool HELD = P::NORM && P::CONSTANT_SCALE && PER_WARP <= UNROLL;
    struct Scale { Chunk c[HELD ? UNROLL : 1]; };
    __device__ __forceinline__ void hold(Scale &held) const {
        if constexpr (HELD)
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int piece = u * P::SPLIT + (int)threadIdx.x / 32, chunk = piece % SEGMENTS * 32 + (int)threadIdx.x % 32;
                held.c[u] = Chunk{};
                if (piece < PIECES && chunk < Z::CHUNKS) held.c[u] = read(scale, chunk * 8);
            }
    }
    __device__ __forceinline__ void stage(int first, float *parts, const Scale &held) const {
        Chunk c[UNROLL];
        if constexpr (P::NORM) norms(c, first, parts);
        for (int begin = 0; begin < PER_WARP; begin += UNROLL) {
            if (!P::NORM || PER_WARP > UNROLL) fetch(c, first, begin);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int piece = (begin + u) * P::SPLIT + (int)threadIdx.x / 32, r = piece / SEGMENTS;
                const int chunk = piece % SEGMENTS * 32 + (int)threadIdx.x % 32;
                const bool there = piece < PIECES && chunk < Z::CHUNKS;
                float a[8];
                open(a, c[u]);
                if constexpr (P::NORM) {
                    float g[8] = {0, 0, 0, 0, 0, 0, 0, 0}, factor = 0;
                    if (there) open(g, HELD ? held.c[HELD ? u : 0] : read(scale, chunk * 8)), factor = parts[r];
#pragma unroll
                    for (int e = 0; e < 8; ++e) a[e] = a[e] * factor * g[e];
                }
                put(a, r, chunk, there);
            }
        }
        __syncthreads();
    }
};

// The product of a tile, added to `sums`: by mma, or by FMAs.
template <class P> struct Tile {
    typedef Sizes<P> Z;
    typedef typename P::T T;
    static constexpr int NT = P::COLUMN_TILES;
    struct alignas(4 * (Z::GROUPS ? Z::GROUPS : 1)) Scales { u32 x[Z::GROUPS ? Z::GROUPS : 1]; };
    struct alignas(8) Two { u32 x[2]; };

    // The row of x that a lane multiplies: column lane / 4 of a tile of columns. Columns beyond the rows repeat the last one; nobody reads their sums.
    static __device__ __forceinline__ int row_of(int column) { return column < P::ROWS ? column : P::ROWS - 1; }

    // The products of word j of each lane, from outputs g and g + 8: 32 inputs of 4 bits, or 16 of 8 in groups.
    static __device__ __forceinline__ void words(float (&part)[NT][4], u32 u, u32 l, const unsigned char *const (&rows)[NT], int j) {
        if constexpr (P::BITS == 4) {
            const u32 first[4] = {Codes<T>::template four<0>(u), Codes<T>::template four<0>(l), Codes<T>::template four<1>(u), Codes<T>::template four<1>(l)};
            const u32 second[4] = {Codes<T>::template four<2>(u), Codes<T>::template four<2>(l), Codes<T>::template four<3>(u), Codes<T>::template four<3>(l)};
#pragma unroll
            for (int i = 0; i < NT; ++i) {
                const Quad b = tensor::load16(rows[i] + j * 64);
                tensor::mma_m16n8k16<T>(part[i], first, b.x[0], b.x[1]);
                tensor::mma_m16n8k16<T>(part[i], second, b.x[2], b.x[3]);
            }
        } else {
            u32 a[4];
            bytes_of<P>(a, u, l);
#pragma unroll
            for (int i = 0; i < NT; ++i) {
                const Two b = *(const Two *)(rows[i] + j * 32);
                tensor::mma_m16n8k16<T>(part[i], a, b.x[0], b.x[1]);
            }
        }
    }

    static __device__ __forceinline__ void mma(float (&sums)[NT][4], const unsigned char *tile, const Rows<P> &x, int step) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const Quad upper = tensor::load16(tile + lane * 16), lower = tensor::load16(tile + 512 + lane * 16);
        const unsigned char *rows[NT];
#pragma unroll
        for (int i = 0; i < NT; ++i) rows[i] = x.rows + row_of(i * 8 + g) * Z::ROW + step * Z::STEP * 2 + t * (P::BITS == 4 ? 16 : Z::GROUPED ? 8 : 32);
        if constexpr (P::NUMBERS > BFLOAT16) {
            constexpr int WORD = 128 / P::BITS;  // inputs of the words j of four lanes
            float part[NT][4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (j * WORD % P::GROUP == 0)
#pragma unroll
                    for (int i = 0; i < NT; ++i)
#pragma unroll
                        for (int e = 0; e < 4; ++e) part[i][e] = 0;
                words(part, upper.x[j], lower.x[j], rows, j);
                if ((j + 1) * WORD % P::GROUP) continue;
                const int group = j * WORD / P::GROUP;
                float of[NT][2];
#pragma unroll
                for (int i = 0; i < NT; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        of[i][e] = P::NUMBERS == PRODUCT ? 0 : ((const float *)x.sums)[(step * Z::GROUPS + group) * P::ROWS + row_of(i * 8 + t * 2 + e)];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const ScaleLow n = numbers_of<P::NUMBERS>((const u32 *)(tile + 1024) + ((g + half * 8) * Z::GROUPS + group) * Z::NUMBER_WORDS);
                    const float low = P::BITS == 4 ? n.low - 16 * n.scale : n.low;
#pragma unroll
                    for (int i = 0; i < NT; ++i)
#pragma unroll
                        for (int e = 0; e < 2; ++e) sums[i][half * 2 + e] += n.scale * part[i][half * 2 + e] + low * of[i][e];
                }
            }
        } else if constexpr (P::BITS == 8) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                u32 a[4];
                bytes_of<P>(a, upper.x[j], lower.x[j]);
#pragma unroll
                for (int i = 0; i < NT; ++i) {
                    const Quad b = tensor::load16(rows[i] + j / 2 * 16);
                    tensor::mma_m16n8k16<T>(sums[i], a, b.x[j % 2 * 2], b.x[j % 2 * 2 + 1]);
                }
            }
        } else {
            const u32 *const numbers = (const u32 *)(tile + 1024);
            const u32 above = t < Z::GROUPS ? numbers[g * Z::GROUPS + t] : 0, below = t < Z::GROUPS ? numbers[(g + 8) * Z::GROUPS + t] : 0;
            const u32 lows[4] = {__byte_perm(above, 0, 0x3131), __byte_perm(below, 0, 0x3131), __byte_perm(above, 0, 0x2020), __byte_perm(below, 0, 0x2020)};
#pragma unroll
            for (int i = 0; i < NT; ++i) {
                const Pairs of = x.sums[(step * Z::GROUPS + (t < Z::GROUPS ? t : 0)) * P::ROWS + row_of(i * 8 + g)];
                tensor::mma_m16n8k16<tensor::Bf16>(sums[i], lows, of.x[0], of.x[1]);
            }
            Scales scales[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) scales[half] = ((const Scales *)numbers)[g + half * 8];
            float part[NT][4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (j * 32 % P::GROUP == 0)
#pragma unroll
                    for (int i = 0; i < NT; ++i)
#pragma unroll
                        for (int e = 0; e < 4; ++e) part[i][e] = 0;
                words(part, upper.x[j], lower.x[j], rows, j);
                if ((j + 1) * 32 % P::GROUP) continue;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float scale = numbers_of<BFLOAT16>(scales[half].x + j * 32 / P::GROUP).scale;
#pragma unroll
                    for (int i = 0; i < NT; ++i)
#pragma unroll
                        for (int e = 0; e < 2; ++e) sums[i][half * 2 + e] += scale * part[i][half * 2 + e];
                }
            }
        }
    }
    static __device__ __forceinline__ void fma(float (&sums)[2][P::ROWS], const unsigned char *tile, const Rows<P> &x, int step) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
        for (int j = 0; j < 4; ++j) {
            constexpr int CODES = 32 / P::BITS;
            const int k = step * Z::STEP + (P::BITS == 4 ? j * 32 + t * 8 : Z::GROUPED ? j * 16 + t * 4 : t * 16 + j * 4);
            float w[2][CODES];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 codes = *(const u32 *)(tile + half * 512 + lane * 16 + j * 4);
                ScaleLow n = {1, 0};
                if constexpr (Z::GROUPED) {
                    const int group = j * (128 / P::BITS) / P::GROUP;
                    n = numbers_of<P::NUMBERS>((const u32 *)(tile + 1024) + ((g + half * 8) * Z::GROUPS + group) * Z::NUMBER_WORDS);
                }
#pragma unroll
                for (int e = 0; e < CODES; ++e) w[half][e] = n.low + n.scale * code<P::BITS, P::E4M3>(codes, e);
            }
#pragma unroll
            for (int r = 0; r < P::ROWS; ++r) {
                const float *const row = (const float *)(x.rows + r * Z::ROW) + k;
#pragma unroll
                for (int e = 0; e < CODES; ++e)
#pragma unroll
                    for (int half = 0; half < 2; ++half) sums[half][r] += row[e] * w[half][e];
            }
        }
    }
};

template <class P, class Finish>
__device__ __forceinline__ void run(const typename P::S *x, const int8_t *w, const typename P::S *norm, const float *scales, const Finish &finish) {
    DYNAMIC_SMEM(shared);
    typedef Sizes<P> Z;
    constexpr int H = Z::HALVES, PIECES = Z::TILE / 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    unsigned char *const ring = shared + warp * P::STAGES * H * Z::TILE;
    float *const parts = (float *)(shared + Z::BYTES - Z::PARTS);
    const Rows<P> rows = {x, norm, shared + Z::RING, (Pairs *)(shared + Z::RING + Z::X)};
    const int first = (int)blockIdx.x * P::TILES_PER_BLOCK, count = P::TILES - first < P::TILES_PER_BLOCK ? P::TILES - first : P::TILES_PER_BLOCK;
    const int row0 = (int)blockIdx.y * P::ROWS;
    // This warp's steps of a tile: warp, warp + SPLIT, ...
    const int steps = (P::STEPS - warp + P::SPLIT - 1) / P::SPLIT, total = count > 0 ? count * steps : 0;

    const int8_t *from = w + ((long long)first * P::STEPS + warp) * Z::TILE + lane * 16;
    const u32 to = tensor::smem_addr(ring) + lane * 16;
    int left = total, behind = steps;
    const auto fetch = [&](int stage) {
        if (left > 0) {
#pragma unroll
            for (int h = 0; h < H; ++h)
#pragma unroll
                for (int i = 0; i < (PIECES + 31) / 32; ++i)
                    if (PIECES % 32 == 0 || i * 32 + lane < PIECES)
                        tensor::cp_async_16(to + (stage * H + h) * Z::TILE + i * 512, from + (long long)h * P::TILES * P::STEPS * Z::TILE + i * 512, true);
            from += P::SPLIT * Z::TILE;
            if (P::TILES_PER_BLOCK > 1 && --behind == 0) behind = steps, from += (P::STEPS - steps * P::SPLIT) * Z::TILE;
            --left;
        }
        tensor::cp_async_commit();
    };
#pragma unroll
    for (int s = 0; s < P::STAGES - 1; ++s) fetch(s);
    typename Rows<P>::Scale held;
    rows.hold(held);
    griddep_wait();
    rows.stage(row0, parts, held);

    int stage = 0;
#pragma unroll 1
    for (int tile = first; tile < first + count; ++tile) {
        // The results of this thread: the first one's terms are loaded before the sums are complete.
        const int value = threadIdx.x, column = tile * 16 + value % 16, row = row0 + value / 16;
        const bool writes = value < 16 * P::ROWS && column < P::n && row < P::m;
        typename Finish::Terms terms = {};
        if (writes) terms = finish.terms(row, column);
        float sums[H][Z::MMA ? P::COLUMN_TILES : 2][Z::MMA ? 4 : P::ROWS];
#pragma unroll
        for (int h = 0; h < H; ++h)
#pragma unroll
            for (int i = 0; i < (Z::MMA ? P::COLUMN_TILES : 2); ++i)
#pragma unroll
                for (int e = 0; e < (Z::MMA ? 4 : P::ROWS); ++e) sums[h][i][e] = 0;
#pragma unroll 1
        for (int step = warp; step < P::STEPS; step += P::SPLIT) {
            tensor::cp_async_wait<P::STAGES - 2>();
            __syncwarp();  // the tile has arrived for all lanes, and no lane reads the one that the next copy overwrites
            fetch(stage == 0 ? P::STAGES - 1 : stage - 1);
#pragma unroll
            for (int h = 0; h < H; ++h) {
                const unsigned char *const at = ring + (stage * H + h) * Z::TILE;
                if constexpr (Z::MMA) Tile<P>::mma(sums[h], at, rows, step);
                else Tile<P>::fma(sums[h], at, rows, step);
            }
            stage = stage + 1 == P::STAGES ? 0 : stage + 1;
        }
        float *const own = parts + ((tile & 1) * P::SPLIT + warp) * Z::OUTPUTS * P::ROWS;  // double-buffered between tiles
#pragma unroll
        for (int h = 0; h < H; ++h) {
            if constexpr (Z::MMA) {
#pragma unroll
                for (int i = 0; i < P::COLUMN_TILES; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int r = i * 8 + t * 2 + e % 2;
                        if (r < P::ROWS) own[(h * 16 + g + e / 2 * 8) * P::ROWS + r] = sums[h][i][e];
                    }
            } else {
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int r = 0; r < P::ROWS; ++r) {
                        float sum = sums[h][half][r];
                        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                        if (t == 0) own[(h * 16 + g + half * 8) * P::ROWS + r] = sum;
                    }
            }
        }
        __syncthreads();
        for (int v = value; v < 16 * P::ROWS; v += Z::THREADS) {
            const int c = v % 16, r = v / 16;
            if (tile * 16 + c >= P::n || row0 + r >= P::m) continue;
            if (v != value) terms = finish.terms(row0 + r, tile * 16 + c);
            float of[2] = {0, 0};
#pragma unroll
            for (int h = 0; h < H; ++h) {
#pragma unroll
                for (int i = 0; i < P::SPLIT; ++i) of[h] += parts[(((tile & 1) * P::SPLIT + i) * Z::OUTPUTS + h * 16 + c) * P::ROWS + r];
                if (!Z::GROUPED) of[h] *= scales[h * P::n + tile * 16 + c] * Z::UNIT;
            }
            finish.write(row0 + r, tile * 16 + c, of[0], of[1], terms);
        }
    }
}

// The weight as rows of floats of type S, [MATRICES n, k]; each half of a layer, or of an expert's matrix, is one. A thread writes PIECES pieces of eight inputs; neighboring threads have neighboring ones.
// ALIGNED: k is a multiple of 8, and rows begin at 16 bytes.
template <class P, int PIECES> __device__ __forceinline__ void dequantize(const int8_t *w, const float *scales, typename P::S *to) {
    typedef Sizes<P> Z;
    typedef typename P::S S;
    constexpr long long TOTAL = (long long)P::MATRICES * P::n * Z::CHUNKS;
    constexpr int WORDS = P::BITS / 4, PER_STEP = Z::STEP / 8;
    u32 codes[PIECES][WORDS];
    ScaleLow numbers[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const long long at = ((long long)blockIdx.x * PIECES + i) * blockDim.x + threadIdx.x;
        if (at >= TOTAL) break;
        const int row = (int)(at / Z::CHUNKS), chunk = (int)(at % Z::CHUNKS), step = chunk / PER_STEP, c = chunk % PER_STEP;
        const int h = row / P::n, column = row % P::n, in = column % 16;
        const int8_t *const tile = w + ((long long)(h * P::TILES + column / 16) * P::STEPS + step) * Z::TILE;
        const int t = P::BITS == 4 ? c % 4 : Z::GROUPED ? c % 2 * 2 : c / 2, word = P::BITS == 4 ? c / 4 : Z::GROUPED ? c / 2 : c % 2 * 2;
        const u32 *const from = (const u32 *)(tile + in * 64 + t * 16) + word;
#pragma unroll
        for (int j = 0; j < WORDS; ++j) codes[i][j] = from[j * (Z::GROUPED ? 4 : 1)];  // in groups, the next lane has the next word
        if constexpr (Z::GROUPED) numbers[i] = numbers_of<P::NUMBERS>((const u32 *)(tile + 1024) + (in * Z::GROUPS + c * 8 / P::GROUP) * Z::NUMBER_WORDS);
        else numbers[i] = {scales[row], 0};
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const long long at = ((long long)blockIdx.x * PIECES + i) * blockDim.x + threadIdx.x;
        if (at >= TOTAL) break;
        const int row = (int)(at / Z::CHUNKS), k = (int)(at % Z::CHUNKS) * 8;
        struct alignas(16) Values { S of[8]; } values;
#pragma unroll
        for (int e = 0; e < 8; ++e)
            store<1>(values.of + e, (typename storage_<S>::compute)(numbers[i].low + numbers[i].scale * code<P::BITS, P::E4M3>(codes[i][e * P::BITS / 32], e % (32 / P::BITS))));
        S *const line = to + (long long)row * P::k + k;
        if (P::ALIGNED) {
            if (k < P::k) *(Values *)line = values;
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e)
                if (k + e < P::k) line[e] = values.of[e];
        }
    }
}

}  // namespace quantized
