# `_t`: the right side is [n, k]; `_vec`: the left side is one row.
import numpy as np


def matmul_tiled(a, b, *, out):
    np.matmul(a, b, out=out)


def matmul_tiled_t(a, b, bias=None, *, out):
    np.matmul(a, b.swapaxes(-1, -2), out=out)
    if bias is not None:
        out += bias


matmul_vec, matmul_vec_t = matmul_tiled, matmul_tiled_t
