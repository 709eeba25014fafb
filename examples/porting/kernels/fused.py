# Kernels of several steps.
import numpy as np


def softmax(x, *, out, dim):
    shifted = np.exp(x - x.max(dim, keepdims=True))
    np.divide(shifted, shifted.sum(dim, keepdims=True), out=out)


def clone(x, *, out):
    out[...] = x


def permute(x, *, out, dims):
    out[...] = x.transpose(dims)
