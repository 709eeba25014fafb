// needs: tensor
// log_sum_exp.cuh: the log-sum-exp of a query, which attention in training keeps for its gradients.

// From the maximum of the logits to base 2, and the sum of the exponentials less that maximum. A query that sees no key has the sum 0.
__device__ __forceinline__ float log_sum_exp(float row_max, float row_sum) {
    return row_sum == 0 ? MASKED_SCORE : row_max * 0.69314718055994531f + logf(row_sum);
}
