// needs: attention movement
// Attention over a cache in blocks: the keys of a text are runs of P::block_size rows, which its table lists. The keys of a query are visited
// in the order of their positions, in chunks that depend on the position alone, so that a result has the same bits whatever the other queries are.

// The keys at positions first .. last - 1 of one text. P: as for attention_few, and block_size, blocks (of the cache).
// work: queries [queries][wide_d], scores [block + L]. scratch: the start of the stage's scratch, for errors.
// mask(score, query, position): with P::masked, the score plus a bias.
template <class P, class I, class Mask>
INLINE void attention_paged(const typename P::S *q, const typename P::S *k, const typename P::S *v, const I *table, typename P::T scale,
                            int64_t first, int64_t last, typename P::T *state, typename P::T *work, void *scratch,
                            Mask mask) {
    typedef typename P::T T;
    T *q_scaled = work, *scores = q_scaled + P::queries * AttentionFew<P>::wide_d;
    attention_few_start<P>(q, scale, state, q_scaled, [](int64_t i) { return i * P::q_head; });
    for (int64_t at = first; at < last;) {
        int64_t block = (int64_t)table[at / P::block_size * P::table_step];
        if ((uint64_t)block >= (uint64_t)P::blocks) {
            fail(scratch, INDEX_OUTSIDE, block, P::blocks);
            block = 0;
        }
        const int64_t in_block = at % P::block_size, row = block * P::block_size + in_block;
        int64_t keys = P::block_size - in_block;
        keys = keys < P::block ? keys : P::block;
        keys = keys < last - at ? keys : last - at;
        attention_few_keys<P>(q_scaled, k + row * P::k_row, v + row * P::v_row, at, keys, state, scores, [](int64_t) { return (int64_t)0; },
                              mask);
        at += keys;
    }
}
