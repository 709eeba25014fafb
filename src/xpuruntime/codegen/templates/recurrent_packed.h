// needs: gemm exp
// recurrent_packed: recurrent layers with constant weights. One GEMM before this computes the input part of all gates of all steps. A step
// multiplies the hidden state by panels that hold all gates of L units, and computes the cell of each panel in vectors.
//
// C: constants of the layer (written by kernels/cpu/rnn_packed.py):
//   T, G, N, R, U                  type of the sums; gates; samples of a task and of a tile of it; unrolled steps of the product
//   batch, length, hidden, blocks  sizes; panels of a direction
//   directions, reverse            reverse: the first direction runs backwards; a second one always does
//   x_sample, x_step               rows of `x_gates` from sample to sample and from step to step
//   y_*, s_*                       strides of the sequence (sample, step, direction) and of states (sample, direction)
//   linear_before_reset            GRU: the recurrent part of the last gate is not added to its input part
//   cell(sums, x_gate, h, c)       a step of L units: gates to the new hidden and cell states
// x_gates: [samples and steps][directions][blocks][G][L]. panels: [directions][blocks][hidden][G][L]. recurrent_bias: [directions][blocks][L], of
// the last gate. Scratch: h | next | c, N rows of blocks * L each, and tiles [N][G][L].

template <class T> struct RecurrentOperands {
    const T *x_gates, *panels, *recurrent_bias, *h0, *c0;
    T *y, *h, *c;
};

template <class C, class I>
INLINE int64_t recurrent_task(const RecurrentOperands<typename C::T> &o, const I *lengths, int64_t task, void *scratch) {
    typedef typename C::T T;
    constexpr int L = GEMM_LANES<T>, PANEL = C::G * L;
    constexpr int64_t UNITS = C::blocks * L;
    typedef vec<T, L> V;
    const int64_t d = task % C::directions, first = task / C::directions * C::N;
    const int64_t rows = C::batch - first < C::N ? C::batch - first : C::N;
    const bool backwards = d || C::reverse;
    T *h = (T *)scratch, *next = h + C::N * UNITS, *c = next + C::N * UNITS, *tile = c + C::N * UNITS;
    int64_t count[C::N];
    for (int64_t b = 0; b < C::N; b++) {
        count[b] = b >= rows ? 0 : lengths ? (int64_t)lengths[first + b] : C::length;
        if (count[b] < 0 || count[b] > C::length) return count[b];
        const int64_t at = (first + b) * C::s_sample + d * C::s_direction;
        for (int64_t u = 0; u < UNITS; u++) {
            const bool inside = b < rows && u < C::hidden;
            h[b * UNITS + u] = inside && o.h0 ? o.h0[at + u] : 0;
            c[b * UNITS + u] = inside && o.c0 ? o.c0[at + u] : 0;
            next[b * UNITS + u] = 0;
        }
    }
    for (int64_t step = 0; step < C::length; step++) {
        const T *x_gates[C::N];
        T *to[C::N];
        for (int64_t b = 0; b < C::N; b++) {
            const int64_t sample = b < rows ? first + b : first, t = backwards && step < count[b] ? count[b] - 1 - step : step;
            x_gates[b] = o.x_gates + ((sample * C::x_sample + t * C::x_step) * C::directions + d) * C::blocks * PANEL;
            to[b] = o.y + sample * C::y_sample + t * C::y_step + d * C::y_direction;
        }
        for (int64_t j = 0; j < C::blocks; j++) {
            for (int64_t b = 0; b < C::N; b++)
                for (int g = 0; g < C::G; g++) {
                    const bool separate = C::linear_before_reset && g + 1 == C::G;
                    const V start = separate ? load<L>(o.recurrent_bias + (d * C::blocks + j) * L) : load<L>(x_gates[b] + j * PANEL + g * L);
                    store<L>(tile + b * PANEL + g * L, start);
                }
            for (int64_t b = 0; b < C::N; b += C::R)  // the panel stays in cache
                gemm_tile<T, T, C::R, C::G, C::U>(h + b * UNITS, UNITS, 1, o.panels + (d * C::blocks + j) * C::hidden * PANEL, C::hidden,
                                                  tile + b * PANEL, true);
            const int64_t n = C::hidden - j * L < L ? C::hidden - j * L : L;
            for (int64_t b = 0; b < rows; b++) {
                V sums[C::G], state = load<L>(h + b * UNITS + j * L), cell = load<L>(c + b * UNITS + j * L);
                for (int g = 0; g < C::G; g++) sums[g] = load<L>(tile + b * PANEL + g * L);
                const bool runs = step < count[b];
                if (runs) C::cell(sums, load<L>(x_gates[b] + j * PANEL + (C::G - 1) * L), state, cell);
                store<L>(next + b * UNITS + j * L, state);
                store<L>(c + b * UNITS + j * L, cell);
                const V output = runs ? state : V{};
                if (n == L) store<L>(to[b] + j * L, output);
                else store<L>(to[b] + j * L, output, n);
            }
        }
        T *const old = h;
        h = next, next = old;
    }
    for (int64_t b = 0; b < rows; b++) {
        const int64_t at = (first + b) * C::s_sample + d * C::s_direction;
        for (int64_t u = 0; u < C::hidden; u++) {
            if (o.h) o.h[at + u] = h[b * UNITS + u];
            if (o.c) o.c[at + u] = c[b * UNITS + u];
        }
    }
    return 0;
}
