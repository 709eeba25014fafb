// needs: conv_depthwise
// conv_grouped: groups of G channels with G filters each, as many vectors as in a depthwise convolution: a vector holds the channels of whole
// groups, and each input channel of a group is spread over the group's lanes and multiplied by the filters that read it.

namespace depthwise {

// Lanes 0 to N - 1: lane i gets channel J of its group of G.
template <int N, int... I> struct GroupLanes : GroupLanes<N - 1, N - 1, I...> {};
template <int... I> struct GroupLanes<0, I...> {
    template <int G, int J, class V> static INLINE_MEMBER V spread(V x) { return __builtin_shufflevector(x, x, (I / G * G + J)...); }
};

// Input channels J to G - 1 of a tap: `filters` are those of channel J, `across` elements before the next one's.
template <int G, int J, int L, int PX, Channels C, class V, class T>
INLINE void add_channels(const V (&x)[PX], const T *filters, int64_t across, int64_t n, V (&acc)[PX][1]) {
    const V f = load<L, C>(filters, n);
#pragma GCC unroll 8
    for (int p = 0; p < PX; p++) acc[p][0] += GroupLanes<L>::template spread<G, J>(x[p]) * f;
    if constexpr (J + 1 < G) add_channels<G, J + 1, L, PX, C>(x, filters + across, across, n, acc);
}

// A static variable of a member function would be a unique symbol, which keeps a library from being unloaded.
template <class S, int N> static const S zeros_of[N] = {};

// Filters are packed as [row, column, input channel of the group, channel]. Rows that are padding are skipped, columns count as zeros.
template <int G> struct ByGroups {
    template <class S, class A, int L, int CV, int PX, int KW, int SW, Edge E, Channels C>
    static INLINE_MEMBER void run(const Shape &s, const Block<S> &b, int64_t c, int64_t n) {
        static_assert(CV == 1 && L % G == 0, "");
        typedef typename storage_<S>::compute T;
        typedef vec<T, L> V;
        V acc[PX][1];
        start<S, L, 1, PX, C>(b, c, n, acc);
        const S *row = b.x + b.rows.from * s.dilation[1] * s.x[3] + c;
        const T *line = b.filters + b.rows.from * KW * G * s.groups + c;
        for (int64_t h = b.rows.from; h < b.rows.to; h++, row += s.dilation[1] * s.x[3])
#pragma GCC unroll 1
            for (int w = 0; w < KW; w++, line += G * s.groups) {
                V x[PX];
#pragma GCC unroll 8
                for (int p = 0; p < PX; p++) {
                    const int k = p * SW + w;
                    x[p] = load<L, C>(E == AT_EDGE && (k < b.from || k >= b.end) ? zeros_of<S, L> : row + k * s.x[4], n);
                }
                add_channels<G, 0, L, PX, C>(x, line, s.groups, n, acc);
            }
        finish<S, A, L, 1, PX, E, C>(s, b, c, n, acc);
    }
};

}  // namespace depthwise
